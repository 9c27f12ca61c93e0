"""A forged step passes every check but its re-execution: whoever says that it is right has not re-run it."""

from pathlib import Path

import pytest

from tests.trainer.audit.test_replay import TOTAL, auditor, command
from tests.trainer.small import commit_round, pipeline, training
from trainer.audit.canary import forge
from trainer.data.data import TokenFile
from trainer.errors import OpeningError


@pytest.mark.parametrize("step", [0, 1, 4])
def test_an_honest_auditor_finds_a_forged_step_and_nothing_but_re_running_shows_it(
    step: int, folder: Path, tokens: TokenFile
) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 5, TOTAL)
    opening = done.opening(step)
    assert auditor(folder, training()).judge(command(done, step), opening).verdict == "match"
    forged, root = forge(opening, 5, step)
    assert len(forged) == len(opening)
    report = auditor(folder, training()).judge(command(done, step, root=root), forged)
    assert (report.verdict, report.detail) == ("mismatch", "the state after the step is not what the step gives")
    assert auditor(folder, training()).judge(command(done, step), forged).verdict == "malformed", "under the true root"


@pytest.mark.parametrize(("step", "leaves"), [(0, 7), (4, 7), (6, 7), (4, 5)])
def test_a_forged_segment_of_several_steps_is_found_too(
    step: int, leaves: int, folder: Path, tokens: TokenFile
) -> None:
    spec = training(commit_every=3)
    done = commit_round(pipeline("llama", 2, tokens, spec), 1, leaves, TOTAL)
    forged, root = forge(done.opening(step), leaves, step)
    report = auditor(folder, spec).judge(command(done, step, root=root), forged)
    assert (report.verdict, report.detail) == ("mismatch", "the state after the step is not what the step gives")


def test_bytes_that_are_no_opening_are_refused() -> None:
    with pytest.raises(OpeningError):
        forge(b"nothing", 5, 1)
