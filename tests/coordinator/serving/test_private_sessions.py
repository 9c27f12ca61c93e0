"""What a coordinator does for private sessions: it names a node, carries an offer once, and pays what clients have signed."""

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from coordinator.domain.job import Job
from coordinator.domain.pricing import PASS_OPERATIONS
from coordinator.domain.serving import ANSWER_PASSES, NodeUsage
from coordinator.errors import ConflictError, CottageError, GoneError, NotFoundError, TooManyError, UnavailableError
from coordinator.services.serving import private as service
from coordinator.services.serving.private import ANSWER_S
from coordinator.store.records import CommitRecord
from protocol.identity import NodeKey
from protocol.private.sessions import LIFE_S, OPEN_S, PrivateAnswer, PrivateCounts, PrivateOffer, SignedCounts
from protocol.private.signed_counts import sign_counts
from protocol.rest.private import NewPrivateSession, PrivateSession
from tests.coordinator.serving.deployed import HALF_MB, Deployed, Home

OFFER = b"sealed for the node"


async def opened(bench: Deployed, job: str, key: NodeKey, *avoid: str, only: str | None = None) -> PrivateSession:
    return await bench.parts.private.open(job, NewPrivateSession(key.address, avoid, only))


async def answered(
    bench: Deployed, job: str, session: PrivateSession, envelope: bytes = b"sealed for the client"
) -> bytes:
    """Make the offer, and have the node answer it."""
    asked = asyncio.create_task(bench.parts.private.offer(job, session.session, OFFER))
    while not asked.done() and not offers(bench, session):
        await bench.pass_time(0.1)
    if offers(bench, session):
        answer = PrivateAnswer(session.session, envelope, "" if envelope else "it has no room")  # type: ignore[arg-type]
        await say(bench, session.node, answer)
    return await asked


def offers(bench: Deployed, session: PrivateSession) -> list[PrivateOffer]:
    sent = [message for message in bench.sent[session.node] if isinstance(message, PrivateOffer)]
    return [one for one in sent if one.ticket.session == session.session]


async def say(bench: Deployed, node: str, message: PrivateAnswer | PrivateCounts) -> None:
    await bench.parts.conversation.receive(bench.homes[node].session, message)


def counts_of(key: NodeKey, session: PrivateSession, *counts: int, node: str = "") -> PrivateCounts:
    return PrivateCounts(session.session, sign_counts(key, session.session, node or session.node, *counts))


async def refused(what: Coroutine[Any, Any, object], kind: type[CottageError], why: str) -> None:
    with pytest.raises(kind) as error:
        await what
    assert why in error.value.detail


async def usage(bench: Deployed, job: str) -> NodeUsage:
    return bench.parts.homes.now(job)[2]


@pytest.fixture
async def bench() -> Deployed:
    return Deployed()


async def deployed(bench: Deployed, nodes: int = 1, **more: Any) -> tuple[str, list[Home]]:
    homes = [await bench.come(number) for number in range(nodes)]
    return await bench.deploy(replicas=nodes, **more), homes


async def test_a_session_names_a_node_and_its_offer_reaches_it_with_the_ticket(bench: Deployed) -> None:
    job, [home] = await deployed(bench)
    key = NodeKey.generate()
    session = await opened(bench, job, key)
    assert (session.node, session.name, session.nodes) == (home.node, home.session.profile.name, 1)
    assert await answered(bench, job, session) == b"sealed for the client"
    [offer] = offers(bench, session)
    assert home.lease is not None
    assert (offer.lease, offer.fence, offer.envelope) == (home.lease.lease, home.lease.fence, OFFER)
    ticket = offer.ticket
    assert (ticket.session, ticket.job, ticket.client) == (session.session, job, key.address)
    assert (ticket.tokens, ticket.expires) == (session.tokens, session.expires)


