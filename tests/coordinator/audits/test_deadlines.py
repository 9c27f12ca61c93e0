"""Who is late: the deadline follows the others, a late replica is left out of one round and goes on in the next."""

import random

import msgspec
import pytest

from coordinator.domain.rounds import run as runs
from coordinator.domain.rounds.round import Lost, Round, commands, culprits, fold, look
from coordinator.domain.rounds.run import Holder, Run
from coordinator.domain.rounds.straggler_deadline import LATENESS, LEAST_SLACK_S, deadline, quorum
from protocol.job.job import TrainingSpec
from protocol.task import AbandonRound, ApplyRound, BeginRound, Layers, RoundApplied, RoundCommit
from tests.coordinator.jobs.test_rounds import EPOCH, NUMBER, applied, commit, fresh, holding


def timed(stages: int, replicas: int, steps: int = 20, seconds: float = 60.0) -> Round:
    return msgspec.structs.replace(fresh(stages, replicas, steps), seconds=seconds, lateness=LATENESS, store=False)


def arrive(
    current: Round, replica: int, at: float, leaves: int = 20, lost: frozenset[tuple[int, int]] = frozenset()
) -> Round:
    """A replica commits, and everybody holds its contributions but for the ``lost`` (sender, receiver) pairs."""
    for seat in current.seats:
        if seat.replica == replica:
            current = fold(current, seat.lease, commit(seat, leaves), at)
    for seat in current.seats:
        if (replica, seat.replica) not in lost:
            current = fold(current, seat.lease, holding(seat, (replica,)), at)
    return current


def apply_all(current: Round, at: float, but: frozenset[int] = frozenset()) -> Round:
    for seat in current.seats:
        for told in commands(current, seat.lease):
            if isinstance(told, ApplyRound) and seat.replica not in but:
                report = applied(seat, told)
                current = fold(current, seat.lease, msgspec.structs.replace(report, kept=report.parameters), at)
    return current


def test_nobody_is_late_before_half_have_arrived() -> None:
    assert [quorum(n) for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]
    assert deadline([], 1, 4.0) is None
    assert deadline([10.0], 3, 4.0) is None
    assert deadline([10.0, 11.0], 3, 4.0) is not None


def test_the_deadline_is_the_median_and_so_many_median_deviations() -> None:
    assert deadline([10.0, 20.0, 30.0, 40.0, 50.0], 5, 4.0) == 30.0 + 4.0 * 10.0
    assert deadline([10.0, 20.0, 30.0, 40.0, 5_000.0], 5, 4.0) == 30.0 + 4.0 * 10.0, (
        "one extreme value does not move it"
    )


def test_those_that_arrive_together_leave_some_slack() -> None:
    assert deadline([100.0, 100.0, 100.0], 4, 4.0) == pytest.approx(110.0)
    assert deadline([0.1, 0.1], 3, 4.0) == pytest.approx(0.1 + LEAST_SLACK_S)


def test_a_replica_that_is_later_than_the_deadline_is_left_out_and_told_to_apply_the_others() -> None:
    current = timed(2, 4)
    for replica, at in ((0, 60.0), (1, 61.0), (2, 62.0)):
        current = arrive(current, replica, at)
    assert look(current, 65.0).phase == "training"
    current = look(current, 68.0)
    assert (current.phase, current.contributors) == ("applying", (0, 1, 2))
    told = commands(current, "0/3")
    assert [type(command) for command in told] == [BeginRound, AbandonRound, ApplyRound]
    late = current.seat("0/3")
    assert late is not None
    assert fold(current, "0/3", commit(late, 20), 69.0).contributors == (0, 1, 2), "what comes later changes nothing"


def test_a_round_of_fixed_steps_waits_for_everybody_unless_told_otherwise() -> None:
    current = fresh(1, 4)
    for replica in (0, 1, 2):
        current = arrive(current, replica, 1.0, leaves=2)
    assert look(current, 1e9).phase == "training"
    assert runs.lateness_of(TrainingSpec()) is None
    assert runs.lateness_of(TrainingSpec(round_seconds=60.0)) == LATENESS
    assert runs.lateness_of(TrainingSpec(lateness=2.0)) == 2.0


def test_a_member_that_holds_only_some_does_not_keep_the_others_from_going_on() -> None:
    current = timed(1, 4)
    for replica in range(4):
        current = arrive(current, replica, 60.0, lost=frozenset({(0, 3), (1, 3)}))
    assert current.phase == "training"
    current = look(current, 70.0)
    assert current.contributors == (0, 1, 2, 3)
    current = apply_all(current, 71.0, but=frozenset({3}))
    assert current.phase == "applying"
    over = look(current, 80.0)
    assert over.phase == "complete"


