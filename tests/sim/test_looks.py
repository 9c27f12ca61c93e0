"""The operator's own auditor looks at what was drawn, has no seat and no stake, and goes where a look is waited for."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import ENDINGS, LIVE, Job, JobAction, JobState
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError, InvalidError
from coordinator.services.payments import tallies
from coordinator.services.payments.escrows import ESCROW_MARGIN
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, CreditRecord, EventRecord, NodeRecord, RoundRecord
from protocol.task import TaskReady, TaskReport
from tests.coordinator.fakes import spec
from tests.sim.test_faults import TURNS_TO_END, check, gather_nodes, open_rows, read, run_world, submit, timeline
from tests.sim.world import SimNode, World

OPERATOR = 6


def watched(seed: int, nodes: int = OPERATOR, **odd: dict[str, object]) -> World:
    """A network whose last node is the operator's auditor."""
    special = {int(number.removeprefix("n")): kinds for number, kinds in odd.items()}
    return World(seed, nodes=nodes, faults=0.0, operators=(nodes,), special=special)


async def test_the_operators_auditor_looks_at_what_is_drawn_without_a_seat_or_a_stake() -> None:
    world = watched(1)
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    assert stored.paid == stored.quote.price
    own = world.nodes[OPERATOR - 1].key.address
    held: list[Lease] = [lease for lease in await read(world, Lease, job) if lease.node == own]
    assert held
    assert all(lease.seat is None for lease in held)
    assert own not in world.chain.stakes
    audits: list[Audit] = [audit for audit in await read(world, Audit, job) if not audit.canary]
    assert all(audit.verdicts[-1].auditor == own and audit.verdicts[-1].own for audit in audits)


async def test_rounds_go_on_while_the_operators_auditor_is_away_and_the_end_waits_for_it() -> None:
    world = watched(2)
    operator = world.nodes[OPERATOR - 1]
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    assert world.parts is not None
    assert operator.session is not None
    world.parts.nodes.leave(operator.session)
    operator.cut()
    operator.up, operator.away_until = False, float("inf")
    turns = 0
    while (await _job(world, job)).rounds_done < 20 and (turns := turns + 1) < 20_000:
        await world.turn()
    for _ in range(2_000):
        await world.turn()
    stored = await _job(world, job)
    assert stored.rounds_done >= 20
    assert stored.state in (JobState.RUNNING, JobState.VERIFYING)
    operator.up, operator.away_until = True, 0.0
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await _job(world, job)).state is JobState.SETTLED:
            break
    stored = await _job(world, job)
    assert stored.state is JobState.SETTLED
    assert stored.verified == stored.quote.price


@pytest.mark.long
async def test_an_auditor_that_takes_no_lease_now_gets_none_until_it_does() -> None:
    world = watched(4)
    operator = world.nodes[OPERATOR - 1]
    operator.accepting = False
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    for _ in range(2_000):
        await world.turn()
    assert not [lease for lease in await read(world, Lease, job) if lease.node == operator.key.address]
    operator.accepting = True
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await _job(world, job)).state is JobState.SETTLED:
            break
    assert (await _job(world, job)).state is JobState.SETTLED
    assert [lease for lease in await read(world, Lease, job) if lease.node == operator.key.address]


@pytest.mark.long
async def test_a_second_auditor_comes_to_help_where_many_looks_wait() -> None:
    world = World(5, nodes=7, faults=0.0, operators=(6, 7), special={6: {"rerun": 8.0}, 7: {"rerun": 8.0}})
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    own = {world.nodes[number - 1].key.address for number in (6, 7)}
    looked = {verdict.auditor for audit in await read(world, Audit, job) for verdict in audit.verdicts if verdict.own}
    assert looked == own


@pytest.mark.long
async def test_rounds_wait_once_as_many_looks_wait_as_the_disk_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.domain.audits.auditors.MOST_LOOKS", 10)
    world = watched(6, n6={"rerun": 10.0})
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    most = 0
    for turn in range(2 * TURNS_TO_END):
        await world.turn()
        if turn % 100 == 0:
            most = max(most, sum(a.state == "replaying" and a.look for a in await read(world, Audit, job)))
            if (await _job(world, job)).state is JobState.SETTLED:
                break
    assert (await _job(world, job)).state is JobState.SETTLED
    assert 10 <= most <= 10 + 3 * 4 * 2, "what was drawn of the rounds in flight came on top"


