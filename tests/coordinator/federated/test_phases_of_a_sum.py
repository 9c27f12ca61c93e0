"""Where a round with a secure sum stands: who is waited for, who has gone, and when there is none. Pure."""

import random

import pytest

from coordinator.domain.rounds import round as rounds
from coordinator.domain.rounds.round import Lost, Round
from coordinator.domain.rounds.run import Holder, Run, begin, close
from coordinator.domain.rounds.seat import is_gone
from coordinator.domain.rounds.summing import PHASES, RoundSum, SumAdded, SumLost, SumMade
from protocol.federated.sum_messages import KeysTold, ListSigned, SharesShown, SharesTold
from protocol.federated.sums import SumAnswer, SumSaid, VectorStored
from protocol.plan import Layers
from protocol.task import AbandonRound, ApplyRound, BeginRound, RoundApplied, RoundCommit

NODES = [f"{letter}" * 40 for letter in "ABCDE"]
DIGEST, TOTAL = "d" * 64, "e" * 64


def begun(owners: int = 5, least: int = 4) -> Round:
    run = Run((Layers(0, 2),), owners, 20, 4, (), least=least, unjudged=True, summed=100)
    found = begin(run, [Holder(f"lease{n}", NODES[n], 0, n) for n in range(owners)], 0.0).round
    assert found is not None
    return found


def answer(kind: type, number: int) -> SumAnswer:
    node = NODES[number]
    if kind is KeysTold:
        return KeysTold(node, bytes(32), bytes(32), bytes(64))
    if kind is SharesTold:
        return SharesTold(node, {})
    if kind is VectorStored:
        return VectorStored(node, DIGEST)
    return ListSigned(node, bytes(64)) if kind is ListSigned else SharesShown(node, {}, {})


KINDS = {"keys": KeysTold, "shares": SharesTold, "vectors": VectorStored, "list": ListSigned, "shown": SharesShown}


def said(current: Round, number: int, kind: type | None = None) -> Round:
    assert current.sum is not None
    kind = kind or KINDS[current.sum.phase]
    return rounds.fold(current, f"lease{number}", SumSaid(current.epoch, current.number, answer(kind, number)))


def committed(current: Round, number: int) -> Round:
    commit = RoundCommit(current.epoch, current.number, DIGEST, 4, DIGEST, 100, 1000)
    return rounds.fold(current, f"lease{number}", commit)


def lost(current: Round, number: int) -> Round:
    return rounds.fold(current, f"lease{number}", Lost())


def upto(phase: str, owners: int = 5, least: int = 4) -> Round:
    """With everybody at their best until a phase begins."""
    current = begun(owners, least)
    for number in range(owners):
        current = committed(current, number)
    while current.sum is not None and current.sum.phase != phase:
        match current.sum.phase:
            case "adding":
                current = rounds.summed(current, SumAdded(current.sum.said["vectors"]))
            case "unmasking":
                current = rounds.summed(current, SumMade(TOTAL))
            case _:
                for number in range(owners):
                    current = said(current, number)
    return current


def test_a_round_goes_through_all_phases_and_is_applied_with_its_sum() -> None:
    current = upto("added")
    assert (current.phase, current.contributors) == ("applying", (0, 1, 2, 3, 4))
    (apply,) = rounds.commands(current, "lease3")
    assert isinstance(apply, ApplyRound)
    assert apply.total == TOTAL
    assert apply.contributors == dict.fromkeys(range(5), DIGEST)
    for number in range(5):
        report = RoundApplied(current.epoch, current.number, "f" * 64, "a" * 64 if number == 0 else None)
        current = rounds.fold(current, f"lease{number}", report)
    assert current.phase == "complete"
    assert close(Run((Layers(0, 2),), 5, 20, 4, (), round=current, summed=100)).done == 1


@pytest.mark.parametrize("phase", KINDS)
def test_each_phase_waits_for_all_who_are_alive_and_names_them(phase: str) -> None:
    current = upto(phase)
    for number in (0, 1, 2):
        current = said(current, number)
    assert rounds.culprits(current) == {"lease3", "lease4"}
    current = said(said(current, 2), 3)  # Twice is once.
    assert rounds.culprits(current) == {"lease4"}
    assert current.sum is not None
    assert current.sum.phase == phase
    after = lost(current, 4)
    assert after.sum is not None
    assert after.sum.phase == PHASES[PHASES.index(phase) + 1]  # type: ignore[arg-type]
    assert after.phase == ("training" if phase in ("keys", "shares") else "reducing")


@pytest.mark.parametrize("phase", KINDS)
def test_with_too_few_left_a_round_is_void_at_once_and_says_why(phase: str) -> None:
    current = upto(phase)
    current = lost(current, 0)
    assert current.phase != "void"
    current = lost(current, 1)
    assert current.phase == "void"
    assert current.sum is not None
    assert current.sum.lost == "3 owners are left for its sum, which is of 4 at least"
    assert rounds.commands(current, "lease2") == ()


