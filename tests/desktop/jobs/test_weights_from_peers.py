"""Weights that a job starts from, from peers before the coordinator: whole and right, whoever is silent, slow, gone or lies."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from common.clock import SystemClock
from common.encrypted_files import SealedFile
from common.errors import MessageRefusedError, PeerUnreachableError
from coordinator.services.artifacts.weight_index import index_weights
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.jobs import weight_exchange, weight_gathering
from desktop.agent.jobs.weight_exchange import Circle, WeightExchange
from desktop.agent.jobs.weight_layout import beginners
from desktop.agent.jobs.weights import StageWeights
from protocol.models.weights import LEAST_UNIT, WEIGHT_INDEX, Span, Unit
from protocol.node import Assign
from protocol.task import BeginRound, ExpectPeers, Layers, Member, Plan, TaskReady
from protocol.weight_sharing import PREFIX, WeightsAsk, WeightsGive, bits, header, units_in
from tests.desktop.app.test_agent_as_a_process import agent_program
from tests.desktop.conftest import JOB, Running, StartAgent, assignment
from tests.desktop.coordinator_double import Double
from tests.desktop.jobs.test_weights_of_a_stage import CONFIG
from transport.messages.lanes import Lane

LAYERS = (Layers(0, 3), Layers(3, 6))
MATRICES = (*(f"self_attn.{name}" for name in "qkvo"), *(f"mlp.{name}" for name in ("gate", "up", "down")))
GENERATOR = np.random.default_rng(3)
TENSORS = {
    "model.embed_tokens.weight": GENERATOR.standard_normal((50, 8), np.float32),
    "model.norm.weight": GENERATOR.standard_normal(8, np.float32),
    "lm_head.weight": GENERATOR.standard_normal((50, 8), np.float32),
} | {
    f"model.layers.{layer}.{name}_proj.weight": GENERATOR.standard_normal((160, 128), np.float32)
    for layer, name in itertools.product(range(6), MATRICES)
}
STAGE = 3 * 7 * 160 * 128 * 4 + 50 * 8 * 4  # Bytes of the first stage.


def stored(coordinator: Double, folder: Path) -> str:
    """The index of the model, which is with the coordinator."""
    data = save(TENSORS)
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(data)
    return coordinator.store(index_weights([(coordinator.store(data), folder / "model.safetensors")], CONFIG))


def fetched(coordinator: Double) -> int:
    """Bytes of ranges that were asked for."""
    ranges = [asked.removeprefix("bytes=").split("-") for _, _, asked in coordinator.requests if asked]
    return sum(int(last) - int(first) + 1 for first, last in ranges)


def plan_for(*nodes: str, epoch: int = 0) -> Plan:
    return Plan(epoch, LAYERS, tuple(Member(0, replica, node) for replica, node in enumerate(nodes)))


def is_right(weights: StageWeights, path: Path) -> bool:
    """Whether a file has the tensors of the first stage, and no other."""
    part = load(SealedFile(path, weights.key).read())
    wanted = {name for name in TENSORS if "embed" in name or any(f".layers.{layer}." in name for layer in range(3))}
    return part.keys() == wanted and all(np.array_equal(value, TENSORS[name]) for name, value in part.items())


# --- real agents, real links ------------------------------------------------------------------------------------------------


async def lent(coordinator: Double, nodes: list[Running], index: str, plan: Plan) -> list[tuple[Assign, Running]]:
    """Every node begins with its seat of the first stage."""
    leases = [(seat(coordinator, index, plan, replica), node) for replica, node in enumerate(nodes)]
    for assign, node in leases:
        await coordinator.assign(node.address, assign)
    return leases


def seat(coordinator: Double, index: str, plan: Plan, replica: int) -> Assign:
    assign = assignment(coordinator, plan, 0, replica)
    return msgspec.structs.replace(assign, files=assign.files | {WEIGHT_INDEX: index})


def laid_out_right(leases: list[tuple[Assign, Running]]) -> bool:
    found = [node.agent._holdings.tasks[assign.lease].bridge.weights for assign, node in leases]
    return all(weights is not None and is_right(weights, weights.layouts[LAYERS[0]].path) for weights in found)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a crowded machine links take a while, and so do answers."""
    for name in ("START_S", "LIVE_S", "RATE_S"):
        monkeypatch.setattr(weight_gathering, name, 60.0)
    monkeypatch.setattr(weight_exchange, "ANSWER_S", 60.0)


