"""Nodes that several cells share: who needs them gets them, whichever cell they are in; what one decides holds in all."""

from dataclasses import replace

import msgspec
import pytest

from coordinator.domain.account import LOCAL_ACCOUNT, Principal, Scope
from coordinator.domain.cells import LEAST_GAP, STAY_S, Cell, cell_of_token
from coordinator.domain.job import JobState
from coordinator.errors import ForbiddenError
from coordinator.services.jobs.ports import ListWindow
from coordinator.services.network import nodes as rules
from coordinator.services.network.cell_nodes import COME_BACK
from coordinator.services.operation.ports import NodeQuery, OrderedBy
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, col
from coordinator.store.records import NodeRecord
from protocol.identity import NodeKey
from protocol.node import Unanswered, Welcome
from tests.coordinator.bench import CONFIG
from tests.coordinator.cells.towns import CellBench, CellTown, TownNode
from tests.coordinator.fakes import spec
from tests.sim.world import HOST, NONCE
from transport.nettest.offer import question

ROOT = OrderedBy(Principal(LOCAL_ACCOUNT, frozenset(Scope), "root"), "session", "127.0.0.1")


@pytest.fixture
def town() -> CellTown:
    return CellTown()


def cells_of(nodes: list[TownNode]) -> list[int | None]:
    return [node.cell for node in nodes]


# --- jobs -------------------------------------------------------------------------------------------------------------------


async def test_a_job_begins_with_nodes_of_all_cells_within_seconds(town: CellTown) -> None:
    for cell in range(3):
        await town.come(2, cell)
    job = await town.submit(0, spec(3, 2))
    await town.turns(10)
    assert len(town.held(job)) == 6
    assert town.here(0) == 6
    assert {reason for node in town.nodes for reason in node.closed} == {COME_BACK}
    assert all(len(node.moves) <= 2 for node in town.nodes), "each goes once"
    stored = await town.benches[0].stored(job)
    assert stored.state is JobState.PLANNED


async def test_a_job_of_a_cell_without_a_node_is_priced_and_planned_with_those_of_others(town: CellTown) -> None:
    await town.come(4, 1)
    quote = await town.benches[0].parts.jobs.quote(spec(2, 2))
    assert (quote.problems, quote.nodes_available) == ((), 4)
    assert "waits" not in quote.limit
    job = await town.submit(0, spec(2, 2))
    await town.turns(8)
    assert len(town.held(job)) == 4


async def test_two_jobs_that_wait_for_each_others_nodes_do_not_wait_for_ever(town: CellTown) -> None:
    await town.come(3, 0)
    await town.come(3, 1)
    first, second = await town.submit(0, spec(3, 2)), await town.submit(1, spec(3, 2))
    await town.turns(20)
    held = [len(town.held(job)) for job in (first, second)]
    assert sorted(held) == [0, 6]
    begun, waits = (first, second) if held[0] else (second, first)
    cell = town.benches[0 if begun == first else 1]
    await cell.parts.jobs.cancel(begun)
    await town.turns(20)
    assert len(town.held(waits)) == 6


async def test_who_stands_by_in_one_cell_takes_a_seat_in_another(town: CellTown) -> None:
    await town.come(4, 0)
    first = await town.submit(0, spec(2, 1))
    await town.turns(4)
    assert len(town.held(first)) == 4, "two have seats, and two stand by"
    second = await town.submit(1, spec(2, 1))
    await town.turns(12)
    assert (len(town.held(first)), len(town.held(second))) == (2, 2)


async def test_a_seat_that_was_lost_is_filled_from_another_cell(town: CellTown) -> None:
    mine = await town.come(4, 0)
    job = await town.submit(0, spec(2, 2))
    await town.turns(4)
    assert len(town.held(job)) == 4
    await town.come(1, 2)
    await town.turn()
    nodes, lost = town.benches[0].parts.nodes, mine[0]
    session = nodes.session(lost.node)
    assert session is not None
    await town.benches[0].parts.conversation._goodbye(session, "the owner wants to play")
    nodes.leave(session)
    lost.away_until = 1e12
    await town.turns(12)
    assert len(town.held(job)) == 4
    assert town.nodes[-1].node in town.held(job)


async def test_idle_nodes_even_out_and_come_to_rest(town: CellTown) -> None:
    await town.come(18, 0)
    await town.turns(2 * int(STAY_S) + 10)
    here = [town.here(cell) for cell in range(3)]
    assert max(here) - min(here) <= LEAST_GAP
    moves = [len(node.moves) for node in town.nodes]
    await town.turns(40)
    assert [len(node.moves) for node in town.nodes] == moves
    assert max(moves) == 2


