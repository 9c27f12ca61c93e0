"""Base58 in the alphabet of Bitcoin and Solana, with bounds: the only one in the project."""

from common.errors import BadAddressError

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
MAX_BYTES = 1232  # A Solana transaction; the conversion is quadratic, so hostile text must stay short.
MAX_CHARS = 1683  # ceil(1232 * log(256) / log(58))

_VALUES = {char: value for value, char in enumerate(ALPHABET)}


def encode(data: bytes) -> str:
    """Return ``data`` as base58.

    Raises:
        BadAddressError: more than ``MAX_BYTES`` bytes.
    """
    if len(data) > MAX_BYTES:
        raise BadAddressError(f"{len(data)} bytes are too many for base58: at most {MAX_BYTES}")
    number = int.from_bytes(data, "big")
    digits: list[str] = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(ALPHABET[digit])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return ALPHABET[0] * zeros + "".join(reversed(digits))


def decode(text: str, length: int | None = None) -> bytes:
    """Return the bytes that ``text`` stands for.

    Args:
        text: base58, at most ``MAX_CHARS`` characters.
        length: the exact number of bytes that the caller expects, where it expects one.
    Raises:
        BadAddressError: a foreign character, too long a text or another number of bytes.
    """
    most = MAX_CHARS if length is None else 2 * length
    if len(text) > most:
        raise BadAddressError(f"base58 text of {len(text)} characters is too long: at most {most}")
    number = 0
    for char in text:
        value = _VALUES.get(char)
        if value is None:
            raise BadAddressError(f"{_shown(text)} is not base58: it holds {char!r}")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip(ALPHABET[0]))
    size = zeros + (number.bit_length() + 7) // 8
    if length is not None and size != length:
        raise BadAddressError(f"{_shown(text)} stands for {size} bytes, expected {length}")
    return number.to_bytes(size, "big")


def _shown(text: str) -> str:
    """For messages: its ends. What is pasted in an address' place may be the secret of a wallet."""
    return repr(text if len(text) <= 16 else f"{text[:4]}…{text[-4:]}")
