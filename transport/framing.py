"""What two peers put on a lane: messages cut into frames, and the few frames that steer them.

A message begins with BEGIN (id, length, checksum, header) and goes on with MORE frames, in order, all on its own lane; MORE
frames of several messages may alternate. A small message is *eager*: its bytes follow at once, within a window. A larger one
waits for GRANT, so the receiver never holds what it did not agree to. ACK says that the receiver's handler has finished.

All integers are big-endian::

    BEGIN   01  id u64  total u64  crc u32  eager u8  header (to the end, <= 4 KiB)
    MORE    02  id u64  offset u64  bytes (to the end, 1 B - 16 KiB)
    CANCEL  03  id u64                 the sender has given up; answered with ACK or FAIL like a delivery
    GRANT   04  id u64                 the receiver has room for it
    ACK     05  id u64                 taken
    FAIL    06  id u64  reason (UTF-8, <= 200 B)
    PING    07  u32  floor u64         every id below floor is settled for good; answered with PONG
    PONG    08  u32
"""

import struct
import zlib
from dataclasses import dataclass

from transport.errors import MalformedFrameError, MessageLimitError

MAX_FRAME = (
    16 * 1024
)  # The cheapest of 8 to 200 KB per byte sent through aiortc, and short enough to share a slow uplink.
MAX_HEADER = 4096  # A header says what a payload is; anything longer belongs into the payload.
MAX_PAYLOAD = 512 * 1024 * 1024  # One stage's state or pseudo-gradient; more is sent in several messages.
MAX_REASON = 200  # Shown in a log line.

_BEGIN = struct.Struct("!BQQIB")
_MORE = struct.Struct("!BQQ")
_ID = struct.Struct("!BQ")
_PING = struct.Struct("!BIQ")
_PONG = struct.Struct("!BI")

CHUNK = MAX_FRAME - _MORE.size


@dataclass(frozen=True, slots=True)
class Begin:
    """Opens a message: ``total`` payload bytes, CRC-32 of header and payload, and whether the bytes follow unasked."""

    id: int
    total: int
    crc: int
    eager: bool
    header: bytes


@dataclass(frozen=True, slots=True)
class More:
    """Payload bytes of a message from ``offset`` on."""

    id: int
    offset: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Cancel:
    """The sender no longer wants the message delivered."""

    id: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The receiver has reserved memory for the message."""

    id: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The receiver is done with the message."""

    id: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The receiver could not take the message."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a Pong with the same number; every message id below ``floor`` is settled for good."""

    seq: int
    floor: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a Ping."""

    seq: int


Frame = Begin | More | Cancel | Grant | Ack | Fail | Ping | Pong


def checksum(header: bytes, payload: bytes | bytearray | memoryview) -> int:
    """CRC-32 over header and payload. DTLS already keeps forgers out; this finds mistakes of our own."""
    return zlib.crc32(payload, zlib.crc32(header))


def check_message(header: bytes, size: int) -> None:
    """Refuse a message that the framing cannot carry.

    Raises:
        MessageLimitError: header above ``MAX_HEADER`` or payload above ``MAX_PAYLOAD`` bytes.
    """
    if len(header) > MAX_HEADER:
        raise MessageLimitError(f"header of {len(header)} bytes: at most {MAX_HEADER}; move it into the payload")
    if size > MAX_PAYLOAD:
        raise MessageLimitError(f"payload of {size} bytes: at most {MAX_PAYLOAD}; send it in several messages")


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame; the caller keeps within the limits above."""
    match frame:
        case More():
            return b"".join((_MORE.pack(2, frame.id, frame.offset), frame.data))
        case Begin():
            return _BEGIN.pack(1, frame.id, frame.total, frame.crc, frame.eager) + frame.header
        case Cancel():
            return _ID.pack(3, frame.id)
        case Grant():
            return _ID.pack(4, frame.id)
        case Ack():
            return _ID.pack(5, frame.id)
        case Fail():
            return _ID.pack(6, frame.id) + _reason_bytes(frame.reason)
        case Ping():
            return _PING.pack(7, frame.seq, frame.floor)
        case Pong():
            return _PONG.pack(8, frame.seq)


def decode(data: bytes) -> Frame:
    """Return the frame that ``data`` holds.

    Raises:
        MalformedFrameError: unknown kind, wrong length, or a length out of bounds.
    """
    if not 1 <= len(data) <= MAX_FRAME:
        raise MalformedFrameError(f"frame of {len(data)} bytes: 1 to {MAX_FRAME} are allowed")
    match data[0]:
        case 2:
            return _decode_more(data)
        case 1:
            return _decode_begin(data)
        case 3:
            return Cancel(_exactly(_ID, data)[1])
        case 4:
            return Grant(_exactly(_ID, data)[1])
        case 5:
            return Ack(_exactly(_ID, data)[1])
        case 6:
            if len(data) < _ID.size:
                raise MalformedFrameError("FAIL frame is cut short")
            return Fail(_ID.unpack_from(data)[1], _reason(data[_ID.size :]))
        case 7:
            return Ping(*_exactly(_PING, data)[1:])
        case 8:
            return Pong(*_exactly(_PONG, data)[1:])
        case kind:
            raise MalformedFrameError(f"frame of unknown kind {kind}")


def _decode_begin(data: bytes) -> Begin:
    if not _BEGIN.size <= len(data) <= _BEGIN.size + MAX_HEADER:
        raise MalformedFrameError(f"BEGIN frame of {len(data)} bytes")
    _, ident, total, crc, eager = _BEGIN.unpack_from(data)
    if total > MAX_PAYLOAD or eager > 1:
        raise MalformedFrameError(f"BEGIN announces {total} bytes (at most {MAX_PAYLOAD}), eager {eager}")
    return Begin(ident, total, crc, eager == 1, data[_BEGIN.size :])


def _decode_more(data: bytes) -> More:
    if len(data) <= _MORE.size:
        raise MalformedFrameError("MORE frame without payload")
    _, ident, offset = _MORE.unpack_from(data)
    return More(ident, offset, memoryview(data)[_MORE.size :])


def _exactly(form: struct.Struct, data: bytes) -> tuple[int, ...]:
    if len(data) != form.size:
        raise MalformedFrameError(f"frame of kind {data[0]} has {len(data)} bytes, expected {form.size}")
    return form.unpack(data)


def _reason_bytes(reason: str) -> bytes:
    return reason.encode()[:MAX_REASON]


def _reason(data: bytes) -> str:
    if len(data) > MAX_REASON:
        raise MalformedFrameError(f"reason of {len(data)} bytes: at most {MAX_REASON}")
    return "".join(char if char.isprintable() else "?" for char in data.decode("utf-8", "replace"))