def test_who_had_not_applied_begins_the_next_round_from_what_its_peers_keep() -> None:
    run = Run(
        layers=(Layers(0, 1),),
        replicas=3,
        total_steps=100,
        inner_steps=20,
        evaluate=(),
        round_seconds=60.0,
        store_every=9,
    )
    holders = [Holder(f"lease{p}", fresh(1, 3).seats[p].node, 0, p) for p in range(3)]
    run = runs.begin(run, holders, 0.0)
    assert run.round is not None
    current = msgspec.structs.replace(run.round, lateness=LATENESS)
    for seat in current.seats[:2]:
        current = fold(
            current, seat.lease, RoundCommit(run.epoch, 0, "a" * 64, 20, f"{seat.replica}" * 64, 1, 1, 2.0), 60.0
        )
    held = {0: "0" * 64, 1: "1" * 64}
    for seat in current.seats:
        event = msgspec.structs.replace(holding(seat, ()), epoch=run.epoch, round=0, held=held)
        current = fold(current, seat.lease, event, 60.0)
    current = look(current, 90.0)
    assert current.contributors == (0, 1)
    for lease in ("lease0", "lease1"):
        current = fold(current, lease, RoundApplied(run.epoch, 0, "b" * 64, None, "c" * 64), 91.0)
    current = look(current, 100.0)
    assert current.phase == "complete"
    after = runs.close(msgspec.structs.replace(run, round=current))
    assert after.current == ("lease0", "lease1")
    assert after.progress == 40
    assert after.base.done == 0, "nothing was stored with the coordinator"
    begun = runs.begin(after, holders, 101.0).round
    assert begun is not None
    assert begun.first_step == 20
    assert begun.rate_step == 40 // 3
    late = begun.seat("lease2")
    assert late is not None
    assert late.kept is not None
    assert set(late.kept.holders) == {holders[0].node, holders[1].node}
    assert all(seat.kept is None and seat.state is None for seat in begun.seats if seat.lease != "lease2")


def test_a_replica_whose_stages_disagree_about_their_steps_does_not_count() -> None:
    current = timed(2, 2)
    for seat in current.seats:
        current = fold(current, seat.lease, commit(seat, 20 - (seat.lease == "1/1")), 60.0)
    for seat in current.seats:
        current = fold(current, seat.lease, holding(seat, (0, 1)), 60.0)
    assert current.contributors == (0,)
    assert current.contributed() == 20


@pytest.mark.parametrize("leaves", [0, 21])
def test_a_commitment_to_no_step_or_too_many_is_none(leaves: int) -> None:
    current = timed(1, 1)
    after = fold(current, "0/0", commit(current.seats[0], leaves), 60.0)
    assert after.seats[0].commit is None


def test_slow_replicas_count_for_the_steps_they_did() -> None:
    current = timed(1, 4)
    for replica, leaves in enumerate((20, 16, 10, 5)):
        current = arrive(current, replica, 60.0, leaves)
    assert current.contributors == (0, 1, 2, 3)
    assert current.contributed() == 51


@pytest.mark.parametrize("seed", range(40))
def test_a_round_is_complete_though_a_quarter_of_the_uploads_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    replicas = chance.choice((4, 6, 8))
    pairs = [(one, other) for one in range(replicas) for other in range(replicas) if one != other]
    lost = frozenset(pair for pair in pairs if chance.random() < 0.25)
    current = timed(chance.choice((1, 2)), replicas)
    for replica in range(replicas):
        current = arrive(current, replica, 60.0 + chance.random(), lost=lost)
    current = look(current, 80.0)
    assert current.phase == "applying"
    assert len(current.contributors or ()) >= replicas // 4
    able = [s for s in current.seats if all(p in s.held for p in current.contributors or ())]
    assert {s.stage for s in able} == set(range(len(current.layers)))
    for seat in able:
        for told in commands(current, seat.lease):
            if isinstance(told, ApplyRound):
                report = applied(seat, told)
                kept = msgspec.structs.replace(report, kept=report.parameters)
                current = fold(current, seat.lease, kept, 81.0)
    while current.phase == "applying" and (blamed := culprits(look(current, 100.0))):
        current = look(current, 100.0)
        if current.phase == "applying":
            current = fold(current, min(blamed), Lost(), 100.0)
            current = apply_all(current, 101.0, but=frozenset(range(replicas)) - {s.replica for s in able})
    assert look(current, 200.0).phase == "complete"


def test_late_messages_of_another_round_move_nothing() -> None:
    current = arrive(timed(1, 2), 0, 60.0)
    stranger = msgspec.structs.replace(commit(current.seats[1], 20), round=NUMBER + 1, epoch=EPOCH)
    assert fold(current, "0/1", stranger, 61.0) == current


def test_rounds_that_are_done_again_take_other_samples_at_the_same_learning_rate() -> None:
    """Or whoever kept what it had sent could send it again, and be paid twice for one piece of work."""
    run = Run(layers=(Layers(0, 1),), replicas=1, total_steps=12, inner_steps=3, evaluate=(), done=2, next_step=6)
    back = runs.go_back(run)
    holder = Holder("lease0", fresh(1, 1).seats[0].node, 0, 0)
    again = runs.begin(back, [holder], 0.0).round
    assert again is not None
    assert (again.number, again.first_step, again.rate_step) == (0, 6, 0)
    timed = runs.begin(runs.go_back(msgspec.structs.replace(run, round_seconds=60.0, progress=6)), [holder], 0.0).round
    assert timed is not None
    assert (timed.number, timed.first_step, timed.rate_step) == (0, 6, 0)
    first = runs.begin(msgspec.structs.replace(run, done=0, next_step=0), [holder], 0.0).round
    assert first is not None
    assert (first.first_step, first.rate_step) == (0, None)
