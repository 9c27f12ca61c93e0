"""Arrays whose results a checker of the submitter's own decides on: who looks, who is paid, and what liars come to.

Twenty worlds each, as in ``test_cheats``: a worker that lies is refused, one that looks without looking is found, and nobody
honest is blamed.
"""

import random
from collections.abc import Callable

import msgspec
import pytest

from coordinator.domain.arrays.looks import decoy_rate, expected_looks, standing
from coordinator.domain.arrays.votes import ElementCourse, ElementTry, VoteRules
from coordinator.domain.audits.sampling import WHOLE
from coordinator.errors import InvalidError, NotFoundError
from coordinator.services.artifacts.file_ownership import sources
from protocol.codec import MessageError, convert
from protocol.job.array import ArrayElement, ArraySpec, CheckerSpec, element_lines
from protocol.job.elements import ElementEnd, ElementOutcome, ElementRun
from protocol.rest.api import NewJob
from tests.coordinator.arrays.arrayed import (
    NOTHING,
    Answer,
    ArrayWorld,
    ElementNode,
    Look,
    fails,
    looks,
    right,
    truth,
)
from tests.coordinator.arrays.test_array_jobs import check_books, owners_paid
from tests.coordinator.arrays.test_cheats import lazy, nothing, wrong

WORLDS = pytest.mark.parametrize(
    "worlds", [range(1), pytest.param(range(1, 20), marks=pytest.mark.long)], ids=["one", "all"]
)
ELEMENTS = 40


def yes(run: ElementRun, data: bytes) -> ElementEnd:
    """It takes everything, and looks at nothing."""
    return right(run, NOTHING)


def no(run: ElementRun, data: bytes) -> ElementEnd:
    """It refuses everything."""
    return fails(run)


async def play(
    seed: int, answers: list[Answer], lookers: list[Look], honest: int, count: int = ELEMENTS
) -> tuple[ArrayWorld, str, list[ElementNode]]:
    """A world over which nodes lie about what they make, or about what they look at; it is over."""
    world, lot = ArrayWorld(seed=seed), random.Random(seed)
    kinds: list[tuple[Answer, Look]] = [(answer, looks) for answer in answers] + [(right, look) for look in lookers]
    kinds += [(right, looks)] * honest
    lot.shuffle(kinds)
    nodes = [
        await world.come(number, answer=answer, look=look, pace=0.5 + lot.random())
        for number, (answer, look) in enumerate(kinds, 1)
    ]
    job = await world.submit(world.document(count, verify="checked"))
    over = await world.until_over(job)
    assert over.state == "settled", over.reason
    return world, job, nodes


async def tracks(world: ArrayWorld, job: str, nodes: list[ElementNode]) -> dict[int, tuple[int, int, int]]:
    """Of each node: how often it was wrong, was refused, and is no longer in the job."""
    async with world.parts.desk.open(job) as work:
        assert work.run is not None
        found = {node.number: work.run.tally.track(node.node) for node in nodes}
    return {number: (track.wrong, track.refused, track.right) for number, track in found.items()}


async def test_each_element_is_run_once_and_looked_at_by_two_others_and_all_are_paid() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2, 3, 4)]
    job = await world.submit(world.document(30, verify="checked"))
    assert (await world.until_over(job)).state == "settled"
    assert await world.results(job) == {index: truth(index) for index in range(30)}
    assert sum(len(node.ran) for node in nodes) == 30
    for course in await world.courses(job):
        made = next(one for one in course.tries if one.of is None)
        said = [one for one in course.tries if one.of == made.result]
        assert len({one.owner for one in said}) == len(said) == 2
        assert len({one.seed for one in said}) == 1
        assert made.owner not in {one.owner for one in said}
        assert len(owners_paid(course)) >= 3
    courses = await world.courses(job)
    assert len({one.seed for course in courses for one in course.tries if one.seed}) > 30, "each result has its own"
    assert all((await world.earned(job, nodes)).values())
    await check_books(world, job, nodes)


async def test_a_checker_may_take_longer_than_an_element() -> None:
    world = ArrayWorld()
    for number in (1, 2, 3):
        await world.come(number, look_pace=300.0)
    checker = CheckerSpec(command=("look",), seconds=400.0)
    job = await world.submit(world.document(2, verify="checked", seconds=20.0, checker=checker))
    assert (await world.until_over(job, 8_000, 1.0)).state == "settled"
    assert {lease.end for lease in await world.leases(job)} == {"stopped"}


