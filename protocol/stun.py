"""A STUN Binding, the smallest question that a relay answers: is it there, how far away, and as whom does it see the asker.

Source: RFC 8489, sections 5 (header), 6.3 (Binding) and 14.2 (XOR-MAPPED-ADDRESS).
"""

import ipaddress
import struct
from typing import NamedTuple

MAGIC_COOKIE = 0x2112A442
TRANSACTION_BYTES = 12
HEADER_BYTES = 20
MAX_ANSWER = 1500  # One datagram; a Binding answer takes under 100 bytes.

_REQUEST = 0x0001
_SUCCESS = 0x0101
_XOR_MAPPED_ADDRESS = 0x0020
_IPV4, _IPV6 = 1, 2


class StunError(ValueError):
    """Bytes that are no successful answer to the Binding that was asked."""


class Endpoint(NamedTuple):
    """Where a datagram came from, as the server saw it."""

    host: str
    port: int


def encode_binding(transaction: bytes) -> bytes:
    """The request.

    Args:
        transaction: 12 unpredictable bytes; the answer repeats them.
    Raises:
        ValueError: another length.
    """
    if len(transaction) != TRANSACTION_BYTES:
        raise ValueError(f"a STUN transaction has {TRANSACTION_BYTES} bytes, not {len(transaction)}")
    return struct.pack("!HHI", _REQUEST, 0, MAGIC_COOKIE) + transaction


def decode_binding(answer: bytes, transaction: bytes) -> Endpoint:
    """The asker's address as the answer to ``encode_binding(transaction)`` tells it.

    Raises:
        StunError: malformed, an error, an answer to another question, or without the address.
    """
    if not HEADER_BYTES <= len(answer) <= MAX_ANSWER:
        raise StunError(f"{len(answer)} bytes are no STUN answer")
    kind, length, cookie = struct.unpack_from("!HHI", answer)
    if cookie != MAGIC_COOKIE or length % 4 or HEADER_BYTES + length != len(answer):
        raise StunError("the answer is not STUN, or not whole")
    if answer[8:HEADER_BYTES] != transaction:
        raise StunError("the answer is to another question")
    if kind != _SUCCESS:
        raise StunError(f"the answer is of type {kind:#06x}, not a Binding success")
    at = HEADER_BYTES
    while at + 4 <= len(answer):
        attribute, size = struct.unpack_from("!HH", answer, at)
        value = answer[at + 4 : at + 4 + size]
        if attribute == _XOR_MAPPED_ADDRESS and len(value) == size:
            return _address(value, transaction)
        at += 4 + size + (-size % 4)
    raise StunError("the answer does not tell the address")


def _address(value: bytes, transaction: bytes) -> Endpoint:
    mask = struct.pack("!I", MAGIC_COOKIE) + transaction
    if len(value) < 4 or (value[1], len(value)) not in ((_IPV4, 8), (_IPV6, 20)):
        raise StunError("the address in the answer is neither IPv4 nor IPv6")
    port = struct.unpack_from("!H", value, 2)[0] ^ (MAGIC_COOKIE >> 16)
    host = bytes(a ^ b for a, b in zip(value[4:], mask, strict=False))
    return Endpoint(str(ipaddress.ip_address(host)), port)