async def test_counts_that_the_client_signed_are_paid_as_answers_are(bench: Deployed) -> None:
    job, [home] = await deployed(bench)
    key = NodeKey.generate()
    session = await opened(bench, job, key)
    await answered(bench, job, session)
    for counts in ((0, 0, 64), (1, 30, 100), (1, 30, 100), (0, 0, 64), (2, 61, 164)):
        await say(bench, home.node, counts_of(key, session, *counts))
    assert await usage(bench, job) == NodeUsage(2, 61, 164)
    await bench.pass_time(400, step=1.0)
    await bench.turn(job)
    async with bench.store.transaction() as tx:
        [commit, *_] = await tx.find(CommitRecord)
        stored = await tx.get(Job, job)
    assert (commit.node, commit.tokens, commit.leaves, commit.state) == (home.node, 164, 2, "verified")
    counted = commit.operations // (PASS_OPERATIONS * stored.quote.parameters)
    ready, over = divmod(counted - 61 - ANSWER_PASSES * 164, ANSWER_PASSES)
    assert over == 0
    assert 0 < ready < 700, "seconds of being ready, beside the tokens"
    assert commit.amount > 0
    assert bench.checker.checked == [], "nobody has the words to draw them again"


@pytest.mark.parametrize("forged", ["another key", "more", "another session", "another node", "of another's session"])
async def test_counts_that_nobody_signed_are_not_paid(bench: Deployed, forged: str) -> None:
    job, [home, other] = await deployed(bench, nodes=2)
    key = NodeKey.generate()
    session = await opened(bench, job, key, other.node)
    await answered(bench, job, session)
    good = counts_of(key, session, 1, 30, 100)
    false = {
        "another key": counts_of(NodeKey.generate(), session, 1, 30, 100),
        "more": PrivateCounts(session.session, msgspec.structs.replace(good.counts, tokens=100_000)),
        "another session": PrivateCounts(secrets.token_hex(16), good.counts),
        "another node": counts_of(key, session, 1, 30, 100, node=other.node),
        "of another's session": good,
    }[forged]
    await say(bench, other.node if forged == "of another's session" else home.node, false)
    assert await usage(bench, job) == NodeUsage()
    await say(bench, home.node, good)
    assert await usage(bench, job) == NodeUsage(1, 30, 100)


async def test_more_than_twice_the_sessions_tokens_is_not_paid(bench: Deployed) -> None:
    job, [home] = await deployed(bench)
    key = NodeKey.generate()
    session = await opened(bench, job, key)
    await say(bench, home.node, counts_of(key, session, 1, 0, 2 * session.tokens + 1))
    assert await usage(bench, job) == NodeUsage()


async def test_an_offer_is_carried_once_and_in_time(bench: Deployed) -> None:
    job, _ = await deployed(bench)
    session = await opened(bench, job, NodeKey.generate())
    await answered(bench, job, session)
    private = bench.parts.private
    await refused(private.offer(job, session.session, OFFER), ConflictError, "before")
    await refused(private.offer("0" * 32, session.session, OFFER), NotFoundError, "no private session")
    await refused(private.offer(job, "0" * 32, OFFER), NotFoundError, "no private session")
    late = await opened(bench, job, NodeKey.generate())
    await bench.pass_time(OPEN_S + 2, step=1.0)
    await refused(private.offer(job, late.session, OFFER), GoneError, "within")


async def test_a_node_that_is_silent_or_does_not_talk_is_told_of(bench: Deployed) -> None:
    job, [home] = await deployed(bench)
    silent = await opened(bench, job, NodeKey.generate())
    asked = asyncio.create_task(bench.parts.private.offer(job, silent.session, OFFER))
    await bench.pass_time(ANSWER_S + 1, step=1.0)
    await refused(asked, UnavailableError, "has said nothing")  # type: ignore[arg-type]
    session = await opened(bench, job, NodeKey.generate())
    await refused(answered(bench, job, session, b""), ConflictError, "it has no room")
    await say(bench, home.node, PrivateAnswer(session.session, b"again"))
    gone = await opened(bench, job, NodeKey.generate())
    await home.vanish()
    await refused(bench.parts.private.offer(job, gone.session, OFFER), UnavailableError, "has left")


