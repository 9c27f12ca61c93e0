"""Four bits as equal steps: error bounds, what an envelope makes of them, determinism, and what is refused."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.codecs import decode, encode, encoded_size
from trainer.codecs.activations import ENOUGH_ROWS
from trainer.codecs.envelope import wrap
from trainer.errors import CodecError, NonFiniteError

CODEC = "int4-token"
HEADER = 8 + 16  # Of two dimensions.
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
many_rows = st.tuples(st.integers(1, 4), st.integers(100, 150), st.integers(1, 9))


def drawn(shape: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=100)
@given(shape=shapes | many_rows, seed=st.integers(0, 2**32), scale=st.floats(1e-25, 1e25))
def test_no_value_is_off_by_more_than_half_a_step(shape: tuple[int, ...], seed: int, scale: float) -> None:
    tensor = drawn(shape, seed) * scale
    data = encode(tensor, CODEC)
    assert len(data) <= encoded_size(shape, CODEC)
    rows = tensor.double().view(-1, shape[-1])
    sizes = (rows - rows.mean(dim=0) * (len(rows) >= ENOUGH_ROWS)).abs()
    # An eighth of the mean magnitude, met within 4.4 %, and the largest step in eight bits.
    half = sizes.mean(dim=1, keepdim=True) / 8 * 2 ** (1 / 16) * (1 + 1 / 128)
    back = decode(data, shape, CODEC).double().view_as(rows)
    assert bool(((back - rows).abs() <= half + rows.abs().amax() * 1e-6).all())


def test_it_leaves_a_third_of_a_percent_of_normal_values_energy() -> None:
    values = drawn((1024, 256))
    error = (decode(encode(values, CODEC), (1024, 256), CODEC) - values).square().mean()
    assert error == pytest.approx(0.2**2 / 12, rel=0.05)  # A step is 0.2 standard deviations.


@pytest.mark.parametrize("heavy", [1, 2, 3, 6])
def test_no_distribution_takes_more_than_the_planned_bits_in_an_envelope(heavy: int) -> None:
    values = drawn((2048, 256))
    values = values.abs().pow(heavy).copysign(values)
    bits = 8 * len(wrap(encode(values, CODEC))) / values.numel()
    assert 2.5 < bits < 4.6


def test_what_all_tokens_share_costs_no_accuracy_and_no_bits() -> None:
    own = drawn((512, 64))
    shared = 300 * drawn((1, 64), 2)
    alone, together = (encode(values, CODEC) for values in (own, own + shared))
    error = (decode(together, (512, 64), CODEC) - own - shared).abs().mean()
    assert error < 1.01 * (decode(alone, (512, 64), CODEC) - own).abs().mean()
    assert len(wrap(together)) < 1.01 * len(wrap(alone))


@pytest.mark.parametrize(
    ("size", "rows", "far"),
    [(50.0, 64, 1), (1e4, 64, 1), (50.0, 128, 1), (1e4, 128, 128)],  # With a mean a huge one moves it for all rows.
)
def test_one_huge_value_is_met_and_takes_only_its_share_from_its_row(size: float, rows: int, far: int) -> None:
    values = drawn((rows, 4096))
    values[5, 77] = size
    back = decode(encode(values, CODEC), (rows, 4096), CODEC)
    mean = values[5].abs().mean()
    assert (back[5, 77] - size).abs() <= 0.15 * mean
    others = torch.arange(4096) != 77
    assert (back - values)[5, others].abs().max() <= 0.15 * mean
    assert len(encode(values, CODEC)) == encoded_size((rows, 4096), CODEC) - 2 * (rows * 4096 - far)


def test_a_row_far_smaller_than_another_keeps_its_own_step() -> None:
    values = drawn((8, 64))
    values[3] *= 1e-6
    back = decode(encode(values, CODEC), (8, 64), CODEC)
    assert (back - values)[3].norm() < 0.08 * values[3].norm()


def test_the_same_bytes_for_ever() -> None:
    tensor = torch.arange(12, dtype=torch.float32).view(3, 4).sub(5)
    tensor[1] *= 40
    few = encode(tensor, CODEC)
    assert few[HEADER:].hex() == "20411c0019fafbfdfefc00040803030405"
    assert decode(few, (3, 4), CODEC)[0].tolist() == [
        -5.303300857543945,
        -4.419417381286621,
        -2.6516504287719727,
        -1.7677669525146484,
    ]
    many = encode(tensor.repeat(50, 1), CODEC)[HEADER:]
    assert many[: 4 * 4 + 2 + 3].hex() == "000060c100000000000060410000e041d040060008"


def test_tiny_gradients_keep_their_digits() -> None:
    tensor = drawn((4, 64), 3) * 1e-12
    back = decode(encode(tensor, CODEC), (4, 64), CODEC)
    assert (back - tensor).norm() < 0.07 * tensor.norm()


@pytest.mark.parametrize("shape", [(200, 7), (1, 128, 3), (2, 100, 4)])
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_equal_rows_of_many_come_back_exactly(shape: tuple[int, ...], value: float) -> None:
    tensor = torch.full(shape, value)
    assert torch.equal(decode(encode(tensor, CODEC), shape, CODEC), tensor)


@pytest.mark.parametrize("shape", [(5, 70), (1,), (3, 32), (2, 3, 4)])
def test_zeros_stay_zeros(shape: tuple[int, ...]) -> None:
    assert torch.equal(decode(encode(torch.zeros(shape), CODEC), shape, CODEC), torch.zeros(shape))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rows", [2, ENOUGH_ROWS])
def test_what_is_not_finite_is_never_sent(bad: float, rows: int) -> None:
    tensor = drawn((rows, 64))
    tensor[1, 3] = bad
    with pytest.raises(NonFiniteError):
        encode(tensor, CODEC)


@pytest.mark.parametrize("rows", [2, ENOUGH_ROWS])
def test_what_overflows_on_the_way_is_never_sent(rows: int) -> None:
    with pytest.raises(NonFiniteError):
        encode(torch.full((rows, 64), 3e38), CODEC)


@settings(deadline=None, max_examples=200)
@given(at=st.integers(0, 2**16), value=st.integers(0, 255))
def test_one_changed_byte_gives_a_finite_tensor_or_an_error(at: int, value: int) -> None:
    values = drawn((4, 64))
    values[1, 3] = 1e4
    data = bytearray(encode(values, CODEC))
    data[at % len(data)] = value
    try:
        back = decode(data, (4, 64), CODEC)
    except (CodecError, NonFiniteError):
        return
    assert bool(torch.isfinite(back).all())


@settings(deadline=None, max_examples=60)
@given(noise=st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CodecError):
        decode(noise, (4, 8), CODEC)


@pytest.mark.parametrize("cut", [1, 2, 3, 40, 300])
def test_what_is_cut_or_has_something_behind_it_is_refused(cut: int) -> None:
    values = drawn((4, 64))
    values[1, 3] = 1e4
    data = encode(values, CODEC)
    with pytest.raises(CodecError, match="bytes"):
        decode(data[:-cut], (4, 64), CODEC)
    with pytest.raises(CodecError, match="bytes"):
        decode(data + bytes(cut), (4, 64), CODEC)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80, 0xBF80])
def test_steps_that_are_not_finite_or_negative_are_refused(bits: int) -> None:
    data = bytearray(encode(drawn((4, 8)), CODEC))
    struct.pack_into("<H", data, HEADER, bits)
    with pytest.raises(CodecError):
        decode(data, (4, 8), CODEC)
