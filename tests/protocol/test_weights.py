"""Which tensors a stage needs, and how few requests bring them."""

import itertools
import json
import struct

import pytest

from protocol.models.weights import IndexedTensor, WeightIndex, belongs, header, spans, weights_name
from protocol.task import Layers

LLAMA = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"] + [
    f"model.layers.{layer}.{part}" for layer in range(12) for part in ("input_layernorm.weight", "mlp.down_proj.weight")
]
GPT2 = ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"] + [f"h.{layer}.ln_1.weight" for layer in range(12)]
NEOX = ["gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm.bias", "embed_out.weight"] + [
    f"gpt_neox.layers.{layer}.attention.dense.bias" for layer in range(12)
]


@pytest.mark.parametrize("names", [LLAMA, GPT2, NEOX])
def test_stages_share_all_tensors_out_and_each_gets_its_own(names: list[str]) -> None:
    cuts = [Layers(0, 2), Layers(2, 11), Layers(11, 12)]
    parts = [belongs(names, layers, layers.first == 0, layers.last == 12) for layers in cuts]
    assert set(itertools.chain(*parts)) == set(names)
    assert not any(".10." in name or ".11." in name for name in parts[0])
    assert sum("layers." in name or name.startswith("h.") for name in parts[1]) == 9 * (2 if names is LLAMA else 1)


def test_a_file_without_a_head_gives_the_last_stage_the_embedding_and_not_the_positions() -> None:
    last = belongs(GPT2, Layers(11, 12), False, True)
    assert "wte.weight" in last
    assert "wpe.weight" not in last
    assert "model.embed_tokens.weight" not in belongs(LLAMA, Layers(11, 12), False, True)


def made(places: dict[str, tuple[int, int, int]]) -> WeightIndex:
    tensors = {
        name: IndexedTensor(file, begin, end, "F32", ((end - begin) // 4,), "0" * 64)
        for name, (file, begin, end) in places.items()
    }
    return WeightIndex(("1" * 64, "2" * 64), tensors)


def test_neighbours_come_with_one_request_and_files_are_never_mixed() -> None:
    index = made({"c": (0, 108, 116), "a": (0, 100, 104), "b": (0, 104, 108), "d": (1, 116, 120), "e": (0, 120, 124)})
    found = spans(index, index.tensors)
    assert [(span.file, span.begin, span.end, span.names) for span in found] == [
        (0, 100, 116, ("a", "b", "c")),
        (0, 120, 124, ("e",)),
        (1, 116, 120, ("d",)),
    ]


def test_the_header_describes_the_bytes_in_the_order_of_the_requests() -> None:
    index = made({"b": (0, 104, 112), "a": (0, 100, 104), "z": (1, 8, 16)})
    head = header(index, spans(index, index.tensors))
    (length,) = struct.unpack_from("<Q", head)
    assert len(head) == 8 + length
    assert len(head) % 8 == 0
    entries = json.loads(head[8:])
    assert {name: entry["data_offsets"] for name, entry in entries.items()} == {
        "a": [0, 4],
        "b": [4, 12],
        "z": [12, 20],
    }


def test_the_file_of_a_cut_is_named_by_it() -> None:
    assert weights_name(Layers(3, 7)) == "weights-3-7.safetensors"
