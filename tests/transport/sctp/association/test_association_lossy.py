"""Our data path against itself and against stock aiortc when datagrams are lost on the way."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from aiortc import RTCPeerConnection

from tests.transport.sctp.association.test_association import both_ways, messages
from tests.transport.sctp.pairs import joined, until
from transport.sctp.connection import FastPeerConnection
from transport.sctp.udp.offload import DatagramRun


def lose(connection: RTCPeerConnection, share: float, seed: int) -> None:
    """Lose a share of the DTLS datagrams that reach one side, whichever way they are read."""
    chance = random.Random(seed)
    sctp: Any = connection.sctp

    def keep(datagrams: list[bytes]) -> list[bytes]:
        return [datagram for datagram in datagrams if chance.random() >= share]

    if isinstance(connection, FastPeerConnection):
        take: Callable[[list[DatagramRun]], None] = sctp._data._path._on_datagrams
        sctp._data._path._on_datagrams = lambda runs: take(
            [DatagramRun(datagram, len(datagram)) for run in runs for datagram in keep(run.each())]
        )
    else:
        ice = sctp.transport.transport._connection
        receive = ice.data_received
        ice.data_received = lambda data, component: [receive(each, component) for each in keep([data])]


@both_ways
async def test_everything_arrives_byte_identical_though_some_is_lost(offerer: Any, answerer: Any) -> None:
    up, down = messages(8, 5_000, seed=3), messages(8, 5_000, seed=4)
    async with joined(offerer, answerer) as (one, two):
        lose(one.connection, 0.05, 1)
        lose(two.connection, 0.05, 2)
        await asyncio.gather(one.send_all(up), two.send_all(down))
        await until(lambda: len(one.received) == len(down) and len(two.received) == len(up), 60)
        assert two.received == up
        assert one.received == down


@pytest.mark.parametrize("limit", [{"maxRetransmits": 0}, {"maxPacketLifeTime": 1}])
@both_ways
async def test_messages_that_may_be_lost_do_not_hold_up_the_rest(offerer: Any, answerer: Any, limit: Any) -> None:
    async with joined(offerer, answerer, **limit) as (one, two):
        last = one.connection.createDataChannel("reliable")
        got: list[Any] = []
        two.connection.on("datachannel", lambda channel: channel.on("message", got.append))
        await until(lambda: last.readyState == "open")
        lose(two.connection, 0.15, 5)
        sent = [n.to_bytes(2, "big") + bytes(3000) for n in range(20)]
        for n, message in enumerate(sent):
            one.channel.send(message)
            if n % 5 == 4:
                await until(lambda: one.channel.bufferedAmount == 0)
        last.send(b"end")
        await until(lambda: got == [b"end"], 30)
        await until(lambda: not one.sctp._data.sender.outstanding if hasattr(one.sctp, "_data") else True, 30)
        assert two.received == sorted(two.received)
        assert set(two.received) <= set(sent)
        assert len(two.received) > 0
        one.channel.close()
        await until(lambda: one.channel.readyState == two.channel.readyState == "closed", 30)


async def test_abandoned_messages_really_are_not_sent_again() -> None:
    async with joined(ordered=False, maxRetransmits=0) as (one, two):
        lose(two.connection, 0.3, 6)
        for _ in range(200):
            one.channel.send(bytes(1000))
        await until(lambda: not one.sctp._data.sender.outstanding and not one.sctp._data.sender.backlog, 30)
        assert len(two.received) < 190
        assert one.channel.bufferedAmount == 0
        assert two.sctp._data.receiver.held == 0
