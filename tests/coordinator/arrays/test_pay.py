"""What runs are paid, whatever their owners say of their time, and what becomes of those who give everything back."""

import random
from collections.abc import Callable, Sequence
from statistics import mean

import msgspec
import pytest

from coordinator.domain.arrays.pace import PACE, PACE_SLACK, PARTNERS
from coordinator.domain.arrays.tally import ArrayTally
from coordinator.domain.placement import COMPUTE_SHARE
from protocol.job.elements import ElementEnd, ElementRun
from tests.coordinator.arrays.arrayed import ArrayWorld, ElementNode, looks, right, truth

SPEED = COMPUTE_SHARE * ElementNode.flops


def ran(tally: ArrayTally, owner: str, said: int) -> tuple[ArrayTally, int]:
    """One run that nobody else has."""
    return tally.ran(owner, said).due(owner, several=False)


def paid(tally: ArrayTally, owner: str, *said: int) -> tuple[ArrayTally, list[int]]:
    amounts = []
    for one in said:
        tally, amount = ran(tally, owner, one)
        amounts.append(amount)
    return tally, amounts


def test_owners_of_one_pace_are_paid_what_they_say() -> None:
    tally = ArrayTally()
    for _ in range(20):
        for owner, said in (("a", 100), ("b", 110), ("c", 95)):
            tally, amount = ran(tally, owner, said)
            assert amount == said


def test_a_long_element_is_paid_whole_in_the_end_where_an_owners_average_is_usual() -> None:
    tally = ArrayTally()
    for _ in range(30):
        tally, _ = paid(tally, "b", 100)
        tally, _ = paid(tally, "c", 100)
    lengths = [60] * 10 + [900] + [60] * 10
    tally, amounts = paid(tally, "a", *lengths)
    assert sum(amounts) == sum(lengths)


@pytest.mark.parametrize("runs", [1, 10, 100, 1000])
def test_who_idles_is_paid_the_usual_pace_and_a_slack_that_shrinks(runs: int) -> None:
    tally = ArrayTally()
    for _ in range(40):
        tally, _ = paid(tally, "b", 100)
        tally, _ = paid(tally, "c", 120)
    tally, amounts = paid(tally, "idler", *[60_000] * runs)
    assert sum(amounts) / runs <= 120 * (PACE + PACE_SLACK / runs**0.5)


def test_what_an_owner_was_paid_before_others_came_is_set_against_later_runs() -> None:
    tally, first = paid(ArrayTally(), "idler", 60_000)
    assert first == [60_000], "nobody is there to compare it with"
    tally, _ = paid(tally, "b", *[100] * 10)
    tally, _ = paid(tally, "c", *[100] * 10)
    tally, later = paid(tally, "idler", *[60_000] * 100)
    assert sum(later) == 0


def test_two_owners_bound_each_other_and_saying_little_gains_nothing() -> None:
    tally = ArrayTally()
    for _ in range(50):
        tally, _ = ran(tally, "low", 1)
        tally, _ = ran(tally, "b", 100)
    tally, _ = paid(tally, "c", *[100] * 50)
    tally, amount = ran(tally, "low", 1)
    assert amount == 1
    tally, amounts = paid(tally, "d", *[100] * 20)
    assert sum(amounts) == 2_000, "one who says little does not lower what others get"


OWNERS = ["liar", "b", "c", "d", "e"]


def paired(
    lengths: Sequence[int], says: Callable[[int], int], seed: int = 0, back: int | None = None, low: Sequence[str] = ()
) -> tuple[dict[str, int], dict[str, int]]:
    """Of each of five owners, who run elements of such lengths in pairs: operations in truth, and what is paid.

    ``says``: what the first one says of an element that takes so many. ``back``: longer ones it gives back. ``low``: owners who
    always say 1.
    """
    lot, tally = random.Random(seed), ArrayTally()
    truly, earned = dict.fromkeys(OWNERS, 0), dict.fromkeys(OWNERS, 0)
    for length in lengths:
        pair = lot.sample(OWNERS[1:] if back is not None and length > back else OWNERS, 2)
        said = {owner: says(length) if owner == "liar" else 1 if owner in low else length for owner in pair}
        for owner in pair:
            tally = tally.ran(owner, said[owner], [(other, said[other]) for other in pair if other != owner])
        for owner in pair:
            tally, amount = tally.due(owner, several=True)
            truly[owner] += length
            earned[owner] += amount
    return truly, earned


