"""Bytes become types here and nowhere else.

``MessageError`` (a ``ValueError``) is the only error: the text says which field is wrong and what was expected.
"""

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from protocol.refusals import malformed, refusal

T = TypeVar("T")

MAX_KINDS = 256  # Decoders that are kept; there are some ninety kinds of message, and a caller can make more.
LARGEST_BITS = 1_000  # Of an integer that has a float beside it.
MAX_MESSAGE = 1 << 20  # Control messages are a few kilobytes; an SDP of 64 KB and a plan of 2,000 members fit.


class MessageError(ValueError):
    """Bytes that are not one of the messages expected here.

    Attributes:
        field: where in them, as in ``training.tokens``; empty where it is the whole.
        words: what is wrong there, without the place.
    """

    def __init__(self, text: str, field: str = "", words: str = "") -> None:
        super().__init__(text)
        self.field = field
        self.words = words or text


def encode(message: msgspec.Struct) -> bytes:
    """MessagePack of one message."""
    return msgspec.msgpack.encode(message)


def as_packed(value: Any) -> Any:
    """Plain data with integers for which MessagePack has no room as floats: tokenizers have 1e30 tokens for "no limit".

    Args:
        value: of integers up to ``LARGEST_BITS``, and not deep.
    """
    if isinstance(value, dict):
        return {key: as_packed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [as_packed(part) for part in value]
    return float(value) if type(value) is int and not -(2**63) <= value < 2**63 else value


def decode(data: bytes | bytearray | memoryview, kind: Any, limit: int = MAX_MESSAGE) -> Any:
    """One message of ``kind`` (a Struct or a union of them) from MessagePack.

    Raises:
        MessageError: too long, malformed, an unknown type or field, or a value out of its bounds.
    """
    return _guarded(_messagepack(kind), kind, data, limit)


def encode_json(message: Any) -> bytes:
    """Canonical JSON (sorted keys) of one message: hashing it twice gives the same digest."""
    return msgspec.json.encode(message, order="sorted")


def decode_json(data: bytes | bytearray | memoryview | str, kind: Any, limit: int = MAX_MESSAGE) -> Any:
    """One message of ``kind`` from JSON; raises ``MessageError`` as ``decode`` does."""
    return _guarded(_json(kind), kind, data.encode() if isinstance(data, str) else data, limit)


def convert(value: Any, kind: Any) -> Any:
    """A ``kind`` from plain data (a parsed YAML document, say); raises ``MessageError``."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refused(error, kind, value) from error
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise MessageError(_unreadable(error, b"-")) from error


# ``msgspec.msgpack.decode(data, type=kind)`` looks through a union anew each time: 6.6 us for a heartbeat instead of 1.0.
@lru_cache(MAX_KINDS)
def _messagepack(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


@lru_cache(MAX_KINDS)
def _json(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _guarded(
    decoder: msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any],
    kind: Any,
    data: bytes | bytearray | memoryview,
    limit: int,
) -> Any:
    if len(data) > limit:
        raise MessageError(f"a message of {len(data):,} bytes: at most {limit:,} are taken here")
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _refused(error, kind, _plain(decoder, data)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MessageError(_unreadable(error, bytes(data))) from error


def _refused(error: msgspec.ValidationError, kind: Any, value: Any) -> MessageError:
    found = refusal(str(error), kind, value)
    return MessageError(str(found), found.field, found.words)


def _plain(decoder: Any, data: bytes | bytearray | memoryview) -> Any:
    """The same data without a type, so that the value in question can be shown; messages between machines show none."""
    if not isinstance(decoder, msgspec.json.Decoder):
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _unreadable(error: Exception, data: bytes) -> str:
    match error:
        case UnicodeError():
            return "it holds text that is not UTF-8"
        case RecursionError():
            return "it is nested too deeply"
        case OverflowError():
            return "it holds a number that is too large to be kept"
        case _:
            return malformed(str(error), data)
