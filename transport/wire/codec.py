"""Bytes become types here and nowhere else.

``MessageError`` (a ``ValueError``) is the only error: the text says which field is wrong and what was expected.
"""

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

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
    return _guarded(msgspec.msgpack.decode, data, kind, limit)


def encode_json(message: Any) -> bytes:
    """Canonical JSON (sorted keys) of one message: hashing it twice gives the same digest."""
    return msgspec.json.encode(message, order="sorted")


def decode_json(data: bytes | bytearray | memoryview | str, kind: Any, limit: int = MAX_MESSAGE) -> Any:
    """One message of ``kind`` from JSON; raises ``MessageError`` as ``decode`` does."""
    return _guarded(msgspec.json.decode, data.encode() if isinstance(data, str) else data, kind, limit)


def convert(value: Any, kind: Any) -> Any:
    """A ``kind`` from plain data (a parsed YAML document, say); raises ``MessageError``."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise MessageError(str(error)) from error


def _guarded(decoder: Any, data: bytes | bytearray | memoryview, kind: Any, limit: int) -> Any:
    if len(data) > limit:
        raise MessageError(f"a message of {len(data):,} bytes: at most {limit:,} are taken here")
    try:
        return decoder(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MessageError(str(error)) from error