def exponential(elements: int, seed: int) -> list[int]:
    lot = random.Random(1_000 + seed)
    return [int(1_000 * lot.expovariate(1.0)) + 1 for _ in range(elements)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("low", [["b"], ["b", "c"]])
def test_who_says_too_little_takes_nothing_from_the_owner_that_ran_the_same(low: list[str], seed: int) -> None:
    truly, earned = paired(exponential(1_000, seed), lambda length: length, seed, low=low)
    for owner in OWNERS:
        if owner in low:
            assert earned[owner] <= 1_000
        else:
            assert 0.98 * truly[owner] < earned[owner] <= truly[owner], (
                "by the lesser word it were three quarters or half"
            )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("says", "back"), [(10**9, None), (2_000, None), (1_000, 1_000), (300, 300)])
@pytest.mark.parametrize("order", [list, sorted])
def test_who_says_too_much_beside_another_gains_what_chance_gives(
    order: Callable[[list[int]], list[int]], says: int, back: int | None, seed: int
) -> None:
    lengths = order(exponential(1_000, seed))
    truly, earned = paired(lengths, lambda length: max(says, length), seed, back)
    assert earned.pop("liar") < 1.15 * truly["liar"]
    assert all(0.99 * truly[owner] <= amount <= truly[owner] for owner, amount in earned.items())


def test_who_gives_long_elements_back_and_says_their_time_for_short_ones_gains_nothing() -> None:
    truly, earned = paired([1_000, 9_000] * 100, lambda _: 9_000, back=5_000)
    assert truly["liar"] > 30_000
    assert earned == truly


def test_who_knows_beside_whom_it_runs_gains_the_usual_slack_at_most() -> None:
    tally, gained, runs = ArrayTally(), 0, 400
    for _ in range(runs):
        for other, said in (("b", 100), ("c", 100), ("d", 100_000)):
            tally = tally.ran("a", said, [(other, 100)]).ran(other, 100, [("a", said)])
            for owner in ("a", other):
                tally, amount = tally.due(owner, several=True)
                gained += amount if owner == "a" else 0
    assert gained < 100 * runs * (2 + PACE + PACE_SLACK / runs**0.5) + 1


def test_a_look_that_nobody_else_took_is_paid_the_usual_pace_at_most() -> None:
    tally = ArrayTally()
    for pair in (("b", "c"), ("c", "a"), ("a", "b")) * 10:
        for owner, other in (pair, pair[::-1]):
            tally = tally.ran(owner, 100, [(other, 100)], look=True)
            tally, amount = tally.due(owner, several=True, look=True)
            assert amount == 100
    earned = 0
    for _ in range(20):
        tally, amount = tally.ran("a", 60_000, [], look=True).due("a", several=True, look=True)
        earned += amount
    assert 2_000 <= earned <= 100 * (20 * PACE + PACE_SLACK * 20**0.5)


@pytest.mark.parametrize("said", [100, 10**9])
def test_of_many_partners_few_are_remembered_and_all_count(said: int) -> None:
    lot, tally, owners = random.Random(1), ArrayTally(), [f"owner {number}" for number in range(200)]
    earned, runs = 0, 2_000
    for _ in range(runs):
        other = lot.choice(owners)
        theirs = 1 if other < "owner 12" else 100
        tally = tally.ran("a", said, [(other, theirs)]).ran(other, theirs, [("a", said)])
        tally, amount = tally.due("a", several=True)
        earned += amount
    assert len(tally.paces["a"].beside) <= PARTNERS + 2
    assert len(msgspec.json.encode(tally.paces["a"])) < 2_000
    assert 0.98 * 100 * runs <= earned <= 1.1 * 100 * runs


@pytest.mark.parametrize(("said", "first", "least", "most"), [(100, 1, 0.9, 1.0), (10_000, 10_000, 0.9, 2.2)])
def test_partners_who_came_first_do_not_decide_against_those_who_did_most(
    said: int, first: int, least: float, most: float
) -> None:
    lot, tally = random.Random(2), ArrayTally()
    earned, early, later = 0, [f"first {number}" for number in range(PARTNERS)], [f"owner {n}" for n in range(50)]
    for number in range(2_000):
        other, theirs = (early[number % PARTNERS], first) if number < PARTNERS else (lot.choice(later), 100)
        tally = tally.ran("a", said, [(other, theirs)]).ran(other, theirs, [("a", said)])
        tally, amount = tally.due("a", several=True)
        earned += amount if number >= PARTNERS else 0
    assert least * 100 * 2_000 <= earned <= most * 100 * 2_000


