"""A segment is run again by a machine of another class: an honest one comes near enough, lies that change a step do not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.task import AuditReport, ReplayAcross
from tests.trainer.segments import (
    HONEST,
    LIES,
    ONE,
    STEPS,
    auditor,
    command,
    contributions,
    elsewhere,
    honest,
    once,
    segment,
    skips,
    spec_of,
    write,
)
from tests.trainer.small import ENV, Committed, job_folder
from trainer.audit.replay import ending_of
from trainer.audit.tolerance import Distances, distance, tolerances
from trainer.stage.stage import Stage, StageState

SEEN = ("skips one step of ten", "flips one gradient of ten", "other data in one step of ten")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_folder(tmp_path_factory.mktemp("across") / "job")


@pytest.fixture(scope="module")
def done(folder: Path) -> Committed:
    return segment(folder, spec_of())


def judged(folder: Path, done: Committed, ending: bool = True, env: str = ENV, **changes: Any) -> AuditReport:
    across = ReplayAcross(command(done, **changes), env)
    return auditor(folder, done.spec).judge_across(across, done.opening(STEPS - 1, ending))


@pytest.mark.long
@pytest.mark.parametrize(
    "kept",
    [
        pytest.param({}, id="float32"),
        pytest.param({"memory": "lean", "precision": "bf16"}, id="lean", marks=pytest.mark.long),
    ],
)
def test_a_processor_without_vector_instructions_finds_honest_work_right_and_lies_wrong(
    kept: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """In a process that really rounds otherwise: it finds honest work wrong bit for bit."""
    for name in ("train.bin", "config.json"):
        (tmp_path / name).symlink_to(folder / name)
    spec = spec_of(activations="int8", clip_norm=0.5, **kept)
    for name, lie in {HONEST: honest, **{name: LIES[name] for name in SEEN}}.items():
        write(tmp_path, name, segment(folder, spec, lie))
    found = elsewhere(tmp_path, "judge", ATEN_CPU_CAPABILITY="default")
    there = found.pop("")
    if there["capability"] == torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor has no vector instructions that torch could do without")
    assert there["contributions"] == contributions(), "made of single operations that round alike everywhere"
    true = found.pop(HONEST)
    assert (true["verdict"], true["exact"]) == ("match", "mismatch"), "the two classes round differently"
    assert true["detail"].endswith(" allowed"), "how far it is away is said, too"
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(SEEN, "mismatch")


def test_a_segment_that_does_not_show_its_ending_cannot_be_compared(folder: Path, done: Committed) -> None:
    report = judged(folder, done, ending=False)
    assert report.verdict == "malformed"
    assert "what the segment came to" in report.detail


def test_the_ending_must_be_what_was_committed_to(folder: Path, done: Committed) -> None:
    state = done.after
    moved = StageState(state.parameters + 1, state.first_moment, state.second_moment, state.adam_steps)
    false = Committed(done.trace, done.position, done.spec, done.total, done.sent, moved, done.method)
    assert "not the one that the leaf ends with" in judged(folder, false).detail
    bent = [{key: payload[::-1] for key, payload in step.items()} for step in done.sent]
    report = judged(folder, Committed(done.trace, done.position, done.spec, done.total, bent, state, done.method))
    assert (report.verdict, "not the one that the leaf names" in report.detail) == ("malformed", True)


def test_a_contribution_that_the_shown_state_does_not_give_is_found_bit_for_bit(folder: Path) -> None:
    done = segment(folder, spec_of())
    done.trace.bind("2" * 64)
    report = judged(folder, done)
    assert (report.verdict, "pseudo-gradient" in report.detail) == ("mismatch", True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"anchor": "4" * 64}, "agreed on was 4444"),
        ({"pseudo_gradient": "3" * 64}, "committed to the pseudo-gradient 3333"),
        ({"replica": 1}, "samples"),
    ],
)
def test_what_are_digests_is_compared_bit_for_bit(
    changes: dict[str, Any], words: str, folder: Path, done: Committed
) -> None:
    report = judged(folder, done, **changes)
    assert (report.verdict, words in report.detail) == ("mismatch", True)


def test_a_leaf_of_another_class_than_was_registered_is_said_to_be(folder: Path, done: Committed) -> None:
    report = judged(folder, done, env="a third")
    assert (report.verdict, "had said to be a third" in report.detail) == ("incomparable", True)


def test_a_worker_makes_the_ending_again_that_it_committed_to(folder: Path, done: Committed) -> None:
    own = auditor(folder, done.spec)
    scratch = own.stage_of(command(done))
    tokens = own.rerun(command(done), own.open(command(done), done.opening(ONE), scratch)[0], scratch)._tokens
    ending = ending_of(done.trace, 0, scratch, done.position, tokens, 0, done.total)
    assert ending.state.digest() == done.after.digest() == done.trace.leaves[-1].after
    assert list(ending.sent) == done.sent


def test_doing_nothing_is_one_away_and_the_opposite_two(folder: Path, done: Committed) -> None:
    origin, ours = torch.tensor([1.0, 1.0]), torch.tensor([1.1, 0.9])
    assert distance(ours, ours, origin) == 0
    assert distance(origin, ours, origin) == pytest.approx(1)
    assert distance(2 * origin - ours, ours, origin) == pytest.approx(2)
    assert distance(ours, origin, origin) == float("inf"), "who moves where nothing should"
    skipped = segment(folder, spec_of(), skips)
    own = auditor(folder, skipped.spec)
    stage = own.stage_of(command(skipped))
    opened, _ = own.open(command(skipped), skipped.opening(ONE, ending=True), stage, ending=True)
    assert own.measure(command(skipped), opened, stage).found["parameters"] == pytest.approx(1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_state_that_is_no_number_is_never_near(bad: float, folder: Path, done: Committed) -> None:
    stage: Stage = auditor(folder, done.spec).stage_of(command(done))
    distances, state = Distances(stage), done.trace.states[0]
    moved = StageState(done.after.parameters * bad, done.after.first_moment, done.after.second_moment, STEPS)
    distances.add_state(state, moved, done.after)
    assert not distances.compared().near


def test_a_lie_in_one_of_ten_steps_is_further_off_than_anything_that_is_allowed(folder: Path) -> None:
    done = segment(folder, spec_of(), once(skips))
    report = judged(folder, done)
    assert (report.verdict, " away, 0.005 allowed" in report.detail) == ("mismatch", True)
    assert max(tolerances(spec_of()).values()) < 1, "doing nothing is never allowed"
