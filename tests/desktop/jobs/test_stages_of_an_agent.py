"""Nodes that hold a model together: real agents and links, and workers that say what they hear from each other."""

import secrets

from desktop.agent.jobs.routing import Plans, RoutingVerdict
from protocol.codec import encode
from protocol.identity import NodeKey
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from protocol.node import Assign
from protocol.plan import Plan
from protocol.serving import TextReport
from protocol.task import AwaitStages, JoinStages, ModelSaid, TaskReady, Traffic
from protocol.worker import PeerHeader, TensorName
from tests.desktop.app.test_agent_as_a_process import words_of
from tests.desktop.conftest import JOB, Running, StartAgent, plan_of
from tests.desktop.coordinator_double import Double
from transport.messages.lanes import Lane


def seat(coordinator: Double, plan: Plan, stage: int, replica: int = 1) -> Assign:
    spec = JobSpec("staged", ModelSpec(from_job="ab" * 16), 1_000_000, serve=ServeSpec(stages=len(plan.layers)))
    files = {"config.json": coordinator.store(b'{"layers": 3}')}
    return Assign(secrets.token_hex(16), 1, JOB, spec, stage, replica, plan, files)


def heard(coordinator: Double, lease: str) -> list[str]:
    reports = [one for body in coordinator.bodies(ModelSaid, lease) for one in body.reports]
    return [one.text for one in reports if isinstance(one, TextReport)]


def three(nodes: list[Running], epoch: int) -> Plan:
    return plan_of(*((stage, 1, node.address) for stage, node in enumerate(nodes)), epoch=epoch)


async def test_stages_reach_their_neighbours_around_the_ring_and_one_that_comes_in_the_place_of_another(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as one, start_agent("b") as two, start_agent("c") as last, start_agent("d") as heir:
        before = three([one, two, last], 0)
        seats = [seat(coordinator, before, stage) for stage in range(3)]
        for node, lease in zip((one, two, last), seats, strict=True):
            await coordinator.assign(node.address, lease)
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 3)
        first = three([one, two, last], 4)
        for node, lease in zip((one, two, last), seats, strict=True):
            for _ in range(2):  # As after a connection that broke.
                await coordinator.command(node.address, lease, JoinStages(first))
        await coordinator.until(lambda: all(heard(coordinator, lease.lease) for lease in seats))
        assert [heard(coordinator, lease.lease) for lease in seats] == [
            ["drawn from 2 in 4; joined [4]"],
            ["pass from 0 in 4; joined [4]"],
            ["pass from 1 in 4; joined [4]"],
        ]
        assert {link.peer for link in one.agent.status().links} == {two.address, last.address}
        [view] = two.agent.status().tasks
        assert (view.serves, view.stage, view.stages, view.replica) == (True, 1, 3, 1)
        sent = len("pass from 0 in 4") * 5000
        await coordinator.until(lambda: _sent(coordinator, seats[0].lease) == (sent, 4 * sent))

        second = three([one, heir, last], 7)
        seats[1] = seat(coordinator, three([one, heir, last], 6), 1)
        await coordinator.assign(heir.address, seats[1])
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 4)
        for node, lease in zip((one, heir, last), seats, strict=True):
            await coordinator.command(node.address, lease, JoinStages(second))
        await coordinator.until(
            lambda: heard(coordinator, seats[1].lease) and len(heard(coordinator, seats[2].lease)) == 2
        )
        assert heard(coordinator, seats[1].lease) == ["pass from 0 in 7; joined [7]"]
        assert heard(coordinator, seats[2].lease)[1] == "pass from 1 in 7; joined [4, 7]"
        await coordinator.until(
            lambda: {link.peer for link in one.agent.status().links} == {heir.address, last.address}
        )


async def test_who_waits_for_the_others_says_so_until_they_are_there(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as node:
        away = NodeKey.generate().address
        lease = seat(coordinator, plan_of((0, 1, node.address), (1, 1, away)), 0)
        await coordinator.assign(node.address, lease)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        joined = JoinStages(plan_of((0, 1, node.address), (1, 1, away), epoch=3))
        for command, waits in ((AwaitStages(), True), (joined, False), (AwaitStages(), True), (joined, False)):
            await coordinator.command(node.address, lease, command)
            await coordinator.until(lambda waits=waits: node.agent.status().tasks[0].waits is waits)
            code, text = await words_of("status", "--home", str(node.home.path))
            assert code == 0
            assert ("ready, waits for the other nodes of its replica: nothing is earned" in text) is waits


async def test_what_comes_of_an_earlier_epoch_or_from_a_stranger_reaches_no_worker_and_what_is_early_waits(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent("a") as node, start_agent("b") as other:
        lease = seat(coordinator, plan_of((0, 1, other.address), (1, 1, node.address)), 1)
        await coordinator.assign(node.address, lease)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))

        async def arrive(sender: str, epoch: int, text: str) -> None:
            header = encode(PeerHeader(JOB, 0, 1, 1, 1, TensorName("pass", epoch, 0, 0, 0)))
            await node.agent._peers.on_message(sender, Lane.ACTIVATIONS, header, text.encode() * 5000)

        await arrive(other.address, 3, "early")
        await coordinator.command(
            node.address, lease, JoinStages(plan_of((0, 1, other.address), (1, 1, node.address), epoch=3))
        )
        await coordinator.until(lambda: heard(coordinator, lease.lease))
        await arrive(other.address, 0, "late")
        await arrive(node.address, 3, "foreign")
        await arrive(other.address, 3, "in time")
        await coordinator.until(lambda: len(heard(coordinator, lease.lease)) == 2)
        assert heard(coordinator, lease.lease) == ["early; joined [3]", "in time; joined [3]"]
        bridge = node.agent._holdings.tasks[lease.lease].bridge
        assert bridge.dropped == {RoutingVerdict.STALE: 1, RoutingVerdict.FOREIGN: 1}


def test_a_ring_has_the_last_stage_beside_the_first_and_nobody_of_another_replica() -> None:
    plan = plan_of(*((stage, replica, f"{stage}{replica}" * 16) for replica in range(2) for stage in range(4)))
    ring, chain = Plans(plan, ring=True), Plans(plan)
    assert ring.near(0, 1) == {(1, 1), (3, 1)}
    assert ring.near(2, 1) == {(1, 1), (3, 1)}
    assert chain.near(0, 1) == {(1, 1), (0, 0)}
    pair = Plans(plan_of((0, 0, "a" * 32), (1, 0, "b" * 32)), ring=True)
    assert pair.near(0, 0) == {(1, 0)}
    assert pair.near(1, 0) == {(0, 0)}


def _sent(coordinator: Double, lease: str) -> tuple[int, int]:
    reports = coordinator.bodies(Traffic, lease)
    return (reports[-1].activations, reports[-1].naive) if reports else (0, 0)
