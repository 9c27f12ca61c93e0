"""A model held in 8 or 4 bits: everybody makes the same codes of its weights, and who holds others is found."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from protocol.job.job import ServedWeights
from protocol.models.model import inspect_config, resolve_finished
from protocol.serving import (
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    GenerateCommand,
    Sampling,
)
from tests.trainer.export.test_text_part import KINDS
from tests.trainer.files.test_archives import folder_of
from tests.trainer.serve.answering import GREEDY, Asking, check_of, end_of, tokens_of
from tests.trainer.serve.drawn_adapters import draw_adapter, likeliest, merged
from tests.trainer.serve.stages.ring import ring, tensors_of
from tests.trainer.serve.stages.test_stage_files import layers_of
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from tests.trainer.small import FAMILY_CONFIGS
from trainer.errors import WeightsError
from trainer.serve.adapters import AdapterFiles
from trainer.serve.engine import Engine
from trainer.serve.loading import load
from trainer.serve.stages.share import ModelShare
from trainer.stage.model import Cut
from trainer.stage.quantized import QuantizedMatrix, matrices

NARROW: tuple[ServedWeights, ...] = ("int8", "nf4")
_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.(.*)$")


def made(config: dict[str, Any], here: Path, source: Path) -> Path:
    """A model of a config with a folder's tokenizer. Its head tells tokens apart, so that what its layers say counts."""
    here.mkdir()
    for one in source.iterdir():
        if one.suffix != ".safetensors":
            (here / one.name).write_bytes(one.read_bytes())
    more = {"vocab_size": 300, "max_position_embeddings": 512, "eos_token_id": 256, "initializer_range": 0.3}
    torch.manual_seed(2)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(config | more)))
    model.save_pretrained(here)
    return here


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def wide(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A model whose rows are whole blocks."""
    config = FAMILY_CONFIGS["llama"] | {"hidden_size": 64, "tie_word_embeddings": request.param}
    return made(config, tmp_path_factory.mktemp("wide") / "model", folder)


def shares(here: Path, held: ServedWeights) -> list[ModelShare]:
    """The stages of a model in two."""
    last, whole = layers_of(here), tensors_of(here)
    cuts = Cut(0, 1, True, False), Cut(1, last, False, True)
    return [ModelShare(here, cut, whole, "cpu", held) for cut in cuts]


def by_place(module: nn.Module, first: int = 0) -> dict[tuple[int, str], QuantizedMatrix]:
    """Matrices of what writes, by layer and name within it; those of no layer at -1."""
    found = {}
    for name, matrix in matrices(module):
        place = _LAYER.search(name)
        if "vision" not in name and "visual" not in name:
            at = (int(place[1]) + first, place[2]) if place else (-1, name.rpartition(".")[0].rpartition(".")[2])
            found[at] = matrix
    return found


def same(one: QuantizedMatrix, other: QuantizedMatrix) -> bool:
    parts = ((one.codes, other.codes), (one.scales, other.scales), (one.groups, other.groups))
    return (one.bits, one.shape) == (other.bits, other.shape) and all(torch.equal(*pair) for pair in parts)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", [*FAMILY_CONFIGS, *KINDS])
def test_stages_have_the_codes_of_the_whole_model(family: str, tmp_path: Path) -> None:
    here = folder_of(family, tmp_path / "model")
    whole = by_place(load(here, "cpu", held="nf4").model)
    apart: dict[tuple[int, str], QuantizedMatrix] = {}
    for share in shares(here, "nf4"):
        apart |= by_place(share._module, share.cut.first)
    assert whole
    assert whole.keys() == apart.keys()
    assert all(same(matrix, apart[place]) for place, matrix in whole.items())


@pytest.mark.parametrize("held", NARROW)
def test_an_embedding_has_eight_bits_and_a_head_stays_as_it_is(wide: Path, held: ServedWeights) -> None:
    loaded = load(wide, "cpu", held=held)
    whole, stages = by_place(loaded.model), [by_place(one._module) for one in shares(wide, held)]
    assert whole[-1, "embed_tokens"].bits == 8
    assert same(whole[-1, "embed_tokens"], stages[0][-1, "embed_tokens"])
    plain = load(wide, "cpu").model
    assert torch.equal(loaded.model.lm_head.weight, plain.lm_head.weight)
    norms = {name: value for name, value in plain.named_parameters() if "norm" in name}
    assert all(torch.equal(value, loaded.model.get_parameter(name)) for name, value in norms.items())
    twin = loaded.twin()
    assert dict(matrices(twin)) == dict(matrices(loaded.model)), "the same tensors, held once"
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(twin(ids).logits, loaded.model(ids).logits)
        assert not torch.allclose(plain(ids).logits, loaded.model(ids).logits, atol=1e-3)


@pytest.mark.parametrize("held", NARROW)
def test_what_is_held_has_the_bytes_that_plans_count(wide: Path, held: ServedWeights) -> None:
    def bytes_of(module: nn.Module) -> int:
        plain = {one.data_ptr(): one.numel() * 4 for one in module.parameters()}
        return sum(plain.values()) + sum(matrix.bytes for _, matrix in matrices(module))

    shape = inspect_config(resolve_finished(json.loads((wide / "config.json").read_text())))
    for share in shares(wide, held):
        cut = share.cut
        counted = shape.narrow_bytes(cut.last - cut.first, cut.is_first, cut.is_last, held)
        assert bytes_of(share._module) == pytest.approx(counted, rel=0.03), "whose blocks are few"
    whole = bytes_of(load(wide, "cpu", held=held).model)
    assert whole == pytest.approx(shape.narrow_bytes(shape.layers, True, True, held), rel=0.03)
    assert whole < 0.6 * bytes_of(load(wide, "cpu").model)


COMMANDS = [
    GenerateCommand(name, "A quick brown fox", tokens=60, sampling=sampling)
    for name, sampling in {"greedy": GREEDY, "drawn": Sampling(seed=4)}.items()
]


async def said_by(here: Path, held: ServedWeights, *commands: Any) -> dict[str, Any]:
    asking = Asking()
    async with Engine(here, 1, asking.say, context=256, held=held) as engine:
        return await asking.over(engine, *commands)


@pytest.mark.parametrize("held", NARROW)
async def test_stages_answer_as_the_whole_model_and_checks_find_them_right(wide: Path, held: ServedWeights) -> None:
    whole = await said_by(wide, held, *COMMANDS)
    async with ring(wide, 2, delay=0.005, held=held) as here:
        found = await here.over(*COMMANDS)
    for one in COMMANDS:
        assert tokens_of(found[one.id]) == tokens_of(whole[one.id])
        assert end_of(found[one.id]) == end_of(whole[one.id])
    checks = [check_of(one, found[one.id], f"check {one.id}") for one in COMMANDS]
    reports = await said_by(wide, held, *checks)
    assert [reports[one.id][-1].wrong for one in checks] == ["", ""]
    assert max(reports[one.id][-1].worst for one in checks) < 1e-3


async def test_adapters_answer_beside_matrices_in_fewer_bits_as_merged_with_what_these_stand_for(
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    here = made(FAMILY_CONFIGS["llama"] | {"hidden_size": 64, "tie_word_embeddings": False}, tmp_path / "own", folder)
    drawn = draw_adapter(here, tmp_path / "drawn", 1, 4, ("q_proj", "down_proj"))
    values, stood = load_file(here / "model.safetensors"), tmp_path / "stood-for"
    shutil.copytree(here, stood)
    wide = {name: matrix.values() for name, matrix in matrices(load(here, "cpu", held="nf4").model)}
    assert wide.keys() < values.keys()
    save_file(values | wide, stood / "model.safetensors", {"format": "pt"})
    prompt, files = "A quick brown fox", [AdapterFiles.of_folder(drawn)]
    expected = [likeliest(one, prompt, 24) for one in (stood, merged(stood, drawn, tmp_path / "merged"))]
    assert expected[0] != expected[1]
    asked = [GenerateCommand(str(number), prompt, tokens=24, sampling=GREEDY, adapter=number) for number in range(2)]
    asking = Asking()
    async with Engine(here, 1, asking.say, context=256, held="nf4", adapters=files) as engine:
        whole = await asking.over(engine, *asked)
    async with ring(here, 2, delay=0.005, held="nf4", adapters=dict.fromkeys(range(2), files)) as stages:
        apart = await stages.over(*asked)
    for found in (whole, apart):
        assert [tokens_of(found[one.id]) for one in asked] == expected


@pytest.mark.parametrize(("promised", "held"), [("int8", "nf4"), ("nf4", "int8"), ("int8", "float32")])
async def test_who_holds_other_bits_than_promised_is_found(
    wide: Path, promised: ServedWeights, held: ServedWeights
) -> None:
    texts = EmbedCommand("texts", ("a fox", "a lazy dog and a much longer text"))
    said = await said_by(wide, held, *COMMANDS, texts)
    vectors = [one for one in said["texts"] if isinstance(one, EmbeddedReport)]
    tokens, made = (tuple(value for one in vectors for value in getattr(one, name)) for name in ("tokens", "vectors"))
    checks = [check_of(one, said[one.id], f"check {one.id}") for one in COMMANDS]
    reports = await said_by(wide, promised, *checks, CheckEmbeddingsCommand("vectors", texts, tokens, made))
    assert "away from this model's" in reports["vectors"][-1].wrong
    if "float32" not in (promised, held):
        assert all("nats behind" in reports[one.id][-1].wrong for one in checks)


def test_tensors_that_are_no_numbers_or_of_another_shape_are_refused(wide: Path, tmp_path: Path) -> None:
    for one in wide.iterdir():
        (tmp_path / one.name).write_bytes(one.read_bytes())
    values, name = load_file(wide / "model.safetensors"), "model.layers.1.mlp.up_proj.weight"
    for value in (torch.full_like(values[name], torch.nan), values[name][:, :-1].contiguous()):
        save_file(values | {name: value}, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(WeightsError):
            load(tmp_path, "cpu", held="int8")
