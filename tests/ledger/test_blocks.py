"""Blocks as a source of chance: the one after a slot is not there while the slot is the newest, and then never changes."""

from __future__ import annotations

from ledger.client import Ledger
from ledger.local.chain import SLOT_S
from tests.ledger.world import World


async def test_the_block_after_the_newest_slot_is_not_there_yet_and_then_stays_the_same(
    ledger: Ledger, world: World
) -> None:
    slot = await ledger.slot()
    assert await ledger.block_after(slot) is None
    world.clock.now += SLOT_S
    found = await ledger.block_after(slot)
    assert found is not None
    assert found[0] == slot + 1
    world.clock.now += 2000 * SLOT_S
    assert await ledger.block_after(slot) == found
    assert await ledger.block_after(slot + 1) != found
    assert await ledger.slot() >= slot + 2001


async def test_a_block_is_the_one_whose_hash_transactions_named_in_its_slot(ledger: Ledger, world: World) -> None:
    slot = await ledger.slot()
    found = await ledger.block_after(slot - 1)
    assert found == (slot, str(world.chain.blockhash()))
