"""Tensors as bytes: what comes back, and what is refused."""

import struct
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.job.updates import UPDATES, UpdateName
from trainer.codecs import BLOCK, GRADIENT_BLOCK, CodecName, coarse, decode, encode, encoded_size, registry
from trainer.errors import CodecError, NonFiniteError

CODECS: list[CodecName] = [
    "fp32",
    "fp16",
    "int8-token",
    "int8-block",
    "int4-block",
    "int4-gradient",
    "int4-squares",
    "int2-block",
]
BLOCKS = {"int8-block": BLOCK, "int4-block": BLOCK, "int4-gradient": GRADIENT_BLOCK, "int2-block": BLOCK}
BLOCKS["int4-squares"] = GRADIENT_BLOCK
BOUNDS = {"int8-token": 0.5001 / 127, "int8-block": 0.5001 / 127, "int4-block": 0.503 / 7, "int4-gradient": 0.503 / 7}
BOUNDS["int4-squares"] = 0.503 * (49 - 36) / 49
"""Greatest error as a part of the largest value under the same scale; of 4 bits, with the rounding of the scale itself."""
ALL = pytest.mark.parametrize("codec", CODECS)

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
magnitudes = st.floats(1e-20, 1e20)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape, seed, scale = draw(shapes), draw(st.integers(0, 2**32)), draw(magnitudes)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def rows_of(values: torch.Tensor, codec: CodecName, shape: tuple[int, ...]) -> list[torch.Tensor]:
    if codec == "int8-token":
        return list(values.reshape(-1, shape[-1]))
    return list(values.flatten().split(BLOCKS[codec]))


@ALL
@settings(deadline=None, max_examples=60)
@given(tensor=tensors())
def test_what_is_decoded_is_near_what_was_encoded(codec: CodecName, tensor: torch.Tensor) -> None:
    if codec == "fp16":
        tensor = tensor / tensor.abs().max()
    shape = tuple(tensor.shape)
    data = encode(tensor, codec)
    assert len(data) == encoded_size(shape, codec)
    back = decode(data, shape, codec)
    if codec == "fp32":
        assert torch.equal(back, tensor)
    elif codec == "fp16":
        assert torch.equal(back, tensor.half().float())
    elif codec == "int2-block":
        for row, decoded in zip(rows_of(tensor, codec, shape), rows_of(back, codec, shape), strict=True):
            assert bool((row.sign() * decoded.sign() >= 0).all())
            # With a scale for no more than one value, nothing is gained.
            assert (row - decoded).norm() <= 1.01 * row.norm()
    else:
        for row, decoded in zip(rows_of(tensor, codec, shape), rows_of(back, codec, shape), strict=True):
            assert (row - decoded).abs().max() <= row.abs().max() * BOUNDS[codec]


@pytest.mark.parametrize(
    ("codec", "error"), [("int4-block", 0.11), ("int4-gradient", 0.13), ("int4-squares", 0.14), ("int2-block", 0.35)]
)
def test_few_bits_lose_what_was_measured_on_normal_values_and_no_more(codec: CodecName, error: float) -> None:
    values = torch.randn(64 * 1024, generator=torch.Generator().manual_seed(3)) * 1e-9
    assert (decode(encode(values, codec), (64 * 1024,), codec) - values).norm() < error * values.norm()


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "int2-block"])
@settings(deadline=None, max_examples=30)
@given(tensor=tensors())
def test_decoding_and_encoding_again_changes_nothing(codec: CodecName, tensor: torch.Tensor) -> None:
    if codec == "fp16":
        tensor = tensor / tensor.abs().max()
    shape = tuple(tensor.shape)
    once = decode(encode(tensor, codec), shape, codec)
    # A second scale is rounded from the first one, which 4 bits may see where the largest value was cut a little.
    tolerance = 5e-3 if codec in ("int4-block", "int4-gradient", "int4-squares") else 1e-6
    assert torch.allclose(decode(encode(once, codec), shape, codec), once, rtol=tolerance, atol=0)


@ALL
@settings(deadline=None, max_examples=100)
@given(noise=st.binary(max_size=300))
def test_noise_is_refused(codec: CodecName, noise: bytes) -> None:
    with pytest.raises(CodecError):
        decode(noise, (4, 8), codec)


@ALL
@settings(deadline=None, max_examples=100)
@given(at=st.integers(0, 2**16), value=st.integers(0, 255))
def test_one_changed_byte_gives_a_finite_tensor_or_an_error(codec: CodecName, at: int, value: int) -> None:
    data = bytearray(encode(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), codec))
    data[at % len(data)] = value
    try:
        back = decode(data, (4, 8), codec)
    except CodecError:
        return
    assert back.shape == (4, 8)
    assert bool(torch.isfinite(back).all())


@ALL
@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_another_length_is_refused_with_both_lengths(codec: CodecName, change: int) -> None:
    data = encode(torch.ones(4, 8), codec)
    data = data[:change] if change < 0 else data + bytes(change)
    with pytest.raises(CodecError, match=rf"{len(data):,} bytes where"):
        decode(data, (4, 8), codec)


@ALL
def test_another_shape_of_the_same_size_is_refused(codec: CodecName) -> None:
    with pytest.raises(CodecError, match="is expected"):
        decode(encode(torch.ones(4, 8), "fp32"), (8, 4), "fp32")
    with pytest.raises(CodecError):
        decode(encode(torch.ones(4, 8), codec), (4, 8, 1), codec)


def test_another_codec_is_refused() -> None:
    data = encode(torch.ones(1, 64), "int8-block")
    assert encoded_size((1, 64), "int8-token") == len(data)
    with pytest.raises(CodecError, match="int8-token"):
        decode(data, (1, 64), "int8-token")


