"""Four bits behind a Hadamard rotation: error bounds, determinism, and what is refused."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.codecs import decode, encode, encoded_size
from trainer.codecs.activations import GROUP, hadamard
from trainer.errors import CodecError, NonFiniteError

CODEC = "int4-rotated"
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


@settings(deadline=None, max_examples=60)
@given(shape=shapes, seed=st.integers(0, 2**32), scale=st.floats(1e-25, 1e25))
def test_the_error_of_a_group_is_within_its_rotated_step(shape: tuple[int, ...], seed: int, scale: float) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    data = encode(tensor, CODEC)
    assert len(data) == encoded_size(shape, CODEC)
    back = decode(data, shape, CODEC)
    missing = -tensor.numel() % GROUP
    flat = torch.nn.functional.pad(tensor.double().flatten(), (0, missing)).view(-1, GROUP)
    error = torch.nn.functional.pad((back.double() - tensor).flatten(), (0, missing)).view(-1, GROUP)
    # Half a step of sixteen levels for each rotated value, and a scale that is rounded to eight bits.
    step = hadamard(flat).abs().amax(dim=1) / GROUP**0.5 * (1 / 15 + 1 / 128)
    assert bool((error.norm(dim=1) <= step * GROUP**0.5 * 1.01).all())


def test_one_large_channel_does_not_drown_its_group() -> None:
    values = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    values[:, 3] *= 100
    others = torch.arange(32) != 3
    rotated = decode(encode(values, CODEC), (64, 32), CODEC)
    assert (rotated - values)[:, others].abs().mean() < (values[:, others]).abs().mean() * 1.5
    plain = decode(encode(values, "int4-block"), (64, 32), "int4-block")
    assert bool((plain[:, others] == 0).float().mean() > 0.9), "what a scale without rotation leaves of the others"


def test_the_rotation_is_exact_for_whole_numbers_and_its_own_inverse() -> None:
    groups = torch.randint(-1000, 1000, (7, GROUP), generator=torch.Generator().manual_seed(2)).float()
    assert torch.equal(hadamard(hadamard(groups)), groups * GROUP)
    rows = hadamard(torch.eye(GROUP))
    assert torch.equal(rows.abs(), torch.ones(GROUP, GROUP))
    assert torch.equal(rows @ rows.t(), GROUP * torch.eye(GROUP))


def test_the_same_bytes_for_ever() -> None:
    tensor = torch.arange(64, dtype=torch.float32).view(2, 32).sub(20)
    body = encode(tensor, CODEC)[24:]
    assert body[:4] == struct.pack("<HH", 17024, 17244)
    assert body[4:12].hex() == "7387868884888888"


def test_tiny_gradients_keep_their_digits() -> None:
    tensor = torch.randn(4, 64, generator=torch.Generator().manual_seed(3)) * 1e-12
    back = decode(encode(tensor, CODEC), (4, 64), CODEC)
    assert (back - tensor).norm() < 0.12 * tensor.norm()


@pytest.mark.parametrize("shape", [(5, 70), (1,), (3, 32)])
def test_zeros_stay_zeros(shape: tuple[int, ...]) -> None:
    assert torch.equal(decode(encode(torch.zeros(shape), CODEC), shape, CODEC), torch.zeros(shape))


def test_it_takes_four_and_a_half_bits_a_value() -> None:
    assert encoded_size((16, 128, 192), CODEC) / (16 * 128 * 192) == pytest.approx(4.5 / 8, rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_what_is_not_finite_or_overflows_when_rotated_is_never_sent(bad: float) -> None:
    tensor = torch.full((2, 64), bad)
    with pytest.raises(NonFiniteError):
        encode(tensor, CODEC)


@settings(deadline=None, max_examples=150)
@given(at=st.integers(0, 2**16), value=st.integers(0, 255))
def test_one_changed_byte_gives_a_finite_tensor_or_an_error(at: int, value: int) -> None:
    data = bytearray(encode(torch.randn(4, 40, generator=torch.Generator().manual_seed(1)), CODEC))
    data[at % len(data)] = value
    try:
        back = decode(data, (4, 40), CODEC)
    except CodecError:
        return
    assert bool(torch.isfinite(back).all())


@settings(deadline=None, max_examples=60)
@given(noise=st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CodecError):
        decode(noise, (4, 8), CODEC)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80, 0xBF80])
def test_scales_that_are_not_finite_or_negative_are_refused(bits: int) -> None:
    data = bytearray(encode(torch.ones(4, 8), CODEC))
    struct.pack_into("<H", data, 8 + 16, bits)
    with pytest.raises(CodecError):
        decode(data, (4, 8), CODEC)