async def test_nodes_at_work_stay_and_a_node_that_is_to_go_gets_no_seat_in_between(town: CellTown) -> None:
    await town.come(6, 0)
    await town.turns(int(STAY_S))
    town.benches[0].exchange.turn()  # Some are set aside now.
    leaving = [s for s in town.benches[0].parts.nodes.sessions() if s.leaving]
    assert leaving
    job = await town.submit(0, spec(2, 1))
    assert not town.held(job) & {session.node for session in leaving}
    await town.turns(6)
    moves, held = {node.node: len(node.moves) for node in town.nodes}, town.held(job)
    await town.turns(30)
    assert held <= town.held(job)
    assert len(held) >= 2
    assert all(len(node.moves) == moves[node.node] for node in town.nodes if node.node in held)


# --- auditors ---------------------------------------------------------------------------------------------------------------


async def test_auditors_of_the_operator_are_shared_and_one_stays_beside_its_coordinator() -> None:
    own = frozenset(NodeKey(number.to_bytes(32, "big")).address for number in (1, 2, 3))
    town = CellTown(config=replace(CONFIG, auditors=own))
    await town.come(3, 0, auditor=True)
    town.benches[0].exchange._stay = {town.nodes[0].node}
    await town.turns(int(STAY_S) + 20)
    assert sorted(cell for cell in cells_of(town.nodes) if cell is not None) == [0, 1, 2]
    assert town.nodes[0].moves == [0]


async def test_the_only_auditor_goes_where_looks_wait_and_comes_back() -> None:
    own = frozenset({NodeKey((1).to_bytes(32, "big")).address})
    town = CellTown(cells=2, config=replace(CONFIG, auditors=own))
    [auditor] = await town.come(1, 0, auditor=True)
    await town.turns(int(STAY_S) + 5)
    assert auditor.moves == [0]
    for cell in (1, 0):
        town.benches[cell].exchange._looks = lambda: 3
        await town.turns(int(STAY_S) + 5)
        assert auditor.cell == cell, "a front leads it there, since that cell has none"
        town.benches[cell].exchange._looks = lambda: 0


# --- what one cell decides --------------------------------------------------------------------------------------------------


async def test_tokens_show_whose_they_are(town: CellTown) -> None:
    await town.come(1, 2)
    [welcome] = [message for message in town.nodes[0].sent if isinstance(message, Welcome)]
    assert cell_of_token(welcome.token, 3) == 2
    assert town.benches[2].parts.nodes.authorise(welcome.token) == town.nodes[0].node


async def test_a_ban_in_one_cell_ends_the_connection_in_another_and_holds_at_every_door(town: CellTown) -> None:
    [node] = await town.come(1, 2)
    await town.turn()
    order = town.benches[0].parts.operation.order
    await order(node.node, "ban", "it mines", ROOT)
    assert node.cell == 2
    await town.connect(stranger := TownNode(1), 1)
    assert "is banned by this network's operator: it mines" in str(stranger.refused[0]), "read at the door"
    await town.turn()
    assert node.closed == ["banned by this network's operator: it mines"]
    assert all(bench.parts.nodes.is_banned(node.node) for bench in town.benches)
    await order(node.node, "unban", "it does not", ROOT)
    await town.turn()
    assert not any(bench.parts.nodes.is_banned(node.node) for bench in town.benches)
    node.refused.clear()
    await town.connect(node, 1)
    assert node.cell == 1


async def test_a_node_at_work_that_is_banned_elsewhere_loses_its_seat(town: CellTown) -> None:
    await town.come(4, 1)
    job = await town.submit(1, spec(2, 2))
    await town.turns(3)
    node = sorted(town.held(job))[0]
    await town.benches[0].parts.operation.order(node, "ban", "it mines", ROOT)
    await town.turns(3)
    assert node not in town.held(job)


async def test_all_cards_of_a_computer_go_that_was_banned_elsewhere(town: CellTown) -> None:
    computer = NodeKey(b"c" * 32)
    card, other = (TownNode(number) for number in (1, 2))
    for one in (card, other):
        one.fields = {"computer": computer.address}
        hello = one.hello()
        vouched = computer.sign("cottage-card", one.node.encode())
        one.hello = lambda hello=hello, vouched=vouched: replace_vouched(hello, vouched)  # type: ignore[method-assign]
        town.nodes.append(one)
    await town.connect(card, 1)
    await town.connect(other, 2)
    await town.turn()
    await town.benches[0].parts.operation.order(card.node, "ban", "it mines", ROOT)
    await town.turn()
    assert card.cell is None
    assert other.cell is None, "known here as a card of the same computer"


async def test_a_node_that_drains_by_an_order_elsewhere_gets_no_seat_until_that_is_taken_back(town: CellTown) -> None:
    nodes = await town.come(3, 1)
    order = town.benches[0].parts.operation.order
    await order(nodes[0].node, "drain", "", ROOT)
    await town.turn()
    assert [one.node for one in town.benches[1].parts.nodes.candidates()] == [one.node for one in nodes[1:]]
    await order(nodes[0].node, "undrain", "", ROOT)
    await town.turn()
    assert len(town.benches[1].parts.nodes.candidates()) == 3


