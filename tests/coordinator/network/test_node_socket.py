"""The nodes' WebSocket against strangers, liars and floods: a clear reason, a closed connection, nobody else disturbed (F27)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType

from coordinator.web import signal
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.node import (
    PROTOCOL,
    Assign,
    Beat,
    Challenge,
    CoordinatorMessage,
    Heartbeat,
    HeldLease,
    Hello,
    Refused,
    Report,
    Signal,
    Welcome,
)
from protocol.rest.api import NewJob
from protocol.task import TaskFailed
from tests.coordinator.conftest import House, nodes, until
from tests.coordinator.fakes import profile, spec

KEY = NodeKey(b"k" * 32)
Socket = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def dialled(house: House) -> AsyncIterator[Socket]:
    async with aiohttp.ClientSession() as http, http.ws_connect(house.url) as socket:
        yield socket


async def hello(socket: Socket, key: NodeKey = KEY, **fields: Any) -> Hello:
    """Take the challenge; an honest Hello with some fields different."""
    challenge = decode(await socket.receive_bytes(), Challenge)
    signature = key.sign("cottage-hello", challenge.nonce, challenge.host.encode())
    made = Hello(PROTOCOL, key.address, KEY.address, signature, profile("stranger"))
    return msgspec.structs.replace(made, **fields)


async def closing(socket: Socket) -> tuple[int | None, str]:
    """Read to the end: the close code and its reason."""
    while True:
        frame = await socket.receive(timeout=10)
        if frame.type is WSMsgType.CLOSE:
            return frame.data, frame.extra or ""
        if frame.type in (WSMsgType.CLOSED, WSMsgType.CLOSING, WSMsgType.ERROR):
            return socket.close_code, ""


async def refusal(socket: Socket) -> Refused:
    answer: CoordinatorMessage = decode(await socket.receive_bytes(), CoordinatorMessage)
    assert isinstance(answer, Refused)
    return answer


async def welcomed(socket: Socket, key: NodeKey = KEY, **fields: Any) -> Welcome:
    await socket.send_bytes(encode(await hello(socket, key, **fields)))
    answer: CoordinatorMessage = decode(await socket.receive_bytes(), CoordinatorMessage)
    assert isinstance(answer, Welcome)
    return answer


async def test_an_honest_node_is_welcomed_with_a_token_that_ends_with_its_connection(house: House) -> None:
    async with dialled(house) as socket:
        welcome = await welcomed(socket)
        assert house.parts.nodes.authorise(welcome.token) == KEY.address
    await until(lambda: house.parts.nodes.session(KEY.address) is None)
    with pytest.raises(Exception, match="the token is not valid"):
        house.parts.nodes.authorise(welcome.token)


async def test_a_signature_by_another_key_is_refused(house: House) -> None:
    async with dialled(house) as socket:
        stolen = await hello(socket, NodeKey(b"x" * 32), node=KEY.address)
        await socket.send_bytes(encode(stolen))
        assert "is not by" in (await refusal(socket)).reason
        assert (await closing(socket))[0] == 1008


async def test_a_signature_for_an_earlier_challenge_is_refused(house: House) -> None:
    async with dialled(house) as first:
        recorded = await hello(first)
    async with dialled(house) as second:
        await second.receive_bytes()
        await second.send_bytes(encode(recorded))
        assert "is not by" in (await refusal(second)).reason


async def test_another_protocol_is_refused_with_the_way_out(house: House) -> None:
    async with dialled(house) as socket:
        await socket.send_bytes(encode(await hello(socket, protocol=9)))
        assert "protocol 9 is not spoken here, only 1: update the agent" in (await refusal(socket)).reason


async def test_an_auditor_that_the_operator_has_not_named_is_told_what_to_do_and_when_to_come_back(
    house: House,
) -> None:
    async with dialled(house) as socket:
        says_so = msgspec.structs.replace(profile("stranger"), auditor=True)
        await socket.send_bytes(encode(await hello(socket, profile=says_so)))
        refused = await refusal(socket)
        assert f"start it with --auditor {KEY.address}" in refused.reason
        assert refused.retry_seconds
    assert house.parts.nodes.session(KEY.address) is None, "a stranger's word makes nobody an auditor"


HOSTILE = {
    "nothing": b"",
    "random bytes": b"\xc1\xff\x00",
    "an endless map": b"\xdf\xff\xff\xff\xff",
    "deep nesting": b"\x91" * 50_000,
    "another message": encode(Heartbeat(())),
    "an unknown tag": msgspec.msgpack.encode({"type": "root"}),
    "an unknown field": msgspec.msgpack.encode({"type": "heartbeat", "leases": [], "more": 1}),
    "a number too large": msgspec.msgpack.encode({"type": "hello", "protocol": 2**63}),
    "bad text": b"\x81\xa4type\xa5\xff\xfe\xfd\xfc\xfb",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_first_message_closes_with_a_reason(house: House, name: str) -> None:
    async with dialled(house) as socket:
        await socket.receive_bytes()
        await socket.send_bytes(HOSTILE[name])
        code, reason = await closing(socket)
        assert (code, reason[:18]) == (1008, "malformed message:")


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "another message"])
async def test_a_hostile_later_message_closes_with_a_reason(house: House, name: str) -> None:
    async with dialled(house) as socket:
        await welcomed(socket)
        await socket.send_bytes(HOSTILE[name])
        assert (await closing(socket))[0] == 1008
    assert house.parts.context.metrics.value("messages_malformed_total") == 1


async def test_text_is_refused(house: House) -> None:
    async with dialled(house) as socket:
        await welcomed(socket)
        await socket.send_str('{"type": "heartbeat"}')
        assert await closing(socket) == (1008, "malformed message: messages are binary frames here, this one is text")


async def test_a_frame_beyond_the_limit_closes_the_connection(house: House) -> None:
    async with dialled(house) as socket:
        await welcomed(socket)
        await socket.send_bytes(b"\0" * (signal.MAX_FRAME + 1))
        assert (await closing(socket))[0] in (1008, 1009)


async def test_a_second_hello_closes_the_connection(house: House) -> None:
    async with dialled(house) as socket:
        greeting = await hello(socket)
        await socket.send_bytes(encode(greeting))
        await socket.send_bytes(encode(greeting))
        assert "Hello was said before" in (await closing(socket))[1]


async def test_a_flood_is_cut_off_and_the_others_go_on(house: House) -> None:
    async with nodes(house, 1) as (other,), dialled(house) as socket:
        await welcomed(socket)
        beat = encode(Heartbeat(()))
        for _ in range(int(signal.BURST) + 300):
            try:
                await socket.send_bytes(beat)
            except ConnectionError:
                break
        assert "slow down" in (await closing(socket))[1]
        assert house.parts.nodes.session(other.key.address) is not None


def test_large_messages_wait_here_by_the_megabyte_at_most() -> None:
    bucket = signal._Bucket(0.0)
    taken = next(number for number in range(1_000) if not bucket.take(0.0, signal.MAX_FRAME))
    assert taken == int(signal.BURST) // (1 + signal.MAX_FRAME // signal.TOKEN_BYTES)
    assert taken * signal.MAX_FRAME < 8 << 20


async def test_a_silent_stranger_is_let_go(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "HELLO_S", 0.05)
    async with dialled(house) as socket:
        await socket.receive_bytes()
        assert "no Hello within" in (await closing(socket))[1]


async def test_of_two_connections_with_one_key_the_newest_wins_until_they_fight(house: House) -> None:
    async with dialled(house) as first, dialled(house) as second, dialled(house) as third, dialled(house) as fourth:
        await welcomed(first)
        await welcomed(second)
        assert "has taken over" in (await closing(first))[1]
        await welcomed(third)
        assert "has taken over" in (await closing(second))[1]
        await fourth.send_bytes(encode(await hello(fourth)))
        refused = await refusal(fourth)
        assert "give each machine a key of its own" in refused.reason
        assert refused.retry_seconds == 60.0
        assert house.parts.nodes.session(KEY.address) is not None


async def test_leases_that_are_not_the_nodes_are_gone(house: House) -> None:
    async with dialled(house) as socket:
        await welcomed(socket, leases=(HeldLease("ab" * 16, 3),))
        assert decode(await socket.receive_bytes(), CoordinatorMessage) == Beat(0.2, ("ab" * 16,))
        await socket.send_bytes(encode(Heartbeat((HeldLease("cd" * 16, 1),))))
        assert decode(await socket.receive_bytes(), CoordinatorMessage) == Beat(0.2, ("cd" * 16,))
        await socket.send_bytes(encode(Report("ef" * 16, 1, 1, TaskFailed("no"))))
        assert decode(await socket.receive_bytes(), CoordinatorMessage) == Beat(0.2, ("ef" * 16,))


async def test_a_node_cannot_report_for_the_lease_of_another(house: House) -> None:
    async with nodes(house, 4) as made:
        job = await running(house)
        victim = made[0]
        lease = next(iter(victim.tasks))
        async with dialled(house) as socket:
            await welcomed(socket)
            stolen = Report(lease, victim.fences[lease], victim.said[lease] + 1, TaskFailed("sabotage"))
            await socket.send_bytes(encode(stolen))
            while isinstance(answer := decode(await socket.receive_bytes(), CoordinatorMessage), Assign):
                pass  # As a spare of the job.
            assert answer == Beat(0.2, (lease,))
        assert not any("sabotage" in event.text for event in await house.parts.jobs.events(job, 0))


async def test_signals_pass_only_between_members_of_one_plan(house: House) -> None:
    async with nodes(house, 4) as made, dialled(house) as stranger:
        await welcomed(stranger)
        await running(house)
        metrics = house.parts.context.metrics
        await stranger.send_bytes(encode(Signal(made[0].key.address, b"offer")))
        await until(lambda: metrics.value("signals_dropped_total") == 1)
        await made[0].send(Signal(KEY.address, b"offer"))
        await until(lambda: metrics.value("signals_dropped_total") == 2)
        await made[0].send(Signal(made[1].key.address, b"offer"))
        await until(lambda: made[1].signals)
        assert made[1].signals == [Signal(made[0].key.address, b"offer")]


async def test_a_slow_reader_is_let_go_with_bounded_memory(house: House) -> None:
    closed: list[str] = []

    class Stuck:
        async def send_bytes(self, _data: bytes) -> None:
            await asyncio.Event().wait()

    outgoing = signal._Outgoing(Stuck())  # type: ignore[arg-type]
    for _ in range(signal.MAX_WAITING + 100):
        outgoing.send(Beat(1.0))
    closed.append(outgoing.closing or "")
    assert "read faster" in closed[0]


async def running(house: House) -> str:
    """A job whose four nodes sit on it."""
    job = (await house.parts.jobs.create(NewJob(spec(tokens=40_960)))).id
    await house.parts.jobs.fund(job)

    async def begun() -> bool:
        return (await house.parts.jobs.get(job)).state == "running"

    await until(begun)
    return job
