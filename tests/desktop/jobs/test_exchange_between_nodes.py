"""Agents carry payloads between workers over real WebRTC on loopback; what the plan does not allow does not get through."""

import hashlib
from contextlib import AsyncExitStack

from desktop.agent.jobs.routing import RoutingVerdict
from protocol.codec import encode
from protocol.node import Command
from protocol.task import ApplyRound, BeginRound, KeptState, Progress, RoundApplied, RoundHolding, TaskReady, Traffic
from protocol.worker import PeerHeader, TensorName
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.desktop.scripted_worker import STATE
from transport.messages.lanes import Lane

BEGIN = {"round": 0, "first_step": 0, "steps": 10, "total_steps": 100}


def digest_of(kind: str, stage: int, replica: int) -> str:
    return hashlib.sha256(f"{kind} from {stage},{replica}".encode() * 5000).hexdigest()


async def test_two_by_two_nodes_exchange_every_kind_of_payload(coordinator: Double, start_agent: StartAgent) -> None:
    places = [(0, 0), (1, 0), (0, 1), (1, 1)]
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(start_agent(f"node{number}")) for number in range(4)]
        plan = plan_of(*((*place, node.address) for place, node in zip(places, nodes, strict=True)))
        leases = []
        for (stage, replica), node in zip(places, nodes, strict=True):
            leases.append(assignment(coordinator, plan, stage, replica))
            await coordinator.assign(node.address, leases[-1])
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 4)
        for lease, node in zip(leases, nodes, strict=True):
            await coordinator.command(node.address, lease, BeginRound(plan, **BEGIN))
        await coordinator.until(lambda: len(coordinator.bodies(RoundHolding)) == 8)
        for (stage, replica), lease in zip(places, leases, strict=True):
            held: dict[int, str] = {}
            for body in coordinator.bodies(RoundHolding, lease.lease):
                held |= body.held
            kind, other = ("gradient", 1) if stage == 0 else ("activation", 0)
            assert held == {
                1 - replica: digest_of("pseudo_gradient", stage, 1 - replica),
                100 + other: digest_of(kind, other, replica),
            }
        await coordinator.until(lambda: all(_wire(coordinator, lease.lease) for lease in leases))
        last = coordinator.bodies(Traffic, leases[0].lease)[-1]
        activation, bulk = len(b"activation from 0,0") * 5000, len(b"pseudo_gradient from 0,0") * 5000
        assert (last.activations, last.bulk, last.naive) == (activation, bulk, 4 * (activation + bulk))
        assert last.wire >= activation + bulk
        links = nodes[0].agent.status().links
        assert {link.peer for link in links} == {nodes[1].address, nodes[2].address}
        assert all(link.state == "up" for link in links)


def _wire(coordinator: Double, lease: str) -> bool:
    reports = coordinator.bodies(Traffic, lease)
    return bool(reports) and reports[-1].wire >= reports[-1].activations + reports[-1].bulk > 0


async def test_two_leases_of_one_node_exchange_without_a_network(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        plan = plan_of((0, 0, node.address), (1, 0, node.address))
        leases = [assignment(coordinator, plan, stage, 0) for stage in (0, 1)]
        for lease in leases:
            await coordinator.assign(node.address, lease)
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2)
        for lease in leases:
            await coordinator.command(node.address, lease, BeginRound(plan, **BEGIN))
        await coordinator.until(lambda: len(coordinator.bodies(RoundHolding)) == 2)
        assert coordinator.bodies(RoundHolding, leases[1].lease)[0].held == {100: digest_of("activation", 0, 0)}
        assert all(task.activations == task.wire == task.naive == 0 for task in node.agent.status().tasks)


async def test_a_payload_that_is_early_waits_for_its_plan_and_one_that_is_late_or_foreign_is_dropped(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as node, start_agent("b") as other:
        plan = plan_of((0, 0, other.address), (1, 0, node.address), epoch=5)
        lease = assignment(coordinator, plan, 1, 0)
        await coordinator.assign(node.address, lease)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))

        async def arrive(sender: str, epoch: int, payload: bytes, stage: int = 0) -> None:
            name = TensorName("activation", epoch, 0, 0, 0)
            header = encode(PeerHeader(lease.job, stage, 0, 1, 0, name))
            await node.agent._peers.on_message(sender, Lane.ACTIVATIONS, header, payload)

        await arrive(other.address, 6, b"early")
        await arrive(other.address, 4, b"late")
        await arrive(node.address, 5, b"from the wrong node")
        await arrive(other.address, 5, b"for a stage that is not the sender's", stage=1)
        await node.agent._peers.on_message(other.address, Lane.BULK, b"\xc1", b"malformed")
        await arrive(other.address, 5, b"in time")
        await coordinator.until(lambda: coordinator.bodies(RoundHolding))
        newer = plan_of((0, 0, other.address), (1, 0, node.address), epoch=6)
        await coordinator.command(node.address, lease, BeginRound(newer, **BEGIN))
        await coordinator.until(lambda: len(coordinator.bodies(RoundHolding)) == 2)
        in_time, early = coordinator.bodies(RoundHolding)
        assert in_time.held == {100: hashlib.sha256(b"in time").hexdigest()}
        assert early.held == {100: hashlib.sha256(b"early").hexdigest()}
        bridge = node.agent._holdings.tasks[lease.lease].bridge
        assert bridge.dropped == {RoutingVerdict.STALE: 1, RoutingVerdict.FOREIGN: 2}
        assert node.agent.status().dropped == {"malformed": 1}


