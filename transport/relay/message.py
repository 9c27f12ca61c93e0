"""STUN messages as bytes: strict in, minimal out (RFC 8489 section 14, RFC 8656 section 18, RFC 5780 section 7).

aioice's own reader keeps one attribute of a kind and skips those it does not know; a server must see all of them. Its arithmetic
for addresses, integrity and fingerprint is used.
"""

import hmac
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from aioice import stun
from aioice.stun import Class, Method

from transport.relay.errors import MalformedMessageError

Address = tuple[str, int]
"""IP address and port."""

MAX_ATTRIBUTES = 64  # The longest honest request, a permission for every peer of a node, stays below.
_REQUIRED_BELOW = 0x8000  # RFC 8489 section 14: attributes below must be understood.
_METHODS = {int(method): method for method in Method}
_CLASS_BITS = 0x0110
_METHOD_BITS = 0x3EEF


class Attribute(IntEnum):
    """The attributes that a relay reads or writes."""

    CHANGE_REQUEST = 0x0003
    USERNAME = 0x0006
    MESSAGE_INTEGRITY = 0x0008
    ERROR_CODE = 0x0009
    UNKNOWN_ATTRIBUTES = 0x000A
    CHANNEL_NUMBER = 0x000C
    LIFETIME = 0x000D
    XOR_PEER_ADDRESS = 0x0012
    DATA = 0x0013
    REALM = 0x0014
    NONCE = 0x0015
    XOR_RELAYED_ADDRESS = 0x0016
    REQUESTED_ADDRESS_FAMILY = 0x0017
    REQUESTED_TRANSPORT = 0x0019
    DONT_FRAGMENT = 0x001A
    XOR_MAPPED_ADDRESS = 0x0020
    PRIORITY = 0x0024
    USE_CANDIDATE = 0x0025
    SPEED_TEST = 0x6C07  # Our own, of those that must be understood: another relay answers 420.
    FINGERPRINT = 0x8028
    RESPONSE_ORIGIN = 0x802B
    OTHER_ADDRESS = 0x802C


_UNDERSTOOD = frozenset(Attribute)


@dataclass(frozen=True, slots=True)
class StunMessage:
    """A STUN message as it came.

    Attributes:
        attributes: type and value in order; what follows MESSAGE-INTEGRITY is left out, since nobody vouches for it.
        signed: the bytes that MESSAGE-INTEGRITY covers; empty where there is none.
        mac: the value of MESSAGE-INTEGRITY.
    """

    method: Method
    kind: Class
    transaction: bytes
    attributes: tuple[tuple[int, bytes], ...]
    signed: bytes
    mac: bytes

    def get(self, wanted: Attribute) -> bytes | None:
        """The first attribute of this type (RFC 8489 section 14: later ones are ignored)."""
        return next((value for number, value in self.attributes if number == wanted), None)

    def number(self, wanted: Attribute) -> int | None:
        """An attribute of 32 bits.

        Raises:
            MalformedMessageError: another length.
        """
        value = self.get(wanted)
        if value is None:
            return None
        if len(value) != 4:
            raise MalformedMessageError(f"{wanted.name} has 4 bytes, not {len(value)}")
        return int.from_bytes(value, "big")

    def text(self, wanted: Attribute) -> str:
        """An attribute in UTF-8; empty where there is none.

        Raises:
            MalformedMessageError: not UTF-8.
        """
        try:
            return (self.get(wanted) or b"").decode()
        except UnicodeDecodeError:
            raise MalformedMessageError(f"{wanted.name} is not UTF-8") from None

    def peers(self) -> list[Address]:
        """Every XOR-PEER-ADDRESS.

        Raises:
            MalformedMessageError: one of them is no address.
        """
        try:
            return [
                stun.unpack_xor_address(value, self.transaction)
                for number, value in self.attributes
                if number == Attribute.XOR_PEER_ADDRESS
            ]
        except ValueError as error:
            raise MalformedMessageError(f"XOR-PEER-ADDRESS is no address: {error}") from None

    def not_understood(self) -> list[int]:
        """Types of attributes that must be understood and are not, each once, in order."""
        unknown = (number for number, _ in self.attributes if number < _REQUIRED_BELOW and number not in _UNDERSTOOD)
        return list(dict.fromkeys(unknown))

    def signed_with(self, key: bytes) -> bool:
        """Whether MESSAGE-INTEGRITY is there and fits ``key``."""
        return bool(self.signed) and hmac.compare_digest(self.mac, stun.message_integrity(self.signed, key))