async def test_nobody_looks_at_what_comes_from_ones_own_wallet_or_neighbourhood() -> None:
    world = ArrayWorld()
    twins = [await world.come(1, owner=1), await world.come(2, owner=1, address="203.0.113.9")]
    neighbours = [await world.come(3, address="192.0.2.10"), await world.come(4, address="192.0.2.200")]
    job = await world.submit(world.document(20, verify="checked"))
    for _ in range(60):
        await world.turn()
    assert not await world.results(job), "three are not here"
    await world.come(5)
    assert (await world.until_over(job)).state == "settled"
    kinds = {node.payout: number for number, pair in enumerate((twins, neighbours)) for node in pair}
    for course in await world.courses(job):
        made = next(one for one in course.tries if one.of is None)
        others = [kinds.get(one.owner, one.owner) for one in course.tries if one.of == made.result]
        assert kinds.get(made.owner, made.owner) not in others
        assert len(set(others)) == len(others)


CHEATS: dict[str, Callable[[], Answer]] = {"one wrong": lambda: wrong, "lazy": lazy, "hash of nothing": lambda: nothing}


@pytest.mark.parametrize("cheat", CHEATS)
@WORLDS
async def test_who_makes_results_up_is_refused_unpaid_and_let_go(cheat: str, worlds: range) -> None:
    for seed in worlds:
        world, job, nodes = await play(seed, [CHEATS[cheat]()], [], 4)
        assert await world.results(job) == {index: truth(index) for index in range(ELEMENTS)}
        found = await tracks(world, job, nodes)
        (liar,) = [node for node in nodes if node.answer is not right]
        assert 0 < found[liar.number][1] <= len(liar.ran) < 16, "it is let go after five"
        assert found[liar.number][2] <= (cheat == "lazy"), "it is paid for none, but the first one of the lazy"
        assert all(found[node.number][:2] == (0, 0) for node in nodes if node is not liar), "an honest node was blamed"
        await check_books(world, job, nodes)


@pytest.mark.parametrize("look", [yes, no], ids=["yes to everything", "no to everything"])
@WORLDS
async def test_who_says_a_verdict_without_looking_is_found_though_everybody_else_is_honest(
    look: Look, worlds: range
) -> None:
    for seed in worlds:
        world, job, nodes = await play(seed, [], [look], 4)
        assert await world.results(job) == {index: truth(index) for index in range(ELEMENTS)}
        found, earned = await tracks(world, job, nodes), await world.earned(job, nodes)
        (liar,) = [node for node in nodes if node.look is not looks]
        assert found[liar.number][0] == 1
        assert earned[liar.number] == 0
        assert all(found[node.number][:2] == (0, 0) for node in nodes if node is not liar), "an honest node was blamed"


async def test_few_know_a_decoy_by_having_seen_it_before() -> None:
    world = ArrayWorld()
    for number in range(1, 6):
        await world.come(number)
    job = await world.submit(world.document(40, verify="checked"))
    assert (await world.until_over(job)).state == "settled"
    met = {(one.result, one.owner) for course in await world.courses(job) for one in course.tries if one.of is None}
    looked = []
    for course in await world.courses(job):
        own = {one.result for one in course.tries if one.of is None}
        looked += [(one.run, one.of, one.owner, one.of not in own) for one in course.tries if one.of is not None]
    decoys = known = 0
    for _, of, owner, decoy in sorted(looked):
        decoys += decoy
        known += decoy and (of, owner) in met
        met.add((of, owner))
    assert decoys > 40
    assert known <= decoys // 2, "who is asked first has never seen it; who is asked second may have"


@WORLDS
async def test_two_who_do_not_look_are_found_and_nobody_honest_is_blamed_for_them(worlds: range) -> None:
    out = 0
    for seed in worlds:
        world, job, nodes = await play(seed, [], [yes, yes], 5, count=80)
        assert await world.results(job) == {index: truth(index) for index in range(80)}
        found = await tracks(world, job, nodes)
        blamed = {number for number, track in found.items() if track[0]}
        assert blamed <= {node.number for node in nodes if node.look is yes}
        out += len(blamed)
    assert out > len(worlds), "of two in each world; in so short an array some get away"


@WORLDS
async def test_who_makes_it_up_and_one_who_takes_it_are_not_enough(worlds: range) -> None:
    for seed in worlds:
        world, job, nodes = await play(seed, [wrong], [yes], 4)
        assert await world.results(job) == {index: truth(index) for index in range(ELEMENTS)}
        found = await tracks(world, job, nodes)
        honest = [node for node in nodes if node.answer is right and node.look is looks]
        assert all(found[node.number][:2] == (0, 0) for node in honest)


@WORLDS
async def test_three_who_plot_have_a_false_result_taken_as_the_page_says(worlds: range) -> None:
    fooled = 0
    for seed in worlds:
        world, job, _ = await play(seed, [wrong], [yes, yes], 4)
        fooled += await world.results(job) != {index: truth(index) for index in range(ELEMENTS)}
    assert fooled > 0 or len(worlds) == 1


