"""Further cards of a computer: nodes that its key vouches for. They may lend where it may, and go when it is banned."""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from coordinator.domain.lease import Lease
from coordinator.domain.lenders import LendersList
from coordinator.services.network.nodes import FOUND_FALSE, MAX_CARDS, NodeRefusedError
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord
from protocol.identity import NodeKey
from protocol.node import CARD_CONTEXT, PROTOCOL, CoordinatorMessage, HeldLease, Hello, Refused, Welcome
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import profile, spec
from tests.coordinator.network.test_who_may_lend import KEYS, Opening, gate
from tests.sim.world import HOST, NONCE

__all__ = ["gate"]

COMPUTER, STRANGER = KEYS[1], KEYS[2]
CARDS = [COMPUTER.card(f"GPU-0000000{number}") for number in range(3)]


def vouched(card: NodeKey, by: NodeKey = COMPUTER, claimed: NodeKey = COMPUTER) -> dict[str, Any]:
    shown = msgspec.structs.replace(profile("card"), computer=claimed.address)
    return {"profile": shown, "vouched": by.sign(CARD_CONTEXT, card.address.encode())}


async def enter(bench: Bench, key: NodeKey, held: tuple[HeldLease, ...] = (), **fields: Any) -> None:
    signature = key.sign("cottage-hello", NONCE, HOST.encode())
    hello = Hello(PROTOCOL, key.address, COMPUTER.address, signature, profile("card"), held)
    sent: list[CoordinatorMessage] = bench.sent.setdefault(key.address, [])
    close: Callable[[str], None] = lambda reason: bench.closed.__setitem__(key.address, reason)  # noqa: E731
    hello = msgspec.structs.replace(hello, **fields)
    session = await bench.parts.nodes.enter(hello, NONCE, HOST, sent.append, close)
    await bench.parts.conversation.begin(session, hello)


async def seated(bench: Bench, stages: int, replicas: int) -> list[Lease]:
    job = await bench.job(spec(stages=stages, replicas=replicas), nodes=0)
    await bench.fund(job)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        return [lease for lease in work.leases.values() if lease.seat is not None]


async def test_nobody_calls_himself_a_card_of_a_computer_that_has_not_said_so() -> None:
    bench = Bench()
    for fields in (
        vouched(CARDS[0], by=STRANGER),
        vouched(CARDS[1]),  # Another card's.
        vouched(CARDS[0]) | {"vouched": b""},
    ):
        with pytest.raises(NodeRefusedError, match="does not hold"):
            await enter(bench, CARDS[0], **fields)
    await enter(bench, CARDS[0], **vouched(CARDS[0]))


async def test_two_cards_of_one_owner_take_two_stages_and_never_two_replicas_of_one() -> None:
    bench = Bench()
    await enter(bench, COMPUTER)
    await enter(bench, CARDS[0], **vouched(CARDS[0]))
    for number in (5, 6):
        await bench.enter(number)
    leases = await seated(bench, 2, 2)
    own = {COMPUTER.address, CARDS[0].address}
    seats = {lease.node: (lease.stage, lease.replica) for lease in leases}
    assert own <= seats.keys(), seats
    assert len({lease.id for lease in leases}) == len(leases) == 4
    stages = [seats[node][0] or 0 for node in own]
    assert sorted(stages) == [0, 1], "one owner does not check itself"


async def test_cards_of_one_computer_are_paid_into_one_wallet_and_are_no_crowd() -> None:
    bench = Bench()
    await enter(bench, COMPUTER)
    with pytest.raises(NodeRefusedError, match="into one wallet"):
        await enter(bench, CARDS[0], **vouched(CARDS[0]), payout=STRANGER.address)
    for number in range(MAX_CARDS - 1):
        card = COMPUTER.card(f"GPU-1000{number:04}")
        await enter(bench, card, **vouched(card))
    with pytest.raises(NodeRefusedError, match="all it may lend"):
        await enter(bench, CARDS[0], **vouched(CARDS[0]))
    await enter(bench, STRANGER, payout=STRANGER.address)


