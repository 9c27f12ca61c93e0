"""Frames: what goes over a lane, and what hostile bytes come to."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import MalformedFrameError, MessageLimitError
from transport.messages.framing import (
    CHUNK,
    MAX_FRAME,
    MAX_HEADER,
    MAX_PAYLOAD,
    MAX_REASON,
    Ack,
    Begin,
    Cancel,
    Fail,
    Frame,
    Grant,
    More,
    Ping,
    Pong,
    check_message,
    decode,
    encode,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
BEGINS = st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(lambda flags: not (flags[0] and flags[1]))
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        lambda ident, total, flags, header: Begin(ident, total, flags[0], header, flags[1], flags[2]),
        U64,
        st.integers(0, MAX_PAYLOAD),
        BEGINS,
        st.binary(max_size=MAX_HEADER),
    ),
    st.builds(More, U64, U64, st.binary(min_size=1, max_size=CHUNK)),
    st.builds(Cancel, U64),
    st.tuples(U64, U64, U64).map(lambda ints: Grant(ints[0], min(ints[1:]), max(ints[1:]))),
    st.builds(Ack, U64),
    st.builds(Fail, U64, st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=MAX_REASON)),
    st.builds(Ping, U32, U64),
    st.builds(Pong, U32),
)


@given(FRAMES)
def test_a_frame_comes_back_as_it_went(frame: Frame) -> None:
    data = encode(frame)
    assert len(data) <= MAX_FRAME
    assert decode(data) == frame


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_malformed(data: bytes) -> None:
    try:
        frame = decode(data)
    except MalformedFrameError:
        return
    assert encode(frame) == data or isinstance(frame, Fail)


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("corpus/transport/frames/*")), ids=lambda path: path.stem
)
def test_a_hostile_frame_is_malformed(path: Path) -> None:
    with pytest.raises(MalformedFrameError):
        decode(path.read_bytes())


def test_a_reason_from_outside_is_printable_and_short() -> None:
    assert decode(encode(Fail(1, "a\x1b[31m\n\u202e\ud7ff"))) == Fail(1, "a\ufffd[31m \ufffd\ufffd")
    assert len(decode(encode(Fail(1, "ä" * 500))).reason) <= MAX_REASON  # type: ignore[union-attr]


def test_a_message_beyond_the_limits_names_the_way_out() -> None:
    check_message(bytes(MAX_HEADER), MAX_PAYLOAD)
    with pytest.raises(MessageLimitError, match="move it into the payload"):
        check_message(bytes(MAX_HEADER + 1), 0)
    with pytest.raises(MessageLimitError, match="several messages"):
        check_message(b"", MAX_PAYLOAD + 1)


@given(
    st.one_of(
        st.builds(More, U64, U64, st.binary(min_size=1, max_size=300)),
        st.builds(Begin, U64, st.just(9), st.just(True), st.binary(max_size=300)),
    ),
    st.data(),
)
def test_a_damaged_frame_is_told_before_anybody_sees_it(frame: More | Begin, data: st.DataObject) -> None:
    raw = bytearray(encode(frame))
    bit = data.draw(st.integers(8, 8 * len(raw) - 1))  # the first byte is the kind, and others have other forms
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MalformedFrameError):
        decode(bytes(raw))


def test_the_longest_frame_is_what_any_webrtc_peer_takes() -> None:
    assert len(encode(More(1, 0, bytes(CHUNK)))) == MAX_FRAME == 65_536
