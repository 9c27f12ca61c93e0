"""States of kept rounds: their memory is used again, their hashes come from a second thread, and neither changes a bit."""

from pathlib import Path

import pytest

from tests.trainer.audit.test_replay import TOTAL, auditor, command
from tests.trainer.small import ENV, commit_round, pipeline, training
from trainer.data.data import TokenFile
from trainer.stage.snapshots import SnapshotKeeper


def test_memory_that_was_given_back_holds_the_next_state(tokens: TokenFile) -> None:
    line, keeper = pipeline("llama", 2, tokens, training()), SnapshotKeeper()
    stage = line.stages[0]
    first = keeper.keep(stage)
    place, begun = first.parameters.data_ptr(), first.digest()
    keeper.give_back([first])
    line.step(0, TOTAL)
    second = keeper.keep(stage)
    assert second.parameters.data_ptr() == place
    assert second.digest() == stage.state_digest() != begun
    assert second.adam_steps == stage.adam_steps == 1
    assert keeper.keep(stage).parameters.data_ptr() != place, "what is not given back is nobody else's"


@pytest.mark.parametrize("every", [1, 2])
def test_rounds_that_are_still_kept_can_be_opened_after_memory_was_used_again(
    every: int, folder: Path, tokens: TokenFile
) -> None:
    spec = training(commit_every=every)
    line, keeper = pipeline("llama", 2, tokens, spec), SnapshotKeeper()
    gone = commit_round(line, 1, 3, TOTAL, keeper=keeper)
    kept = commit_round(line, 1, 3, TOTAL, 3, keeper=keeper)
    places = {state.parameters.data_ptr() for state in gone.trace.states.values()}
    keeper.give_back(gone.trace.states.values())
    newest = commit_round(line, 1, 3, TOTAL, 6, keeper=keeper)
    assert {state.parameters.data_ptr() for state in newest.trace.states.values()} == places
    assert all(leaf.env_class == ENV for leaf in newest.trace.leaves)
    for done in (kept, newest):
        for step in range(3):
            report = auditor(folder, spec).judge(command(done, step), done.opening(step))
            assert report.verdict == "match", (step, report.detail)


def test_leaves_say_the_state_at_the_ends_of_segments_and_of_the_round(tokens: TokenFile) -> None:
    spec = training(commit_every=2)
    done = commit_round(pipeline("llama", 2, tokens, spec), 0, 3, TOTAL)
    first, second, third = done.trace.leaves
    states = done.trace.states
    assert (first.before, first.after) == (states[0].digest(), None)
    assert (second.before, second.after) == (None, states[2].digest())
    assert third.before == states[2].digest()
    assert third.after not in (None, third.before)
