"""Base-58 text of bytes of any length; ``solders`` offers it for keys and signatures only."""

from __future__ import annotations

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def encode(data: bytes) -> str:
    """Write bytes in base 58; leading zero bytes become leading ones."""
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def decode(text: str) -> bytes:
    """Read base 58.

    Raises:
        ValueError: a character outside the alphabet.
    """
    number = 0
    for character in text:
        number = number * 58 + _ALPHABET.index(character)
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
