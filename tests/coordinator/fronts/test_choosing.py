"""Which cell gets a node or a job that may go to any."""

from typing import Any

import pytest

from coordinator.domain.cells import CellState, place, room, watch
from coordinator.web.fronts import choosing
from coordinator.web.fronts.choosing import CellChoice, nothing_told


@pytest.mark.parametrize(
    ("states", "cells", "node", "job"),
    [
        ({}, (0, 1, 2), 0, 0),
        ({}, (2, 1), 1, 1),
        ({0: CellState(), 1: CellState(wanted=3), 2: CellState(idle=3)}, (0, 1, 2), 1, 2),
        ({0: CellState(), 1: CellState(wanted=3), 2: CellState(idle=3)}, (0, 2), 0, 2),
        ({0: CellState(wanted=9, idle=9), 1: CellState(wanted=1)}, (0, 1), 1, 0),
        ({0: CellState(wanted=2, nodes=8), 1: CellState(wanted=2, nodes=5)}, (0, 1), 1, 0),
        ({0: CellState(idle=1, nodes=1), 5: CellState(idle=9)}, (0,), 0, 0),
    ],
)
def test_a_node_goes_where_most_are_lacked_and_a_job_where_most_are_to_spare(
    states: dict[int, CellState], cells: tuple[int, ...], node: int, job: int
) -> None:
    assert place(states, cells) == node
    assert room(states, cells) == job


@pytest.mark.parametrize("idle", [(1900, 1500, 1600), (90, 70, 80), (60, 60, 60), (9, 8, 7)])
def test_jobs_are_spread_however_unevenly_idle_nodes_are(idle: tuple[int, ...]) -> None:
    given = [0, 0, 0]
    for _ in range(max(3, sum(idle) // 100)):  # Of four nodes each.
        states = {cell: CellState(idle=one - 4 * given[cell], nodes=one) for cell, one in enumerate(idle)}
        given[room(states, (0, 1, 2))] += 1
    assert max(given) <= min(given) + 1, given


@pytest.mark.parametrize(
    ("idle", "here", "chosen"),
    [
        ((0, 0, 0), {2}, 2),
        ((0, 0, 1), {2}, 0),
        ((80, 80, 90), {2}, 2),
        ((80, 80, 91), {2}, 0),
        ((80, 85, 90), {1, 2}, 1),
        ((80, 80, 80), {}, 0),
        ((-1, 0, 0), {2}, 0),
        ((-1, 0, -1), {2}, 0),
    ],
)
def test_a_cell_of_the_same_process_is_as_good_as_one_that_has_little_less_to_spare(
    idle: tuple[int, ...], here: set[int], chosen: int
) -> None:
    states = {cell: CellState(idle=max(0, one), wanted=max(0, -one)) for cell, one in enumerate(idle)}
    assert place(states, (0, 1, 2), here) == chosen


@pytest.mark.parametrize(
    ("states", "cell"),
    [
        ({}, 0),
        ({0: CellState(auditors=1)}, 1),
        ({0: CellState(auditors=1), 1: CellState(auditors=2)}, 0),
        ({0: CellState(looks=1), 1: CellState(looks=4)}, 1),
    ],
)
def test_an_auditor_goes_where_none_is_and_then_where_there_is_more_to_look_at(
    states: dict[int, CellState], cell: int
) -> None:
    assert watch(states, (0, 1)) == cell


class Time:
    """Of a front, as a test has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(choosing, "_now", lambda: self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_what_was_led_to_a_cell_counts_until_the_cell_tells_of_it(time: Time) -> None:
    told: dict[int, CellState] = {1: CellState(wanted=2)}
    choice = CellChoice(lambda: told)
    assert [choice.for_node("one", (0, 1)) for _ in range(6)] == [1, 1, 0, 1, 0, 1]
    time.now += choosing.TOLD_S / 2
    assert choice.for_node("one", (0, 1)) == 0
    time.now += choosing.TOLD_S
    assert choice.for_node("one", (0, 1)) == 1, "what it tells has it all by now"


def test_a_job_counts_while_it_is_made_and_for_a_while_once_it_is(time: Time) -> None:
    choice: Any = CellChoice(nothing_told)
    with choice.making(choice.for_job((0, 1))) as first:
        assert choice.for_job((0, 1)) == 1
        first.made = True
    assert choice.for_job((0, 1)) == 1
    with choice.making(1):
        assert choice.for_job((0, 1)) == 0
    assert choice.for_job((0, 1)) == 1, "that one was not made"
    with pytest.raises(ZeroDivisionError), choice.making(1):
        raise ZeroDivisionError
    assert choice.for_job((0, 1)) == 1
    time.now += choosing.JOB_S + 1
    assert choice.for_job((0, 1)) == 0


def test_a_node_that_was_let_go_for_a_job_comes_to_that_jobs_cell(time: Time) -> None:
    told = {0: CellState(wanted=50), 1: CellState(claims={"job": ("one",)}), 2: CellState(wishes=("two",))}
    choice = CellChoice(lambda: told)
    assert [choice.for_node(name, (0, 1, 2)) for name in ("one", "two", "three")] == [1, 2, 0]
    assert choice.for_node("one", (0, 2)) == 0, "the cell that waits for it is not reached"


def test_auditors_that_come_at_once_are_spread(time: Time) -> None:
    choice = CellChoice(lambda: {0: CellState(auditors=1)})
    assert [choice.for_auditor((0, 1, 2)) for _ in range(5)] == [1, 2, 0, 1, 2]
    assert choice.for_node("one", (0, 1, 2)) == 0, "they are no nodes that may be given work"
