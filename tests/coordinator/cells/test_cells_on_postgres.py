"""Cells over one PostgreSQL: what they keep in common is changed by several at a time, and nothing is lost of it."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.config import Config
from coordinator.domain.account import ROLE_SCOPES, Principal, Role
from coordinator.domain.cells import Cell
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.core.context import Context
from coordinator.services.network.lenders import ANOTHER, NOT_INVITED, TAKEN_BACK, Lenders
from coordinator.services.network.machine_days import STORE_S
from coordinator.services.operation.ports import OrderedBy
from coordinator.store.ports import col
from coordinator.store.records import MachineDay, NodeRecord
from coordinator.store.sql import SqlStore
from tests.coordinator.cells.test_shared_nodes import ROOT
from tests.coordinator.cells.towns import CellTown, TownNode
from tests.coordinator.fakes import spec
from tests.sim.world import HOST, NONCE, SimClock
from tests.support.databases import Postgres, needs_postgres

pytestmark = needs_postgres
ALL = 3


@pytest.fixture
async def stores(postgres: Postgres) -> AsyncIterator[list[SqlStore]]:
    url = postgres.migrated_url()
    made = [await SqlStore.open(url, cell=Cell(number, ALL)) for number in range(ALL)]
    yield made
    for store in made:
        await store.close()


@pytest.fixture
def town(stores: list[SqlStore]) -> CellTown:
    return CellTown(cells=ALL, stores=stores)


async def test_a_job_gets_nodes_of_other_cells_and_a_ban_elsewhere_takes_one_away(town: CellTown) -> None:
    for cell in range(ALL):
        await town.come(2, cell)
    job = await town.submit(1, spec(2, 2))
    await town.turns(10)
    held = town.held(job)
    assert len(held) >= 4
    banned = sorted(held)[0]
    await town.benches[2].parts.operation.order(banned, "ban", "it mines", ROOT)
    await town.turns(3)
    assert banned not in town.held(job)
    assert all(bench.parts.nodes.is_banned(banned) for bench in town.benches)
    for cell in range(ALL):
        await town.connect(again := TownNode(_number(town, banned)), cell)
        assert "it mines" in str(again.refused[0])


async def test_greetings_of_one_key_in_all_cells_at_once_fail_nobody_and_leave_one_record(town: CellTown) -> None:
    parts = [bench.parts for bench in town.benches]
    for number in range(1, 21):
        hello = TownNode(number).hello()
        entering = [one.nodes.enter(hello, NONCE, HOST, [].append, lambda _reason: None) for one in parts]
        await asyncio.gather(*entering)
    async with town.stores[0].transaction() as tx:
        records = await tx.find(NodeRecord)
    assert len(records) == 20
    assert {record.version for record in records} == {ALL - 1}


async def test_days_of_a_node_that_several_cells_count_are_added_up(town: CellTown) -> None:
    node = TownNode(1)
    for bench in town.benches:
        await bench.parts.nodes.enter(node.hello(), NONCE, HOST, [].append, lambda _reason: None)
    town.clock.t += STORE_S
    await asyncio.gather(*(bench.parts.days.store() for bench in town.benches))
    async with town.stores[0].transaction() as tx:
        days = await tx.find(MachineDay, col(MachineDay.node).equals(node.node))
    assert sum(day.seconds for day in days) == ALL * STORE_S


async def test_orders_of_two_cells_for_one_node_do_not_undo_each_other(town: CellTown) -> None:
    [node] = await town.come(1, 0)
    orders = [bench.parts.operation.order for bench in town.benches]
    for _ in range(5):
        await asyncio.gather(orders[0](node.node, "drain", "", ROOT), orders[1](node.node, "ban", "it mines", ROOT))
        shown = await town.benches[2].parts.operation.node(node.node)
        assert (shown.draining, shown.banned) == (True, True)
        await asyncio.gather(orders[0](node.node, "undrain", "", ROOT), orders[2](node.node, "unban", "enough", ROOT))
        shown = await town.benches[1].parts.operation.node(node.node)
        assert (shown.draining, shown.banned) == (False, False)


# --- invitations ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def lenders(stores: list[SqlStore], tmp_path: Path) -> list[Lenders]:
    config, clock = Config(tmp_path, "", who_may_lend="invited"), SimClock()
    contexts = [
        Context(config, clock, store, secrets.token_bytes, cell=Cell(at, ALL)) for at, store in enumerate(stores)
    ]
    made = [Lenders(context) for context in contexts]
    for one in made:
        await one.recover()
    return made


async def operator(store: SqlStore) -> OrderedBy:
    account = await AccountService(store, SimClock()).create("root", Role.OPERATOR)
    return OrderedBy(Principal(account.id, ROLE_SCOPES[Role.OPERATOR], "root"), "session", "127.0.0.1")


async def test_an_invitation_is_used_once_whichever_cells_its_code_comes_to(
    lenders: list[Lenders], stores: list[SqlStore]
) -> None:
    by = await operator(stores[0])
    for turn in range(5):
        _, code = await lenders[0].invite("a machine", 7, by)
        machines = [TownNode(1 + ALL * turn + number).node for number in range(ALL)]
        said = await asyncio.gather(*(one.enter(node, code) for one, node in zip(lenders, machines, strict=True)))
        assert sorted(said)[0] == ""
        assert [why for why in said if why] == [
            f"the invitation was used by another computer, and each takes its own: {ANOTHER}"
        ] * (ALL - 1)


async def test_who_was_let_in_by_one_cell_is_known_to_the_others_and_who_was_put_out_too(
    lenders: list[Lenders], stores: list[SqlStore]
) -> None:
    by, node = await operator(stores[0]), TownNode(1).node
    view, code = await lenders[0].invite("a machine", 7, by)
    assert await lenders[1].enter(node, code) == ""
    assert lenders[2].why_not(node) == NOT_INVITED
    assert await lenders[2].enter(node, "") == "", "the door looks into what is stored"
    await lenders[0].look()
    assert lenders[0].why_not(node) == ""
    await lenders[0].withdraw(view.id, by)
    assert lenders[1].why_not(node) == ""
    for one in lenders:
        await one.look()
        assert one.why_not(node) == TAKEN_BACK
    assert await lenders[2].enter(node, code) == TAKEN_BACK


def _number(town: CellTown, node: str) -> int:
    return next(one.number for one in town.nodes if one.node == node)
