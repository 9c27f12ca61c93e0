"""The verbs of ``python -m trainer`` that compute."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protocol.boundary import Position
from protocol.codec import encode_json
from protocol.job.job import ModelSpec, total_steps
from protocol.job.learning_rate import learning_rate
from protocol.models.model import resolve
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of, job, pipeline
from trainer.__main__ import EXIT_BAD_INPUT, main
from trainer.audit import environment
from trainer.audit.environment import bench, env_class
from trainer.data.data import TokenFile, heldout_parts
from trainer.data.folder import load_config
from trainer.files.inputs import InputFolder
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss


def single(folder: Path, tmp_path: Path, replicas: int, **changes: object) -> tuple[int, Path]:
    spec = job(**changes)
    (tmp_path / "job.json").write_bytes(encode_json(spec))
    arguments = ["--job", str(tmp_path / "job.json"), "--folder", str(folder), "--out", str(tmp_path / "out.json")]
    return main(["single", *arguments, "--replicas", str(replicas), "--progress"]), tmp_path / "out.json"


def test_one_process_trains_what_a_pipeline_of_one_replica_trains(
    folder: Path, tmp_path: Path, tokens: TokenFile, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = job().training
    steps = total_steps(spec, 1)
    code, out = single(folder, tmp_path, 1)
    result = json.loads(out.read_text())
    line = pipeline("llama", 2, tokens, spec)
    assert code == 0
    assert [point["loss"] for point in result["curve"]] == [line.step(step, steps) for step in range(steps)]
    assert [json.loads(text) for text in capsys.readouterr().out.splitlines()] == result["curve"]
    assert result["tokens"] == steps * spec.batch * SEQUENCE
    assert result["loss_after"] < result["loss_before"]
    parts = heldout_parts(TokenFile(folder / "heldout.bin", SEQUENCE, VOCABULARY), spec)
    assert result["loss_before"] == heldout_loss(Stage(config_of(), Cut(0, 3, True, True), spec), parts, Recorded({}))


def test_each_step_of_one_process_reads_the_batches_of_all_replicas(
    folder: Path, tmp_path: Path, tokens: TokenFile
) -> None:
    spec = job(tokens=1024).training
    _, out = single(folder, tmp_path, 2, tokens=1024)
    stage, steps, losses = Stage(config_of(), Cut(0, 3, True, True), spec), total_steps(spec, 2), []
    for step in range(steps):
        parts = [tokens.sample(spec.seed, step, replica, spec.batch)[0] for replica in range(2)]
        found = [accumulate(stage, Position(0, 1), part, Recorded({}), share=2) or 0.0 for part in parts]
        stage.adam_step(learning_rate(spec, step, steps))
        losses.append(sum(found) / 2)
    assert [point["loss"] for point in json.loads(out.read_text())["curve"]] == losses


def test_a_folder_without_a_config_takes_the_jobs_model(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "manifest.json").write_text(json.dumps({"vocabulary": VOCABULARY}))
    assert load_config(InputFolder(folder), job()) == config_of()


def test_a_model_that_cannot_be_is_refused_with_code_3(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").unlink()
    (folder / "manifest.json").write_text(json.dumps({"vocabulary": VOCABULARY}))
    spec = msgspec.structs.replace(job(), model=ModelSpec(preset="huge"))
    (tmp_path / "job.json").write_bytes(encode_json(spec))
    arguments = ["--job", str(tmp_path / "job.json"), "--folder", str(folder), "--out", str(tmp_path / "out.json")]
    assert main(["single", *arguments]) == EXIT_BAD_INPUT
    answer = json.loads(capsys.readouterr().err)
    assert answer["code"] == "bad-model"
    assert "'huge' is unknown: choose one of" in answer["detail"]
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"name": "x", "unknown": 1}', b"\xff"])
def test_a_job_document_that_is_none_is_refused_with_code_3(content: bytes, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_bytes(content)
    arguments = ["--job", str(tmp_path / "job.json"), "--folder", str(folder), "--out", str(tmp_path / "o")]
    assert main(["single", *arguments]) == EXIT_BAD_INPUT


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 100_000])
def test_a_config_file_that_is_no_object_is_refused(text: str, folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text(text)
    assert single(folder, tmp_path, 1)[0] == EXIT_BAD_INPUT


def test_a_sequence_longer_than_the_model_is_refused(folder: Path, tmp_path: Path) -> None:
    assert single(folder, tmp_path, 1, sequence=65)[0] == EXIT_BAD_INPUT


class Counted(TorchDispatchMode):
    """Counts kernels, as far as a processor's stand for a card's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        self.kernels += not views
        return func(*args, **(kwargs or {}))


def test_a_card_is_measured_by_what_it_computes_and_not_by_its_launches() -> None:
    """5 us a launch on the one side, 50 * 10^12 operations a second on the other: a step has to compute for longer."""
    per_step = {}
    for device in ("cpu", "cuda"):
        model, training = environment.workload(device)
        stage = Stage(resolve(model, environment.VOCABULARY), Cut(0, environment.LAYERS, True, True), training)
        windows = torch.zeros(training.batch, 17, dtype=torch.int64).numpy()  # Kernels are as many for fewer tokens.
        with Counted() as counted:
            accumulate(stage, Position(0, 1), windows, Recorded({}))
        tokens = training.batch * training.sequence
        per_step[device] = (
            stage.shape.stage_operations(0, environment.LAYERS, True, training.sequence) * tokens,
            counted.kernels,
        )
    assert per_step["cpu"][1] == per_step["cuda"][1], "the same kernels, of another size"
    operations, kernels = per_step["cuda"]
    assert operations / 50e12 > 4 * kernels * 5e-6
    assert operations < 1e12, "an old card of 4 * 10^12 has done it within a quarter of a second"


def test_the_bench_measures_and_names_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.audit.environment.BENCH_S", 0.05)
    measured = bench(1, "cpu")
    assert measured["flops"] > 1e8
    assert 0 < measured["share"] <= 1
    assert measured["memory_mb"] > 100
    assert measured["threads"] == 1
    assert measured["env_class"] == env_class(1, "cpu") != env_class(2, "cpu")
    assert len(measured["env_class"]) <= 200
    assert measured["device"] in measured["env_class"]
