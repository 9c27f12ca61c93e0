"""Frames: what goes over a lane, and what hostile bytes come to."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import MalformedFrameError, MessageLimitError
from transport.framing import (
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
    checksum,
    decode,
    encode,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Begin, U64, st.integers(0, MAX_PAYLOAD), U32, st.booleans(), st.binary(max_size=MAX_HEADER)),
    st.builds(More, U64, U64, st.binary(min_size=1, max_size=CHUNK)),
    st.builds(Cancel, U64),
    st.builds(Grant, U64),
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
    "path", sorted(Path(__file__).parents[1].glob("corpus/transport/frames/*")), ids=lambda path: path.stem
)
def test_a_hostile_frame_is_malformed(path: Path) -> None:
    with pytest.raises(MalformedFrameError):
        decode(path.read_bytes())


def test_a_reason_from_outside_is_printable_and_short() -> None:
    assert decode(encode(Fail(1, "a\x1b[31m\n\u202e\ud7ff"))) == Fail(1, "a?[31m???")
    assert len(decode(encode(Fail(1, "ä" * 500))).reason) <= MAX_REASON  # type: ignore[union-attr]


def test_a_message_beyond_the_limits_names_the_way_out() -> None:
    check_message(bytes(MAX_HEADER), MAX_PAYLOAD)
    with pytest.raises(MessageLimitError, match="move it into the payload"):
        check_message(bytes(MAX_HEADER + 1), 0)
    with pytest.raises(MessageLimitError, match="several messages"):
        check_message(b"", MAX_PAYLOAD + 1)


def test_the_checksum_covers_header_and_payload() -> None:
    assert checksum(b"ab", b"c") == checksum(b"", b"abc") != checksum(b"ab", b"d")