async def test_a_checker_that_refuses_everything_ends_the_job_and_whoever_did_the_work_is_paid() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number, look=no) for number in range(1, 7)]
    job = await world.submit(world.document(200, verify="checked"))
    over = await world.until_over(job)
    assert over.state == "failed"
    assert "the checker refused the results of 3 owners" in over.reason
    assert "it is broken" not in over.reason, "a shared page shows the reason, and no logs"
    assert all((await world.earned(job, nodes)).values()), "nobody works for nothing because a checker says no"
    assert {found[0] for found in (await tracks(world, job, nodes)).values()} == {0}
    assert over.refunded > 0
    await check_books(world, job, nodes)
    shown = await world.parts.elements.failures(job, 1)
    assert shown[0].tail == ("Traceback", "it is broken"), "what the checker said is there to read"


async def test_a_checker_whose_words_differ_each_time_is_at_fault_and_nobody_else() -> None:
    lot = random.Random(1)
    world = ArrayWorld()
    for number in range(1, 8):
        await world.come(number, look=lambda run, data: right(run, truth(lot.randrange(10**9))))
    job = await world.submit(world.document(30, verify="checked"))
    over = await world.until_over(job)
    assert over.state == "failed"
    assert "the checker is not deterministic" in over.reason
    assert {found[0] for found in (await tracks(world, job, world.nodes)).values()} == {0}
    assert all((await world.earned(job, world.nodes)).values()) or over.paid > 0


@pytest.mark.parametrize("outcome", ["inputs", "time"])
async def test_looks_that_come_to_nothing_are_not_tried_for_ever(outcome: ElementOutcome) -> None:
    """``time`` at one of two lookers: a further owner is needed. ``inputs`` at all: no owner can look."""
    world = ArrayWorld()

    def never(run: ElementRun, data: bytes) -> ElementEnd:
        return ElementEnd(run.run, outcome, seconds=0.1)

    for number in (1, 2, 3):
        await world.come(number, look=never if outcome == "inputs" or number == 3 else looks)
    job = await world.submit(world.document(1, verify="checked"))
    for _ in range(400):
        await world.turn()
    assert max(len(course.tries) for course in await world.courses(job)) < 40
    told = [event.text for event in await world.parts.jobs.events(job, 0, 100)]
    assert any("each of the 3 owners that are here has had its turn" in text for text in told)
    for number in (4, 5):
        await world.come(number)
    assert (await world.until_over(job)).state == "settled"


async def test_a_checker_that_is_too_slow_at_one_node_is_no_lie() -> None:
    def slow(run: ElementRun, data: bytes) -> ElementEnd:
        return ElementEnd(run.run, "time", seconds=1.0)

    world, job, nodes = await play(3, [], [slow], 4)
    assert await world.results(job) == {index: truth(index) for index in range(ELEMENTS)}
    assert {found[:2] for found in (await tracks(world, job, nodes)).values()} == {(0, 0)}


async def test_two_who_came_to_the_same_bytes_need_one_look_more_so_three_owners_are_enough() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number, pace=pace) for number, pace in ((1, 60.0), (2, 1.0), (3, 1.0))]
    job = await world.submit(world.document(2, verify="checked", seconds=200.0))
    assert (await world.until_over(job, 600)).state == "settled"
    assert await world.results(job) == {index: truth(index) for index in range(2)}
    courses = await world.courses(job)
    twins = [course for course in courses if sum(one.of is None and one.ended for one in course.tries) == 2]
    assert all(len(owners_paid(course)) == 3 for course in twins)
    await check_books(world, job, nodes)


def one(run: int, owner: int, **more: object) -> ElementTry:
    fields = {"state": "ended", "outcome": "exited", "operations": run} | more
    return ElementTry(run, f"l{owner}", f"n{owner}", f"o{owner}", "", owner, 0.0, **fields)  # type: ignore[arg-type]


def test_two_who_looked_are_paid_where_the_checker_never_says_the_same() -> None:
    made, various = one(1, 1, result="a" * 64), [one(n, n, result=str(n) * 64, of="a" * 64) for n in range(2, 7)]
    over = standing(ElementCourse("j", 0, tries=(made, *various)), VoteRules(1, 1, 2, 2, looks=2))
    assert (over.state, over.right, over.wrong) == ("failed", (1, 2, 3), ())


def test_a_run_that_came_to_the_same_result_is_as_good_as_a_look() -> None:
    rules = VoteRules(1, 1, 2, 2, looks=2)
    twins = (one(1, 1, result="a" * 64), one(2, 2, result="a" * 64))
    waits = standing(ElementCourse("j", 0, tries=twins), rules)
    assert waits.looks == (("a" * 64, 1),)
    over = standing(ElementCourse("j", 0, tries=(*twins, one(3, 3, result="b" * 64, of="a" * 64))), rules)
    assert (over.state, over.result, over.right) == ("done", "a" * 64, (1, 2, 3))