async def test_a_ban_is_of_the_whole_computer_and_outlives_the_process() -> None:
    bench = Bench()
    await enter(bench, COMPUTER)
    for card in CARDS[:2]:
        await enter(bench, card, **vouched(card))
    await enter(bench, STRANGER)
    banned = CARDS[0].address
    nodes = bench.parts.nodes
    nodes.ban(banned, FOUND_FALSE)
    assert bench.closed.keys() == {COMPUTER.address, *(card.address for card in CARDS[:2])}
    async with bench.store.transaction() as tx:
        [record] = await tx.find(NodeRecord, col(NodeRecord.address).equals(banned))
        await tx.update(msgspec.structs.replace(record, banned=True))
    again = Bench(store=bench.store, clock=bench.clock)
    await again.parts.nodes.recover()
    for place in (bench, again):
        for key, fields in ((COMPUTER, {}), (CARDS[0], vouched(CARDS[0])), (CARDS[2], vouched(CARDS[2]))):
            with pytest.raises(NodeRefusedError, match=f"node {banned} is banned"):
                await enter(place, key, **fields)
    nodes.unban(banned)
    await enter(bench, CARDS[2], **vouched(CARDS[2]))


async def test_a_card_stays_one_of_its_computer_so_a_ban_to_come_is_of_both() -> None:
    bench = Bench()
    await enter(bench, COMPUTER)
    await enter(bench, CARDS[0], **vouched(CARDS[0]))
    for fields in ({}, vouched(CARDS[0], by=STRANGER, claimed=STRANGER)):
        with pytest.raises(NodeRefusedError, match="was here as a card of"):
            await enter(bench, CARDS[0], **fields)
    bench.parts.nodes.ban(CARDS[0].address, FOUND_FALSE)
    with pytest.raises(NodeRefusedError, match="is banned"):
        await enter(bench, COMPUTER)


async def test_of_cards_that_are_refused_nothing_is_kept() -> None:
    """Keys are free: whoever vouches for new ones all day would fill the memory."""
    bench = Bench(config=dataclasses.replace(CONFIG, who_may_lend="invited"))
    nodes = bench.parts.nodes
    for card in CARDS:
        with pytest.raises(NodeRefusedError, match="invited"):
            await enter(bench, card, **vouched(card))
    assert nodes._computers == nodes.lenders._computers == {}


async def test_a_card_may_lend_where_its_computer_was_invited_and_uses_no_second_invitation(gate: Opening) -> None:
    async with gate("invited") as here:
        _, code = await here.invite()
        card, other = CARDS[0], CARDS[1]
        assert isinstance(await here.knock(card, code, **vouched(card)), Welcome), "the card came first"
        assert isinstance(await here.knock(COMPUTER), Welcome)
        assert isinstance(await here.knock(other, **vouched(other)), Welcome)
        assert "was used by another computer" in await here.refused(STRANGER, code)
        answer = await here.knock(CARDS[2], profile=profile("card"))
        assert isinstance(answer, Refused), "nobody vouches for it"


async def test_a_list_names_the_computer_and_lets_its_cards_in(gate: Opening) -> None:
    async with gate("listed", f"node {COMPUTER.address}\n") as here:
        assert isinstance(await here.knock(CARDS[0], **vouched(CARDS[0])), Welcome)
        answer = await here.knock(CARDS[0], **vouched(CARDS[0], by=STRANGER, claimed=STRANGER))
        assert isinstance(answer, Refused)


async def test_a_restarted_coordinator_takes_no_seat_from_a_card_that_has_not_come_back_yet() -> None:
    ruled = dataclasses.replace(CONFIG, who_may_lend="invited")
    bench = Bench(config=ruled)
    bench.parts.nodes.lenders._list = LendersList(frozenset({COMPUTER.address}))
    await enter(bench, CARDS[0], **vouched(CARDS[0]))
    assert [lease.node for lease in await seated(bench, 1, 1)] == [CARDS[0].address]
    again = Bench(config=ruled, store=bench.store, clock=bench.clock)
    await again.parts.leases.recover()
    await again.parts.nodes.recover()
    again.parts.nodes.lenders._list = bench.parts.nodes.lenders._list
    assert again.parts.nodes.why_draining(CARDS[0].address) == ""
