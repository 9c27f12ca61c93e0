"""Bytes become types here and nowhere else.

``MessageError`` (a ``ValueError``) is the only error: the text says which field is wrong and what was expected.
"""

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

MAX_KINDS = 256  # Decoders that are kept; there are some ninety kinds of message, and a caller can make more.
MAX_MESSAGE = 1 << 20  # Control messages are a few kilobytes; an SDP of 64 KB and a plan of 2,000 members fit.


class MessageError(ValueError):
    """Bytes that are not one of the messages expected here."""


def encode(message: msgspec.Struct) -> bytes:
    """MessagePack of one message."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes | bytearray | memoryview, kind: Any, limit: int = MAX_MESSAGE) -> Any:
    """One message of ``kind`` (a Struct or a union of them) from MessagePack.

    Raises:
        MessageError: too long, malformed, an unknown type or field, or a value out of its bounds.
    """
    return _guarded(_messagepack(kind), data, limit)


def encode_json(message: Any) -> bytes:
    """Canonical JSON (sorted keys) of one message: hashing it twice gives the same digest."""
    return msgspec.json.encode(message, order="sorted")


def decode_json(data: bytes | bytearray | memoryview | str, kind: Any, limit: int = MAX_MESSAGE) -> Any:
    """One message of ``kind`` from JSON; raises ``MessageError`` as ``decode`` does."""
    return _guarded(_json(kind), data.encode() if isinstance(data, str) else data, limit)


def convert(value: Any, kind: Any) -> Any:
    """A ``kind`` from plain data (a parsed YAML document, say); raises ``MessageError``."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise MessageError(str(error)) from error


# ``msgspec.msgpack.decode(data, type=kind)`` looks through a union anew each time: 6.6 us for a heartbeat instead of 1.0.
@lru_cache(MAX_KINDS)
def _messagepack(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


@lru_cache(MAX_KINDS)
def _json(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _guarded(
    decoder: msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any], data: bytes | bytearray | memoryview, limit: int
) -> Any:
    if len(data) > limit:
        raise MessageError(f"a message of {len(data):,} bytes: at most {limit:,} are taken here")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MessageError(str(error)) from error
