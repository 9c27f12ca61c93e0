"""Durable nonces are dealt out: of all transactions with one value of a nonce the ledger executes one, whoever signs them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import msgspec

from coordinator.domain.cells import MAX_CELLS, WHOLE, Cell
from coordinator.services.payments.chain import NONCES, NONCES_EACH, LedgerChain
from coordinator.services.payments.outbox_dispatcher import Carrier
from coordinator.store.records import OutboxRecord
from ledger.client import Ledger
from tests.coordinator.cells.conftest import CellAtWork, job, name
from tests.coordinator.fakes import FakeChain
from tests.support.databases import needs_postgres

ALL = [f"nonce {number}" for number in range(7)]


class NonceChain(FakeChain):
    """A ledger with seven of them."""

    async def nonces(self, cell: Cell = WHOLE) -> Sequence[str]:
        return ALL[cell.number :: cell.of]


def carrier(cell: CellAtWork) -> Carrier:
    """What carries a cell's rows."""

    async def stored(row: OutboxRecord) -> OutboxRecord:
        async with cell.sql.transaction() as tx:
            return await tx.update(row)

    return Carrier(cell.context, NonceChain(), stored)


def taken(by: Carrier) -> list[str]:
    """All that are free, in their order."""
    found = []
    while nonce := by._take(OutboxRecord("k", "j", "settle", {}, 1.0)):
        found.append(nonce)
    return found


async def row(cell: CellAtWork, number: int, nonce: str, place: int = 0) -> OutboxRecord:
    """A payment of a cell's job that carries a nonce."""
    of = name(number, place)
    async with cell.sql.transaction() as tx:
        await tx.insert(job(number, place))
        return await tx.insert(OutboxRecord(f"settle:{of}", of, "settle", {}, 1.0, state="sent", nonce=nonce))


class CountedPayouts:
    """Names as many nonces as it is asked for."""

    async def nonces(self, count: int, part: int = 0, parts: int = 1) -> list[str]:
        return [f"{number:03}" for number in range(count)][part::parts]


async def test_each_cell_has_as_many_and_no_two_have_one() -> None:
    ledger = cast(Ledger, SimpleNamespace(payouts=lambda _seed: CountedPayouts(), program="", mint=""))
    chain = LedgerChain(ledger, "http://ledger.test", bytes(32), bytes(32), "coordinator")
    assert len(await chain.nonces()) == NONCES
    for count in range(2, MAX_CELLS + 1):
        each = [await chain.nonces(Cell(number, count)) for number in range(count)]
        every = [nonce for one in each for nonce in one]
        assert len(set(every)) == len(every) >= NONCES
        assert min(map(len, each)) >= NONCES_EACH, count


@needs_postgres
async def test_a_row_keeps_another_cells_nonce_and_nobody_else_takes_it(cells: tuple[CellAtWork, CellAtWork]) -> None:
    """There were three cells before: rows of both carry what is the other one's by now."""
    first, second = cells
    theirs = await row(second, 1, "nonce 2")
    own = await row(first, 0, "nonce 5")
    kept = await row(first, 0, "nonce 4", place=1)
    one, two = carrier(first), carrier(second)
    await one.open((own, kept))
    await two.open((theirs,))
    assert taken(one) == ["nonce 0", "nonce 6"]
    assert taken(two) == ["nonce 1", "nonce 3"]
    two.over(theirs)
    one.over(own)
    one.over(kept)
    assert (taken(one), taken(two)) == (["nonce 4"], []), "each gives back its own alone"
    await one.open(())
    assert taken(one) == [], "its row is open still"
    for cell, over in ((second, theirs), (first, own)):
        async with cell.sql.transaction() as tx:
            await tx.update(msgspec.structs.replace(over, state="confirmed"))
    for again in (one, two):
        await again.open(())
    assert (taken(one), taken(two)) == (["nonce 2"], ["nonce 5"])
    for again in (one, two):
        await again.open(())
    assert (taken(one), taken(two)) == ([], []), "each is given out once"


@needs_postgres
async def test_a_cell_that_starts_anew_finds_what_its_own_rows_carry(cells: tuple[CellAtWork, CellAtWork]) -> None:
    first, _ = cells
    own = await row(first, 0, "nonce 2")
    one = carrier(first)
    await one.open((own,))
    assert taken(one) == ["nonce 0", "nonce 4", "nonce 6"]
    one.forget()
    await one.open((own,))
    assert taken(one) == ["nonce 0", "nonce 4", "nonce 6"]
    one.over(own)
    assert taken(one) == ["nonce 2"]
