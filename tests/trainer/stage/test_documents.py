"""Windows of several documents: each computes as if it were alone, only learnt targets count, and replays are exact."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.audit.test_disputes import caught_of, committed, is_changeable, leaves_of, side
from tests.trainer.audit.test_replay import TOTAL, auditor, command
from tests.trainer.small import (
    FAMILY_CONFIGS,
    SEQUENCE,
    VOCABULARY,
    commit_round,
    config_of,
    cuts,
    pipeline,
    training,
    write_marked,
)
from trainer.audit.trivial_work import vain
from trainer.data.data import TokenFile, Windows, heldout_parts
from trainer.data.marks import BEGINS, IGNORED, UNLEARNT, learnt, positions_of, targets_of, useful
from trainer.operations.inputs import sources_of, write_inputs
from trainer.operations.judge import judge
from trainer.operations.tracer import record_of
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss

LENGTHS = ((7, 5, 4), (16,), (1, 9, 6), (3, 12, 1))
STEPS = 4


def packed(seed: int, lengths: tuple[tuple[int, ...], ...] = LENGTHS, learnt_share: float = 0.6) -> list[int]:
    """Marked tokens, a window of ``SEQUENCE`` after the other; the first of each document is never learnt."""
    chance = np.random.default_rng(seed)
    found: list[int] = []
    for window in lengths:
        for length in window:
            ids = [int(one) for one in chance.integers(0, VOCABULARY, length)]
            taught = [int(one) | (0 if chance.random() < learnt_share else UNLEARNT) for one in ids]
            found += [ids[0] | BEGINS | UNLEARNT, *taught[1:]]
    return found


@pytest.fixture
def tokens(folder: Path) -> TokenFile:
    """A job's folder whose files are of documents."""
    write_marked(folder / "heldout.bin", packed(2))
    return write_marked(folder / "train.bin", [one for seed in range(20) for one in packed(seed)])


def whole(family: str, spec: Any = None) -> Stage:
    return Stage(config_of(family), Cut(0, 3, True, True), spec or training())


def windows_of(marked: list[int]) -> Windows:
    rows = [[*marked[at : at + SEQUENCE], BEGINS | UNLEARNT] for at in range(0, len(marked), SEQUENCE)]
    return np.array(rows, dtype=np.int64)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", sorted(FAMILY_CONFIGS))
def test_each_document_computes_as_if_it_were_alone(family: str) -> None:
    windows = windows_of(packed(1))
    batch = MicroBatch.of(windows)
    parts = [Stage(config_of(family), cut, training()) for cut in cuts(3, 3)]
    hidden = batch.ids
    with torch.no_grad():
        for stage in parts:
            hidden = stage.forward(hidden, batch.positions)
        together = whole(family).forward(batch.ids, batch.positions)
        assert torch.equal(hidden, together), "three stages compute what one does"
        for row, window in enumerate(LENGTHS):
            at = 0
            for length in window:
                alone = whole(family).forward(batch.ids[row : row + 1, at : at + length])
                torch.testing.assert_close(together[row : row + 1, at : at + length], alone, atol=2e-5, rtol=1e-4)
                at += length


def test_nothing_of_a_document_reaches_into_the_next_one() -> None:
    first, other = (windows_of(packed(1)) for _ in range(2))
    other[0, :7] ^= 1  # The ids of the first document; its marks stay.
    stage = whole("llama")
    with torch.no_grad():
        seen = [stage.forward(batch.ids, batch.positions)[0] for batch in map(MicroBatch.of, (first, other))]
    assert not torch.equal(seen[0][:7], seen[1][:7])
    assert torch.equal(seen[0][7:], seen[1][7:])


def test_the_loss_is_the_mean_over_learnt_targets_of_the_whole_batch() -> None:
    """Micro-batches have unequal numbers of them, one has none."""
    spec = training(batch=4, micro_batches=4)
    windows = windows_of(packed(3))
    windows[1, 1:] |= UNLEARNT
    stage = whole("llama", spec)
    loss = accumulate(stage, _alone(), windows, Recorded({}))
    counts = [int((targets_of(windows[row : row + 1]) != IGNORED).sum()) for row in range(4)]
    assert counts[1] == 0
    assert len(set(counts)) > 2
    assert learnt(windows) == sum(counts)
    batch = MicroBatch.of(windows)
    reference = whole("llama", spec)
    logits = reference.forward(batch.ids, batch.positions)
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)
    mean.backward()
    assert loss == pytest.approx(mean.item(), rel=1e-6)
    torch.testing.assert_close(stage.gradients, reference.gradients, atol=1e-7, rtol=1e-4)


