"""A signalling server that mixes, holds back, repeats and crosses what nodes say, and old links' frames in new ones."""

import asyncio
import random
from collections import Counter

import pytest

from tests.transport.conftest import Node, Switchboard, until
from tests.transport.peer.test_peer_attacks import QUICK, body_of, raw
from transport.ice.stats import LinkState
from transport.messages.lanes import Lane
from transport.peer.signalling import SignalKind

Letter = tuple[str, str, bytes]


def heard(node: Node) -> list[tuple[str, bytes]]:
    """Who said what to a node, in the order in which it was handed on."""
    return [(message.peer, message.payload) for message in node.received]


async def test_the_answer_to_an_old_offer_opens_nothing_and_the_true_one_still_does(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    old: list[Letter] = []

    def tamper(sender: str, recipient: str, envelope: bytes) -> list[Letter]:
        letter = (sender, recipient, envelope)
        if body_of(envelope).kind is not SignalKind.ANSWER:
            return [letter]
        if not old:
            old.append(letter)
            return []
        return [*old, letter, *old]

    switchboard.tamper = tamper
    await a.net.send(b.address, Lane.CONTROL, b"header", b"once")
    assert heard(b) == [(a.address, b"once")]
    assert a.net.stats()[b.address].links == 1


async def test_answers_that_the_server_crosses_between_two_peers_open_nothing(switchboard: Switchboard) -> None:
    """The node with the smallest address offers to both others; each gets the other's answer under either name."""
    nodes = sorted((switchboard.join(limits=QUICK) for _ in range(3)), key=lambda node: node.address)
    a, b, c = nodes
    for node in nodes:
        await node.net.allow({other.address for other in nodes} - {node.address})
    crossing = True
    answers: dict[str, Letter] = {}

    def tamper(sender: str, recipient: str, envelope: bytes) -> list[Letter]:
        if not crossing or body_of(envelope).kind is not SignalKind.ANSWER:
            return [(sender, recipient, envelope)]
        answers[sender] = (sender, recipient, envelope)
        other = c.address if sender == b.address else b.address
        crossed: list[Letter] = [(other, recipient, envelope), (sender, other, envelope)]
        if other in answers:
            crossed.append((sender, recipient, answers[other][2]))
        return crossed

    switchboard.tamper = tamper
    sending = [
        asyncio.ensure_future(a.net.send(peer.address, Lane.BULK, b"", peer.address.encode())) for peer in (b, c)
    ]
    await until(lambda: len(answers) == 2 and a.net.refused["sender"] >= 2)
    assert heard(b) == heard(c) == []
    crossing = False
    await asyncio.gather(*sending)
    assert heard(b) == [(a.address, b.address.encode())]
    assert heard(c) == [(a.address, c.address.encode())]


async def test_an_offer_from_before_a_restart_opens_nothing_at_the_restarted_node(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"", b"before")
    offers = [letter for letter in switchboard.log if body_of(letter[2]).kind is SignalKind.OFFER]
    await b.net.aclose()
    restarted = switchboard.join(b.key, QUICK)
    await restarted.net.allow({a.address})
    for sender, _, envelope in offers:
        await restarted.net.on_signal(sender, envelope)
    await a.net.send(b.address, Lane.CONTROL, b"", b"after")
    assert heard(restarted) == [(a.address, b"after")]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_the_server_does_with_envelopes_everyone_hears_only_what_is_meant_for_him(
    switchboard: Switchboard, seed: int
) -> None:
    chance = random.Random(seed)
    nodes = [switchboard.join(limits=QUICK) for _ in range(3)]
    addresses = [node.address for node in nodes]
    for node in nodes:
        await node.net.allow(set(addresses) - {node.address})
    hostile = 60

    def tamper(sender: str, recipient: str, envelope: bytes) -> list[Letter]:
        nonlocal hostile
        if not hostile:
            return [(sender, recipient, envelope)]
        hostile -= 1
        letters: list[Letter] = [(sender, recipient, envelope)] if chance.random() < 0.5 else []
        letters += chance.sample(switchboard.log, min(3, len(switchboard.log)))
        letters += [
            (chance.choice(addresses), chance.choice(addresses), each)
            for _, _, each in chance.sample(switchboard.log, min(3, len(switchboard.log)))
        ]
        spoilt = bytearray(envelope)
        spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        letters.append((sender, recipient, bytes(spoilt)))
        chance.shuffle(letters)
        return letters

    switchboard.tamper = tamper
    sent = Counter(
        (one.address, other.address, f"{one.address} to {other.address} {number}".encode())
        for one in nodes
        for other in nodes
        if one is not other
        for number in range(5)
    )
    by_address = {node.address: node for node in nodes}
    await asyncio.gather(
        *(by_address[one].net.send(other, chance.choice(list(Lane)), b"", text) for one, other, text in sent)
    )
    assert Counter((peer, node.address, text) for node in nodes for peer, text in heard(node)) == sent
    assert all(node.net.refused for node in nodes)


async def test_frames_of_an_old_link_mean_nothing_in_a_new_one(switchboard: Switchboard) -> None:
    """The peer itself plays them again: messages, and acknowledgements of what is on its way now."""
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"", b"makes the link")
    frames: list[tuple[Lane, bytes]] = []
    for lane, channel in raw(a, b).lanes.items():
        send = channel.send
        channel.send = lambda frame, lane=lane, send=send: (frames.append((lane, frame)), send(frame))  # type: ignore[method-assign, misc, assignment]
    for number in range(20):
        await a.net.send(b.address, list(Lane)[number % 3], b"", bytes([number]) * 50_000)
    before = heard(b)
    assert len(frames) >= 20
    await raw(a, b).close(1.0)
    await until(lambda: b.net.stats()[a.address].state is LinkState.IDLE)
    await a.net.send(b.address, Lane.CONTROL, b"", b"new link")
    for lane, frame in frames:
        channel = raw(a, b).lanes[lane] if a.net._sessions[b.address]._link is not None else None
        if channel is not None and channel.is_open:
            channel.send(frame)
    await asyncio.wait_for(a.net.send(b.address, Lane.CONTROL, b"", b"afterwards"), 20)
    assert heard(b) == [*before, (a.address, b"new link"), (a.address, b"afterwards")]
    assert b.memory_held == 0
