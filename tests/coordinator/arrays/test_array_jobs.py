"""Array jobs on a clock that stands still: elements are given, votes weighed, verified work paid, whatever dies meanwhile."""

import random

import msgspec
import pytest

from coordinator.domain.arrays.board import ArrayBoard, ElementSeat
from coordinator.domain.arrays.looks import standing
from coordinator.domain.arrays.tally import GRACE_S, QUIET_S
from coordinator.domain.arrays.votes import MAX_LOST, ElementCourse, VoteRules
from coordinator.domain.job import JobAction
from coordinator.errors import ConflictError, InvalidError, NotFoundError
from protocol.ids import NodeAddress
from protocol.job.elements import ElementEnd, ElementRun, ElementsMoved
from protocol.rest.api import NewJob
from tests.coordinator.arrays.arrayed import ArrayWorld, ElementNode, fails, right, truth
from tests.coordinator.fakes import BUDGET


def owners_paid(course: ElementCourse) -> set[str]:
    return {one.owner for one in course.tries if one.paid}


async def ask(world: ArrayWorld, job: str, action: JobAction) -> None:
    async with world.parts.desk.open(job) as work:
        await world.parts.runs.ask(work, action)


async def check_books(world: ArrayWorld, job: str, nodes: list[ElementNode]) -> None:
    """Everything that was verified is paid, once, and the rest is back."""
    over = await world.stored(job)
    earned = await world.earned(job, nodes)
    assert over.paid == sum(earned.values())
    assert over.paid + over.refunded == BUDGET
    account = world.chain.escrows[job]
    assert sum(account.paid.values()) == over.paid


async def test_each_element_is_run_by_two_owners_who_agree_and_both_are_paid() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2, 3)]
    job = await world.submit(world.document(30))
    over = await world.until_over(job)
    assert over.state == "settled"
    assert await world.results(job) == {index: truth(index) for index in range(30)}
    assert sum(len(node.ran) for node in nodes) == 60
    assert all(len(owners_paid(course)) == 2 for course in await world.courses(job))
    assert all((await world.earned(job, nodes)).values())
    await check_books(world, job, nodes)


async def test_elements_that_begin_and_end_within_one_report_are_paid_their_time() -> None:
    paid = []
    for late in (False, True):
        world = ArrayWorld()
        nodes = [await world.come(number, late=late) for number in (1, 2, 3)]
        job = await world.submit(world.document(30))
        assert (await world.until_over(job)).state == "settled"
        seconds = [one.seconds for course in await world.courses(job) for one in course.tries if one.paid]
        assert len(seconds) == 60
        assert min(seconds) > 0
        paid.append(sum((await world.earned(job, nodes)).values()))
        await check_books(world, job, nodes)
    assert paid[1] >= paid[0] > 0


@pytest.mark.parametrize("late", [False, True])
async def test_nobody_is_paid_for_more_time_than_an_element_may_take(late: bool) -> None:
    world = ArrayWorld()
    friend = await world.come(1, pace=40.0, late=late, answer=lambda run: right(run, seconds=100_000.0))
    words = {"verify": "trusted", "trusted": (friend.payout,), "seconds": 10.0}
    job = await world.submit(world.document(12, **words))
    assert (await world.until_over(job)).state == "settled"
    seconds = [one.seconds for course in await world.courses(job) for one in course.tries if one.paid]
    assert len(seconds) == 12
    assert 0 < max(seconds) <= 10.0, "not for the time that it was kept waiting"


async def test_no_two_copies_go_to_one_owner_or_one_block_of_addresses() -> None:
    world = ArrayWorld()
    twins = [await world.come(1, owner=1), await world.come(2, owner=1, address="203.0.113.9")]
    neighbours = [await world.come(3, address="192.0.2.10"), await world.come(4, address="192.0.2.200")]
    job = await world.submit(world.document(40, owners=3))
    for _ in range(60):
        await world.turn()
    assert all(course.state == "open" for course in await world.courses(job)), "three are not here"
    await world.come(5)
    assert (await world.until_over(job)).state == "settled"
    blocks = {node.payout: number for number, pair in enumerate((twins, neighbours)) for node in pair}
    for course in await world.courses(job):
        kinds = [blocks.get(owner, owner) for owner in owners_paid(course)]
        assert len(kinds) == len(set(kinds)) == 3