@pytest.mark.long
async def test_one_auditor_serves_two_jobs() -> None:
    world = watched(3, nodes=9)
    await gather_nodes(world)
    jobs = [await submit(world, 2, 2, spec(2, 2, tokens=10 * 1024)) for _ in range(2)]
    for _ in range(2 * TURNS_TO_END):
        await world.turn()
        if all([(await _job(world, job)).state is JobState.SETTLED for job in jobs]):
            break
    assert [(await _job(world, job)).state for job in jobs] == [JobState.SETTLED] * 2


async def _settles(world: World, job: str, turns: int) -> Job:
    """The job, once it is settled, or after so many turns."""
    for _ in range(turns):
        await world.turn()
        if (await _job(world, job)).state is JobState.SETTLED:
            break
    return await _job(world, job)


async def _behind(world: World) -> tuple[str, str]:
    """A long job whose looks never run out, and another one that begins once the auditor is with that one."""
    await gather_nodes(world)
    long = await submit(world, 2, 2, spec(2, 2, tokens=400 * 1024))
    await advance(world, long, 4)
    return long, await submit(world, 2, 2, spec(2, 2, tokens=3 * 1024))


async def test_an_auditor_leaves_a_job_whose_looks_never_run_out_for_older_looks_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.domain.audits.auditors.MOST_LOOKS", 6)
    world = watched(11, nodes=9, n9={"rerun": 4.0})
    long, short = await _behind(world)
    assert (await _settles(world, short, TURNS_TO_END)).state is JobState.SETTLED
    stored = await _job(world, long)
    assert stored.state is JobState.RUNNING, "the other one had work for it all the time"
    audits: list[Audit] = await read(world, Audit, long)
    assert not [audit for audit in audits if audit.blame == "unlooked"]
    assert all(audit.looks <= 1 for audit in audits), "it leaves between two looks, not in the middle of one"


async def test_an_auditor_that_starts_stays_for_the_looks_that_it_has_come_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its class is known before its worker says it: it was taken for one that could look at outer steps only."""
    monkeypatch.setattr("coordinator.domain.audits.auditors.MOST_LOOKS", 6)
    world = watched(11, nodes=9, n9={"rerun": 4.0})
    start_late(world.nodes[8], 20.0)
    long, short = await _behind(world)
    assert (await _settles(world, short, TURNS_TO_END // 2)).state is JobState.SETTLED
    own = world.nodes[8].key.address
    held: list[Lease] = [*await read(world, Lease, long), *await read(world, Lease, short)]
    gone = [lease for lease in held if lease.node == own and lease.end == "replaced"]
    assert gone
    assert all(lease.env_class for lease in gone), "none before it had looked at anything"


def start_late(node: SimNode, seconds: float) -> None:
    """Its workers take so long until they are ready."""
    starting: list[tuple[float, str, list[TaskReport]]] = []
    say, work = node.say, node.work

    def say_later(lease: str, bodies: list[TaskReport]) -> None:
        if any(isinstance(body, TaskReady) for body in bodies):
            starting.append((node.world.clock.t + seconds, lease, bodies))
        else:
            say(lease, bodies)

    def work_later() -> None:
        while starting and starting[0][0] <= node.world.clock.t:
            _, lease, bodies = starting.pop(0)
            if lease in node.tasks:
                say(lease, bodies)
        work()

    node.say, node.work = say_later, work_later  # type: ignore[method-assign]


async def _job(world: World, job: str) -> Job:
    return (await read(world, Job, job))[0]


async def standing_of(world: World, node: SimNode) -> tuple[int, int]:
    """A node's credit with all accounts, and its verified rounds since its last fault."""
    async with world.records.transaction() as tx:
        found = await tx.find(CreditRecord, col(CreditRecord.node).equals(node.key.address))
        record = await tx.get(NodeRecord, node.key.address)
    return sum(credit.amount for credit in found), record.rounds


async def commits_of(world: World, job: str, node: SimNode) -> list[CommitRecord]:
    """A node's commitments that count, by round."""
    found: list[CommitRecord] = await read(world, CommitRecord, job)
    return sorted((c for c in found if c.node == node.key.address and c.drawable), key=lambda c: c.round)


async def advance(world: World, job: str, rounds: int) -> None:
    """Until so many rounds of a job are done."""
    while (await _job(world, job)).rounds_done < rounds:
        await world.turn()


def absent(world: World, node: SimNode) -> None:
    """A machine is switched off."""
    assert world.parts is not None
    if node.session is not None:
        world.parts.nodes.leave(node.session)
    node.forget()
    node.up, node.away_until = False, float("inf")