def parse(data: bytes) -> StunMessage:
    """Read one STUN message.

    Raises:
        MalformedMessageError: anything else.
    """
    if len(data) < stun.HEADER_LENGTH or len(data) % 4 or data[0] & 0xC0:
        raise MalformedMessageError("no STUN header")
    number, length, cookie, transaction = struct.unpack_from("!HHI12s", data)
    if cookie != stun.COOKIE or length != len(data) - stun.HEADER_LENGTH:
        raise MalformedMessageError("no STUN cookie, or another length")
    method = _METHODS.get(number & _METHOD_BITS)
    if method is None:
        raise MalformedMessageError(f"unknown method {number & _METHOD_BITS:#x}")
    attributes, signed, mac = _attributes(data)
    return StunMessage(method, Class(number & _CLASS_BITS), transaction, tuple(attributes), signed, mac)


def _attributes(data: bytes) -> tuple[list[tuple[int, bytes]], bytes, bytes]:
    found: list[tuple[int, bytes]] = []
    signed = mac = b""
    position = stun.HEADER_LENGTH
    while position < len(data):
        number, length = struct.unpack_from("!HH", data, position)
        value = data[position + 4 : position + 4 + length]
        if len(value) != length:
            raise MalformedMessageError("an attribute reaches past the end")
        if number == Attribute.FINGERPRINT:
            if length != 4 or int.from_bytes(value, "big") != stun.message_fingerprint(data[:position]):
                raise MalformedMessageError("the fingerprint does not fit")
        elif not signed:
            if number == Attribute.MESSAGE_INTEGRITY:
                signed, mac = data[:position], value
            else:
                found.append((number, value))
        if len(found) > MAX_ATTRIBUTES:
            raise MalformedMessageError(f"more than {MAX_ATTRIBUTES} attributes")
        position += 4 + length + (-length % 4)
    return found, signed, mac


def encode(
    method: Method,
    kind: Class,
    transaction: bytes,
    attributes: Iterable[tuple[Attribute, bytes]],
    key: bytes | None = None,
) -> bytes:
    """Write one message; with ``key`` it ends with MESSAGE-INTEGRITY."""
    body = b"".join(
        struct.pack("!HH", number, len(value)) + value + bytes(-len(value) % 4) for number, value in attributes
    )
    data = struct.pack("!HHI12s", method | kind, len(body), stun.COOKIE, transaction) + body
    if key is None:
        return data
    mac = stun.message_integrity(data, key)
    data = stun.set_body_length(data, len(body) + stun.INTEGRITY_LENGTH)
    return data + struct.pack("!HH", Attribute.MESSAGE_INTEGRITY, len(mac)) + mac


def address(value: Address) -> bytes:
    """MAPPED-ADDRESS and its like (RFC 8489 section 14.1)."""
    return stun.pack_address(value)


def xor_address(value: Address, transaction: bytes) -> bytes:
    """XOR-MAPPED-ADDRESS and its like (RFC 8489 section 14.2)."""
    return stun.pack_xor_address(value, transaction)


def uint32(value: int) -> bytes:
    """Four bytes."""
    return value.to_bytes(4, "big")


def error(code: int, reason: str) -> bytes:
    """ERROR-CODE (RFC 8489 section 14.8)."""
    return stun.pack_error_code((code, reason))


def unknown(types: Sequence[int]) -> bytes:
    """UNKNOWN-ATTRIBUTES (RFC 8489 section 14.9)."""
    return struct.pack(f"!{len(types)}H", *types)