def test_a_batch_without_learnt_targets_teaches_nothing() -> None:
    windows = windows_of(packed(3))
    windows[:, 1:] |= UNLEARNT
    stage = whole("llama")
    assert accumulate(stage, _alone(), windows, Recorded({})) == 0.0
    assert not stage.gradients.any()


def test_held_out_loss_is_over_learnt_targets(folder: Path, tokens: TokenFile) -> None:
    stage = whole("llama")
    held = TokenFile(folder / "heldout.bin", SEQUENCE, VOCABULARY)
    batch = MicroBatch.of(held.heldout())
    with torch.no_grad():
        logits = stage.forward(batch.ids, batch.positions)
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)
    found = heldout_loss(stage, heldout_parts(held, stage.training), Recorded({}))
    assert found == pytest.approx(mean.item(), rel=1e-6)


@pytest.mark.parametrize("sampling", ["random", "epochs"])
def test_windows_begin_with_a_document(sampling: Any, tokens: TokenFile) -> None:
    for step in range(30):
        windows, _ = tokens.sample(7, step, 0, 4, sampling)
        assert (windows[:, 0] & BEGINS).all()
        assert (windows[:, -1] & UNLEARNT).all(), "the last label begins a document of the next window"


def test_positions_begin_anew_with_each_document() -> None:
    positions = positions_of(windows_of(packed(1)))
    assert positions is not None
    assert positions[0].tolist() == [*range(7), *range(5), *range(4)]
    assert positions[2].tolist() == [0, *range(9), *range(6)]
    assert positions_of(np.arange(17)[None]) is None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activations": "int8"},
        {"activations": "aq4", "sampling": "epochs"},
        {"memory": "lean", "precision": "bf16"},
        {"schedule": "zero-bubble", "recompute": True},
    ],
    ids=["fp32", "int8", "aq4", "lean", "zero-bubble"],
)
def test_steps_over_documents_replay_bit_for_bit(
    stage: int, changes: dict[str, Any], folder: Path, tokens: TokenFile
) -> None:
    spec = training(**changes)
    line = pipeline("llama", 3, tokens, spec)
    commit_round(line, stage, 3, TOTAL)
    done = commit_round(line, stage, STEPS, TOTAL, first_step=3)
    for step in range(STEPS):
        report = auditor(folder, spec).judge(command(done, step), done.opening(step))
        assert report.verdict == "match", report.detail


def test_another_mark_is_another_step(folder: Path, tokens: TokenFile) -> None:
    """Who trains on what nobody should learn is found out."""
    spec = training()
    line = pipeline("llama", 3, tokens, spec)
    done = commit_round(line, 2, STEPS, TOTAL)
    marked = np.fromfile(folder / "train.bin", dtype="<u4")
    marked[marked < BEGINS] |= UNLEARNT
    marked.tofile(folder / "train.bin")
    report = auditor(folder, spec).judge(command(done, 1), done.opening(1))
    assert report.verdict != "match"


def test_gradients_that_are_noughts_by_right_are_no_fault(folder: Path, tokens: TokenFile) -> None:
    """Behind a document's last answer nothing is learnt: three in four gradients are noughts here."""
    lengths = ((16,),) * 4
    marked = packed(5, lengths)
    for at in range(len(marked)):
        marked[at] |= UNLEARNT if at % SEQUENCE > 3 else 0
    windows = windows_of(marked)
    matter = useful(windows)
    assert matter.sum() <= 3 * len(windows)
    line = pipeline("llama", 3, write_marked(folder / "train.bin", marked * 8), training())
    line.step(0, TOTAL)
    sampled, _ = line.tokens.sample(7, 0, 0, 4)
    for index, stage in enumerate(line.stages):
        recorder = line.recorders[index]
        assert vain(stage, sampled, recorder.received, recorder.sent) == ""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", ["gemma3_text", "llama"])
def test_each_operation_over_documents_can_be_judged_by_itself(family: str, folder: Path, tokens: TokenFile) -> None:
    """Their masks and positions are operations, too, which a dispute may end at."""
    for stage in (0, 1):
        done = committed(tokens, stage, family, steps=1)
        player = side(done, folder, family)
        leaves = leaves_of(player)
        caught = caught_of(player, leaves)
        judged = [leaf for leaf in leaves if is_changeable(leaf)]
        assert any("cumsum" in record_of(leaf).name for leaf in judged), "documents are counted"
        for leaf in judged:
            assert judge(write_inputs(leaf, {source: caught[source] for source in sources_of(leaf)})).agrees


def _alone() -> Any:
    from protocol.boundary import Position

    return Position(0, 1)