def test_a_shape_that_promises_terabytes_costs_nothing() -> None:
    data = bytearray(encode(torch.ones(4, 8), "fp32"))
    struct.pack_into("<QQ", data, 8, 2**40, 2**40)
    with pytest.raises(CodecError, match="is expected"):
        decode(data, (4, 8), "fp32")


@ALL
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_never_sent(codec: CodecName, bad: float) -> None:
    tensor = torch.ones(3, 70)
    tensor[1, 69] = bad
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        encode(tensor, codec)


@ALL
@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80])
def test_what_is_not_finite_is_never_received(codec: CodecName, bits: int) -> None:
    data = bytearray(encode(torch.ones(4, 8), codec))
    if codec == "fp16":
        struct.pack_into("<H", data, 8 + 16, 0x7E00 if bits == 0x7FC0 else bits & 0xFC00)
    elif codec in ("fp32", "int8-token", "int8-block"):
        struct.pack_into("<I", data, 8 + 16, bits << 16)  # The first value, or the first scale.
    else:
        struct.pack_into("<H", data, 8 + 16, bits)
    with pytest.raises(NonFiniteError):
        decode(data, (4, 8), codec)


def test_a_scale_that_overflows_is_refused() -> None:
    data = bytearray(encode(torch.ones(4, 8), "int8-token"))
    struct.pack_into("<f", data, 8 + 16, 3e38)
    with pytest.raises(NonFiniteError):
        decode(data, (4, 8), "int8-token")


def test_a_negative_scale_is_refused() -> None:
    data = bytearray(encode(torch.ones(4, 8), "int8-token"))
    struct.pack_into("<f", data, 8 + 16, -1.0)
    with pytest.raises(CodecError, match="negative scale"):
        decode(data, (4, 8), "int8-token")


@ALL
def test_zeros_stay_zeros(codec: CodecName) -> None:
    assert torch.equal(decode(encode(torch.zeros(5, 70), codec), (5, 70), codec), torch.zeros(5, 70))


@ALL
def test_an_empty_tensor_survives(codec: CodecName) -> None:
    assert decode(encode(torch.zeros(0, 4), codec), (0, 4), codec).shape == (0, 4)


def test_fewer_bits_take_fewer_bytes() -> None:
    assert encoded_size((10_000, 64), "fp32") / encoded_size((10_000, 64), "int8-block") > 3.7
    assert encoded_size((16, 128, 192), "fp32") / encoded_size((16, 128, 192), "int8-token") > 3.9
    assert encoded_size((10_000, 64), "fp32") / encoded_size((10_000, 64), "int4-block") > 7.5
    assert encoded_size((10_000, 64), "fp32") / encoded_size((10_000, 64), "int4-gradient") > 7.85
    assert encoded_size((10_000, 64), "fp32") / encoded_size((10_000, 64), "int2-block") > 14.2


def test_levels_that_are_squares_are_the_nearest_ones() -> None:
    squares = torch.tensor([float(level * abs(level)) for level in range(-7, 8)])
    values = torch.cat([torch.linspace(-49, 49, 4001), squares])
    back = torch.cat([decode(encode(part, "int4-squares"), (256,), "int4-squares")[:255] for part in padded(values)])
    nearest = squares[(values[:, None] - squares).abs().argmin(1)]
    assert ((back[: len(values)] - nearest).abs() < 1e-6).float().mean() > 0.999  # Halfway, either is near.
    assert torch.equal(back[len(values) - 15 : len(values)], squares)


def padded(values: torch.Tensor) -> list[torch.Tensor]:
    """Rows of 256 that hold the largest value, 49, so that one level is one."""
    rows = torch.nn.functional.pad(values, (0, -len(values) % 255)).view(-1, 255)
    return [torch.cat([row, torch.tensor([49.0])]) for row in rows]


def test_small_values_beside_large_ones_survive_where_levels_are_squares() -> None:
    uniform = torch.rand(1 << 16, generator=torch.Generator().manual_seed(5)) - 0.5
    values = uniform.sign() * (1 - 2 * uniform.abs()).log()  # Laplace's distribution: few are large, most are small.
    lost = {}
    for codec in ("int4-gradient", "int4-squares"):
        back = decode(encode(values, codec), (1 << 16,), codec)
        lost[codec] = float((back == 0).float().mean()), float((back - values).norm())
    assert lost["int4-squares"][0] < 0.2 * lost["int4-gradient"][0]
    assert lost["int4-squares"][1] < 0.85 * lost["int4-gradient"][1]


def test_gradients_too_small_for_half_floats_keep_their_digits_in_four_bits() -> None:
    values = torch.tensor([1e-12, -3e-12, 7e-12])
    assert torch.allclose(decode(encode(values, "int4-block"), (3,), "int4-block"), values, rtol=0.02)


def test_half_floats_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(NonFiniteError):
        encode(torch.tensor([1e6]), "fp16")


@pytest.mark.parametrize("name", get_args(UpdateName))
def test_what_a_document_can_name_is_a_codec_that_takes_the_bytes_which_plans_count(name: UpdateName) -> None:
    update = UPDATES[name]
    values = torch.randn(64 * 1024, generator=torch.Generator().manual_seed(5))
    assert len(encode(values, registry.CODECS[update.codec])) / values.numel() == pytest.approx(
        update.value_bytes, rel=0.1
    )


def test_two_codecs_of_one_code_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coarse, "NAMED", (coarse.Coarse("mine", 0, 1.8),))
    with pytest.raises(ValueError, match="code 0: there is one of that name or code"):
        registry._named()
    monkeypatch.undo()
    assert registry._named() == registry.CODECS
