"""Checkpoints of stages, and the model folder that is made of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from transformers import AutoModelForCausalLM, AutoTokenizer

from protocol.boundary import Position
from protocol.job.job import ModelSpec, TokenizerSpec
from protocol.models.model import resolve
from tests.trainer.small import FAMILY_CONFIGS, SEQUENCE, VOCABULARY, config_of, cuts, training
from trainer.__main__ import main
from trainer.data.data import TokenFile, heldout_parts
from trainer.data.prepare import prepare
from trainer.errors import WeightsError
from trainer.export.assemble import _add, assemble
from trainer.export.card import model_card
from trainer.export.inference import evaluate, sample_text
from trainer.formats.source import Dataset
from trainer.outer import OuterState, outer_method
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, heldout_loss
from trainer.worker.arriving_state import ArrivingState
from trainer.worker.checkpoint import read_checkpoint, write_checkpoint

TEXT = "".join(f"def function_{i}(argument):\n    return argument + {i}\n\n" for i in range(400))


def outer_of(stage: Stage) -> OuterState:
    anchor = stage.state().parameters
    return OuterState(anchor, anchor * 0.5)


def checkpoints(folder: Path, family: str, stages: int = 2, round_index: int = 5) -> list[Path]:
    paths = []
    for index, cut in enumerate(cuts(3, stages)):
        stage = Stage(config_of(family), cut, training())
        paths.append(folder / f"stage{index}.safetensors")
        paths[-1].write_bytes(write_checkpoint(outer_of(stage), stage.slots, round_index))
    return paths


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text(TEXT)
    tokenizer = TokenizerSpec(vocabulary=VOCABULARY)
    prepare(Dataset.of(tmp_path / "text", "text"), tokenizer, None, 0.1, SEQUENCE, tmp_path / "job")
    return tmp_path / "job"


@pytest.mark.parametrize("cut", cuts(3, 3))
def test_a_checkpoint_gives_back_what_was_written(cut: Cut) -> None:
    stage = Stage(config_of("gpt2"), cut, training())
    state = outer_of(stage)
    back, round_index = read_checkpoint(write_checkpoint(state, stage.slots, 9), stage.slots, stage.parameters.numel())
    assert torch.equal(back.anchor, state.anchor)
    assert torch.equal(back.momentum, state.momentum)
    assert round_index == 9


def test_a_lean_state_after_an_outer_step_takes_four_bytes_a_parameter_and_loses_nothing() -> None:
    spec = training(memory="lean", precision="bf16")
    stage = Stage(config_of(), cuts(3, 2)[0], spec)
    method = outer_method(spec, stage.slots, stage.size)
    first = OuterState.first(stage.values().clone(), spec)
    mean = torch.randn(stage.size, generator=torch.Generator().manual_seed(1)).mul_(1e-3)
    after = method.step(first, mean, (), 3)
    sizes = [len(write_checkpoint(state, stage.slots, 4)) for state in (first, after)]
    count = sum(slot.count for slot in stage.slots)
    assert sizes[0] - sizes[1] == pytest.approx(2 * count, abs=1000)
    assert sizes[1] < 4 * count + 20_000
    written = write_checkpoint(after, stage.slots, 4)
    back, _ = read_checkpoint(written, stage.slots, stage.size, torch.bfloat16, lean=True)
    assert back.anchor.dtype == torch.bfloat16
    wide, _ = read_checkpoint(written, stage.slots, stage.size, torch.bfloat16)
    assert torch.equal(wide.anchor, back.anchor.float())
    for slot in stage.slots:  # What lies between parameters is in no file.
        span = slice(slot.start, slot.start + slot.count)
        assert torch.equal(back.anchor[span], after.anchor[span])
        assert torch.equal(back.momentum[span], after.momentum[span])


@pytest.mark.parametrize("piece", [1000, 1 << 20])
@pytest.mark.parametrize("wide", [(), (1,), None], ids=["16 bits", "one of 32", "32 bits"])
def test_a_state_that_comes_in_pieces_is_the_one_that_was_written(piece: int, wide: tuple[int, ...] | None) -> None:
    spec = training(memory="lean", precision="bf16")
    stage = Stage(config_of(), cuts(3, 2)[0], spec)
    anchor = stage.values().clone()
    for at, slot in enumerate(stage.slots):
        if wide is not None and at not in wide:
            span = slice(slot.start, slot.start + slot.count)
            anchor[span] = anchor[span].bfloat16().float()
    state = OuterState(anchor, torch.randn(stage.size).bfloat16())
    written = write_checkpoint(state, stage.slots, 5)
    due, _ = read_checkpoint(written, stage.slots, stage.size, torch.bfloat16, lean=True)
    for momentum in (True, False):
        arriving = ArrivingState(stage, momentum=momentum)
        for start in range(0, len(written), piece):
            arriving.take(written[start : start + piece])
        found, number = arriving.whole()
        assert number == 5
        assert found.anchor.dtype == due.anchor.dtype == (torch.float32 if wide != () else torch.bfloat16)
        assert torch.equal(found.anchor, due.anchor)
        assert torch.equal(found.momentum, due.momentum) if momentum else not len(found.momentum)


@pytest.mark.parametrize("how", ["cut off", "of another stage", "not finite", "noise"])
def test_a_state_that_does_not_come_whole_is_refused(how: str) -> None:
    spec = training(memory="lean", precision="bf16")
    stage, other = (Stage(config_of(), cut, spec) for cut in cuts(3, 2))
    anchor = stage.values().clone()
    if how == "not finite":
        anchor[3] = float("nan")
    written = write_checkpoint(OuterState(anchor, anchor.bfloat16()), stage.slots, 5)
    data = {"cut off": written[:-1], "noise": b"\xff" * 64}.get(how, written)

    def arrive(of: Stage) -> OuterState:
        arriving = ArrivingState(of, momentum=True)
        arriving.take(data)
        return arriving.whole()[0]

    with pytest.raises(WeightsError):
        arrive(other if how == "of another stage" else stage)


def test_a_folder_made_of_16_bits_has_the_values_that_they_stand_for(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.0e-5], dtype=np.float32)
    values = (values.view(np.int32) & ~0xFFFF).view(np.float32)
    found: dict[str, NDArray[np.float32]] = {}
    _add(found, "a", (values.view(np.int32) >> 16).astype(np.int16), tmp_path)
    assert found["a"].dtype == np.float32
    assert np.array_equal(found["a"], values)


def broken_checkpoints() -> dict[str, tuple[bytes, str]]:
    stage = Stage(config_of(), cuts(3, 2)[0], training())
    good = write_checkpoint(outer_of(stage), stage.slots, 1)
    tensors = load(good)
    name = "anchor.model.layers.0.mlp.up_proj.weight"
    return {
        "empty": (b"", "bad-safetensors"),
        "noise": (b"\x40" + b"\0" * 7 + b"noise" * 50, "bad-safetensors"),
        "cut off": (good[: len(good) // 2], "bad-safetensors"),
        "a tensor is missing": (save({k: v for k, v in tensors.items() if k != name}), "wrong-shape"),
        "another shape": (save(tensors | {name: tensors[name].T.contiguous()[1:]}), "wrong-shape"),
        "another type": (save(tensors | {name: tensors[name].double()}), "wrong-shape"),
        "not finite": (save(tensors | {name: tensors[name] / 0}), "not-finite"),
        "no round": (save({k: v for k, v in tensors.items() if k != "round"}), "wrong-shape"),
    }


@pytest.mark.parametrize("how", broken_checkpoints())
def test_a_broken_checkpoint_is_refused(how: str) -> None:
    data, code = broken_checkpoints()[how]
    stage = Stage(config_of(), cuts(3, 2)[0], training())
    with pytest.raises(WeightsError) as caught:
        read_checkpoint(data, stage.slots, stage.parameters.numel())
    assert caught.value.code == code


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
@pytest.mark.parametrize("stages", [1, 3])
def test_the_folder_opens_and_its_loss_is_the_validation_loss(
    family: str, stages: int, prepared: Path, tmp_path: Path
) -> None:
    whole = Stage(config_of(family), Cut(0, 3, True, True), training())
    tokens = TokenFile(prepared / "heldout.bin", SEQUENCE, VOCABULARY)
    expected = heldout_loss(whole, heldout_parts(tokens, training()), Recorded({}))
    out = tmp_path / "model"
    count = assemble(
        checkpoints(tmp_path, family, stages), config_of(family), prepared / "tokenizer.json", out, {"name": "x"}
    )
    assert count == whole.parameter_count
    assert evaluate(out, prepared / "heldout.bin", SEQUENCE, 1)["loss"] == pytest.approx(expected, abs=1e-6)
    assert "cottage" not in (out / "config.json").read_text()


def test_the_tokenizer_of_the_folder_opens_and_knows_its_end(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    assemble(checkpoints(tmp_path, "llama"), config_of(), prepared / "tokenizer.json", out, {})
    tokenizer = AutoTokenizer.from_pretrained(out)
    text = "def function_7(argument):\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token == "<|endoftext|>"
    assert AutoModelForCausalLM.from_pretrained(out).config.eos_token_id == tokenizer.eos_token_id


def test_generated_text_follows_from_its_seed(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    assemble(checkpoints(tmp_path, "llama"), config_of(), prepared / "tokenizer.json", out, {})
    first = sample_text(out, "def ", 12, 1, 0.8, 1)
    assert first.startswith("def ")
    assert sample_text(out, "def ", 12, 1, 0.8, 1) == first
    assert sample_text(out, "def ", 12, 2, 0.8, 1) != first


def test_the_command_line_assembles_evaluates_and_samples(
    prepared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of()))
    (tmp_path / "card.json").write_text(json.dumps({"name": "by hand"}))
    paths = [str(path) for path in checkpoints(tmp_path, "llama")]
    model = str(tmp_path / "model")
    arguments = ["--config", str(tmp_path / "config.json"), "--tokenizer", str(prepared / "tokenizer.json")]
    assert (
        main(["assemble", "--checkpoint", *paths, *arguments, "--out", model, "--card", str(tmp_path / "card.json")])
        == 0
    )
    assert main(["evaluate", "--model", model, "--heldout", str(prepared / "heldout.bin"), "--sequence", "16"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["loss"] > 0
    assert main(["sample", "--model", model, "--prompt", "def", "--tokens", "3"]) == 0
    assert capfd.readouterr().out.startswith("def")


def assembling(folder: Path, paths: list[Path], prepared: Path) -> Any:
    return assemble(paths, config_of(), prepared / "tokenizer.json", folder / "model", {})


def test_a_missing_stage_is_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="one checkpoint of each stage"):
        assembling(tmp_path, checkpoints(tmp_path, "llama")[:1], prepared)


def test_the_same_stage_twice_is_refused(prepared: Path, tmp_path: Path) -> None:
    paths = checkpoints(tmp_path, "llama")
    with pytest.raises(WeightsError, match="another checkpoint holds too"):
        assembling(tmp_path, [*paths, shutil.copy(paths[0], tmp_path / "copy")], prepared)


def test_stages_of_different_rounds_are_refused(prepared: Path, tmp_path: Path) -> None:
    first = checkpoints(tmp_path, "llama")[0].rename(tmp_path / "older")
    second = checkpoints(tmp_path, "llama", round_index=6)[1]
    with pytest.raises(WeightsError, match=r"rounds \[5, 6\]"):
        assembling(tmp_path, [first, second], prepared)


@pytest.mark.parametrize("content", [b"", b"noise" * 100])
def test_a_file_that_is_no_checkpoint_is_refused(content: bytes, prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(WeightsError, match="bad cannot be read") as caught:
        assembling(tmp_path, [tmp_path / "bad"], prepared)
    assert caught.value.code == "bad-safetensors"


def test_the_card_shows_curve_and_receipts_and_survives_odd_text() -> None:
    card = {
        "name": "my\nmodel",
        "tokens": 400_000,
        "loss_after": 3.14159,
        "rounds": [{"round": 0, "validation_loss": 7.6}, {"round": 1, "train_loss": None}],
        "receipts": [{"kind": "settle", "detail": "a | b\nc"}],
        "spec": {"name": "my\nmodel"},
    }
    text = model_card(card, 123, resolve(ModelSpec(preset="tiny-llama"), 2048))
    assert "# my model" in text
    assert "| held-out loss after | 3.14159 |" in text
    assert "| round | validation_loss | perplexity | train_loss |" in text
    assert "| settle | a \\| b c |" in text
    assert '"name": "my\\nmodel"' in text


def test_validation_through_a_pipeline_is_validation_in_one_process(tokens: TokenFile) -> None:
    spec = training(activations="int8")
    whole = Stage(config_of(), Cut(0, 3, True, True), spec)
    parts = heldout_parts(tokens, spec)[:3]
    expected = heldout_loss(whole, parts, Recorded({}))

    class Store:
        def __init__(self) -> None:
            self.payloads: dict[int, bytes] = {}

        def arrived(self, kind: str, micro: int) -> bool:
            return micro in self.payloads

        def receive(self, kind: str, micro: int) -> bytes:
            return self.payloads.pop(micro)

        def send(self, kind: str, micro: int, payload: bytes, naive: int) -> None:
            self.payloads[micro] = payload

    store, loss = Store(), None
    for cut in cuts(3, 3):
        loss = heldout_loss(Stage(config_of(), cut, spec), parts, store)
    assert loss == expected
    assert Position(0, 1).expected(4) == []