@pytest.mark.parametrize(("shared", "wanted"), [(False, 4), (True, 1)])
async def test_four_replicas_that_begin_together_cost_the_coordinator_one_copy_and_not_four(
    coordinator: Double,
    start_agent: StartAgent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
    wanted: int,
) -> None:
    be_patient(monkeypatch)
    index = stored(coordinator, tmp_path / "model")
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(start_agent(f"node{number}")) for number in range(4)]
        if not shared:
            for node in nodes:
                node.agent._peers.weights = None
        leases = await lent(coordinator, nodes, index, plan_for(*(node.address for node in nodes)))
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 4, 60)
        assert laid_out_right(leases)
        assert fetched(coordinator) == wanted * STAGE
        given = [node.agent._weights.given for node in nodes]
        assert all(given) if shared else not any(given), "each hands on what it began with"


async def test_who_has_died_holds_nobody_up_and_who_comes_later_takes_all_from_peers(
    coordinator: Double, start_agent: StartAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = stored(coordinator, tmp_path / "model")
    async with AsyncExitStack() as stack:
        names = ("first", "second", "late")
        first, second, late = [await stack.enter_async_context(start_agent(name)) for name in names]
        async with start_agent("dead") as dead:
            gone = dead.address
        plan = plan_for(first.address, second.address, gone)
        leases = await lent(coordinator, [first, second], index, plan)
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2, 60)
        assert STAGE <= fetched(coordinator) <= 2 * STAGE
        coordinator.requests.clear()
        be_patient(monkeypatch)
        wider = plan_for(first.address, second.address, late.address, epoch=1)
        for assign, node in leases:
            await coordinator.command(node.address, assign, BeginRound(wider, 0, 0, 10, 100))
        joined = seat(coordinator, index, wider, 2)
        await coordinator.assign(late.address, joined)
        await coordinator.until(lambda: coordinator.bodies(TaskReady, joined.lease), 60)
        assert laid_out_right([*leases, (joined, late)])
        assert fetched(coordinator) == 0


async def test_who_joins_takes_all_from_peers_that_expect_it_and_nothing_once_they_do_not(
    coordinator: Double, start_agent: StartAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = stored(coordinator, tmp_path / "model")
    be_patient(monkeypatch)
    async with AsyncExitStack() as stack:
        first, second, late = [await stack.enter_async_context(start_agent(name)) for name in ("one", "two", "late")]
        held = (first, second)
        leases = await lent(coordinator, [*held], index, plan_for(*(node.address for node in held)))
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2, 60)
        coordinator.requests.clear()
        for assign, node in leases:
            await coordinator.command(node.address, assign, ExpectPeers((late.address,)))
        joined = seat(coordinator, index, plan_for(first.address, second.address, late.address), 2)
        await coordinator.assign(late.address, joined)
        await coordinator.until(lambda: coordinator.bodies(TaskReady, joined.lease), 60)
        assert laid_out_right([*leases, (joined, late)])
        assert fetched(coordinator) == 0
        assert all(node.agent._peers.weights_for(JOB, late.address) for node in held)
        for assign, node in leases:
            await coordinator.command(node.address, assign, ExpectPeers())
        await coordinator.until(lambda: not any(node.agent._peers.weights_for(JOB, late.address) for node in held), 20)
        await coordinator.until(lambda: not any(late.address in node.agent._peers._allowed for node in held), 20)


