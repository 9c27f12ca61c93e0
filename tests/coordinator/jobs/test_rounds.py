"""The round machine: any order, duplicates, losses. Contributors once, held by all the living; progress while one is whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.rounds.round import Lost, Round, RoundEvent, Seat, checkpoint, commands, culprits, fold
from protocol.identity import NodeKey
from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    Layers,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    Validation,
)
from tests.coordinator.fakes import digest

EPOCH, NUMBER = 3, 7


def fresh(stages: int, replicas: int, steps: int = 2, validate: bool = False) -> Round:
    """A round of which nothing has been heard."""
    layers = tuple(Layers(s, s + 1) for s in range(stages))
    seats = tuple(
        Seat(f"{s}/{p}", NodeKey(bytes([s + 1, p + 1]) * 16).address, s, p)
        for p in range(replicas)
        for s in range(stages)
    )
    return Round(EPOCH, NUMBER, 14, steps, 100, validate, layers, seats, 0.0)


def gradient(stage: int, replica: int) -> str:
    return digest("gradient", stage, replica)


def commit(seat: Seat, leaves: int = 2, number: int = NUMBER) -> RoundCommit:
    return RoundCommit(
        EPOCH, number, digest("root", seat.lease), leaves, gradient(seat.stage, seat.replica), 64, 1, 2.5
    )


def holding(seat: Seat, replicas: tuple[int, ...]) -> RoundHolding:
    return RoundHolding(EPOCH, NUMBER, {p: gradient(seat.stage, p) for p in replicas})


def applied(seat: Seat, told: ApplyRound) -> RoundApplied:
    name = digest("checkpoint", seat.stage) if told.checkpoint else None
    return RoundApplied(EPOCH, NUMBER, digest("parameters", seat.stage, sorted(told.contributors.items())), name)


def run_honestly(current: Round) -> Round:
    """Every living member does what it is told until nothing changes."""
    for _ in range(6):
        for seat in current.seats:
            replicas = tuple(p for p in {s.replica for s in current.seats} if sent(current, seat.stage, p))
            for told in commands(current, seat.lease):
                match told:
                    case BeginRound() if current.phase == "training" and seat.replica in current.whole():
                        current = fold(current, seat.lease, commit(seat))
                    case ApplyRound():
                        current = fold(current, seat.lease, applied(seat, told))
                    case _:
                        pass
            current = fold(current, seat.lease, holding(seat, replicas))
    return current


def sent(current: Round, stage: int, replica: int) -> bool:
    return any(s.commit is not None for s in current.seats if (s.stage, s.replica) == (stage, replica))


def test_a_round_without_losses_is_complete_with_everybody() -> None:
    over = run_honestly(fresh(2, 3))
    assert over.phase == "complete"
    assert over.contributors == (0, 1, 2)
    assert all(checkpoint(over, stage) for stage in range(2))


def test_a_replica_that_loses_a_member_before_the_decision_is_left_out_but_goes_on() -> None:
    current = fold(fresh(2, 2), "0/1", Lost())
    assert AbandonRound(EPOCH, NUMBER) in commands(current, "1/1")
    over = run_honestly(current)
    assert over.phase == "complete"
    assert over.contributors == (0,)
    survivor = over.seat("1/1")
    assert survivor is not None
    assert survivor.parameters is not None


def test_a_member_lost_after_the_decision_changes_no_contributor() -> None:
    current = decided(fresh(2, 2))
    over = run_honestly(fold(current, "0/1", Lost()))
    assert over.phase == "complete"
    assert over.contributors == (0, 1)


def test_the_checkpoint_is_asked_of_the_next_replica_when_the_first_is_lost() -> None:
    current = decided(fresh(1, 3))
    assert asked(current) == ["0/0"]
    current = fold(current, "0/0", Lost())
    assert asked(current) == ["0/1"]
    assert run_honestly(current).phase == "complete"


def test_a_round_is_void_when_no_replica_is_whole() -> None:
    current = fold(fold(fresh(2, 2), "0/0", Lost()), "1/1", Lost())
    assert current.phase == "void"


def test_a_round_is_void_when_a_stage_is_gone_before_its_checkpoint() -> None:
    current = decided(fresh(2, 2))
    current = fold(fold(current, "0/0", Lost()), "0/1", Lost())
    assert current.phase == "void"


def test_a_stage_may_go_once_its_checkpoint_is_there() -> None:
    current = decided(fresh(2, 1))
    told = next(c for c in commands(current, "0/0") if isinstance(c, ApplyRound))
    seat = current.seat("0/0")
    assert seat is not None
    current = fold(fold(current, "0/0", applied(seat, told)), "0/0", Lost())
    assert run_honestly(current).phase == "complete"


def test_nobody_is_told_to_apply_before_everybody_alive_holds_everything() -> None:
    current = fresh(1, 2)
    for seat in current.seats:
        current = fold(current, seat.lease, commit(seat))
    current = fold(current, "0/0", holding(current.seats[0], (0, 1)))
    assert current.phase == "training"
    current = fold(current, "0/1", holding(current.seats[1], (1,)))
    assert current.phase == "training"
    assert fold(current, "0/1", holding(current.seats[1], (0, 1))).phase == "applying"


def test_a_holding_of_other_bytes_than_were_committed_does_not_count() -> None:
    current = fresh(1, 2)
    for seat in current.seats:
        current = fold(current, seat.lease, commit(seat))
    current = fold(current, "0/0", holding(current.seats[0], (0, 1)))
    forged = RoundHolding(EPOCH, NUMBER, {0: digest("other"), 1: gradient(0, 1)})
    assert fold(current, "0/1", forged).phase == "training"


def test_the_last_round_only_waits_for_its_validation() -> None:
    current = fresh(2, 1, steps=0, validate=True)
    assert fold(current, "0/0", Validation(EPOCH, NUMBER, 2.0, 10)).phase == "training"  # Not the last stage.
    over = fold(current, "1/0", Validation(EPOCH, NUMBER, 2.0, 10))
    assert (over.phase, over.measured[0].loss) == ("complete", 2.0)


def test_a_member_that_came_to_other_parameters_is_outvoted_and_asked_for_no_checkpoint() -> None:
    current = decided(fresh(1, 3))
    current = fold(current, "0/0", RoundApplied(EPOCH, NUMBER, digest("wrong"), digest("wrong checkpoint")))
    over = run_honestly(current)
    assert over.phase == "complete"
    assert checkpoint(over, 0) == digest("checkpoint", 0)


def test_commands_said_twice_are_the_same() -> None:
    current = decided(fresh(2, 2))
    assert commands(current, "0/0") == commands(current, "0/0")
    assert commands(current, "nobody") == ()


def weights_told(steps: dict[str, int]) -> dict[int, int]:
    """What members are told that updates weigh, where seats commit to so many steps."""
    current = decided(msgspec.structs.replace(fresh(2, 3, steps=20), seconds=60.0), steps)
    [told] = {
        tuple(c.weights.items()) for s in current.seats for c in commands(current, s.lease) if isinstance(c, ApplyRound)
    }
    return dict(told)


def test_updates_weigh_by_the_steps_that_all_stages_of_a_replica_committed_to() -> None:
    assert weights_told({"0/0": 5, "1/0": 5, "0/1": 20, "1/1": 20, "0/2": 7, "1/2": 7}) == {0: 5, 1: 20, 2: 7}
    torn = weights_told({"0/0": 5, "1/0": 5, "0/1": 20, "1/1": 19, "0/2": 7, "1/2": 7})
    assert torn == {0: 5, 2: 7}, "whose stages differ counts for nothing"
    assert weights_told(dict.fromkeys(["0/0", "1/0", "0/1", "1/1", "0/2", "1/2"], 9)) == {}, "all alike"


def test_nobody_weighs_more_than_the_round_may_have() -> None:
    current = msgspec.structs.replace(fresh(1, 2, steps=20), seconds=60.0)
    assert fold(current, "0/0", commit(current.seats[0], 21)) == current


def decided(current: Round, steps: Mapping[str, int] = MappingProxyType({})) -> Round:
    for seat in current.seats:
        current = fold(current, seat.lease, commit(seat, steps.get(seat.lease, 2)))
    for seat in current.seats:
        current = fold(current, seat.lease, holding(seat, tuple({s.replica for s in current.seats})))
    assert current.phase == "applying"
    return current


def asked(current: Round) -> list[str]:
    return [
        seat.lease
        for seat in current.seats
        for told in commands(current, seat.lease)
        if isinstance(told, ApplyRound) and told.checkpoint
    ]


@dataclass
class Course:
    """A random course of one round, with everything checked after each event."""

    current: Round
    decided: tuple[int, ...] | None = None
    lost: set[str] = field(default_factory=set)

    def happen(self, lease: str, event: RoundEvent) -> None:
        before = self.current
        self.current = fold(before, lease, event)
        assert fold(self.current, lease, event) == self.current, "an event that comes twice changes nothing more"
        if isinstance(event, Lost):
            self.lost.add(lease)
        if self.decided is not None:
            assert self.current.contributors == self.decided, "contributors never change"
        elif self.current.contributors is not None:
            self.decided = self.current.contributors
            self.check_decision()
        if before.phase in ("complete", "void"):
            assert self.current == before, "what is over stays as it is"

    def check_decision(self) -> None:
        chosen = self.decided or ()
        assert chosen, "somebody contributes"
        for seat in self.current.seats:
            if seat.replica in chosen:
                assert seat.commit is not None
                assert seat.lease not in self.lost
            if seat.alive:
                for replica in chosen:
                    assert seat.held[replica] == gradient(seat.stage, replica)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_events_keeps_the_rules_and_the_living_can_always_finish(data: st.DataObject) -> None:
    stages, replicas = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    course = Course(fresh(stages, replicas))
    seats = course.current.seats
    for _ in range(data.draw(st.integers(0, 40))):
        seat = data.draw(st.sampled_from(seats))
        course.happen(seat.lease, data.draw(events(course.current, seat)))
    over = run_honestly(course.current)
    if over.phase == "training":  # Only a replica that broke after it sent, or a stranger's noise, may hold it up.
        for culprit in culprits(over):
            over = fold(over, culprit, Lost())
        over = run_honestly(over)
    assert over.phase in ("complete", "void")
    if over.phase == "void":
        assert not whole_and_silent(course.lost, stages, replicas) or course.decided is not None


def whole_and_silent(lost: set[str], stages: int, replicas: int) -> bool:
    """Whether some replica has lost nobody."""
    return any(all(f"{s}/{p}" not in lost for s in range(stages)) for p in range(replicas))


def events(current: Round, seat: Seat) -> st.SearchStrategy[RoundEvent]:
    replicas = st.sets(st.integers(0, 2)).map(lambda chosen: holding(seat, tuple(chosen)))
    told = [c for c in commands(current, seat.lease) if isinstance(c, ApplyRound)]
    choices: list[st.SearchStrategy[RoundEvent]] = [
        st.just(commit(seat)),
        st.just(commit(seat, leaves=5)),
        st.just(commit(seat, number=NUMBER - 1)),
        replicas,
        st.just(Lost()),
    ]
    if told:
        choices.append(st.just(applied(seat, told[0])))
    return st.one_of(choices)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ending_the_culprits_always_moves_a_stalled_round_on(data: st.DataObject) -> None:
    stages, replicas = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    current = fresh(stages, replicas)
    for _ in range(data.draw(st.integers(0, 30))):
        seat = data.draw(st.sampled_from(current.seats))
        current = fold(current, seat.lease, data.draw(events(current, seat)))
    turns = 0
    while current.phase in ("training", "applying"):
        blamed = culprits(current)
        assert blamed, "a round that does not go on has somebody to blame"
        for lease in blamed:
            current = fold(current, lease, Lost())
        turns += 1
        assert turns <= len(current.seats) + 1


def test_a_committed_replica_survives_one_that_hangs() -> None:
    current = fresh(2, 2)
    for lease in ("0/0", "1/0"):
        seat = current.seat(lease)
        assert seat is not None
        current = fold(fold(current, lease, commit(seat)), lease, holding(seat, (0,)))
    assert culprits(current) == {"0/1", "1/1"}


def test_members_whose_link_is_broken_do_not_stop_the_others() -> None:
    current = fresh(1, 2)
    for seat in current.seats:
        current = fold(fold(current, seat.lease, commit(seat)), seat.lease, holding(seat, (seat.replica,)))
    assert culprits(current) == {"0/1"}
    assert fold(current, "0/1", Lost()).contributors == (0,)


def test_the_round_survives_being_stored() -> None:
    current = decided(fresh(2, 2))
    assert msgspec.json.decode(msgspec.json.encode(current), type=Round) == current
