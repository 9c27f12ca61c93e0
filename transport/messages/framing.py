"""What two peers put on a lane: messages cut into frames, and the few frames that steer them.

A message begins with BEGIN (id, length, header) and goes on with MORE frames, all on its own lane; MORE frames of several
messages may alternate. They are sent in order and, but for the control lane, may arrive in any. A small message is *eager*: its
bytes follow at once, within a window. Any other waits for GRANT, which says how far the bytes may go, so the receiver never holds
what it did not agree to. GRANT also says what the receiver holds: the sender of a *stream* may forget that, and a message that is
begun *again* over a new link, eager or not, goes on from there. ACK says that the receiver's handler has finished.

All integers are big-endian; the checksums are CRC-32C over all of the frame that is not the checksum::

    BEGIN   01  id u64  total u64  flags u8  crc u32  header (to the end, <= 4 KiB)
                                       1 eager, 2 stream, 4 again
    MORE    02  id u64  offset u64  crc u32  bytes (to the end, at least one)
    CANCEL  03  id u64                 nothing more comes of it; answered with ACK or FAIL
    GRANT   04  id u64  have u64  upto u64   every byte below have is there, and there is room for those below upto
    ACK     05  id u64                 taken
    FAIL    06  id u64  reason (UTF-8, <= 200 B)
    PING    07  u32  floor u64         every id below floor is settled for good; answered with PONG
    PONG    08  u32
"""

import struct
from dataclasses import dataclass

from google_crc32c import extend, value

from common.errors import MalformedFrameError, MessageLimitError
from common.untrusted_text import untrusted

MAX_FRAME = 64 * 1024  # What every WebRTC stack takes in one message without being asked (RFC 8841, section 6.1).
MIN_FRAME = 4 * 1024  # Shorter frames cost more in Python than they save on the slowest line.
MAX_HEADER = 4096  # A header says what a payload is; anything longer belongs into the payload.
MAX_PAYLOAD = 2 << 30  # One stage's state; more is sent in several messages.
MAX_REASON = 200  # Shown in a log line.

_BEGIN = struct.Struct("!BQQBI")
_MORE = struct.Struct("!BQQI")
_CRC = struct.Struct("!I")
_ID = struct.Struct("!BQ")
_GRANT = struct.Struct("!BQQQ")
_PING = struct.Struct("!BIQ")
_PONG = struct.Struct("!BI")

MORE_OVERHEAD = _MORE.size
CHUNK = MAX_FRAME - MORE_OVERHEAD

_EAGER, _STREAM, _AGAIN = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Begin:
    """Opens a message of ``total`` payload bytes, or opens it again over a new link.

    Attributes:
        eager: the bytes follow unasked (unless ``again``).
        stream: made while it is sent; to be handed on while it arrives.
        again: it was announced over an earlier link: the sender wants to know what is there.
    """

    id: int
    total: int
    eager: bool
    header: bytes
    stream: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class More:
    """Payload bytes of a message from ``offset`` on."""

    id: int
    offset: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nothing more comes of the message: given up, or answered before all of it was sent."""

    id: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The receiver holds every byte below ``have`` and has room for those below ``upto``."""

    id: int
    have: int
    upto: int


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
            return _checked(_MORE.pack(2, frame.id, frame.offset, 0), bytes(frame.data))
        case Begin():
            flags = _EAGER * frame.eager | _STREAM * frame.stream | _AGAIN * frame.again
            return _checked(_BEGIN.pack(1, frame.id, frame.total, flags, 0), frame.header)
        case Cancel():
            return _ID.pack(3, frame.id)
        case Grant():
            return _GRANT.pack(4, frame.id, frame.have, frame.upto)
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
        MalformedFrameError: unknown kind, wrong length, a length out of bounds, or damage.
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
            return _decode_grant(data)
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
    _, ident, total, flags, crc = _BEGIN.unpack_from(data)
    if total > MAX_PAYLOAD or flags > (_STREAM | _AGAIN | _EAGER) or (flags & _EAGER and flags & _STREAM):
        raise MalformedFrameError(f"BEGIN announces {total} bytes (at most {MAX_PAYLOAD}), flags {flags}")
    header = _checked_rest(data, _BEGIN, crc)
    return Begin(ident, total, bool(flags & _EAGER), header, bool(flags & _STREAM), bool(flags & _AGAIN))


def _decode_more(data: bytes) -> More:
    if len(data) <= _MORE.size:
        raise MalformedFrameError("MORE frame without payload")
    _, ident, offset, crc = _MORE.unpack_from(data)
    return More(ident, offset, _checked_rest(data, _MORE, crc))


def _decode_grant(data: bytes) -> Grant:
    _, ident, have, upto = _exactly(_GRANT, data)
    if have > upto:
        raise MalformedFrameError(f"GRANT of room up to {upto} where {have} bytes are there")
    return Grant(ident, have, upto)


def _checked(blank: bytes, rest: bytes) -> bytes:
    """A frame of a head, whose last field is for the checksum, and the rest."""
    head = blank[: -_CRC.size]
    return b"".join((head, _CRC.pack(extend(value(head), rest)), rest))


def _checked_rest(data: bytes, form: struct.Struct, crc: int) -> bytes:
    """What follows the head. DTLS already keeps forgers out; this finds mistakes of our own before anybody sees the bytes."""
    rest = data[form.size :]
    found: int = extend(value(data[: form.size - _CRC.size]), rest)
    if found != crc:
        raise MalformedFrameError(f"frame of kind {data[0]} arrived damaged: checksum {found:08x}, not {crc:08x}")
    return rest


def _exactly(form: struct.Struct, data: bytes) -> tuple[int, ...]:
    if len(data) != form.size:
        raise MalformedFrameError(f"frame of kind {data[0]} has {len(data)} bytes, expected {form.size}")
    return form.unpack(data)


def _reason_bytes(reason: str) -> bytes:
    return reason.encode()[:MAX_REASON]


def _reason(data: bytes) -> str:
    if len(data) > MAX_REASON:
        raise MalformedFrameError(f"reason of {len(data)} bytes: at most {MAX_REASON}")
    return untrusted(data.decode("utf-8", "replace"))