@pytest.mark.long
async def test_four_agents_in_processes_of_their_own_cost_the_coordinator_little_more_than_a_copy(
    coordinator: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """66 MB, with all limits of time as they are: a crowded machine may ask the coordinator for more than one copy."""
    matrix = GENERATOR.standard_normal((1024, 768), np.float32)
    larger = {name: matrix + layer for layer, name in enumerate(TENSORS)}
    monkeypatch.setattr("tests.desktop.jobs.test_weights_from_peers.TENSORS", larger)
    index, whole = stored(coordinator, tmp_path / "model"), 22 * matrix.nbytes
    async with AsyncExitStack() as stack:
        for number in range(4):
            home = tmp_path / f"home{number}"
            program = agent_program(home, coordinator.url, "--sandbox", "process", "--loopback")
            await stack.enter_async_context(program)
        await coordinator.until(lambda: len(coordinator.nodes) == 4, 120)
        plan = plan_for(*coordinator.nodes)
        for replica, node in enumerate(list(coordinator.nodes)):
            await coordinator.assign(node, seat(coordinator, index, plan, replica))
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 4, 300)
    record_property("copies", fetched(coordinator) / whole)
    assert whole <= fetched(coordinator) < 2.5 * whole, f"{fetched(coordinator) / whole:.3f} copies"


async def test_two_seats_of_one_node_fetch_the_same_weights_once(
    coordinator: Double, start_agent: StartAgent, tmp_path: Path
) -> None:
    index = stored(coordinator, tmp_path / "model")
    async with start_agent() as node:
        leases = await lent(coordinator, [node, node], index, plan_for(node.address, node.address))
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2, 60)
        assert laid_out_right(leases)
        assert fetched(coordinator) == STAGE


# --- links in memory: whatever peers may do ---------------------------------------------------------------------------------