async def test_payloads_for_a_dead_node_wait_until_a_new_plan_names_another(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as node, start_agent("spare") as spare:
        async with start_agent("b") as dead:
            gone = dead.address
        plan = plan_of((0, 0, node.address), (1, 0, gone))
        lease = assignment(coordinator, plan, 0, 0)
        await coordinator.assign(node.address, lease)
        await coordinator.command(node.address, lease, BeginRound(plan, **BEGIN))
        newer = plan_of((0, 0, node.address), (1, 0, spare.address), epoch=1)
        heir = assignment(coordinator, newer, 1, 0)
        await coordinator.assign(spare.address, heir)
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2)
        for address, member in ((node.address, lease), (spare.address, heir)):
            await coordinator.command(address, member, BeginRound(newer, **BEGIN))
        await coordinator.until(lambda: coordinator.bodies(RoundHolding, heir.lease))
        await coordinator.until(lambda: node.agent.status().dropped == {"outdated": 1})
        assert len(coordinator.bodies(RoundHolding, heir.lease)) == 1


async def test_a_joiner_gets_its_state_from_its_peers_though_one_of_them_has_died(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as one, start_agent("b") as other, start_agent("late") as late:
        plan = plan_of((0, 0, one.address), (0, 1, other.address))
        for node, replica in ((one, 0), (other, 1)):
            lease = assignment(coordinator, plan, 0, replica, "checkpoint")
            await coordinator.assign(node.address, lease)
            await coordinator.command(node.address, lease, ApplyRound(0, 3, {}))
        await coordinator.until(lambda: len(coordinator.bodies(RoundApplied)) == 2)
        [manifest] = {body.kept for body in coordinator.bodies(RoundApplied)}
        assert coordinator.uploads == [], "the coordinator was not asked to store it"
        async with start_agent("dead") as gone:
            pass
        wider = plan_of((0, 0, one.address), (0, 1, other.address), (0, 2, late.address), (0, 3, gone.address), epoch=1)
        joined = assignment(coordinator, wider, 0, 2, "checkpoint")
        await coordinator.assign(late.address, joined)
        for report in coordinator.reports:
            held = report[1]
            if isinstance(held.body, RoundApplied):
                node = one if report[0] == one.address else other
                begin = BeginRound(wider, **BEGIN)
                await coordinator.send(node.address, Command(held.lease, held.fence, begin))
        kept = KeptState(manifest, (gone.address, one.address, other.address))
        await coordinator.command(late.address, joined, BeginRound(wider, kept=kept, **BEGIN))
        await coordinator.until(lambda: coordinator.bodies(RoundHolding, joined.lease))
        assert coordinator.bodies(RoundHolding, joined.lease)[0].held == {0: hashlib.sha256(STATE).hexdigest()}


async def test_a_state_that_nobody_keeps_is_taken_from_the_coordinator_where_it_is_stored(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as node:
        plan = plan_of((0, 0, node.address))
        lease = assignment(coordinator, plan, 0, 0, "checkpoint")
        await coordinator.assign(node.address, lease)
        stored = coordinator.store(b"as stored" * 1000)
        begin = BeginRound(plan, kept=KeptState("0" * 64, ()), state=stored, **BEGIN)
        await coordinator.command(node.address, lease, begin)
        await coordinator.until(lambda: coordinator.bodies(RoundHolding))
        assert coordinator.bodies(RoundHolding)[0].held == {0: stored}


async def test_a_newer_round_ends_the_wait_for_an_older_ones_state(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as node:
        async with start_agent("dead") as gone:
            pass
        plan = plan_of((0, 0, node.address), (0, 1, gone.address))
        lease = assignment(coordinator, plan, 0, 0, "checkpoint")
        await coordinator.assign(node.address, lease)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        await coordinator.command(
            node.address, lease, BeginRound(plan, kept=KeptState("0" * 64, (gone.address,)), **BEGIN)
        )
        await coordinator.command(node.address, lease, BeginRound(plan_of((0, 0, node.address), epoch=1), **BEGIN))
        await coordinator.until(lambda: coordinator.bodies(Progress))
        assert not coordinator.bodies(RoundHolding)