async def test_who_waits_for_owners_that_are_not_here_is_told_so() -> None:
    world = ArrayWorld()
    await world.come(1)
    await world.come(2)
    job = await world.submit(world.document(4))
    await world.crash(world.nodes.pop())
    for _ in range(120):
        await world.turn()
    texts = [event.text for event in await world.parts.jobs.events(job, 0)]
    assert sum("1 of the 2 owners that each needs are here" in text for text in texts) == 1


async def test_trusted_owners_alone_run_elements_once() -> None:
    world = ArrayWorld()
    friend, stranger = await world.come(1), await world.come(2)
    job = await world.submit(world.document(12, verify="trusted", trusted=(friend.payout,)))
    assert (await world.until_over(job)).state == "settled"
    assert (len(friend.ran), len(stranger.ran)) == (12, 0)
    await check_books(world, job, [friend, stranger])


async def test_a_spot_checked_array_runs_some_elements_twice_and_fewer_as_nodes_prove_themselves() -> None:
    world = ArrayWorld(seed=3)
    nodes = [await world.come(number, pace=0.5) for number in (1, 2)]
    job = await world.submit(world.document(200, verify="spot-checked"))
    assert (await world.until_over(job)).state == "settled"
    checked = [course.index for course in await world.courses(job) if len(owners_paid(course)) == 2]
    assert 60 < len(checked) < 120, "21 ln(1 + 100 / 21) a node are 74 in all, and who runs a check grows by it, too"
    assert sum(index < 20 for index in checked) >= 12
    await check_books(world, job, nodes)


async def test_an_element_that_fails_is_tried_again_elsewhere_and_its_log_is_kept() -> None:
    world = ArrayWorld()
    broken: set[int] = {3, 7}

    def answer(run: ElementRun) -> ElementEnd:
        return fails(run, 2) if run.index in broken else right(run)

    nodes = [await world.come(number, answer=answer) for number in (1, 2, 3)]
    job = await world.submit(world.document(12, retries=1))
    over = await world.until_over(job)
    assert over.state == "settled"
    courses = {course.index: course for course in await world.courses(job)}
    for index in broken:
        course = courses[index]
        assert course.state == "failed"
        assert "ended with code 2" in course.reason
        assert len({one.owner for one in course.failures}) >= 2
        assert course.failures[-1].tail == ("Traceback", "it is broken")
        assert len(owners_paid(course)) == 2, "they did what they were asked to"
    order = sorted(broken, key=lambda index: -courses[index].settled)
    assert [one.index for one in await world.parts.elements.failures(job, 20)] == order
    assert [one.index for one in await world.parts.elements.failures(job, 1)] == order[:1]
    assert len(await world.results(job)) == 10
    await check_books(world, job, nodes)


async def test_a_command_that_never_works_ends_the_job_before_the_budget_is_gone() -> None:
    world = ArrayWorld()
    for number in (1, 2, 3):
        await world.come(number, answer=fails)
    job = await world.submit(world.document(500))
    over = await world.until_over(job)
    assert over.state == "failed"
    assert "the command ended with code 1" in over.reason
    assert over.refunded > BUDGET // 2
    assert sum(len(node.ran) for node in world.nodes) < 120


async def test_a_node_that_fails_at_what_others_can_do_is_let_go_unpaid() -> None:
    world = ArrayWorld()
    bad = await world.come(1, answer=fails)
    good = [await world.come(number) for number in (2, 3)]
    job = await world.submit(world.document(60))
    assert (await world.until_over(job)).state == "settled"
    assert len(await world.results(job)) == 60
    assert len(bad.ran) < 30
    assert (await world.earned(job, [bad, *good]))[1] == 0