async def test_shares_wait_behind_the_first_that_is_to_be_looked_at_and_credit_grows_as_they_are_verified() -> None:
    world = watched(7)
    operator, node = world.nodes[OPERATOR - 1], world.nodes[4]
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await advance(world, job, 3)
    absent(world, operator)
    await advance(world, job, 9)
    waiting = [commit.state for commit in await commits_of(world, job, node)]
    assert waiting == sorted(waiting, key=("verified", "pending").index), (
        "in order: nothing is payable before what it rests on"
    )
    assert "pending" in waiting
    credit, rounds = await standing_of(world, node)
    assert rounds == waiting.count("verified")
    async with world.records.transaction() as tx:
        account = (await tallies.of_nodes(tx, job, [node.key.address]))[node.key.address]
    told = {tally.state: tally.shares for tally in account.tallies}
    assert told["looking"] == waiting.count("pending"), "the lender's window says what it waits for"
    operator.up, operator.away_until = True, 0.0
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await _job(world, job)).state is JobState.SETTLED:
            break
    commits = await commits_of(world, job, node)
    assert {commit.state for commit in commits} == {"verified"}
    later, rounds = await standing_of(world, node)
    assert (later, rounds) == (sum(commit.amount for commit in commits), len(commits))
    assert later > credit
    looks = [commit.look for commit in commits]
    assert looks[0] == 1_000_000
    assert looks == sorted(looks, reverse=True), (
        "what waits counts as if it were verified, so a slow auditor has no more to do"
    )


async def _cancelled(world: World, job: str) -> None:
    assert world.parts is not None
    await world.parts.jobs.cancel(job)


async def _out_of_time(world: World, job: str) -> None:
    assert world.parts is not None
    async with world.parts.desk.open(job) as work:
        work.change(deadline=world.clock.t - 1)
    await world.turn()


async def _failed(world: World, job: str) -> None:
    """As who has it fail by tasks of its own, again and again, does in the end."""
    assert world.parts is not None
    async with world.parts.desk.open(job) as work:
        await world.parts.runs.stop(work, JobState.FAILED, "12 tasks failed since a round was last completed")


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (_cancelled, JobState.CANCELLED),
        (_out_of_time, JobState.FAILED),
        pytest.param(_failed, JobState.FAILED, marks=pytest.mark.long),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)).strip("_"),
)
async def test_a_job_that_ends_early_is_looked_at_first_and_all_that_was_done_is_paid(
    end: Callable[[World, str], Awaitable[None]], state: JobState
) -> None:
    """Its submitter could have the newest checkpoint, and pay for none of what nobody had looked at yet."""
    world = watched(8)
    operator = world.nodes[OPERATOR - 1]
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await advance(world, job, 5)
    absent(world, operator)
    await advance(world, job, 10)
    await end(world, job)
    done = (await _job(world, job)).rounds_done
    for _ in range(2_000):
        await world.turn()
    stored = await _job(world, job)
    assert (stored.state in LIVE, stored.wish in ENDINGS) == (True, True)
    assert stored.rounds_done == done, "no round begins any more"
    assert not any(task for node in world.nodes for task in node.tasks), "what is waited for is the operator's machine"
    assert {c.state for c in await read(world, CommitRecord, job) if c.drawable} == {"verified", "pending"}
    assert world.parts is not None
    with pytest.raises(ConflictError, match="ends: "):
        await world.parts.jobs.ask(job, JobAction.RESUME)
    operator.up, operator.away_until = True, 0.0
    stored = await _ended(world, job)
    await check(world, job, stored)
    assert stored.state is state
    assert {c.state for c in await read(world, CommitRecord, job) if c.drawable} == {"verified"}
    assert stored.paid == sum(r.pot for r in await read(world, RoundRecord, job) if r.state == "complete") > 0
    assert not any(lease.state != "ended" for lease in await read(world, Lease, job))


async def test_what_nobody_has_looked_at_when_the_escrow_ends_is_not_paid_and_the_rest_is() -> None:
    world = watched(8)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await advance(world, job, 5)
    absent(world, world.nodes[OPERATOR - 1])
    await advance(world, job, 10)
    paid = [c for c in await read(world, CommitRecord, job) if c.state == "verified"]
    await _cancelled(world, job)
    assert world.parts is not None
    async with world.parts.desk.open(job) as work:
        work.change(deadline=world.clock.t - ESCROW_MARGIN)
    assert (await _ended(world, job)).state is JobState.CANCELLED
    commits: list[CommitRecord] = [c for c in await read(world, CommitRecord, job) if c.drawable]
    assert {c.state for c in commits} == {"verified", "rejected"}
    assert {(c.round, c.node) for c in paid} <= {(c.round, c.node) for c in commits if c.state == "verified"}
    missed = [audit for audit in await read(world, Audit, job) if audit.blame == "unlooked"]
    assert missed
    for commit in commits:
        if any((audit.round, audit.node) == (commit.round, commit.node) for audit in missed):
            assert commit.state == "rejected"
    unlooked = {audit.node for audit in missed}
    for node in world.nodes[: OPERATOR - 1]:
        if node.key.address in unlooked:
            assert await standing_of(world, node) == (0, 0), "a job that ends is no way to keep a standing"
    assert world.chain.slashed == {}