async def test_a_search_that_fails_by_bad_luck_blames_nobody() -> None:
    lot = random.Random(4)

    def lucky(run: ElementRun) -> ElementEnd:
        return right(run) if lot.random() < 0.7 else wrong(run)

    world = ArrayWorld()
    nodes = [await world.come(number, answer=lucky) for number in range(1, 7)]
    job = await world.submit(world.document(60, verify="checked", retries=4))
    assert (await world.until_over(job)).state == "settled"
    assert await world.results(job) == {index: truth(index) for index in range(60)}
    assert {found[0] for found in (await tracks(world, job, nodes)).values()} == {0}
    assert all(lease.end != "rejected" for lease in world.parts.leases.live())


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_lost_or_paid_twice_through_kills(seed: int) -> None:
    world, lot = ArrayWorld(seed=seed), random.Random(seed)
    nodes = [await world.come(number, slots=2) for number in range(1, 7)]
    job = await world.submit(world.document(80, verify="checked"))
    for turn in range(2_000):
        await world.turn()
        if turn % 7 == 3 and turn < 100:
            await world.crash(lot.choice(nodes))
        if turn % 17 == 9 and turn < 100:
            await world.kill()
        if (await world.stored(job)).state == "settled":
            break
    assert await world.results(job) == {index: truth(index) for index in range(80)}
    await check_books(world, job, nodes)


async def test_a_quote_says_what_the_checker_costs() -> None:
    world = ArrayWorld()
    friend = await world.come(1)
    for number in (2, 3):
        await world.come(number)
    checker = CheckerSpec(command=("look",), estimate=0.2)
    once = await world.parts.jobs.quote(world.document(1_000, verify="trusted", trusted=(friend.payout,), estimate=2.0))
    checked = await world.parts.jobs.quote(world.document(1_000, verify="checked", checker=checker, estimate=2.0))
    times = expected_looks(1_000, 3)
    assert 2_000 < times < 2_600
    assert checked.price_likely == pytest.approx(once.price_likely * (1 + 0.1 * times / 1_000), rel=0.001)
    assert f"your checker looks {times:,} times" in " ".join(checked.reasons)
    assert not checked.problems
    await world.crash(world.nodes.pop())
    few = await world.parts.jobs.quote(world.document(1_000, verify="checked", checker=checker, estimate=2.0))
    assert "3 owners are to run an element and look at its result, and 2 could" in few.problems[0]


def test_decoys_are_all_of_a_nodes_first_looks_and_never_end() -> None:
    assert decoy_rate(0) == WHOLE
    assert decoy_rate(5) == WHOLE // 2
    assert decoy_rate(10**6) == WHOLE // 20


def test_an_element_that_nobody_has_begun_wants_one_owner() -> None:
    assert standing(ElementCourse("j", 0), VoteRules(1, 1, 2, 2, looks=2)).asked == 1


def test_everything_that_an_array_names_is_looked_up_among_the_accounts_own_files() -> None:
    world = ArrayWorld()
    spec = world.document(3, verify="checked", checker=CheckerSpec(command=("look",), image="c" * 64))
    assert spec.array is not None
    array = msgspec.structs.replace(spec.array, inputs={"model": "d" * 64})
    named = dict(sources(msgspec.structs.replace(spec, array=array)))
    assert named.items() >= {"array.checker.image": "c" * 64, "array.inputs.model": "d" * 64}.items()
    assert {array.image, array.elements} <= set(named.values())


async def test_documents_that_cannot_be_are_refused_with_the_way_out() -> None:
    world = ArrayWorld()
    for number in (1, 2, 3):
        await world.come(number)
    plain = world.document(3, verify="checked")
    assert plain.array is not None
    fields = msgspec.to_builtins(plain.array)
    for changed, text in (
        ({"checker": None}, "name the program that decides in array.checker.command"),
        ({"verify": "replicated"}, "set it to checked"),
        ({"inputs": {"result/a": "0" * 64}}, "where a checker finds a result"),
    ):
        with pytest.raises(MessageError, match=text):
            convert(fields | changed, ArraySpec)
    listed = world.artifacts.keep(element_lines([ArrayElement(name="e", inputs={"result": plain.array.image})]))
    for array, error, text in (
        (msgspec.structs.replace(plain.array, elements=listed, count=1), InvalidError, "where a checker finds"),
        (
            msgspec.structs.replace(plain.array, checker=CheckerSpec(command=("x",), image="0" * 64)),
            NotFoundError,
            "upload it first",
        ),
    ):
        with pytest.raises(error, match=text):
            await world.parts.jobs.create(NewJob(msgspec.structs.replace(plain, array=array)))