async def test_results_that_differ_everywhere_are_the_commands_fault_and_whoever_ran_them_is_paid() -> None:
    world = ArrayWorld(seed=5)
    noise = random.Random(5)

    def answer(run: ElementRun) -> ElementEnd:
        return right(run, truth(noise.randrange(10**9)))

    nodes = [await world.come(number, answer=answer) for number in range(1, 8)]
    job = await world.submit(world.document(30))
    over = await world.until_over(job)
    assert over.state == "failed"
    assert "not deterministic" in over.reason
    assert all((await world.earned(job, nodes)).values())
    assert all(lease.end != "rejected" for lease in world.parts.leases.live())


async def test_a_hung_node_is_let_go_at_the_limit_and_its_elements_run_elsewhere() -> None:
    world = ArrayWorld()
    hung = await world.come(1, pace=10_000.0)
    others = [await world.come(number) for number in (2, 3)]
    job = await world.submit(world.document(10, seconds=20.0))
    over = await world.until_over(job)
    assert over.state == "settled"
    assert len(await world.results(job)) == 10
    assert (await world.earned(job, [hung, *others]))[1] == 0


@pytest.mark.parametrize(("begins", "turns"), [(True, 60), (False, 1_000)])
async def test_a_hung_node_does_not_stay_by_saying_again_that_something_has_begun(begins: bool, turns: int) -> None:
    world = ArrayWorld()
    hung = await world.come(1, pace=100_000.0, hung=not begins)
    for number in (2, 3):
        await world.come(number)
    job = await world.submit(world.document(10, seconds=20.0, owners=3))
    kept = hung.lease
    assert kept is not None
    for _ in range(turns):
        if hung.lease is kept:
            await hung.say(ElementsMoved(tuple(hung.running) or (999_999,)))
        await world.turn(2.0)
    ended = next(lease for lease in await world.leases(job) if lease.id == kept.lease)
    assert ended.end == "stalled", ended
    await world.come(4)
    assert (await world.until_over(job)).state == "settled"


async def test_a_node_that_had_nothing_for_long_has_its_time_once_it_is_given_an_element() -> None:
    world = ArrayWorld()
    idle = await world.come(1, answer=lambda run: ElementEnd(run.run, "owner"))
    hung = await world.come(2, hung=True)
    job = await world.submit(world.document(1, seconds=60.0))
    for _ in range(5):
        await world.turn(2.0)
    kept = idle.lease
    assert kept is not None
    assert hung.queue
    assert not idle.queue, "what it gave back is not given to it again, while another has anything"
    idle.hung = True
    for _ in range(1_200):
        hung.up = hung.lease is not None  # Once it is let go, it does not come back.
        await world.turn(2.0)
        if idle.queue:
            break
    assert world.clock.t > 1_000_000 + 60.0 + GRACE_S + QUIET_S, "there was nothing for it for so long"
    for _ in range(30):
        await world.turn(2.0)
    assert idle.lease is kept, "it fetches inputs for a minute"
    assert idle.queue
    idle.hung, idle.answer = False, right
    await world.come(4)
    assert (await world.until_over(job)).state == "settled"


async def test_what_only_stood_in_queues_of_nodes_that_died_has_not_failed() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number, pace=2.0) for number in (1, 2, 3)]
    job = await world.submit(world.document(90, batch=16))
    for _ in range(2 * MAX_LOST):
        for _ in range(8):
            await world.turn()
        for node in nodes:
            await world.crash(node)
    assert (await world.until_over(job)).state == "settled"
    courses = await world.courses(job)
    assert [course.reason for course in courses if course.state == "failed"] == []
    assert len(await world.results(job)) == 90
    assert 0 < sum(course.lost for course in courses) <= 2 * MAX_LOST * len(nodes)


def test_an_element_that_ends_each_node_before_it_says_that_it_has_begun_fails() -> None:
    board = ArrayBoard("job", 9, VoteRules(2, 2, 2, 2))
    for number in range(MAX_LOST):
        seat = ElementSeat(f"lease{number}", NodeAddress(f"node{number}"), NodeAddress(f"owner{number}"), "", number)
        board.give(seat, 3, 100 * number + 1, float(number), alone=True)
        board.left_by(seat.lease, 1)
    assert board.course(0).lost == MAX_LOST
    assert standing(board.course(0), board.rules).state == "failed"
    assert [board.course(index).lost for index in range(1, 9)] == [0] * 8


