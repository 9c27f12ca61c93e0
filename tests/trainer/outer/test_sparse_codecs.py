"""Codecs that keep a part of the values: what is kept, how long it is, and hostile bytes."""

import math
import struct

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer.codecs import Codec, decode, encode, encoded_size
from trainer.codecs.envelope import unwrap, wrap
from trainer.codecs.frequency import SIDE, Frequencies, restore, tiling, transform
from trainer.codecs.sparse import CHUNK, TopK
from trainer.codecs.varint import GlobalTopK
from trainer.errors import CodecError, NonFiniteError

SIZE = 2 * CHUNK + 100
LAYOUT = (tiling(0, (96, 64)), tiling(96 * 64, (30,)), tiling(96 * 64 + 64, (7, 50)))
CODECS: list[Codec] = [TopK(0.03), TopK(0.5), GlobalTopK(0.001), GlobalTopK(0.3), Frequencies(LAYOUT, 8)]
ALL = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
HEAD = 16  # Of a tensor with one dimension.


def values(seed: int = 0, size: int = SIZE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@ALL
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), size=st.integers(6600, 20_000))
def test_bodies_are_as_long_as_promised(codec: Codec, seed: int, size: int) -> None:
    data = encode(values(seed, size), codec)
    assert len(data) == encoded_size((size,), codec) if codec.exact else len(data) <= encoded_size((size,), codec)
    assert decode(data, (size,), codec).shape == (size,)


def test_chunks_keep_their_largest_values_under_two_magnitudes() -> None:
    given_values, codec = values(), TopK(0.03)
    back = decode(encode(given_values, codec), (SIZE,), codec)
    for chunk, decoded in zip(given_values.split(CHUNK)[:2], back.split(CHUNK)[:2], strict=True):
        places = decoded.nonzero().flatten()
        assert len(places) == codec.kept((SIZE,)) == 123
        assert set(places.tolist()) == set(chunk.abs().topk(123).indices.tolist())
        assert torch.equal(decoded[places].sign(), chunk[places].sign())
        assert len(decoded[places].abs().unique()) == 2
        assert decoded[places].abs().sum() == pytest.approx(float(chunk[places].abs().sum()), rel=5e-3)


def test_a_sixty_fourth_in_two_bits_is_over_a_hundred_and_forty_times_smaller() -> None:
    assert 4 * (1 << 22) / encoded_size((1 << 22,), TopK(1 / 64)) > 140


def test_the_largest_values_of_all_come_back_as_half_floats() -> None:
    given_values, codec = values(), GlobalTopK(0.01)
    back = decode(encode(given_values, codec), (SIZE,), codec)
    places = given_values.abs().topk(codec.kept((SIZE,))).indices
    expected = torch.zeros(SIZE)
    expected[places] = given_values[places].half().float()
    assert torch.equal(back, expected)


@pytest.mark.parametrize("gap", [1, 127, 128, 129, 16_383, 16_384, 16_385, 300_000])
def test_distances_of_every_length_survive(gap: int) -> None:
    size = 4 * gap + 10
    given_values = torch.zeros(size)
    given_values[torch.arange(3) * gap] = torch.tensor([1.0, -2.0, 3.0])
    codec = GlobalTopK(3 / size)
    data = encode(given_values, codec)
    assert len(data) <= encoded_size((size,), codec)
    assert torch.equal(decode(data, (size,), codec), given_values)


