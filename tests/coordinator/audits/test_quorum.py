"""Who measures the held-out loss, and what is made of what they say."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain.audits.quorum import MeasuredResult, QuorumOutcome, ask, is_near, judge, measured
from coordinator.domain.rounds.round import Lost, Round, commands, culprits, fold, look, results
from coordinator.domain.rounds.run import EVALUATORS, Holder, Run, begin
from protocol.task import BeginRound, Layers, PreferenceScore, Validation
from tests.coordinator.jobs.test_rounds import EPOCH, NUMBER, fresh

TOLERANCE = 1e-4
TRUE, FALSE = 1.31, 0.62


def said(replica: int, loss: float = TRUE, owner: str = "", env_class: str = "cpu", **more: bool) -> MeasuredResult:
    """What a replica of one stage says; of equal losses the digests are equal."""
    return MeasuredResult(
        replica, frozenset({owner or f"owner-{replica}"}), env_class, f"{env_class} {loss!r}", loss, **more
    )


TABLE = {
    "all say the same": ([said(0), said(1), said(2)], QuorumOutcome(TRUE, 3, 0, 3)),
    "one of three lies": ([said(0, FALSE), said(1), said(2)], QuorumOutcome(TRUE, 2, 0, 3, (0,))),
    "two colluders of three win, and their victim loses no more than a liar would": (
        [said(0, FALSE), said(1, FALSE), said(2)],
        QuorumOutcome(FALSE, 2, 0, 3, (2,)),
    ),
    "two colluders of five do not": (
        [said(0, FALSE), said(1, FALSE), said(2), said(3), said(4)],
        QuorumOutcome(TRUE, 3, 0, 5, (0, 1)),
    ),
    "half is no quorum, and nobody is blamed": (
        [said(0), said(1), said(2, FALSE), said(3, FALSE)],
        QuorumOutcome(None, 0, 0, 4),
    ),
    "two contradict each other": ([said(0), said(1, FALSE)], QuorumOutcome(None, 0, 0, 2)),
    "one alone is believed": ([said(4)], QuorumOutcome(TRUE, 1, 0, 1)),
    "nobody has reported": ([], QuorumOutcome(None, 0, 0, 0)),
    "one owner's many replicas are one voice": (
        [said(0, FALSE, "rich"), said(1, FALSE, "rich"), said(2, FALSE, "rich"), said(3), said(4)],
        QuorumOutcome(TRUE, 2, 0, 3, (0, 1, 2)),
    ),
    "one owner alone is never two": ([said(0, TRUE, "one"), said(1, FALSE, "one")], QuorumOutcome(TRUE, 1, 0, 1)),
    "what is no number has no quorum": (
        [said(0, math.nan), said(1, math.nan), said(2)],
        QuorumOutcome(None, 0, 0, 3),
    ),
    "infinity neither": ([said(0, math.inf), said(1, math.inf)], QuorumOutcome(None, 0, 0, 2)),
    "who says NaN is outvoted": ([said(0, math.nan), said(1), said(2)], QuorumOutcome(TRUE, 2, 0, 3, (0,))),
    "another class is near": (
        [said(0), said(1), said(2, TRUE + 1e-6, env_class="gpu")],
        QuorumOutcome(TRUE, 2, 1, 3),
    ),
    "another class is far, which blames nobody": (
        [said(0), said(1), said(2, FALSE, env_class="gpu")],
        QuorumOutcome(TRUE, 2, 0, 3),
    ),
    "two classes of one each are near": (
        [said(0), said(1, TRUE + 1e-6, env_class="gpu")],
        QuorumOutcome(TRUE, 1, 1, 2),
    ),
    "two classes of one each are far": ([said(0), said(1, FALSE, env_class="gpu")], QuorumOutcome(None, 0, 0, 2)),
    "a class that is of two minds leaves it to the other": (
        [said(0), said(1, FALSE), said(2, TRUE + 1e-6, env_class="gpu")],
        QuorumOutcome(TRUE + 1e-6, 1, 1, 3),
    ),
    "near in the own class is not equal": (
        [said(0), said(1), said(2, TRUE + 1e-9)],
        QuorumOutcome(TRUE, 2, 0, 3, (2,)),
    ),
    "a class of its own makes no majority": (
        [said(0, FALSE, env_class="mine"), said(1), said(2)],
        QuorumOutcome(TRUE, 2, 0, 3),
    ),
    "a minority of its class that is near what the others say is not blamed": (
        [said(0, FALSE), said(1, FALSE), said(2), *(said(p, TRUE, env_class="gpu") for p in (3, 4, 5))],
        QuorumOutcome(TRUE, 3, 1, 6),
    ),
    "who took its state from others is not blamed": (
        [said(0, FALSE, excused=True), said(1), said(2)],
        QuorumOutcome(TRUE, 2, 0, 3),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_results_become_one_value(name: str) -> None:
    given_results, expected = TABLE[name]
    assert judge(given_results, TOLERANCE) == expected
    assert judge(given_results[::-1], TOLERANCE) == expected, "whatever the order"


losses = st.sampled_from([TRUE, FALSE, TRUE + 1e-6, math.nan, math.inf, 0.0, -0.0])


@given(
    st.lists(
        st.tuples(losses, st.sampled_from("ab"), st.sets(st.sampled_from("pqrstu"), min_size=1, max_size=2)), max_size=8
    )
)
def test_the_rules_of_a_quorum_hold_for_whatever_is_said(drawn: list[tuple[float, str, set[str]]]) -> None:
    everything = [
        MeasuredResult(replica, frozenset(owners), kind, f"{kind}{loss!r}", loss)
        for replica, (loss, kind, owners) in enumerate(drawn)
    ]
    outcome = judge(everything, TOLERANCE)
    assert outcome.of <= len({owner for result in everything for owner in result.owners})
    if outcome.loss is None:
        assert (outcome.same, outcome.near, outcome.differ) == (0, 0, ())
        return
    assert math.isfinite(outcome.loss)
    assert outcome.same >= 1
    assert 2 * (outcome.same + outcome.near) > outcome.of
    agreeing = [result for result in everything if result.loss == outcome.loss]
    assert len(agreeing) >= outcome.same
    for replica in outcome.differ:
        like = [r for r in everything if r.env_class == everything[replica].env_class and r.replica != replica]
        against = [r for r in like if r.digest != everything[replica].digest]
        assert len({frozenset(r.owners) for r in against}) >= 2, "nobody is blamed by one owner alone"


@given(st.integers(3, 9), st.data())
def test_less_than_half_of_the_owners_never_move_the_value(owners: int, data: st.DataObject) -> None:
    liars = data.draw(st.sets(st.integers(0, owners - 1), max_size=(owners - 1) // 2))
    kinds = data.draw(st.lists(st.sampled_from(["cpu", "mine"]), min_size=owners, max_size=owners))
    lies = data.draw(st.lists(st.sampled_from([FALSE, 2.5, math.nan]), min_size=owners, max_size=owners))
    everything = [said(p, lies[p], env_class=kinds[p]) if p in liars else said(p) for p in range(owners)]
    outcome = judge(everything, TOLERANCE)
    assert outcome.loss == TRUE
    assert set(outcome.differ) <= liars, "no honest one is blamed"


def test_one_bit_of_whatever_is_said_makes_another_digest() -> None:
    report = Validation(0, 0, TRUE, 100, "a" * 64, "b" * 64)
    changed = [
        msgspec.structs.replace(report, **{name: value})
        for name, value in (
            ("loss", math.nextafter(TRUE, 2)),
            ("tokens", 101),
            ("weights", "c" * 64),
            ("sums", "d" * 64),
            ("sums", None),
            ("preference", PreferenceScore(0.5, 0.25)),
            ("preference", PreferenceScore(0.5, math.nextafter(0.25, 1))),
            ("preference", PreferenceScore(math.nextafter(0.5, 1), 0.25)),
        )
    ]
    assert len({measured(other, 0.0).digest for other in (report, *changed)}) == 9
    assert measured(report, 1.0).digest == measured(report, 2.0).digest


def test_near_is_relative_and_never_of_what_is_no_number() -> None:
    assert is_near(1.0, 1.0 + 0.9e-4, TOLERANCE)
    assert not is_near(1.0, 1.0 + 1.1e-4, TOLERANCE)
    assert is_near(0.0, -0.0, TOLERANCE)
    assert not is_near(math.nan, math.nan, TOLERANCE)
    assert not is_near(math.inf, math.inf, TOLERANCE)


# --- who is asked -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.sets(st.sampled_from("pqrstu"), min_size=1, max_size=3), min_size=1, max_size=8),
    st.integers(1, 4),
    st.text(),
)
def test_those_who_are_asked_share_no_owner(owners: list[set[str]], most: int, lot: str) -> None:
    asked = ask({replica: frozenset(owned) for replica, owned in enumerate(owners)}, most, lot)
    assert 1 <= len(asked) <= most
    together = [owner for replica in asked for owner in owners[replica]]
    assert len(together) == len(set(together))
    assert list(asked) == sorted(asked)


def test_over_many_rounds_everybody_is_asked() -> None:
    owners = {replica: frozenset({str(replica)}) for replica in range(8)}
    rounds = [ask(owners, 3, f"{number}:0") for number in range(40)]
    assert {replica for asked in rounds for replica in asked} == set(owners)
    assert {len(asked) for asked in rounds} == {3}


def run_of(owners: list[str], **changes: object) -> tuple[Run, list[Holder]]:
    holders = [Holder(f"0/{p}", f"node-{p}", 0, p, owner, "cpu") for p, owner in enumerate(owners)]
    run = Run((Layers(0, 1),), len(owners), total_steps=10, inner_steps=5, evaluate=(0,), **changes)  # type: ignore[arg-type]
    return run, holders


def begun(owners: list[str], **changes: object) -> Round:
    run, holders = run_of(owners, **changes)
    current = begin(run, holders, 0.0).round
    assert current is not None
    return current


def test_a_round_asks_replicas_of_three_owners() -> None:
    current = begun(["a", "b", "c", "d", "e"])
    assert len(current.evaluators) == EVALUATORS == 3
    told = [command for seat in current.seats for command in commands(current, seat.lease)]
    assert [t.validate for t in told if isinstance(t, BeginRound)] == [p in current.evaluators for p in range(5)]
    assert len(begun(["a", "a", "a", "b", "b"]).evaluators) == 2
    assert begun(["a", "b", "c"], evaluators=1).evaluators[1:] == ()
    assert begun(["a", "b", "c"], done=1).evaluators == ()


def test_the_last_round_takes_those_that_measure_and_nobody_else() -> None:
    current = begun(["a", "b", "c", "d", "e"], done=2)
    assert current.steps == 0
    assert {seat.replica for seat in current.seats} == set(current.evaluators)
    assert len(current.seats) == 3


# --- a round in which several measure -----------------------------------------------------------------------------------


def asking(stages: int, replicas: int, steps: int = 2) -> Round:
    return msgspec.structs.replace(fresh(stages, replicas, steps, validate=True), asked=tuple(range(replicas)))


def report(loss: float = TRUE) -> Validation:
    return Validation(EPOCH, NUMBER, loss, 100, "a" * 64, "b" * 64)


def test_only_last_stages_of_who_was_asked_are_heard_and_nobody_takes_anything_back() -> None:
    current = msgspec.structs.replace(asking(2, 3), asked=(0, 2))
    for lease in ("0/0", "1/1"):
        assert fold(current, lease, report()) == current
    once = fold(current, "1/2", report(), 3.0)
    assert {replica: found.loss for replica, found in once.measured.items()} == {2: TRUE}
    assert fold(once, "1/2", report(FALSE)) == once
    assert not once.heard
    assert fold(once, "1/0", report()).heard
    assert fold(once, "0/0", Lost()).heard, "whose replica is broken is not waited for"


def test_results_name_all_owners_and_classes_of_their_replica() -> None:
    current = asking(2, 2)
    current = msgspec.structs.replace(
        current,
        seats=tuple(msgspec.structs.replace(s, owner=f"o{s.stage}", env_class=f"c{s.stage}") for s in current.seats),
    )
    [found] = results(fold(current, "1/1", report()))
    assert (found.replica, found.owners, found.env_class, found.loss) == (1, {"o0", "o1"}, "c0\nc1", TRUE)
    assert not found.excused


def test_the_last_round_waits_for_all_but_not_for_ever() -> None:
    current = asking(1, 3, steps=0)
    one = fold(current, "0/0", report(), 5.0)
    assert look(one, 1000.0).phase == "training", "half of them must have reported"
    two = fold(one, "0/1", report(), 6.0)
    assert two.phase == "training"
    assert culprits(two) == {"0/2"}
    assert look(two, 21.9).phase == "training"
    assert look(two, 22.1).phase == "complete", "four times as long as the two others took"
    assert fold(two, "0/2", report(), 7.0).phase == "complete"
    assert fold(two, "0/2", Lost(), 7.0).phase == "complete"


def test_the_last_round_is_done_again_where_nobody_could_measure() -> None:
    current = asking(1, 2, steps=0)
    assert fold(fold(current, "0/0", Lost()), "0/1", Lost()).phase == "void"
    known = fold(fold(current, "0/0", report()), "0/0", Lost())
    assert fold(known, "0/1", Lost()).phase == "complete", "what one has said before it left is not lost"
