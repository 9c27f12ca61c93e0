"""Signals that get lost, cross or come late while a link is made again; real nodes on loopback."""

import asyncio
import time

import pytest

from protocol.codec import decode
from tests.transport.conftest import Node, Switchboard, until
from transport.ice.stats import LinkState
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.signalling import SignalBody, SignalEnvelope, SignalKind

LIMITS = PeerLimits(answer_s=20.0, reach_s=30.0)


def kind_of(envelope: bytes) -> SignalKind:
    outer = decode(envelope, SignalEnvelope, len(envelope))
    return decode(outer.body, SignalBody, len(outer.body)).kind


class Losses:
    """Drops the first envelopes of a kind."""

    def __init__(self, kind: SignalKind, count: int) -> None:
        self.kind, self.left = kind, count
        self.seen: list[SignalKind] = []

    def __call__(self, sender: str, recipient: str, envelope: bytes) -> list[tuple[str, str, bytes]]:
        kind = kind_of(envelope)
        self.seen.append(kind)
        if kind is self.kind and self.left:
            self.left -= 1
            return []
        return [(sender, recipient, envelope)]


@pytest.mark.parametrize("kind", [SignalKind.REQUEST, SignalKind.OFFER])
async def test_a_lost_signal_is_repeated_long_before_the_answer_is_given_up(
    switchboard: Switchboard, kind: SignalKind
) -> None:
    switchboard.tamper = losses = Losses(kind, 1)
    offerer, asker = await switchboard.pair(LIMITS)
    began = time.monotonic()
    await asker.net.send(offerer.address, Lane.CONTROL, b"found")
    assert time.monotonic() - began < LIMITS.answer_s / 2
    assert losses.left == 0
    assert [message.header for message in offerer.received] == [b"found"]


async def test_nothing_is_repeated_while_signals_arrive(switchboard: Switchboard) -> None:
    switchboard.tamper = losses = Losses(SignalKind.OFFER, 0)
    offerer, asker = await switchboard.pair(LIMITS)
    await asker.net.send(offerer.address, Lane.CONTROL, b"found")
    assert losses.seen == [SignalKind.REQUEST, SignalKind.OFFER, SignalKind.ANSWER]


async def test_an_offer_of_an_earlier_link_changes_nothing_when_it_is_sent_again(switchboard: Switchboard) -> None:
    first, second = await switchboard.pair()
    await first.net.send(second.address, Lane.CONTROL, b"1")
    replayed = list(switchboard.log)
    await break_link(first, second)
    await first.net.send(second.address, Lane.CONTROL, b"2")
    links = second.net.stats()[first.address].links
    for sender, recipient, envelope in replayed:
        switchboard.carry(sender, recipient, envelope)
    refused = (first.net.refused, second.net.refused)
    await until(lambda: sum(count["replayed"] for count in refused) >= len(replayed))
    await first.net.send(second.address, Lane.CONTROL, b"3")
    assert second.net.stats()[first.address].links == links
    assert [message.header for message in second.received] == [b"1", b"2", b"3"]


async def break_link(first: Node, second: Node) -> None:
    """Close the sockets of one side, as when its address is taken away."""
    session = first.net._sessions[second.address]
    assert session._link is not None
    connection = session._link._connection._ice_connection()
    await connection.close()
    await until(lambda: first.net.stats()[second.address].state is not LinkState.UP)


@pytest.mark.parametrize("breaker", [0, 1])
async def test_either_side_makes_a_broken_link_again_at_once(switchboard: Switchboard, breaker: int) -> None:
    nodes = await switchboard.pair()
    one, other = nodes[breaker], nodes[1 - breaker]
    await one.net.send(other.address, Lane.CONTROL, b"before")
    began = time.monotonic()
    await break_link(one, other)
    await asyncio.gather(
        one.net.send(other.address, Lane.CONTROL, b"after"), other.net.send(one.address, Lane.CONTROL, b"after")
    )
    assert time.monotonic() - began < 5
    assert one.net.stats()[other.address].links == 2