async def test_an_element_of_a_batch_has_its_time_once_more_alone() -> None:
    world = ArrayWorld()
    for number in (1, 2):
        await world.come(number, pace=380.0)
    job = await world.submit(world.document(2, seconds=200.0, batch=8))
    assert (await world.until_over(job)).state == "settled"
    assert {lease.end for lease in await world.leases(job)} == {"stopped"}


async def test_stragglers_are_run_a_second_time_at_the_end_and_the_slow_copy_is_dropped() -> None:
    world = ArrayWorld()
    friends = [await world.come(number) for number in (1, 2, 3)]
    friends[0].pace = 900.0
    trusted = tuple(node.payout for node in friends)
    job = await world.submit(world.document(9, verify="trusted", trusted=trusted, seconds=1_000.0))
    over = await world.until_over(job, turns=400)
    assert over.state == "settled"
    assert not friends[0].ran
    assert not friends[0].running, "it was told that nobody waits for it any more"


async def test_two_arrays_share_the_nodes_evenly() -> None:
    world = ArrayWorld()
    for number in range(1, 7):
        await world.come(number)
    first = await world.submit(world.document(2_000))
    for _ in range(10):
        await world.turn()
    second = await world.submit(world.document(2_000))
    for _ in range(40):
        await world.turn()
    held = [sum(lease.job == job for lease in world.parts.leases.live()) for job in (first, second)]
    assert held == [3, 3]


async def test_pause_and_go_on_lose_nothing_that_was_done() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2)]
    job = await world.submit(world.document(40))
    for _ in range(30):
        await world.turn()
    await ask(world, job, JobAction.PAUSE)
    await world.turn()
    done = await world.results(job)
    assert (await world.stored(job)).state == "paused"
    assert 0 < len(done) < 40
    assert not world.parts.leases.live()
    await ask(world, job, JobAction.RESUME)
    assert (await world.until_over(job)).state == "settled"
    assert len(await world.results(job)) == 40
    assert sum(len(node.ran) for node in nodes) <= 80 + 4, "what was under way is run again, and nothing else"
    await check_books(world, job, nodes)


async def test_a_stop_keeps_results_and_a_cancel_refunds_what_was_not_done() -> None:
    for action in (JobAction.STOP, None):
        world = ArrayWorld()
        nodes = [await world.come(number) for number in (1, 2)]
        job = await world.submit(world.document(40))
        for _ in range(30):
            await world.turn()
        if action is None:
            await world.parts.jobs.cancel(job)
        else:
            await ask(world, job, action)
        over = await world.until_over(job, 20)
        assert over.state == ("cancelled" if action is None else "settled")
        assert 0 < len(await world.results(job)) < 40
        for _ in range(3):
            await world.turn()
        await check_books(world, job, nodes)


async def test_a_budget_that_is_used_up_ends_the_array_with_what_is_done() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number, flops=1e16) for number in (1, 2)]
    job = await world.submit(world.document(10_000, budget=1_000_000))
    over = await world.until_over(job)
    assert over.state == "settled"
    text = " ".join(event.text for event in await world.parts.jobs.events(job, 0))
    assert "is used up" in text
    assert 900_000 < over.paid <= 1_000_000
    assert 0 < len(await world.results(job)) < 10_000
    assert sum((await world.earned(job, nodes)).values()) == over.paid


@pytest.mark.parametrize("seed", range(3))
async def test_every_result_comes_once_through_kills_of_agents_and_of_the_coordinator(seed: int) -> None:
    world, lot = ArrayWorld(seed=seed), random.Random(seed)
    nodes = [await world.come(number, slots=2) for number in range(1, 7)]
    job = await world.submit(world.document(150))
    for turn in range(2_000):
        await world.turn()
        if turn % 7 == 3 and turn < 120:
            await world.crash(lot.choice(nodes))
        if turn % 17 == 9 and turn < 120:
            await world.kill()
        if (await world.stored(job)).state == "settled":
            break
    assert await world.results(job) == {index: truth(index) for index in range(150)}
    assert all(len(owners_paid(course)) == 2 for course in await world.courses(job))
    await check_books(world, job, nodes)


