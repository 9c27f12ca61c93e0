"""Hostile bytes for everything that parses before anybody is known: whatever comes, one typed error or a message (row F27).

Half of the cases are drawn from the types themselves and then spoilt, so that they get past the first byte; the rest are those
bytes bent, doubled, nested, or noise.
"""

import contextlib
import json
import math
import random
import resource
import string
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from common.errors import MalformedFrameError, MessageLimitError, SignalError
from protocol import codec
from protocol.job.job import JobSpec
from protocol.network import RelayEnvelope
from protocol.node import CoordinatorMessage, NodeMessage
from protocol.rest.api import NewUpload
from protocol.stun import StunError, decode_binding
from protocol.worker import AgentMessage, WorkerMessage
from transport.ice.sdp import read_description
from transport.messages import framing
from transport.peer.signalling import SignalBody, SignalEnvelope

_MSGPACK = (NodeMessage, CoordinatorMessage, WorkerMessage, AgentMessage, SignalEnvelope, SignalBody)
_JSON = (JobSpec, NewUpload, RelayEnvelope)
_ASKED = b"t" * 12
_HOSTILE: Final = (
    *(0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, math.nan, math.inf, -math.inf, 1e308),
    *(
        "",
        "a\0b",
        "\u202e",
        "x" * 5000,
        "../../etc/passwd",
        b"",
        b"\xff" * 40,
        None,
        True,
        [],
        {},
        [[[[]]]],
        {"type": 1},
    ),
)
SDP = (
    "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n"
    "c=IN IP4 0.0.0.0\r\na=mid:0\r\na=sctp-port:5000\r\na=max-message-size:65536\r\na=ice-ufrag:abcd\r\na=ice-pwd:"
    + "p" * 22
    + "\r\na=fingerprint:sha-256 "
    + ":".join(["AB"] * 32)
    + "\r\na=setup:actpass\r\n"
    "a=candidate:1 1 udp 2130706431 127.0.0.1 9 typ host\r\na=end-of-candidates\r\n"
)


