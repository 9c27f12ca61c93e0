"""Nodes that lie about elements, in twenty worlds each: what is accepted is true in all, and who lied is found and unpaid.

Worlds differ in every lot: who is given what with whom, and what is checked. By replication a false result takes as many owners
who plot as must agree, all of them given the same element. By spot checks it takes luck: the formula is
``coordinator.domain.arrays.tally.undetected``, and the last test holds it against worlds.
"""

import hashlib
import random
from collections.abc import Callable

import pytest

from coordinator.domain.arrays.tally import check_rate, expected_checks, undetected
from coordinator.domain.audits.sampling import WHOLE
from protocol.job.elements import ElementEnd, ElementRun
from tests.coordinator.arrays.arrayed import NOTHING, Answer, ArrayWorld, ElementNode, right, truth

WORLDS = pytest.mark.parametrize(
    "worlds", [range(2), pytest.param(range(2, 20), marks=pytest.mark.long)], ids=["some", "all"]
)
ELEMENTS = 60


def wrong(run: ElementRun) -> ElementEnd:
    """Another number than the square."""
    return right(run, truth(run.index + 1))


def lazy() -> Answer:
    """It runs the first element, and gives that result for all that follow."""
    first: list[bytes] = []

    def answer(run: ElementRun) -> ElementEnd:
        first.append(truth(run.index))
        return right(run, first[0])

    return answer


def nothing(run: ElementRun) -> ElementEnd:
    """The archive of no files: it has run nothing."""
    return right(run, NOTHING)


def empty_words(run: ElementRun) -> ElementEnd:
    """A digest whose bytes it has not sent."""
    said = right(run)
    return ElementEnd(run.run, "exited", 0, hashlib.sha256(b"?").hexdigest(), said.size, 1, said.data, 1.0)


async def play(
    seed: int, cheats: list[Answer], honest: int, **array: object
) -> tuple[ArrayWorld, str, list[ElementNode]]:
    """A world whose first nodes cheat; it is over."""
    world = ArrayWorld(seed=seed)
    order = [*cheats, *[right] * honest]
    random.Random(seed).shuffle(order)
    nodes = [
        await world.come(number, answer=answer, pace=0.5 + random.Random(seed * 100 + number).random())
        for number, answer in enumerate(order, 1)
    ]
    job = await world.submit(world.document(ELEMENTS, **array))
    over = await world.until_over(job)
    assert over.state == "settled", over.reason
    return world, job, nodes


async def assert_caught(world: ArrayWorld, job: str, nodes: list[ElementNode], most_paid: int = 0) -> None:
    """Everything that is accepted is true, and every cheat that lied is out, having been paid for so many elements at most."""
    assert await world.results(job) == {index: truth(index) for index in range(ELEMENTS)}
    cheats = [node for node in nodes if node.answer is not right]
    async with world.parts.desk.open(job) as work:
        assert work.run is not None
        tracks = {node.number: work.run.tally.track(node.node) for node in nodes}
    earned = await world.earned(job, nodes)
    for node in cheats:
        assert tracks[node.number].wrong == 1 or not node.ran, f"node {node.number} went unnoticed"
        assert tracks[node.number].right <= most_paid
        assert earned[node.number] == 0 or most_paid
    for node in nodes:
        assert node in cheats or tracks[node.number].wrong == 0, "an honest node was blamed"


CHEATS: dict[str, Callable[[], Answer]] = {"one wrong": lambda: wrong, "lazy": lazy, "hash of nothing": lambda: nothing}


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("verify", ["replicated", "spot-checked"])
@WORLDS
async def test_a_single_cheat_is_found_in_every_world(cheat: str, verify: str, worlds: range) -> None:
    for seed in worlds:
        world, job, nodes = await play(seed, [CHEATS[cheat]()], 4, verify=verify)
        await assert_caught(world, job, nodes, most_paid=1 if cheat == "lazy" else 0)


@WORLDS
async def test_two_who_plot_are_outvoted_where_three_owners_must_agree(worlds: range) -> None:
    for seed in worlds:
        world, job, nodes = await play(seed, [wrong, wrong], 4, owners=3)
        await assert_caught(world, job, nodes)


@WORLDS
async def test_two_who_plot_have_a_false_result_accepted_where_two_are_enough(worlds: range) -> None:
    fooled = 0
    for seed in worlds:
        world, job, _ = await play(seed, [wrong, wrong], 4, owners=2)
        fooled += await world.results(job) != {index: truth(index) for index in range(ELEMENTS)}
    assert fooled > 0, "documents say that two owners are no protection against two who plot"


@WORLDS
async def test_a_digest_without_its_bytes_counts_as_a_failure_and_brings_nothing(worlds: range) -> None:
    for seed in worlds:
        world, job, nodes = await play(seed, [empty_words], 3)
        assert await world.results(job) == {index: truth(index) for index in range(ELEMENTS)}
        cheat = next(node for node in nodes if node.answer is empty_words)
        assert (await world.earned(job, nodes))[cheat.number] == 0


@pytest.mark.long
async def test_a_cheat_that_was_honest_first_is_found_as_often_as_the_formula_says() -> None:
    missed, expected = 0, 0.0
    for seed in range(40):
        lot, done, forged = random.Random(seed), 0, []

        def answer(run: ElementRun, lot: random.Random = lot, forged: list[int] = forged) -> ElementEnd:
            nonlocal done
            done += 1
            if done > 40 and len(forged) < 3 and lot.random() < 0.5:
                forged.append(run.index)
                return wrong(run)
            return right(run)

        world = ArrayWorld(seed=seed)
        for number in (1, 2, 3):
            await world.come(number)
        cheat = await world.come(4, answer=answer, pace=0.5)
        job = await world.submit(world.document(240, verify="spot-checked"))
        await world.until_over(job)
        false = [index for index, data in (await world.results(job)).items() if data != truth(index)]
        assert set(false) <= set(forged), "what an honest node says stands"
        async with world.parts.desk.open(job) as work:
            assert work.run is not None
            found = work.run.tally.track(cheat.node).wrong
        assert (found == 0) == bool(false), "who is found has nothing left that holds by its word alone"
        missed += bool(false)
        expected += undetected(3, 40)
    assert abs(missed - expected) < 6, f"{missed} of 40 were missed, {expected:.1f} by the formula"


def test_checks_fall_with_what_a_node_has_shown_and_never_end() -> None:
    assert check_rate(0) == WHOLE
    assert check_rate(21) == WHOLE // 2
    assert check_rate(10**6) == WHOLE // 20
    assert undetected(1) == 0.0
    assert undetected(60, 10**6) == pytest.approx((0.95 / 1.05) ** 60)
    assert expected_checks(10, 10) <= 10
    lots = sum(check_rate(number) for number in range(1_000)) / WHOLE
    assert expected_checks(1_000, 1) == pytest.approx(lots, rel=0.03)