async def test_an_end_is_taken_once_and_only_of_the_lease_that_was_given_the_run() -> None:
    world = ArrayWorld()
    one, two = await world.come(1, pace=50.0), await world.come(2, pace=50.0)
    job = await world.submit(world.document(2, seconds=100.0))
    for _ in range(6):
        await world.turn()
    stolen = next(iter(two.running.values()))[0]
    await one.say(ElementsMoved((), (right(stolen, b"x" * 2048),)))
    await world.turn()
    assert not [item for course in await world.courses(job) for item in course.tries if item.ended]
    assert (await world.until_over(job)).state == "settled"
    assert await world.results(job) == {index: truth(index) for index in range(2)}


async def test_a_document_is_refused_whose_list_is_missing_or_has_another_number_of_elements() -> None:
    world = ArrayWorld()
    await world.come(1)
    await world.come(2)
    whole = world.document(5)
    assert whole.array is not None
    for array, error, text in (
        (msgspec.structs.replace(whole.array, count=6), InvalidError, "5 elements"),
        (msgspec.structs.replace(whole.array, elements="0" * 64), NotFoundError, "upload it first"),
        (msgspec.structs.replace(whole.array, inputs={"a": "0" * 64}), NotFoundError, "upload it first"),
        (msgspec.structs.replace(whole.array, owners=3), InvalidError, "3 owners are to run an element, and 2 could"),
        (msgspec.structs.replace(whole.array, gpu=True), InvalidError, "graphics card"),
    ):
        with pytest.raises(error, match=text):
            await world.parts.jobs.create(NewJob(msgspec.structs.replace(whole, array=array)))


async def test_a_quote_says_what_verification_costs() -> None:
    world = ArrayWorld()
    friend = await world.come(1)
    await world.come(2)
    prices = {}
    for verify in ("replicated", "spot-checked", "trusted"):
        trusted = (friend.payout,) if verify == "trusted" else ()
        document = world.document(1_000, verify=verify, trusted=trusted, estimate=2.0)
        prices[verify] = (await world.parts.jobs.quote(document)).price_likely
    assert prices["replicated"] == 2 * prices["trusted"]
    assert prices["trusted"] < prices["spot-checked"] < prices["replicated"]


async def test_a_price_says_what_every_node_lacks() -> None:
    world = ArrayWorld()
    await world.come(1)
    await world.come(2)
    for array, lacks in (
        ({"memory_mb": 9_000}, "of 2 nodes that run containers here none lends 9,000 MB of memory, 8,000 at most"),
        ({"gpu": True}, "of 2 nodes that run containers here none lends a graphics card"),
        ({"verify": "trusted", "trusted": (world.nodes[0].node,)}, "none is of array.trusted"),
        ({"estimate": 900.0, "seconds": 5.0}, "array.estimate is 900 s, and each is ended after 5 s (array.seconds)"),
    ):
        problems = (await world.parts.jobs.quote(world.document(3, **array))).problems
        assert any(lacks in one for one in problems), (array, problems)
    nobody = await ArrayWorld().parts.jobs.quote(world.document(3))
    assert nobody.problems[0].startswith("no node runs containers here: owners begin with")


@pytest.mark.parametrize("verify", ["replicated", "spot-checked", "trusted"])
async def test_a_price_speaks_of_one_element_as_of_one(verify: str) -> None:
    world = ArrayWorld()
    friend = await world.come(1)
    await world.come(2)
    trusted = (friend.payout,) if verify == "trusted" else ()
    reasons = (await world.parts.jobs.quote(world.document(1, verify=verify, trusted=trusted))).reasons
    assert any("the element is run " in one for one in reasons), reasons
    assert not any("1 elements" in one for one in reasons)


async def test_what_is_no_array_at_rest_cannot_be_paused_after_it_is_over() -> None:
    world = ArrayWorld()
    for number in (1, 2):
        await world.come(number)
    job = await world.submit(world.document(3))
    await world.until_over(job)
    with pytest.raises(ConflictError):
        await ask(world, job, JobAction.PAUSE)