def test_who_answered_before_it_died_stays_in_and_is_asked_nothing_more() -> None:
    current = upto("vectors")
    for number in (0, 1):
        current = lost(said(current, number), number)
    for number in (2, 3, 4):
        current = said(current, number)
    assert current.sum is not None
    assert current.sum.said["vectors"] == (0, 1, 2, 3, 4)
    current = rounds.summed(current, SumAdded((0, 1, 2, 3, 4)))
    assert current.phase == "void", "three are left to sign the list"
    again = upto("vectors")
    again = lost(said(again, 0), 0)
    for number in (1, 2, 3, 4):
        again = said(again, number)
    again = rounds.summed(again, SumAdded((0, 1, 2, 3, 4)))
    assert again.sum is not None
    assert (again.sum.phase, rounds.culprits(again)) == ("list", {f"lease{n}" for n in (1, 2, 3, 4)})


def test_an_update_counts_with_its_commitment_alone() -> None:
    current = begun()
    for number in range(4):
        current = committed(current, number)
    for _ in ("keys", "shares"):
        for number in range(5):
            current = said(current, number)
    for number in range(5):
        current = said(current, number)  # The last one's report of its steps is on its way.
    assert current.sum is not None
    assert current.sum.phase == "vectors"
    assert rounds.culprits(current) == {"lease4"}
    left = lost(current, 4)
    assert left.sum is not None
    assert left.sum.said["vectors"] == (0, 1, 2, 3)
    current = committed(current, 4)
    assert current.sum is not None
    assert current.sum.said["vectors"] == (0, 1, 2, 3, 4)


def test_a_vector_that_was_not_whole_is_no_summand_and_its_owner_gets_the_sum_all_the_same() -> None:
    current = upto("adding")
    current = rounds.summed(current, SumAdded((0, 1, 2, 3)))
    assert rounds.culprits(current) == {f"lease{n}" for n in range(4)}
    for _ in ("list", "shown"):
        for number in range(4):
            current = said(current, number)
    current = rounds.summed(current, SumMade(TOTAL))
    assert current.contributors == (0, 1, 2, 3)
    assert any(isinstance(one, ApplyRound) for one in rounds.commands(current, "lease4"))
    few = rounds.summed(upto("adding"), SumAdded((0, 1, 2)))
    assert few.sum is not None
    assert few.phase == "void"
    assert "3 whole updates came" in few.sum.lost


def test_what_does_not_fit_changes_nothing() -> None:
    current = upto("vectors")
    for kind in (KeysTold, SharesTold, ListSigned, SharesShown):
        assert said(current, 0, kind) == current
    assert rounds.summed(current, SumMade(TOTAL)) == current
    assert rounds.summed(current, SumAdded((0, 1, 2, 3))) == current
    other = SumSaid(current.epoch, current.number, VectorStored(NODES[1], DIGEST))
    assert rounds.fold(current, "lease0", other) == current, "what another owner says is not this one's"
    nothing = SumSaid(current.epoch, current.number, VectorStored(NODES[0], None))
    assert rounds.fold(current, "lease0", nothing) == current, "it was not stored"
    older = SumSaid(current.epoch - 1, current.number, VectorStored(NODES[0], DIGEST))
    assert rounds.fold(current, "lease0", older) == current
    done = upto("added")
    assert rounds.summed(done, SumLost("too late")) == done


def test_a_lost_sum_is_a_void_round_while_none_is_there() -> None:
    for phase in PHASES[:-1]:
        current = rounds.summed(upto(phase), SumLost("the coordinator has begun anew"))
        assert current.phase == "void", phase


def test_a_state_is_gone_only_with_everybody_since_the_sum_is_stored() -> None:
    current = upto("added")
    for number in range(4):
        current = lost(current, number)
    assert not is_gone(current, 0)
    assert current.phase == "applying"
    assert lost(current, 4).phase == "void"


@pytest.mark.parametrize("seed", range(30))
def test_in_whatever_order_answers_and_deaths_come_a_sum_is_of_enough_or_there_is_none(seed: int) -> None:
    chance = random.Random(seed)
    current, alive = begun(), set(range(5))
    for _ in range(400):
        if current.phase in ("applying", "void") or current.sum is None:
            break
        number = chance.randrange(5)
        if chance.random() < 0.03 and number in alive:
            alive.discard(number)
            current = lost(current, number)
        elif current.sum.phase == "adding":
            current = rounds.summed(current, SumAdded(current.sum.said["vectors"]))
        elif current.sum.phase == "unmasking":
            current = rounds.summed(current, SumMade(TOTAL))
        elif chance.random() < 0.3:
            current = committed(current, number)
        else:
            current = said(current, number)
        told = rounds.commands(current, f"lease{number}")
        assert all(isinstance(one, BeginRound | AbandonRound | ApplyRound) for one in told)
    assert isinstance(current.sum, RoundSum)
    assert current.phase == "void" or len(current.contributors or ()) >= 4
    assert current.phase != "void" or len(alive) < 4
