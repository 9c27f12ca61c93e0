"""What methods ask of a run: rounds of several lengths, what members carry over, replicas that only go on together."""

import re

import msgspec
import pytest

from coordinator.domain.rounds.round import Lost, commands, fold
from coordinator.domain.rounds.run import Holder, Run, begin, close
from coordinator.services.training.round_words import left_out_words
from protocol.identity import NodeKey
from protocol.job.rounds import Stretch
from protocol.task import AbandonRound, ApplyRound, Layers, RoundApplied, RoundCommit, RoundHolding
from tests.coordinator.fakes import digest

LAYERS = (Layers(0, 2),)


def run_of(**changes: object) -> Run:
    return msgspec.structs.replace(Run(LAYERS, 2, total_steps=10, inner_steps=4, evaluate=()), **changes)


def holders() -> list[Holder]:
    return [Holder(f"lease-{p}", NodeKey(bytes([p + 1]) * 32).address, 0, p) for p in range(2)]


def honest_round(run: Run, silent: int | None = None) -> Run:
    """The next round, in which members carry over what their commitments say; ``silent`` is lost before it commits."""
    run = begin(run, holders(), 0.0)
    current = run.round
    assert current is not None
    key = (current.epoch, current.number)
    for replica in range(2):
        if replica == silent:
            current = fold(current, f"lease-{replica}", Lost())
            continue
        carried = digest("carried", current.number, replica)
        done = RoundCommit(*key, digest("root", replica), current.steps, digest("g", replica), 1, 1, None, carried)
        current = fold(current, f"lease-{replica}", done)
    held = {p: digest("g", p) for p in range(2) if p != silent}
    for replica in held:
        current = fold(current, f"lease-{replica}", RoundHolding(*key, held))
    for replica in held:
        told = [c for c in commands(current, f"lease-{replica}") if isinstance(c, ApplyRound)]
        if told:
            name = digest("checkpoint") if told[0].checkpoint else None
            current = fold(current, f"lease-{replica}", RoundApplied(*key, digest("parameters"), name))
    return close(msgspec.structs.replace(run, round=current))


def test_rounds_have_the_lengths_of_their_stretches() -> None:
    run = run_of(stretches=(Stretch(2, 1), Stretch(8, 5)))
    lengths = []
    while run.done < run.total_rounds:
        begun = begin(run, holders(), 0.0).round
        assert begun is not None
        lengths.append((begun.first_step, begun.steps))
        run = honest_round(run)
    assert lengths == [(0, 1), (1, 1), (2, 5), (7, 3)]


def test_without_stretches_all_rounds_are_inner_steps_long() -> None:
    assert run_of().schedule.stretches == (Stretch(10, 4),)
    assert run_of().total_rounds == 3


def test_what_a_member_committed_to_carry_is_what_it_has_to_show_in_the_next_round() -> None:
    run = honest_round(run_of())
    assert run.local == {f"lease-{p}": digest("carried", 0, p) for p in range(2)}
    begun = begin(run, holders(), 0.0).round
    assert begun is not None
    assert [seat.local for seat in begun.seats] == [digest("carried", 0, p) for p in range(2)]


def test_whoever_takes_a_checkpoint_has_nothing_to_show() -> None:
    run = msgspec.structs.replace(honest_round(run_of()), current=("lease-0",))
    begun = begin(run, holders(), 0.0).round
    assert begun is not None
    assert begun.seats[1].state is not None
    assert [seat.local for seat in begun.seats] == [digest("carried", 0, 0), None]


def test_a_lost_member_carries_nothing_on() -> None:
    run = honest_round(honest_round(run_of()), silent=1)
    assert run.local == {"lease-0": digest("carried", 1, 0)}


@pytest.mark.parametrize("together", [False, True])
def test_replicas_that_exchange_in_every_step_do_the_round_again_when_one_loses_a_member(together: bool) -> None:
    begun = begin(run_of(together=together), holders(), 0.0).round
    assert begun is not None
    after = fold(begun, "lease-1", Lost())
    assert after.phase == ("void" if together else "training")
    assert not any(isinstance(command, AbandonRound) for command in commands(after, "lease-0"))


def test_the_validation_after_the_last_round_needs_one_replica_only() -> None:
    run = run_of(together=True, done=3, checkpoints=(digest("checkpoint"),))
    begun = begin(run, holders(), 0.0).round
    assert begun is not None
    assert begun.steps == 0
    assert not begun.together


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ((0, 0), ""),
        ((1, 0), "round 1: 1 of 8 steps were left out, since their gradients overflowed in half floats"),
        ((4, 4), "8 of 8 steps were left out.*loss_scale 1.67772e\\+07 is too large; stop the job"),
        ((10**9, 0), "4 of 8 steps were left out.*half floats$"),
    ],
)
def test_steps_that_changed_nothing_are_told_with_the_way_out(left_out: tuple[int, int], words: str) -> None:
    run = begin(run_of(), holders(), 0.0)
    current = run.round
    assert current is not None
    key = (current.epoch, current.number)
    for replica, lost in enumerate(left_out):
        done = RoundCommit(*key, digest("root", replica), current.steps, digest("g", replica), 1, 1, 2.0, left_out=lost)
        current = fold(current, f"lease-{replica}", done)
    told = left_out_words(msgspec.structs.replace(current, contributors=(0, 1)), 2.0**24)
    assert re.search(words, told) if words else told == ""