@dataclass
class Net:
    """Nodes of one job with links in memory and a real coordinator.

    Attributes:
        carries: may replace what a node says, or raise: (sender, header, payload) to the payload; None: it is lost.
    """

    coordinator: Double
    folder: Path
    index: str
    plan: Plan
    weights: dict[str, StageWeights] = field(default_factory=dict)
    exchanges: dict[str, WeightExchange] = field(default_factory=dict)
    stores: list[Artifacts] = field(default_factory=list)
    carries: Callable[[str, object, bytes], bytes | None] = lambda sender, message, payload: payload
    pieces: list[str] = field(default_factory=list)

    def add(self, name: str, job: str = JOB) -> StageWeights:
        async def send(peer: str, lane: Lane, head: bytes, payload: bytes) -> None:
            await asyncio.sleep(0.001)
            message = msgspec.msgpack.decode(head[len(PREFIX) :], type=WeightsAsk | WeightsGive)
            is_piece = isinstance(message, WeightsGive) and message.unit is not None
            assert lane is (Lane.BULK if is_piece else Lane.CONTROL)
            carried = self.carries(name, message, payload)
            if is_piece and payload:
                self.pieces.append(name)
            if carried is not None and peer in self.exchanges:
                await self.exchanges[peer].on_message(name, head, carried)

        def leases(asked: str, node: str) -> list[StageWeights] | None:
            known = asked == job and any(member.node == node for member in self.plan.members)
            return [self.weights[name]] if known and name in self.weights else None

        (self.folder / name).mkdir()
        store = Artifacts(self.coordinator.url, self.folder / name / "cache", SystemClock())
        store.authorise("token")
        self.stores.append(store)
        exchange = self.exchanges[name] = WeightExchange(send, leases, SystemClock())
        circle = Circle(job, name, exchange, self.linked(name), chance=lambda count: count // 2)
        self.weights[name] = StageWeights(store, self.index, self.folder / name, circle)
        return self.weights[name]

    def linked(self, name: str) -> Callable[[], set[str]]:
        return lambda: {member.node for member in self.plan.members} - {name}

    async def lay_out(self, *names: str) -> bool:
        """These nodes begin at the same time; whether all have the right bytes then."""
        paths = await asyncio.gather(*(self.weights[name].lay_out(self.plan, 0) for name in names))
        return all(is_right(self.weights[name], path) for name, path in zip(names, paths, strict=True))


@pytest.fixture
async def net(coordinator: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Net]:
    monkeypatch.setattr(weight_gathering, "START_S", 1.0)
    monkeypatch.setattr(weight_gathering, "RATE_S", 1.0)
    monkeypatch.setattr(weight_gathering, "LIVE_S", 1.0)
    monkeypatch.setattr(weight_gathering, "POLL_S", 0.05)
    monkeypatch.setattr(weight_exchange, "ANSWER_S", 0.5)
    coordinator.tokens.add("token")
    found = Net(coordinator, tmp_path, stored(coordinator, tmp_path / "model"), plan_for("a", "b", "c", "d"))
    yield found
    for exchange in found.exchanges.values():
        await exchange.aclose()
    for store in found.stores:
        await store.aclose()


async def one_has_it(net: Net, *others: str) -> None:
    """Node ``a`` has all of it; the others have just been told."""
    plan, net.plan = net.plan, plan_for("a")
    net.add("a")
    assert await net.lay_out("a")
    net.plan = plan
    net.coordinator.requests.clear()
    for name in others:
        net.add(name)


def dies_after(net: Net, monkeypatch: pytest.MonkeyPatch, pieces: int, says: Callable[[bytes], bytes]) -> None:
    """Node ``a`` gives ``b`` so many pieces and is gone, as its link shows; it is given time for them."""
    be_patient(monkeypatch)
    monkeypatch.setattr(weight_exchange, "ANSWER_S", 3.0)
    monkeypatch.setattr(weight_gathering, "AHEAD", 1)  # Asked for ahead they come in any order, and those before count.
    net.plan = plan_for("a", "b")

    def die(_sender: str, _message: object, payload: bytes) -> bytes:
        if len(net.pieces) >= pieces:
            raise PeerUnreachableError("it has gone")
        return says(payload)

    net.carries = die


async def test_a_liar_is_not_asked_again_and_nothing_of_it_stays(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    await one_has_it(net, "b")
    net.plan = plan_for("a", "b")
    net.carries = lambda sender, message, payload: bytes(len(payload)) if len(payload) > 1000 else payload
    assert await net.lay_out("b")
    assert len(net.pieces) <= 2, "one unit of it came, and perhaps what was asked for ahead"
    assert net.weights["b"]._circle is not None
    assert net.weights["b"]._circle.liars == {"a"}
    assert fetched(net.coordinator) == STAGE


async def test_a_liar_among_honest_ones_costs_the_coordinator_nothing(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    await one_has_it(net, "b")
    net.plan = plan_for("a", "b")
    assert await net.lay_out("b")
    net.plan = plan_for("a", "b", "c")
    net.coordinator.requests.clear()
    net.add("c")
    net.carries = lambda sender, _, payload: bytes(len(payload)) if sender == "b" and len(payload) > 1000 else payload
    assert await net.lay_out("c")
    assert fetched(net.coordinator) == 0
    assert net.pieces.count("b") <= 20 + 2


async def test_what_a_peer_began_and_did_not_end_goes_on_from_the_coordinator(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = LEAST_UNIT // 4  # A fifth of a matrix.
    monkeypatch.setattr("desktop.agent.jobs.weight_layout.PIECE_BYTES", piece)
    await one_has_it(net, "b")
    dies_after(net, monkeypatch, 3, lambda payload: payload)
    assert await net.lay_out("b")
    assert fetched(net.coordinator) == STAGE - 3 * piece, "what had come was fetched again"


async def test_a_lie_that_the_coordinator_went_on_with_is_found_and_fetched_whole(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("desktop.agent.jobs.weight_layout.PIECE_BYTES", LEAST_UNIT // 4)
    await one_has_it(net, "b")
    dies_after(net, monkeypatch, 1, lambda payload: bytes(len(payload)) if len(payload) > 1000 else payload)
    assert await net.lay_out("b")
    assert fetched(net.coordinator) > STAGE


@pytest.mark.parametrize("what", ["hears nothing", "says that it has all and gives nothing", "has no lease"])
async def test_who_gives_nothing_is_not_waited_for(net: Net, what: str) -> None:
    await one_has_it(net, "b")
    net.plan = plan_for("a", "b")
    if what == "has no lease":
        del net.weights["a"]
    elif what == "hears nothing":
        net.carries = lambda sender, _, payload: payload if sender == "a" else None
    else:
        net.carries = lambda sender, _, payload: None if len(payload) > 1000 else payload
    async with asyncio.timeout(30):
        assert await net.lay_out("b")
    assert fetched(net.coordinator) == STAGE


async def test_peers_that_promise_and_never_have_it_are_not_waited_for(net: Net) -> None:
    """They answer, and so will have what they begin with soon, as it seems."""
    for name in ("a", "b", "c", "d"):
        net.add(name)
    async with asyncio.timeout(30):
        assert await net.lay_out("a")
    assert fetched(net.coordinator) == STAGE


async def test_a_peer_that_is_too_slow_gives_what_it_can_and_the_coordinator_the_rest(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_gathering, "SOON_S", 2.0)
    await one_has_it(net, "b")
    net.plan = plan_for("a", "b")
    slow = asyncio.Lock()
    plain = net.exchanges["a"]._send

    async def trickle(peer: str, lane: Lane, head: bytes, payload: bytes) -> None:
        async with slow:
            await asyncio.sleep(0.2 if payload and lane is Lane.BULK else 0)
        await plain(peer, lane, head, payload)

    net.exchanges["a"]._send = trickle
    async with asyncio.timeout(60):
        assert await net.lay_out("b")
    assert 0 < fetched(net.coordinator) < STAGE
    assert net.exchanges["a"].given > 0


async def test_only_members_of_the_very_job_are_given_anything(net: Net) -> None:
    await one_has_it(net)
    asking = WeightExchange(_to(net, "stranger"), lambda job, node: None, SystemClock())
    net.exchanges["stranger"] = asking
    net.exchanges["b"] = member = WeightExchange(_to(net, "b"), lambda job, node: None, SystemClock())
    for unit in (None, 0):
        assert await asking.ask("a", WeightsAsk(JOB, LAYERS[0], unit)) is None, "the plan does not name it"
        assert await member.ask("a", WeightsAsk("f" * 32, LAYERS[0], unit)) is None, "of another job"
        assert await member.ask("a", WeightsAsk(JOB, LAYERS[0], unit))
    assert await member.ask("a", WeightsAsk(JOB, LAYERS[1])) == b"", "that stage was not laid out"
    assert await member.ask("a", WeightsAsk(JOB, LAYERS[1], 0)) is None
    count = len(net.weights["a"].layouts[LAYERS[0]].units)
    for unit, begin in ((count, 0), (0, 1 << 40)):
        assert await member.ask("a", WeightsAsk(JOB, LAYERS[0], unit, begin)) is None


def _to(net: Net, name: str) -> weight_exchange.Send:
    async def send(peer: str, _: Lane, head: bytes, payload: bytes) -> None:
        await net.exchanges[peer].on_message(name, head, payload)

    return send


@pytest.mark.parametrize(
    "junk", [b"", b"\xc1", b"\x93\x01\x02\x03", header(WeightsAsk(JOB, LAYERS[0]))[len(PREFIX) : -1]]
)
async def test_a_malformed_message_is_refused(net: Net, junk: bytes) -> None:
    net.add("a")
    with pytest.raises(MessageRefusedError):
        await net.exchanges["a"].on_message("b", PREFIX + junk, b"")


async def test_too_many_questions_at_once_are_refused(net: Net) -> None:
    await one_has_it(net)
    ask = header(WeightsAsk(JOB, LAYERS[0], 0))
    for _ in range(weight_exchange.MAX_ASKED):
        await net.exchanges["a"].on_message("b", ask, b"")
    with pytest.raises(MessageRefusedError, match="too many"):
        await net.exchanges["a"].on_message("b", ask, b"")


# --- arithmetic -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 100])
def test_bits_say_which_units_are_there_and_nonsense_says_none(count: int) -> None:
    some = {unit for unit in range(count) if unit % 3 == 0}
    assert units_in(bits(some, count), count) == some
    assert units_in(bits(some, count) + b"\xff", count) == units_in(b"", count) == frozenset()


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 64])
def test_what_nodes_begin_with_are_neighbours_and_about_equal(nodes: int) -> None:
    sizes = [100 + 37 * number % 50 for number in range(64)]
    places = itertools.accumulate(sizes, initial=0)
    found = [Unit(Span(0, at, at + size, ()), at) for at, size in zip(places, sizes, strict=False)]
    names = [f"node{number:02}" for number in range(nodes)]
    begins = beginners(found, names)
    assert sorted(begins.values()) == [begins[unit] for unit in range(64)]
    held = [sum(sizes[unit] for unit in begins if begins[unit] == name) for name in names]
    assert sum(held) == sum(sizes)
    assert max(held) <= sum(sizes) / nodes + max(sizes)
