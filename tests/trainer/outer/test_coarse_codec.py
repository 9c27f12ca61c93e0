"""Few levels written close to their entropy: what comes back, how long it is, what is refused."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.codecs import CodecName, decode, encode, encoded_size
from trainer.codecs.coarse import LEVELS, SYMBOLS, Coarse
from trainer.codecs.rans import LANE_SYMBOLS, compress, decompress, frequencies, longest
from trainer.errors import CodecError, NonFiniteError

HEADER = 16  # One dimension.


def normal(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def entropy(symbols: np.ndarray) -> float:
    shares = np.bincount(symbols) / symbols.size
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 3 * LANE_SYMBOLS), alphabet=st.integers(1, 32))
def test_every_symbol_comes_back(seed: int, count: int, alphabet: int) -> None:
    chance = np.random.default_rng(seed)
    shares = chance.dirichlet(np.full(alphabet, 0.3))
    symbols = chance.choice(alphabet, count, p=shares).astype(np.uint8)
    table = frequencies(symbols, alphabet)
    data = compress(symbols, table)
    assert len(data) <= longest(count)
    assert np.array_equal(decompress(memoryview(data), count, table), symbols)


def test_symbols_take_hardly_more_than_their_entropy() -> None:
    symbols = np.random.default_rng(1).choice(5, 300_000, p=[0.02, 0.1, 0.76, 0.1, 0.02]).astype(np.uint8)
    data = compress(symbols, frequencies(symbols, 5))
    assert 8 * len(data) / symbols.size < 1.02 * entropy(symbols)


def test_one_symbol_that_fills_the_alphabet_takes_no_bits() -> None:
    symbols = np.full(10 * LANE_SYMBOLS, 3, dtype=np.uint8)
    assert len(compress(symbols, frequencies(symbols, 7))) == 4 * 10


def test_rare_symbols_keep_a_frequency() -> None:
    symbols = np.zeros(1_000_000, dtype=np.uint8)
    symbols[:14] = np.arange(1, 15)
    table = frequencies(symbols, 15)
    assert table.min() == 1
    assert table.sum() == 4096


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize(("codec", "bits", "most"), [("coarse", 1.25, 0.55), ("coarser", 0.65, 0.77)])
def test_an_update_takes_about_one_bit_a_value_and_keeps_its_direction(
    codec: CodecName, bits: float, most: float, scale: float
) -> None:
    values = normal(200_000) * scale
    data = encode(values, codec)
    assert 8 * len(data) / values.numel() < bits
    back = decode(data, (200_000,), codec)
    lost = float((back - values).double().norm() / values.double().norm())
    assert lost < most
    # The mean of each level: what is lost is at right angles to what is sent.
    assert abs(float(((back - values).double() * back.double()).sum())) < 1e-3 * float((values.double() ** 2).sum())


def test_smaller_steps_lose_less_for_more_bits() -> None:
    values = normal(50_000)
    sizes, losses = [], []
    for step in (0.5, 1.0, 1.8, 3.0):
        codec = Coarse("coarse", 7, step)
        data = encode(values, codec)
        sizes.append(len(data))
        losses.append(float((decode(data, (50_000,), codec) - values).norm()))
    assert sizes == sorted(sizes, reverse=True)
    assert losses == sorted(losses)


def test_tensors_that_did_not_move_send_zeros() -> None:
    values = torch.cat((normal(64_000), torch.zeros(1_000_000), 1e-3 * normal(64_000)))
    data = encode(values, "coarse")
    assert int((decode(data, (values.numel(),), "coarse")[64_000:] != 0).sum()) == 0
    assert 8 * len(data) / values.numel() < 0.5


@pytest.mark.parametrize("values", [[0.0], [0.0] * 1000, [1.0], [-5.0, 5.0], [1e-45] * 3, [3.4e38, -3.4e38, 0.0]])
def test_odd_vectors_come_back(values: list[float]) -> None:
    tensor = torch.tensor(values)
    data = encode(tensor, "coarse")
    assert len(data) <= encoded_size(tuple(tensor.shape), "coarse")
    back = decode(data, tuple(tensor.shape), "coarse")
    assert torch.isfinite(back).all()
    assert bool(((back == 0) | (back.sign() == tensor.sign())).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_encoded(bad: float) -> None:
    with pytest.raises(NonFiniteError):
        encode(torch.tensor([1.0, bad]), "coarse")


def test_error_feedback_delivers_in_the_end_what_single_messages_lose() -> None:
    wanted, residual, arrived = normal(5_000), torch.zeros(5_000), torch.zeros(5_000)
    for _ in range(40):
        residual += wanted
        sent = decode(encode(residual, "coarse"), (5_000,), "coarse")
        residual -= sent
        arrived += sent
    assert float((arrived / 40 - wanted).norm() / wanted.norm()) < 0.06


def test_equal_values_give_equal_bytes() -> None:
    assert encode(normal(10_000), "coarse") == encode(normal(10_000).clone(), "coarse")


def _body() -> tuple[bytes, bytes]:
    data = encode(normal(5_000), "coarse")
    return data[:HEADER], data[HEADER:]


def _with_table(frequencies: list[int]) -> bytes:
    head, body = _body()
    table = struct.pack(f"<{SYMBOLS}H", *frequencies)
    return head + body[: 4 * LEVELS] + table + body[4 * LEVELS + len(table) :]


@pytest.mark.parametrize(
    "frequencies",
    [[0] * SYMBOLS, [65535] * SYMBOLS, [4096, 1] + [0] * (SYMBOLS - 2), [4096] + [0] * (SYMBOLS - 1)],
)
def test_frequencies_that_are_not_those_of_the_symbols_are_refused(frequencies: list[int]) -> None:
    with pytest.raises(CodecError):
        decode(_with_table(frequencies), (5_000,), "coarse")


def test_nan_and_negative_magnitudes_are_refused() -> None:
    head, body = _body()
    for bad, error in ((math.nan, NonFiniteError), (math.inf, NonFiniteError), (-1.0, CodecError)):
        with pytest.raises(error):
            decode(head + struct.pack("<f", bad) + body[4:], (5_000,), "coarse")


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(0, 900), place=st.integers(0, 900), flip=st.integers(0, 255))
def test_damaged_bytes_are_refused_or_stay_bounded(cut: int, place: int, flip: int) -> None:
    head, body = _body()
    changed = bytearray(body[: len(body) - cut])
    if place < len(changed):
        changed[place] ^= flip
    try:
        back = decode(head + bytes(changed), (5_000,), "coarse")
    except (CodecError, NonFiniteError):
        return
    assert back.shape == (5_000,)
    assert bool(torch.isfinite(back).all())


@pytest.mark.long
@settings(deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    head, _ = _body()
    with pytest.raises((CodecError, NonFiniteError)):
        decode(head + noise, (5_000,), "coarse")


def test_a_longer_message_than_symbols_can_take_is_refused_unread() -> None:
    head, body = _body()
    with pytest.raises(CodecError, match="at most"):
        decode(head + body + bytes(encoded_size((5_000,), "coarse")), (5_000,), "coarse")
