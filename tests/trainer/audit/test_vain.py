"""Work that was in vain: its result could be had without computing it, as where a neighbour sends noughts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cottage.demo.corpus import write_corpus
from protocol.job.job import ModelSpec, TokenizerSpec
from protocol.models.model import resolve
from protocol.task import AuditReport, ReplayAcross
from tests.trainer.segments import STEPS, Lie, Step, auditor, command, honest, segment, spec_of
from tests.trainer.small import ENV, Pipeline, config_of, cuts, job_folder, training
from trainer.audit.trivial_work import _spared, vain
from trainer.data.data import TokenFile
from trainer.data.prepare import prepare
from trainer.formats.source import Dataset
from trainer.stage.stage import Stage

TOKENS = torch.arange(8 * 16).reshape(8, 16)
ALL = torch.ones(8, 16, dtype=torch.bool)
WIDTH = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_folder(tmp_path_factory.mktemp("vain") / "job")


def judged(folder: Path, lie: Lie, first_step: int = 0, **changes: Any) -> tuple[AuditReport, AuditReport]:
    """What an auditor of the class says of a segment, and one of another class."""
    done = segment(folder, spec_of(**changes), lie, first_step)
    across = ReplayAcross(command(done), ENV)
    return (
        auditor(folder, done.spec, ENV).judge(command(done), done.opening(STEPS - 1)),
        auditor(folder, done.spec).judge_across(across, done.opening(STEPS - 1, True)),
    )


def feeds_noughts(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    """The stage before sends noughts: its embeddings are gone."""
    line.stages[0].parameters.zero_()
    return step(number, total)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("first_step", "changes"), [(0, {}), (30, {"activations": "int8"}), (30, {"activations": "int4", "clip_norm": 0.5})]
)
def test_honest_work_is_not_in_vain(folder: Path, first_step: int, changes: dict[str, object]) -> None:
    for report in judged(folder, honest, first_step, **changes):
        assert (report.verdict, report.vain) == ("match", False)


def test_work_on_noughts_is_right_and_in_vain_whoever_looks(folder: Path) -> None:
    for report in judged(folder, feeds_noughts):
        assert (report.verdict, report.vain) == ("match", True)
        assert "hidden states that crossed were noughts" in report.detail


def normal(seed: int = 1) -> torch.Tensor:
    return torch.randn(8, 16, WIDTH, generator=torch.Generator().manual_seed(seed))


def test_different_vectors_spare_nobody_anything_though_most_of_each_is_the_same() -> None:
    assert _spared(normal(), TOKENS, ALL) == ""
    common = torch.ones(WIDTH) * 3  # Of large models it is said that their hidden states point mostly one way.
    assert _spared(normal() + common, TOKENS, ALL) == ""


def test_equal_tokens_may_come_to_equal_vectors() -> None:
    one = normal()[:1].expand(8, -1, -1)
    assert _spared(one, TOKENS[:1].expand(8, -1), ALL) == ""
    assert _spared(one, TOKENS, ALL) == "the same in different sequences"


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_one_sequence_in_every_place_of_a_batch_is_found_also_scaled(scale: float) -> None:
    scales = torch.tensor([scale**n for n in range(8)])[:, None, None]
    same = normal()[:1] * scales
    assert _spared(same, TOKENS, ALL) == "the same in different sequences"
    one_of_them = torch.cat([same[:1], normal(3)[1:]])
    assert _spared(one_of_them, TOKENS, ALL) == ""


def test_hidden_states_that_training_has_made_nearly_the_same_spare_nobody_anything() -> None:
    common = normal()[:1, :1]
    assert _spared(common + 0.003 * normal(2), TOKENS, ALL) == ""
    assert _spared(common.expand(8, 16, -1) + 0.0005 * normal(2), TOKENS, ALL) == ""


def test_honest_work_on_real_text_early_in_training_is_not_in_vain(tmp_path: Path) -> None:
    """Its hidden states collapse before they part: 0.3 % lay between different tokens here, and a share was not paid for it."""
    text = tmp_path / "text.txt"
    write_corpus(text, 400_000)
    prepare(Dataset.of(text), TokenizerSpec(kind="bpe", vocabulary=512), None, 0.05, 64, tmp_path / "data")
    spec = training(sequence=64, tokens=64 * 4 * 40, learning_rate=3e-3, activations="fp32")
    config = resolve(ModelSpec(config=config_of("llama") | {"hidden_size": 64, "num_hidden_layers": 4}), 512)
    tokens = TokenFile(tmp_path / "data" / "train.bin", 64, 512)
    line = Pipeline([Stage(config, cut, spec) for cut in cuts(4, 2)], tokens)
    for step in range(40):
        line.step(step, 40)
        windows, _ = tokens.sample(spec.seed, step, 0, spec.batch, spec.sampling, spec.shares)
        for stage, recorder in zip(line.stages, line.recorders, strict=True):
            assert vain(stage, windows, recorder.received, recorder.sent) == "", step


def test_noughts_and_what_is_no_number_are_found() -> None:
    assert _spared(torch.zeros(8, 16, WIDTH), TOKENS, ALL) == "noughts"
    broken = normal()
    broken[3, 2, 1] = np.nan
    assert _spared(broken, TOKENS, ALL) == "no numbers"