async def test_sessions_go_to_those_that_had_fewest_and_keep_off_whom_the_client_avoids(bench: Deployed) -> None:
    job, homes = await deployed(bench, nodes=2)
    key = NodeKey.generate()
    named = [(await opened(bench, job, key)).node for _ in range(4)]
    assert sorted(named[:2]) == sorted(named[2:]) == sorted(home.node for home in homes)
    one, other = homes
    assert {(await opened(bench, job, key, one.node)).node for _ in "ab"} == {other.node}
    assert {(await opened(bench, job, key, only=one.node)).node for _ in "ab"} == {one.node}
    await refused(opened(bench, job, key, one.node, other.node), ConflictError, "no other node")
    await refused(opened(bench, job, key, only=key.address), ConflictError, f"has the address {key.address}")
    await one.vanish()
    assert {(await opened(bench, job, key)).node for _ in "ab"} == {other.node}


async def test_only_deployments_at_work_have_sessions(bench: Deployed) -> None:
    job, [home] = await deployed(bench)
    trained = await bench.trained()
    await refused(opened(bench, trained, NodeKey.generate()), NotFoundError, "no deployment")
    await refused(opened(bench, "0" * 32, NodeKey.generate()), NotFoundError, "no deployment")
    await home.vanish()
    await refused(opened(bench, job, NodeKey.generate()), UnavailableError, "holds its model yet")


async def test_a_deployment_begins_so_many_sessions_and_unused_ones_are_forgotten(
    bench: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_SESSIONS_EACH", 3)
    job, [home] = await deployed(bench)
    key = NodeKey.generate()
    used = await opened(bench, job, key)
    await answered(bench, job, used)
    for _ in range(2):
        await opened(bench, job, key)
    await refused(opened(bench, job, key), TooManyError, "remembered")
    await bench.pass_time(OPEN_S + 1, step=1.0)
    await opened(bench, job, key)
    await bench.pass_time(LIFE_S, step=30.0)
    await say(bench, home.node, counts_of(key, used, 1, 2, 3))
    assert (await usage(bench, job)).tokens == 3, "what was signed in a session is paid when it is over, too"


async def test_of_a_replica_of_several_nodes_the_first_talks_and_all_are_paid(bench: Deployed) -> None:
    homes = [await bench.come(number, memory_mb=HALF_MB) for number in range(2)]
    job = await bench.deploy(stages=2)
    key = NodeKey.generate()
    session = await opened(bench, job, key)
    [lead] = [home for home in homes if home.lease is not None and home.lease.stage == 0]
    assert (session.node, session.nodes) == (lead.node, 2)
    [other] = [home for home in homes if home is not lead]
    assert (session.beside, session.beside_names) == ((other.node,), (other.session.profile.name,))
    await answered(bench, job, session)
    await say(bench, lead.node, counts_of(key, session, 1, 30, 100))
    await bench.pass_time(400, step=1.0)
    await bench.turn(job)
    async with bench.store.transaction() as tx:
        commits = await tx.find(CommitRecord)
    assert {commit.node for commit in commits if commit.operations and commit.tokens == 100} == {
        home.node for home in homes
    }


async def test_a_deployment_that_is_used_privately_does_not_fall_asleep(bench: Deployed) -> None:
    job, [home] = await deployed(bench, idle=10)
    key = NodeKey.generate()
    session = await opened(bench, job, key)
    await answered(bench, job, session)
    for minute in range(1, 4):
        await bench.pass_time(400, step=10.0)
        await say(bench, home.node, counts_of(key, session, minute, minute, minute))
    assert bench.parts.homes.idle(job) < 60


def test_counts_follow_where_nothing_is_less() -> None:
    one = SignedCounts(1, 2, 3, bytes(64))
    assert one.follows(None)
    assert one.follows(one)
    for less in ({"answers": 0}, {"prompt": 1}, {"tokens": 2}):
        assert not msgspec.structs.replace(one, **less).follows(one)