async def _ended(world: World, job: str) -> Job:
    for _ in range(TURNS_TO_END):
        await world.turn()
        stored = await _job(world, job)
        if stored.state not in LIVE and not await open_rows(world, job):
            return stored
    raise AssertionError(f"stuck as {stored.state}, wish {stored.wish!r}: {await timeline(world, job)}")


async def test_who_leaves_when_it_is_drawn_begins_anew_with_that_account_and_keeps_what_others_have_seen() -> None:
    world = watched(9)
    await gather_nodes(world)
    first = await submit(world, 2, 2, account="b" * 32)
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await _job(world, first)).state is JobState.SETTLED:
            break
    job = await submit(world, 2, 2)
    await advance(world, job, 4)
    seated = {c.node for c in await read(world, CommitRecord, job)}
    leaver = next(node for node in world.nodes if node.key.address in seated)
    leaver.obey = lambda: leaver.inbox.clear()  # type: ignore[method-assign]
    while not any(a.node == leaver.key.address and a.unopened for a in await read(world, Audit, job)):
        await world.turn()
    absent(world, leaver)
    while not any(a.node == leaver.key.address and a.blame == "gone" for a in await read(world, Audit, job)):
        await world.turn()
    async with world.records.transaction() as tx:
        found = await tx.find(CreditRecord, col(CreditRecord.node).equals(leaver.key.address))
    by_account = {credit.account_id: credit.amount for credit in found}
    assert by_account["b" * 32] > 0
    assert [amount for account, amount in by_account.items() if account != "b" * 32] == [0]


async def test_a_class_that_the_operator_has_no_machine_of_gets_no_seat_where_nothing_can_be_compared_across() -> None:
    world = watched(10, nodes=7, n1={"env_class": "mine", "flops": 1e12})
    await gather_nodes(world)
    document = spec(2, 2, tokens=4 * 1024)
    document = msgspec.structs.replace(
        document, training=msgspec.structs.replace(document.training, outer="streaming", overlap=1)
    )
    job = await submit(world, 2, 2, document)
    await advance(world, job, 2)
    odd = world.nodes[0].key.address
    held = [lease for lease in await read(world, Lease, job) if lease.node == odd]
    assert not any(lease.seat for lease in held)
    said = [event.text for event in await read(world, EventRecord, job) if event.kind == "unused"]
    assert any(odd in text and "machines of their kind only" in text for text in said)


async def test_a_job_that_nobody_of_the_operators_could_look_at_is_refused_unless_the_operator_wants_it() -> None:
    """A cartel would be paid in full for what it forges there, as in a network without auditors."""
    world = watched(1, n6={"flops": 0.001})
    await gather_nodes(world)
    with pytest.raises(
        InvalidError, match="none of the operator's machines could look at stage 0 of 2 in time: choose a smaller"
    ):
        await submit(world, 2, 2)
    trusting = World(
        1, nodes=6, faults=0.0, settings={"unwatched": True}, operators=(6,), special={6: {"flops": 0.001}}
    )
    job, stored = await run_world(trusting, 2, 2)
    await check(trusting, job, stored)
    assert stored.state is JobState.SETTLED
    assert not any(audit.watched for audit in await read(trusting, Audit, job))


@pytest.mark.long
async def test_a_plan_waits_while_its_nodes_would_get_more_than_the_operator_could_look_at() -> None:
    world = watched(1)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    assert world.parts is not None
    own = world.parts.nodes.session(world.nodes[OPERATOR - 1].key.address)
    assert own is not None
    quick, own.profile = own.profile, msgspec.structs.replace(own.profile, flops=0.001)
    for _ in range(300):
        await world.turn()
    (waiting,) = await read(world, Job, job)
    assert waiting.state is JobState.FUNDED
    told = [event.text for event in await read(world, EventRecord, job) if "the job waits" in event.text]
    assert len(told) == 1, "once"
    own.profile = quick
    for _ in range(TURNS_TO_END):
        await world.turn()
        (stored,) = await read(world, Job, job)
        if stored.state is JobState.SETTLED:
            return
    raise AssertionError(stored.state)