async def test_who_evaded_an_audit_in_one_cell_is_told_in_another(town: CellTown) -> None:
    [node] = await town.come(1, 1)
    await town.turn()
    async with town.benches[0].store.transaction() as tx:
        record = await tx.get(NodeRecord, node.node)
        await tx.update(msgspec.structs.replace(record, evaded=town.clock.t, rounds=0))
    await town.turns(2)
    assert [message.at for message in node.sent if isinstance(message, Unanswered)] == [town.clock.t - 2.0]
    assert town.benches[1].parts.nodes.standings.evaded == {node.node: town.clock.t - 2.0}


async def test_a_key_that_comes_into_a_second_cell_leaves_the_first(town: CellTown) -> None:
    [node] = await town.come(1, 0)
    town.clock.t += 5.0
    twin = TownNode(1)
    town.nodes.append(twin)
    await town.connect(twin, 1)
    await town.turn()
    assert node.closed == [rules.TAKEN_OVER]
    for at in (0, 1, 0, 1, 0):  # Two machines with one key: each throws the other one out, until both are refused.
        town.clock.t += 2.0
        await town.connect(one := TownNode(1), at)
        town.nodes.append(one)
        for bench in town.benches:
            bench.exchange.turn()
    assert any("is in use on another machine" in str(why) for one in town.nodes for why in one.refused)


async def test_an_operator_sees_nodes_and_what_they_hold_wherever_they_are(town: CellTown) -> None:
    await town.come(4, 1)
    idle = await town.come(1, 2)
    job = await town.submit(1, spec(2, 2))
    await town.turns(2)
    operation = town.benches[0].parts.operation
    found = (await operation.nodes(NodeQuery(), ListWindow(None, 100))).found
    assert {one.node for one in found if one.online} == {node.node for node in town.nodes}
    assert {one.node for one in found if one.busy} == town.held(job)
    assert {one.node for one in found if one.leases} == town.held(job)
    busy = (await operation.nodes(NodeQuery(state="busy"), ListWindow(None, 100))).found
    assert {one.node for one in busy} == town.held(job)
    online = (await operation.nodes(NodeQuery(state="online"), ListWindow(None, 100))).found
    assert len(online) == 5
    assert (await operation.node(idle[0].node)).online
    [shown] = await operation.jobs("live", ListWindow(None, 10))
    assert shown.nodes == 4


async def test_prices_and_books_of_each_cell_are_those_of_all_nodes(town: CellTown) -> None:
    await town.come(2, 0)
    await town.come(3, 1, floor=0)
    reasons = {(await bench.parts.market.now()).reason for bench in town.benches}
    assert len(reasons) == 1, "one network, one price"
    assert "5 of 5 nodes" in reasons.pop()
    account = await town.benches[2].parts.books.node(town.nodes[0].node)
    assert account.node.online


def replace_vouched(hello: rules.Hello, vouched: bytes) -> rules.Hello:
    return msgspec.structs.replace(hello, vouched=vouched)


@pytest.fixture
def store() -> Store:
    return MemoryStore()


async def test_nothing_of_this_is_done_where_there_is_one_cell(store: Store) -> None:
    town = CellTown(cells=1, stores=[store])
    nodes = await town.come(3, 0)
    parts = town.benches[0].parts
    [welcome] = [message for message in nodes[0].sent if isinstance(message, Welcome)]
    assert "." not in welcome.token
    assert parts.nodes.elsewhere.all() == {}
    async with store.transaction() as tx:
        found = await tx.find(NodeRecord, col(NodeRecord.banned).equals(False))
    assert len(found) == 3


async def test_a_cell_that_lets_nodes_in_by_another_rule_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    town = CellTown(cells=2)
    town.benches[1] = CellBench(town, Cell(1, 2), replace(CONFIG, who_may_lend="invited", min_stake=1_500_000))
    with caplog.at_level("WARNING", "coordinator.services.network.cell_nodes"):
        await town.turns(5)
    rule = "give all coordinators the same --who-may-lend and --min-stake"
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"cell 1 lets in everybody with a stake of ¤ 0.00, and this one invited with a stake of ¤ 1.50: {rule}",
        f"cell 2 lets in invited with a stake of ¤ 1.50, and this one everybody with a stake of ¤ 0.00: {rule}",
    ]


async def test_a_node_that_another_cell_has_just_let_in_hears_of_relays() -> None:
    town = CellTown(cells=2, config=replace(CONFIG, who_may_lend="invited"))
    node, (first, second) = TownNode(1), (bench.parts for bench in town.benches)
    asked = question(node.key, HOST, town.clock.time())
    with pytest.raises(ForbiddenError):
        await first.network.relay_credentials(asked, HOST)
    _, code = await first.nodes.lenders.invite("a machine", 7, ROOT)
    hello = msgspec.structs.replace(node.hello(), invitation=code)
    await second.nodes.enter(hello, NONCE, HOST, node.sent.append, node.closed.append)
    assert await first.network.relay_credentials(asked, HOST)
