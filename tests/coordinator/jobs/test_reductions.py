"""Rounds whose contributions are reduced by shards: any order, losses, silence; nobody applies what another cannot."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.rounds import run as runs
from coordinator.domain.rounds.round import Lost, Round, commands, culprits, fold, look
from coordinator.domain.rounds.run import Holder, Run
from coordinator.domain.rounds.seat import Seat
from protocol.task import ApplyRound, Layers, OuterRecord, ReduceRound, RoundApplied, RoundHolding, ShardRecord
from tests.coordinator.fakes import digest
from tests.coordinator.jobs.test_rounds import EPOCH, NUMBER, commit, fresh, gradient

REPLICAS = 4


def result(stage: int, shard: int, contributors: dict[int, str], residue: str | None = None) -> str:
    return digest("result", stage, shard, sorted(contributors), residue)


class Members:
    """All members of a round as the wire has them. ``mute``: reducers that hand nothing out; ``silent``: contributors that send
    nobody their parts again. Parts and results are there at once, and are told of when a member reports."""

    def __init__(self, stages: int, replicas: int, **changes: Any) -> None:
        self.now = 0.0
        self.round: Round = msgspec.structs.replace(fresh(stages, replicas), sharded=True, **changes)
        self.mute: set[str] = set()
        self.silent: set[str] = set()
        self.results: dict[tuple[int, int, int], dict[int, str]] = {}
        self.parts: dict[tuple[int, int, int], set[int]] = {}
        self.told: list[tuple[str, object]] = []

    def tell(self, lease: str, event: Any) -> None:
        self.round = fold(self.round, lease, event, self.now)

    def commit(self) -> None:
        for seat in self.living():
            self.tell(seat.lease, commit(seat))
        for seat in self.living():
            held = {s.replica: gradient(s.stage, s.replica) for s in self.living() if s.stage == seat.stage}
            self.tell(seat.lease, RoundHolding(EPOCH, NUMBER, held))

    def living(self) -> list[Seat]:
        return [seat for seat in self.round.seats if seat.alive]

    def work(self, lease: str) -> None:
        """One member does what it was told, and reports."""
        seat = self.round.seat(lease)
        assert seat is not None
        for told in commands(self.round, lease):
            self.told.append((lease, told))
            match told:
                case ReduceRound():
                    self._reduce(seat, told)
                case ApplyRound():
                    self._apply(seat, told)
                case _:
                    pass

    def _reduce(self, seat: Seat, told: ReduceRound) -> None:
        reduced: dict[int, str] = {}
        taken: dict[int, tuple[int, ...]] = {}
        for shard, reducer in told.reducers.items():
            if reducer != shard and seat.replica in told.contributors and seat.lease not in self.silent:
                self.parts.setdefault((seat.stage, shard, reducer), set()).add(seat.replica)
            if reducer != seat.replica:
                continue
            here = self.results.setdefault((seat.stage, told.turn, shard), {})
            if shard in told.passed:
                here[reducer] = told.passed[shard]
                continue
            having = self.parts.get((seat.stage, shard, reducer), set()) if shard != reducer else set(seat.held)
            taken[shard] = tuple(sorted(having))
            if set(told.contributors) <= having | {reducer}:
                made = result(seat.stage, shard, told.contributors, seat.residue if shard == reducer else None)
                reduced[shard] = made
                if seat.lease not in self.mute:
                    here[reducer] = made
        results = dict(reduced)
        for shard, reducer in told.reducers.items():
            sent = self.results.get((seat.stage, told.turn, shard), {})
            if sent and shard not in results:
                results[shard] = sent.get(reducer, next(iter(sent.values())))
        self.tell(seat.lease, RoundHolding(EPOCH, NUMBER, {}, taken, told.turn, results, reduced))

    def _apply(self, seat: Seat, told: ApplyRound) -> None:
        for other in self.living():
            due = {shard: told.results[shard] for shard in told.results}
            if self.round.lateness is None and other.stage == seat.stage:
                assert {shard: other.results.get(shard) for shard in due} == due, (
                    "everybody alive holds what is applied"
                )
        parameters = digest("parameters", seat.stage, sorted(told.results.items()))
        mine = tuple(ShardRecord(s, r, None, digest("left", r)) for s, r in sorted(seat.reduced.items()))
        outer = OuterRecord(digest("before"), digest("after", parameters), (), {0: "0" * 64}, mine)
        kept = digest("manifest", parameters)
        self.tell(seat.lease, RoundApplied(EPOCH, NUMBER, parameters, kept=kept, outer=outer))

    def run(self, until: Callable[[], bool] = lambda: False, seconds: float = 100.0, pace: float = 0.01) -> Round:
        """Everybody works in turn, a little later each time."""
        while not until() and self.round.phase not in ("complete", "void") and self.now < seconds:
            for seat in self.living():
                self.work(seat.lease)
                self.now += pace
                self.round = look(self.round, self.now)
        return self.round


def test_each_replica_reduces_its_shard_and_all_apply_the_same() -> None:
    members = Members(2, REPLICAS, store=False)
    members.commit()
    assert members.round.phase == "reducing"
    [told] = [c for c in commands(members.round, "0/1") if isinstance(c, ReduceRound)]
    assert told.reducers == {replica: replica for replica in range(REPLICAS)}
    assert members.run().phase == "complete"
    assert members.round.contributors == tuple(range(REPLICAS))
    for seat in members.round.seats:
        assert seat.outer is not None
        due = {p: result(seat.stage, p, dict.fromkeys(range(REPLICAS), "")) for p in range(REPLICAS)}
        assert seat.outer.results == due, "as they were agreed on, whatever a member says"
        assert [(r.shard, r.result, r.before) for r in seat.outer.reduced] == [(seat.replica, due[seat.replica], None)]


def test_shards_weigh_by_steps_and_anew_when_a_contributor_is_left_out() -> None:
    members = Members(1, REPLICAS, store=False, seconds=60.0, steps=20)
    for seat, steps in zip(members.round.seats, (5, 5, 5, 20), strict=True):
        members.tell(seat.lease, commit(seat, steps))
    for seat in members.round.seats:
        members.tell(seat.lease, RoundHolding(EPOCH, NUMBER, {p: gradient(0, p) for p in range(REPLICAS)}))
    [told] = [c for c in commands(members.round, "0/1") if isinstance(c, ReduceRound)]
    assert told.weights == {0: 5, 1: 5, 2: 5, 3: 20}
    members.tell("0/3", Lost())
    members.run(lambda: members.round.phase == "applying")
    [applied] = [c for c in commands(members.round, "0/1") if isinstance(c, ApplyRound)]
    assert members.round.contributors == (0, 1, 2)
    assert applied.weights == {}, "the others have done as many steps as each other"


def test_a_mesh_knows_of_no_shards() -> None:
    members = Members(1, REPLICAS)
    members.round = msgspec.structs.replace(members.round, sharded=False)
    members.commit()
    assert members.round.phase == "applying"
    [told] = [c for c in commands(members.round, "0/0") if isinstance(c, ApplyRound)]
    assert not told.results


def test_a_reducer_that_leaves_is_replaced_and_who_cannot_be_had_any_more_is_left_out() -> None:
    members = Members(1, REPLICAS, store=False)
    members.commit()
    members.work("0/0")
    members.tell("0/2", Lost())
    [told] = [c for c in commands(members.round, "0/1") if isinstance(c, ReduceRound)]
    assert told.reducers[2] != 2
    # The one that left alone had its own part of its own shard: the others go on without it.
    assert (told.turn, sorted(told.contributors)) == (2, [0, 1, 3])
    over = members.run()
    assert (over.phase, over.contributors) == ("complete", (0, 1, 3))


def test_a_result_that_somebody_holds_is_passed_on_when_its_reducer_leaves() -> None:
    members = Members(1, REPLICAS, store=False)
    members.commit()
    members.work("0/2")
    members.work("0/3")
    members.tell("0/2", Lost())
    [told] = [c for c in commands(members.round, "0/1") if isinstance(c, ReduceRound)]
    assert told.reducers[2] == 3
    assert told.passed == {2: result(0, 2, dict.fromkeys(range(REPLICAS), ""))}
    over = members.run()
    assert (over.phase, over.contributors) == ("complete", (0, 1, 2, 3)), "all of it is here, so all of it counts"
    assert over.reduction is not None
    [task] = [task for task in over.reduction.tasks if task.shard == 2]
    assert task.author == 2, "who came to it answers for it"


def test_a_reducer_that_hands_nothing_out_is_replaced_within_the_round() -> None:
    members = Members(1, REPLICAS, store=False)
    members.commit()
    members.mute = {"0/1"}
    over = members.run(lambda: members.round.phase == "applying")
    assert over.reduction is not None
    [task] = [task for task in over.reduction.tasks if task.shard == 1]
    assert task.reducer != 1
    assert task.author == task.reducer
    assert over.contributors == (0, 1, 2, 3)
    assert members.now < 5.0


def test_a_reducer_that_does_nothing_at_all_is_replaced_and_left_out() -> None:
    members = Members(1, REPLICAS, store=False)
    members.commit()
    while members.round.phase == "reducing":
        for lease in ("0/0", "0/2", "0/3"):
            members.work(lease)
            members.now += 0.01
            members.round = look(members.round, members.now)
        if members.round.phase == "reducing" and members.round.reduction and members.round.reduction.turn == 2:
            held = {s.shard: s.result for s in members.round.reduction.tasks if s.result is not None}
            members.tell("0/1", RoundHolding(EPOCH, NUMBER, {}, {}, 2, held))  # It still hears the others.
    assert members.round.contributors == (0, 2, 3)
    assert members.now < 20.0


def test_a_reducer_that_most_wait_for_is_not_late() -> None:
    members = Members(1, REPLICAS, store=False)
    members.commit()
    for lease in ("0/0", "0/1"):
        members.work(lease)
    members.round = look(members.round, 1000.0)
    assert members.round.reduction is not None
    assert all(task.reducer == task.shard for task in members.round.reduction.tasks)


def test_what_a_reducer_has_said_it_cannot_take_back() -> None:
    members = Members(1, REPLICAS, store=False)
    members.commit()
    true, other = digest("one"), digest("other")
    members.tell("0/0", RoundHolding(EPOCH, NUMBER, {}, {}, 1, {0: true}, {0: true}))
    members.tell("0/0", RoundHolding(EPOCH, NUMBER, {}, {}, 1, {0: other}, {0: other}))
    members.tell("0/1", RoundHolding(EPOCH, NUMBER, {}, {}, 1, {0: other}, {0: other}))  # Not its shard.
    assert members.round.reduction is not None
    assert next(t.result for t in members.round.reduction.tasks if t.shard == 0) == true
    members.tell("0/2", RoundHolding(EPOCH, NUMBER, {}, {}, 7, {1: other}, {2: other}))  # Of another turn.
    assert members.round.reduction is not None
    assert next(t.result for t in members.round.reduction.tasks if t.shard == 2) is None


def test_who_holds_a_reduction_up_is_named_when_nothing_happens_any_more() -> None:
    members = Members(1, REPLICAS, store=False)
    members.commit()
    members.tell("0/3", Lost())
    for _ in range(3):
        for lease in ("0/0", "0/1"):
            members.work(lease)
    assert culprits(members.round) == {"0/2"}


@pytest.mark.parametrize("late", [None, 4.0])
def test_a_member_that_lacks_results_is_waited_for_unless_the_job_leaves_nobody_behind(late: float | None) -> None:
    members = Members(1, 5, store=False, lateness=late)
    members.commit()
    if members.round.phase == "training":
        members.round = look(members.round, 10.0)
    for _ in range(4):
        for lease in ("0/0", "0/1", "0/2", "0/3"):
            members.work(lease)
            members.now += 0.01
    members.tell("0/4", RoundHolding(EPOCH, NUMBER, {}, {}, 1, {4: "4" * 64}, {4: "4" * 64}))
    for lease in ("0/0", "0/1", "0/2", "0/3"):
        members.tell(lease, RoundHolding(EPOCH, NUMBER, {}, {}, 1, {4: "4" * 64}))
    members.round = look(members.round, members.now + 0.05)
    assert members.round.phase == "reducing"
    members.round = look(members.round, members.now + 50.0)
    assert members.round.phase == ("reducing" if late is None else "applying")


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_whatever_happens_a_round_ends_and_nobody_applies_what_another_lacks(data: st.DataObject) -> None:
    stages, replicas = data.draw(st.integers(1, 2)), data.draw(st.integers(2, 5))
    members = Members(stages, replicas, store=False)
    members.commit()
    leases = [seat.lease for seat in members.round.seats]
    members.mute = {lease for lease in leases if data.draw(st.integers(0, 5)) == 0}
    members.silent = {lease for lease in leases if data.draw(st.integers(0, 5)) == 0}
    fixed: tuple[int, ...] | None = None
    for _ in range(data.draw(st.integers(0, 60))):
        lease = data.draw(st.sampled_from(leases))
        if data.draw(st.integers(0, 14)) == 0:
            members.tell(lease, Lost())
        elif any(seat.lease == lease for seat in members.living()):
            members.work(lease)
        members.now += data.draw(st.sampled_from([0.01, 0.5, 20.0]))
        members.round = look(members.round, members.now)
        assert fixed in (None, members.round.contributors), "contributors are decided once"
        fixed = members.round.contributors
    for _ in range(40):  # From here on whoever holds the round up loses its lease, as in ``Runs``.
        members.run(seconds=members.now + 2.0)
        if members.round.phase in ("complete", "void"):
            break
        for lease in culprits(members.round):
            members.tell(lease, Lost())
    assert members.round.phase in ("complete", "void")
    living = [stage for stage in range(stages) if any(s.stage == stage for s in members.living())]
    if members.round.phase == "void":
        assert len(living) < stages or not members.round.contributors
    else:
        for stage in range(stages):
            assert len({s.parameters for s in members.living() if s.stage == stage}) == 1


def running(replicas: int) -> Run:
    return Run((Layers(0, 1),), replicas, 100, 2, (), sharded_from=4)


def holders(replicas: int, first: int = 0) -> list[Holder]:
    return [Holder(f"{first}/{p}", fresh(1, replicas).seats[p].node, 0, p) for p in range(replicas)]


@pytest.mark.parametrize(("replicas", "sharded"), [(3, False), (4, True)])
def test_whether_a_round_goes_by_shards_follows_from_its_replicas(replicas: int, sharded: bool) -> None:
    begun = runs.begin(running(replicas), holders(replicas), 0.0).round
    assert begun is not None
    assert begun.sharded == sharded


def test_a_residue_goes_on_only_with_the_same_members() -> None:
    run = msgspec.structs.replace(
        running(4), residues={"0/1": "1" * 64}, members=tuple(f"0/{p}" for p in range(4)), current=("0/0",), epoch=5
    )
    same = runs.begin(run, holders(4), 0.0).round
    assert same is not None
    assert {seat.lease: seat.residue for seat in same.seats if seat.residue} == {"0/1": "1" * 64}
    other = runs.begin(run, [*holders(4)[:3], Holder("9/3", fresh(1, 4).seats[3].node, 0, 3)], 0.0).round
    assert other is not None
    assert not any(seat.residue for seat in other.seats)