class WireStorm:
    """A source of hostile bytes, and the parsers that they are thrown at."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._types = {kind: inspect.type_info(kind) for kind in {*_MSGPACK, *_JSON}}
        self.ends = Counter[str]()
        self._parsers: tuple[tuple[str, Callable[[], bool]], ...] = (
            *((("msgpack", self._message),) * 5),
            *((("json", self._document),) * 3),
            ("frame", self._frame),
            ("stun", self._stun),
            ("description", self._description),
        )

    def run(self, cases: int) -> None:
        """Parse ``cases`` times; ``ends`` counts what was a message after all.

        Raises:
            Exception: any other than the one that a parser promises.
            AssertionError: what was taken does not come back from its own encoding.
        """
        for _ in range(cases):
            name, parse = self._chance.choice(self._parsers)
            self.ends[f"{name} {'taken' if parse() else 'refused'}"] += 1

    def _message(self) -> bool:
        kind = self._chance.choice(_MSGPACK)
        data = self._spoilt(self._drawn(kind, msgspec.msgpack.encode), b"\x81\xa1a", b"\x91")
        return comes_back(data, lambda part: codec.decode(part, kind), codec.encode)

    def _document(self) -> bool:
        kind = self._chance.choice(_JSON)
        encode = msgspec.json.encode if self._chance.random() < 0.5 else lambda plain: json.dumps(plain).encode()
        data = self._spoilt(self._drawn(kind, encode), b'{"a":', b"[")
        return comes_back(data, lambda part: codec.decode_json(part, kind), codec.encode_json)

    def _frame(self) -> bool:
        frame = self._chance.choice(frames(self._chance))
        return frame_holds(self._spoilt(framing.encode(frame), b"\x02", b"\x01"))

    def _stun(self) -> bool:
        return binding_holds(self._spoilt(binding(self._chance.randint(0, 3)), b"\0\x20", b"\0"))

    def _description(self) -> bool:
        return description_holds(self._spoilt(SDP.encode(), b"a=candidate:1 1 udp 1 10.0.0.1 9 typ host\r\n", b"m="))

    def drawn(self, kind: Any) -> bytes:
        """A message of ``kind``, as its own side encodes it; now and then with a wrong value."""
        return self._drawn(kind, msgspec.json.encode if kind in _JSON else msgspec.msgpack.encode)

    def _drawn(self, kind: Any, encode: Callable[[Any], bytes]) -> bytes:
        """Plain data of a type, with a wrong value here and there, encoded; what cannot be encoded is drawn again."""
        while True:
            wrong = self._chance.choice((0.0, 0.0, 0.02, 0.2))
            with contextlib.suppress(OverflowError, ValueError, TypeError, msgspec.MsgspecError):
                return encode(self._plain(self._types[kind], wrong))

    def _plain(self, kind: Any, wrong: float) -> Any:
        chance = self._chance
        if chance.random() < wrong:
            return chance.choice(_HOSTILE)
        match kind:
            case inspect.StructType():
                return self._struct(kind, wrong)
            case inspect.UnionType():
                return self._plain(chance.choice(kind.types), wrong)
            case inspect.VarTupleType() | inspect.ListType():
                return [self._plain(kind.item_type, wrong) for _ in range(chance.randint(0, 3))]
            case inspect.TupleType():
                return [self._plain(one, wrong) for one in kind.item_types]
            case inspect.DictType():
                keys = (self._plain(kind.key_type, wrong) for _ in range(chance.randint(0, 2)))
                return {key: self._plain(kind.value_type, wrong) for key in keys}
            case inspect.Metadata():
                return self._plain(kind.type, wrong)
        return self._scalar(kind)

    def _scalar(self, kind: Any) -> Any:
        chance = self._chance
        match kind:
            case inspect.IntType():
                low = kind.ge if kind.ge is not None else 0
                return chance.choice((low, low + 1, kind.le if kind.le is not None else low + 2))
            case inspect.FloatType():
                return float(kind.ge or 0.0) + chance.random()
            case inspect.BoolType():
                return chance.random() < 0.5
            case inspect.StrType():
                return self._text(kind)
            case inspect.BytesType():
                return chance.randbytes(max(kind.min_length or 0, min(kind.max_length or 20, 20)))
            case inspect.LiteralType():
                return chance.choice(kind.values)
            case inspect.EnumType():
                return chance.choice(list(kind.cls)).value
        return None

    def _struct(self, kind: inspect.StructType, wrong: float) -> dict[str, Any]:
        chance = self._chance
        plain = {kind.tag_field: kind.tag} if kind.tag_field else {}
        for field in kind.fields:
            if field.required or chance.random() < 0.3:
                plain[field.encode_name] = self._plain(field.type, wrong)
        if chance.random() < wrong:
            plain[chance.choice(("more", "__class__", "type", "a\0"))] = chance.choice(_HOSTILE)
        return plain

    def _text(self, kind: inspect.StrType) -> str:
        length = max(kind.min_length or 0, 1 if not kind.pattern else 0, min(kind.max_length or 12, 12))
        if kind.pattern and "{" in kind.pattern:  # Digests, addresses and ids of one length.
            length = int(kind.pattern.partition("{")[2].partition("}")[0].partition(",")[0])
        digits = string.digits.replace("0", "") + "abcdef" if kind.pattern else string.ascii_letters
        return "".join(self._chance.choice(digits) for _ in range(length))

    def _spoilt(self, data: bytes, again: bytes, nested: bytes) -> bytes:
        """As it is, or bent at a few places; now and then noise, a part doubled, or one thing in another without end."""
        chance = self._chance
        match chance.randrange(10):
            case 0 | 1 | 2:
                return data
            case 3:
                return chance.randbytes(chance.randint(0, 300))
            case 4:
                return nested * chance.choice((3, 200, 20_000 if chance.random() < 0.02 else 900)) + data
            case 5:
                at = chance.randrange(len(data) + 1)
                return data[:at] + again * chance.choice((1, 2, 50)) + data[at:]
        bent = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 6))):
            at = chance.randrange(len(bent) + 1)
            match chance.randrange(4):
                case 0:
                    bent[at : at + 1] = bytes([chance.choice((0, 0x7F, 0x80, 0xC1, 0xDD, 0xDF, 0xFF))])
                case 1:
                    del bent[at:]
                case 2:
                    bent[at : at + 4] = chance.randbytes(4)
                case _:
                    bent[at:at] = bent[at : at + chance.randint(1, 30)]
        return bytes(bent)


def frames(chance: random.Random) -> tuple[framing.Frame, ...]:
    """One of each kind."""
    number = chance.choice((0, 1, 2**32, 2**63, 2**64 - 1))
    return (
        framing.Begin(number, chance.choice((0, 40, 2**31)), chance.random() < 0.5, b"h", stream=chance.random() < 0.5),
        framing.More(number, chance.choice((0, 70_000)), chance.randbytes(chance.randint(1, 300))),
        framing.Cancel(number),
        framing.Grant(number, 0, 9),
        framing.Ack(number),
        framing.Fail(number, "no"),
        framing.Ping(7, number),
        framing.Pong(7),
    )


def frame_holds(data: bytes) -> bool:
    """Whether ``data`` is a frame, which its own encoding gives back then."""
    with contextlib.suppress(MalformedFrameError, MessageLimitError):
        taken = framing.decode(data)
        again = framing.decode(framing.encode(taken))
        if not isinstance(taken, framing.Fail):  # A reason that is not UTF-8 is mended, and may be cut once more.
            assert again == taken
        return True
    return False


def binding(family: int) -> bytes:
    """An answer of a STUN server; families 1 and 2 are IPv4 and IPv6."""
    attribute = struct.pack("!HHBBHI", 0x0020, 8, 0, family, 1, 2)
    return struct.pack("!HHI", 0x0101, len(attribute), 0x2112A442) + _ASKED + attribute


def binding_holds(data: bytes) -> bool:
    """Whether ``data`` is an answer to our question."""
    with contextlib.suppress(StunError):
        decode_binding(data, _ASKED)
        return True
    return False


def description_holds(data: bytes) -> bool:
    """Whether ``data`` describes a link that may be tried."""
    with contextlib.suppress(SignalError):
        read_description(data.decode(errors="replace"), loopback=True)
        return True
    return False


def comes_back(data: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> bool:
    """Whether ``data`` is a message, which its own encoding gives back then."""
    with contextlib.suppress(codec.MessageError):
        again = encode(decode(data))
        assert encode(decode(again)) == again
        return True
    return False


def peak_mb() -> float:
    """The most memory that this process has held at a time, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