@settings(deadline=None, max_examples=30)
@example(seed=680, size=135, density=1 / 128)
@example(seed=1, size=16_500, density=1e-4)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 300_000), density=st.floats(1e-4, 0.5))
def test_no_choice_of_places_exceeds_the_bound(seed: int, size: int, density: float) -> None:
    codec, generator = GlobalTopK(density), np.random.default_rng(seed)
    places = generator.choice(size, codec.kept((size,)), replace=False)
    if seed % 2:  # As far apart as they can be.
        places = np.arange(len(places)) * (size // len(places))
    given_values = torch.zeros(size)
    given_values[torch.from_numpy(places)] = 1.0
    assert len(encode(given_values, codec)) <= encoded_size((size,), codec)


def test_frequencies_go_there_and_back() -> None:
    given_values = values(size=LAYOUT[-1].start + 350)
    back = restore(transform(given_values, LAYOUT), LAYOUT)
    inside = torch.cat([torch.arange(part.start, part.start + part.tiles * part.area) for part in LAYOUT])
    assert torch.allclose(back[inside], given_values[inside], atol=1e-4)
    outside = torch.ones(len(given_values), dtype=torch.bool)
    outside[inside] = False
    assert not back[outside].any()


def test_restoring_is_one_operation_after_the_other_as_numpy_does_it() -> None:
    coefficients = transform(values(size=96 * 64), LAYOUT[:1])
    part, cosines = LAYOUT[0], []
    for frequency in range(SIDE):
        scale = math.sqrt((1 if frequency == 0 else 2) / SIDE)
        angles = [math.pi * (2 * place + 1) * frequency / (2 * SIDE) for place in range(SIDE)]
        cosines.append([round(scale * math.cos(angle) * 2**20) / 2**20 for angle in angles])
    assert (part.height, part.width) == (48, 64)
    tiles = coefficients.view(part.tiles, part.height, part.width).numpy()
    matrix = np.array(cosines, dtype=np.float32)
    rows = np.array(
        [
            [
                round(math.sqrt((1 if f == 0 else 2) / 48) * math.cos(math.pi * (2 * p + 1) * f / 96) * 2**20) / 2**20
                for p in range(48)
            ]
            for f in range(48)
        ],
        dtype=np.float32,
    )
    half = np.zeros_like(tiles)
    for frequency in range(48):
        half = half + tiles[:, frequency : frequency + 1, :] * rows[frequency].reshape(1, -1, 1)
    whole = np.zeros_like(tiles)
    for frequency in range(64):
        whole = whole + half[:, :, frequency : frequency + 1] * matrix[frequency].reshape(1, 1, -1)
    assert np.array_equal(part.cut(restore(coefficients, LAYOUT[:1])).numpy(), whole)


@pytest.mark.parametrize("size", range(1, SIDE + 1))
def test_no_library_can_round_a_cosine_to_another_multiple(size: int) -> None:
    for frequency in range(size):
        scale = math.sqrt((1 if frequency == 0 else 2) / size)
        for place in range(size):
            exact = scale * math.cos(math.pi * (2 * place + 1) * frequency / (2 * size)) * 2**20
            assert abs(exact - math.floor(exact) - 0.5) > 1e-6  # Doubles err by 1e-10 here.


@ALL
@settings(deadline=None, max_examples=60)
@given(noise=st.binary(max_size=2000))
def test_noise_is_refused(codec: Codec, noise: bytes) -> None:
    with pytest.raises(CodecError):
        decode(noise, (SIZE,), codec)


@ALL
@settings(deadline=None, max_examples=60)
@given(at=st.integers(0, 2**20), value=st.integers(0, 255))
def test_a_changed_byte_gives_a_finite_tensor_or_an_error(codec: Codec, at: int, value: int) -> None:
    data = bytearray(encode(values(), codec))
    data[at % len(data)] = value
    try:
        back = decode(data, (SIZE,), codec)
    except CodecError:
        return
    assert back.shape == (SIZE,)
    assert bool(torch.isfinite(back).all())


@ALL
def test_what_is_not_finite_is_never_sent(codec: Codec) -> None:
    bad = values()
    bad[11] = float("nan")
    with pytest.raises(NonFiniteError):
        encode(bad, codec)


@ALL
def test_an_empty_tensor_and_zeros_survive(codec: Codec) -> None:
    assert decode(encode(torch.zeros(0), codec), (0,), codec).shape == (0,)
    assert not decode(encode(torch.zeros(SIZE), codec), (SIZE,), codec).any()


def test_a_value_that_is_sent_twice_is_refused() -> None:
    codec = TopK(0.03)
    data = bytearray(encode(values(), codec))
    start = HEAD + 4 * 3
    data[start : start + 3] = bytes(3)  # Place 0 twice.
    with pytest.raises(CodecError, match="do not rise"):
        decode(data, (SIZE,), codec)


def test_places_beyond_the_tensor_are_refused() -> None:
    codec = GlobalTopK(1 / 100)
    data = bytearray(encode(torch.arange(100.0), codec))
    assert data[HEAD] == 99
    data[HEAD] = 100
    with pytest.raises(CodecError, match="a value at place 100 of a tensor of 100"):
        decode(data, (100,), codec)


@pytest.mark.parametrize(
    "distances", [b"\x80\x00\x01", b"\xff" * 6 + b"\x7f\x01", b"\x01", b"\x01\x02\x03", b"\x01\x81"]
)
def test_distances_that_no_encoder_writes_are_refused(distances: bytes) -> None:
    codec = GlobalTopK(2 / 10_000)
    head = encode(torch.arange(10_000.0), codec)[:HEAD]
    with pytest.raises(CodecError):
        decode(head + distances + struct.pack("<2e", 1.0, 2.0), (10_000,), codec)


# --- envelopes --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(data=st.binary(max_size=500), repeats=st.integers(1, 20))
def test_what_was_wrapped_comes_out(data: bytes, repeats: int) -> None:
    inside = b"CT" + data * repeats
    wrapped = wrap(inside)
    assert len(wrapped) <= len(inside)
    assert unwrap(wrapped, len(inside)) == inside


def test_four_bit_values_shrink_by_an_eighth() -> None:
    inside = encode(values(size=1 << 18), "int4-block")
    assert len(wrap(inside)) < len(inside) / 1.1


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zstandard.compress(bytes(1 << 26))
    assert len(bomb) < 10_000
    with pytest.raises(CodecError, match="at most 1,000"):
        unwrap(bomb, 1000)


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5000))
    with pytest.raises(CodecError):
        unwrap(unsized, 10_000)


def test_a_frame_that_says_less_than_it_holds_is_refused() -> None:
    frame = bytearray(zstandard.compress(bytes(200)))
    assert frame[5] == 200
    frame[5] = 100
    with pytest.raises(CodecError):
        unwrap(bytes(frame), 100)


@pytest.mark.parametrize("change", ["more", "less", "noise"])
def test_a_broken_frame_is_refused(change: str) -> None:
    frame = zstandard.compress(b"a" * 1000)
    broken = {"more": frame + b"x", "less": frame[:-1], "noise": frame[:4] + b"\xff" * 20}[change]
    with pytest.raises(CodecError):
        unwrap(broken, 1000)


@pytest.mark.parametrize("size", [1, 127, 128, 129, 130, 255, 256, 257, 16_384, 16_385, 16_386, 16_511, 16_512])
def test_the_bound_holds_where_one_value_lies_last(size: int) -> None:
    codec, last = GlobalTopK(1e-9), torch.zeros(size)
    last[-1] = 1.0
    assert len(encode(last, codec)) <= encoded_size((size,), codec)
