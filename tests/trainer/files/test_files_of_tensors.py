"""Safetensors files in pieces: the bytes of the format's own writer, and no copy of what they show."""

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, save

from trainer.files.tensors import TakenTensors, bytes_of, file_in_pieces, parts_of, wide

TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]

tensors = st.builds(
    lambda kind, shape: torch.randint(0, 2, shape).to(kind),
    st.sampled_from(TYPES),
    st.lists(st.integers(0, 5), max_size=3),
)


@given(st.dictionaries(st.text(max_size=9).filter(lambda name: name != "__metadata__"), tensors, max_size=12))
def test_the_pieces_are_the_file_that_the_format_s_own_writer_gives(contents: dict[str, torch.Tensor]) -> None:
    data = b"".join(file_in_pieces(contents))
    assert data == save(contents)
    assert all(torch.equal(tensor, contents[name]) for name, tensor in load(data).items())


def test_bytes_become_a_vector_and_nothing_is_copied() -> None:
    weights, payload = torch.arange(6, dtype=torch.float32).view(2, 3), b"what a neighbour sent"
    pieces = file_in_pieces({"payload": payload, "weights": weights, "empty": b""})
    shown = load(b"".join(pieces))
    assert shown["payload"].numpy().tobytes() == payload
    assert shown["empty"].shape == (0,)
    weights[1, 2] = 9
    assert any(piece.obj is payload for piece in pieces)
    assert load(b"".join(pieces))["weights"][1, 2] == 9


def test_the_bytes_of_a_tensor_are_its_memory() -> None:
    tensor = torch.tensor([1, 2], dtype=torch.int16)
    assert bytes(bytes_of(tensor)) == b"\x01\x00\x02\x00"
    assert bytes(bytes_of(torch.tensor(3, dtype=torch.uint8))) == b"\x03"


def test_what_is_kept_in_16_bits_is_written_as_the_float32_that_it_stands_for() -> None:
    values = torch.randn(3_000_000).bfloat16()
    pieces = file_in_pieces({"anchor": wide(values), "other": torch.arange(3)})
    assert b"".join(parts_of(pieces)) == save({"anchor": values.float(), "other": torch.arange(3)})
    assert sum(map(len, pieces)) == len(b"".join(parts_of(pieces)))
    assert max(map(len, parts_of(pieces))) <= 4 << 20


@given(
    st.dictionaries(st.text(max_size=9).filter(lambda name: name != "__metadata__"), tensors, max_size=12), st.randoms()
)
def test_a_tensor_that_is_taken_gives_its_part_of_the_file_back(
    contents: dict[str, torch.Tensor], order: random.Random
) -> None:
    data = bytearray(save(contents))
    taken, left = TakenTensors(data), len(data)
    for name in order.sample(sorted(contents), len(contents)):
        assert name in taken
        found = taken[name]
        assert found.dtype == contents[name].dtype
        assert torch.equal(found, contents[name])
        left -= found.numel() * found.element_size()
        assert len(data) == left
        assert name not in taken


@pytest.mark.parametrize(
    "bend", [lambda data: data[:-1], lambda data: data + b"0", lambda data: b"\xff" * 8 + data[8:]]
)
def test_a_file_that_is_cut_off_or_longer_is_not_taken_from(bend: Callable[[bytes], bytes]) -> None:
    with pytest.raises(SafetensorError):
        TakenTensors(bytearray(bend(save({"a": torch.arange(3), "b": torch.arange(2)}))))