@pytest.mark.parametrize(("said", "paid"), [(1_200_000, 1_200_000), (1_000_000, 600_000)])
def test_what_an_older_version_has_paid_neither_stops_what_is_due_nor_comes_again(said: int, paid: int) -> None:
    others = b'{"runs": 1000, "said": 1000000, "paid": 1000000, "agreed": 0}'
    mine = b'{"runs": 1000, "said": %d, "paid": %d}' % (said, paid)
    stored = b'{"next_run": 1501, "looks": {}, "paces": {"%b": %b, "%b": %b, "%b": %b}}'
    names = [letter.encode() * 40 for letter in "ABC"]
    tally = msgspec.json.decode(stored % (names[0], mine, names[1], others, names[2], others), type=ArrayTally)
    a, b, c = (name.decode() for name in names)
    for number in range(400):
        other = (b, c)[number % 2]
        tally = tally.ran(a, 1_000, [(other, 1_000)]).ran(other, 1_000, [(a, 1_000)])
        for owner in (a, other):
            tally, amount = tally.due(owner, several=True)
            assert amount == 1_000


@pytest.mark.parametrize("verify", ["replicated", "checked"])
async def test_a_node_that_says_nothing_of_its_time_leaves_those_beside_it_paid(verify: str) -> None:
    world = ArrayWorld(seed=5)
    nodes = [await world.come(number, slots=2) for number in range(1, 6)]
    nodes[0].answer = lambda run: right(run, seconds=0.0)
    nodes[0].look = lambda run, data: msgspec.structs.replace(looks(run, data), seconds=0.0)
    job = await world.submit(world.document(150, verify=verify))
    assert (await world.until_over(job)).state == "settled"
    shares = {node.node: [0, 0] for node in nodes}
    for share in await world.shares(job):
        shares[share.node][0] += share.operations
        shares[share.node][1] += share.leaves
    assert shares.pop(nodes[0].node)[0] == 0
    for operations, leaves in shares.values():
        assert 0.85 * leaves * SPEED < operations <= leaves * SPEED, "a second each"


def test_an_owner_that_ran_one_short_element_and_went_leaves_nobody_unpaid() -> None:
    tally, _ = paid(ArrayTally(), "a", *[100] * 20)
    tally, _ = paid(tally, "passer-by", 0)
    tally, amounts = paid(tally, "a", *[100] * 20)
    assert sum(amounts) == 2_000


@pytest.mark.parametrize("verify", ["checked", "spot-checked"])
async def test_a_node_that_idles_to_its_limit_earns_no_more_an_element_than_others(verify: str) -> None:
    world = ArrayWorld(seed=3)
    nodes = [await world.come(number, pace=1.0, slots=2) for number in range(1, 6)]
    idler = nodes[0]
    idler.pace, idler.answer = 30.0, lambda run: right(run, seconds=30.0)
    job = await world.submit(world.document(160, verify=verify, seconds=60.0))
    assert (await world.until_over(job, 3_000)).state == "settled"
    earned: dict[int, list[int]] = {node.number: [] for node in nodes}
    for course in sorted(await world.courses(job), key=lambda one: one.settled):
        assert world.artifacts.kept[course.result or ""] == truth(course.index)
        for one in course.tries:
            if one.paid and one.of is None:
                earned[next(node.number for node in nodes if node.node == one.node)].append(one.operations)
    idle_runs = len(earned[1])
    assert idle_runs > 2
    usual = mean(operations for number in range(2, 6) for operations in earned[number])
    assert mean(earned[1]) > 20 * usual, "so much longer it says that it took"
    shares = {share.node: 0 for share in await world.shares(job)}
    for share in await world.shares(job):
        shares[share.node] += share.operations
    most = usual * (PACE * idle_runs + PACE_SLACK * idle_runs**0.5)
    looks = 0 if verify == "spot-checked" else len(idler.looked)
    first = 2 * max(earned[1])  # Its first ones, if nobody else had ended any.
    assert shares[idler.node] <= 1.5 * most + first + 1.5 * looks * usual


async def test_a_node_that_gives_everything_back_is_let_go_and_others_end_the_array() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number, slots=4) for number in range(1, 4)]

    def nothing(run: ElementRun) -> ElementEnd:
        return ElementEnd(run.run, "owner")

    nodes[0].answer = nothing
    job = await world.submit(world.document(120))
    assert (await world.until_over(job)).state == "settled"
    assert len(await world.results(job)) == 120
    ends = [lease.end for lease in await world.leases(job) if lease.node == nodes[0].node]
    assert "failed" in ends
    for course in await world.courses(job):
        assert course.back.count(nodes[0].node) <= 2, "nobody is given again at once what it gave back"


async def test_an_element_that_everybody_gives_back_fails_and_the_rest_comes() -> None:
    world = ArrayWorld()
    for number in range(1, 4):
        await world.come(number, answer=lambda run: ElementEnd(run.run, "owner") if run.index == 5 else right(run))
    job = await world.submit(world.document(40))
    assert (await world.until_over(job)).state == "settled"
    courses = {course.index: course for course in await world.courses(job)}
    assert courses[5].state == "failed"
    assert "gave it back" in courses[5].reason
    assert sum(course.state == "done" for course in courses.values()) == 39
