"""Copies go to different owners, a quorum of owners decides, and who returned something else is not paid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain import quorum
from coordinator.domain.quorum import Redundant, Worker
from tests.coordinator.fakes import digest
from transport.identity import NodeKey

RIGHT, WRONG = digest("right"), digest("wrong")
SEED = bytes(32)


def address(number: int) -> str:
    return NodeKey(number.to_bytes(32, "big")).address


def workers(owners: list[int], networks: list[str] | None = None) -> list[Worker]:
    named = networks or [""] * len(owners)
    return [Worker(address(i + 1), address(500 + owner), named[i]) for i, owner in enumerate(owners)]


def task(copies: int = 3, need: int = 2) -> Redundant:
    return quorum.allocate(Redundant("t", need), workers(list(range(9))), SEED, copies)


def answered(given: Redundant, *results: str) -> Redundant:
    for copy, result in zip(given.copies, results, strict=False):
        given = quorum.returned(given, copy.node, result)
    return given


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(2, 7), st.binary(min_size=32, max_size=32))
def test_copies_go_to_different_owners_and_the_same_seed_gives_the_same(
    owners: list[int], copies: int, seed: bytes
) -> None:
    willing = workers(owners)
    made = quorum.allocate(Redundant("t", 2), willing, seed, copies)
    assert made == quorum.allocate(Redundant("t", 2), list(reversed(willing)), seed, copies)
    assert len({copy.payout for copy in made.copies}) == len(made.copies) == min(copies, len(set(owners)))


def test_other_networks_come_first() -> None:
    willing = workers([0, 1, 2, 3], ["a", "a", "a", "b"])
    for number in range(20):
        made = quorum.allocate(Redundant("t", 2), willing, number.to_bytes(32, "big"), 2)
        assert address(4) in {copy.node for copy in made.copies}


def test_two_equal_results_of_three_agree_and_the_third_changes_nothing() -> None:
    made = task()
    assert answered(made, RIGHT).state == "assigned"
    agreed = answered(made, RIGHT, RIGHT)
    assert (agreed.state, agreed.result) == ("agreed", RIGHT)
    assert answered(made, RIGHT, WRONG, RIGHT).result == RIGHT
    assert answered(made, RIGHT, RIGHT, WRONG).result == RIGHT


def test_three_different_results_need_more_copies() -> None:
    split = answered(task(), RIGHT, WRONG, digest("third"))
    assert split.state == "split"
    more = quorum.allocate(split, workers(list(range(9))), SEED, 5)
    assert len(more.copies) == 5
    assert more.state == "assigned"
    assert quorum.returned(more, more.copies[3].node, RIGHT).result == RIGHT


def test_many_nodes_of_one_owner_have_one_voice() -> None:
    made = Redundant("t", 2, tuple(quorum.Copy(address(i), address(500), WRONG) for i in range(3)))
    assert made.result is None


def test_a_lost_copy_is_done_by_somebody_else_and_an_answer_is_never_lost() -> None:
    made = task()
    gone = quorum.lost(made, made.copies[0].node)
    again = quorum.allocate(gone, workers(list(range(9))), SEED, 3)
    assert len(again.copies) == 3
    assert made.copies[0].node not in {copy.node for copy in again.copies}
    done = answered(made, RIGHT)
    assert quorum.lost(done, made.copies[0].node) == done


def test_a_second_answer_of_the_same_node_changes_nothing() -> None:
    done = answered(task(), RIGHT)
    assert quorum.returned(done, done.copies[0].node, WRONG) == done


@given(st.integers(0, 10**12), st.lists(st.sampled_from([RIGHT, WRONG]), min_size=3, max_size=3))
def test_the_pot_is_shared_by_those_who_agree_to_the_last_unit(pot: int, results: list[str]) -> None:
    done = answered(task(), *results)
    due = quorum.shares(done, pot)
    assert sum(due.values()) == pot
    assert set(due) == {copy.node for copy in done.copies if copy.result == done.result}


def test_nothing_is_due_before_a_quorum_agrees() -> None:
    assert quorum.shares(answered(task(), RIGHT, WRONG), 100) == {}


@pytest.mark.parametrize(("copies", "need", "colluding", "expected"), [
    (2, 2, 0.1, 0.01), (3, 2, 0.1, 0.028), (3, 3, 0.1, 0.001), (3, 2, 0.33, 0.2548),
])  # fmt: skip
def test_the_chance_of_a_forged_result_is_that_of_the_binomial(
    copies: int, need: int, colluding: float, expected: float
) -> None:
    assert quorum.forged(colluding, copies, need) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("copies", [1, 8])
def test_fewer_copies_than_the_quorum_or_too_many_are_refused(copies: int) -> None:
    with pytest.raises(ValueError, match="copies for a quorum of 2"):
        quorum.allocate(Redundant("t", 2), [], SEED, copies)
