"""One agent, a scripted coordinator, scripted workers in real processes."""

import hashlib
import os

import pytest

from desktop.agent.errors import CoordinatorRefusedError
from protocol.node import Assign, Command, Refused
from protocol.task import (
    ApplyRound,
    BeginRound,
    OpenStep,
    Progress,
    ReplayAcross,
    ReplayStep,
    RoundApplied,
    RoundHolding,
    StepOpened,
    StopTask,
    TaskFailed,
    TaskReady,
)
from tests.desktop.conftest import Running, StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.desktop.scripted_worker import STATE

BEGIN = {"round": 3, "first_step": 30, "steps": 10, "total_steps": 100}


def alone(coordinator: Double, node: Running, script: str) -> Assign:
    return assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, script)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_worker_gets_its_files_and_says_that_it_is_ready(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent(worker_arguments=("--note=lent",)) as node:
        assign = alone(coordinator, node, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        [ready] = coordinator.bodies(TaskReady)
        assert ready == TaskReady("scripted --note=lent", len(b'{"layers": 2}'))
        await coordinator.until(lambda: coordinator.beats and coordinator.beats[-1][1].leases)
        assert coordinator.beats[-1][1].leases[0].lease == assign.lease


async def test_commands_bring_their_artifact_and_reports_store_theirs(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "checkpoint")
        await coordinator.assign(node.address, assign)
        state = coordinator.store(b"a checkpoint" * 1000)
        begin = BeginRound(assign.plan, **BEGIN, state=state)
        await coordinator.command(node.address, assign, begin)
        await coordinator.command(node.address, assign, ApplyRound(0, 3, {0: "ab" * 32}, checkpoint=True))
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened) and coordinator.bodies(RoundApplied))
        digest = hashlib.sha256(STATE).hexdigest()
        assert coordinator.bodies(RoundHolding)[0].held == {0: state}
        assert coordinator.bodies(RoundApplied)[0].checkpoint == digest
        assert coordinator.bodies(StepOpened)[0].opening == digest
        assert coordinator.artifacts[digest] == STATE
        assert coordinator.bodies(Progress)[0].loss == 2.5
        seqs = [report.seq for _, report in coordinator.reports if report.seq]
        assert seqs == sorted(set(seqs)) == list(range(1, len(seqs) + 1))


async def test_stopping_a_task_ends_its_worker_and_its_lease(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        [pid] = node.pids()
        await coordinator.command(node.address, assign, StopTask("done"))
        await coordinator.until(lambda: not is_alive(pid))
        seen = len(coordinator.beats)
        await coordinator.until(lambda: len(coordinator.beats) > seen + 1)
        assert coordinator.beats[-1][1].leases == ()
        assert not coordinator.bodies(TaskFailed)
        await coordinator.until(lambda: not any(node.home.jobs.iterdir()))


async def test_a_lease_that_is_gone_ends_its_worker_at_once(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "hanging")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        [pid] = node.pids()
        coordinator.gone.append(assign.lease)
        await coordinator.until(lambda: not is_alive(pid))


async def test_a_step_comes_with_its_opening_whatever_class_it_is_of(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "checkpoint")
        await coordinator.assign(node.address, assign)
        opening, none = coordinator.store(b"an opening" * 1000), "ab" * 32
        replay = ReplayStep("ef" * 16, assign.plan, 0, 0, 3, 30, 1, 100, none, 10, none, None, opening)
        await coordinator.command(node.address, assign, replay)
        await coordinator.command(node.address, assign, ReplayAcross(replay, "another"))
        await coordinator.until(lambda: len(coordinator.bodies(StepOpened)) == 2)
        assert {report.opening for report in coordinator.bodies(StepOpened)} == {opening}


async def test_commands_for_another_fence_are_ignored(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        for fence in (2, 7):
            await coordinator.send(node.address, Command(assign.lease, fence, StopTask()))
        await coordinator.send(node.address, Command("ff" * 16, 1, StopTask()))
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))


async def test_an_assignment_that_comes_twice_starts_one_worker(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "checkpoint")
        for _ in range(3):
            await coordinator.assign(node.address, assign)
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert len(coordinator.bodies(TaskReady)) == len(node.pids()) == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("garbage", "broke the protocol"),
        ("huge", "beyond the limits"),
        ("stranger", "broke the protocol"),
        ("forged", "but its bytes are"),
        ("misplaced", "a Validation carries no artifact"),
        ("flood", "reports too much"),
        ("failing", "the dataset is not what it seems"),
        ("dying", "exit code 7: the last words of this worker"),
    ],
)
async def test_a_hostile_or_broken_worker_ends_its_task_and_nothing_else(
    coordinator: Double, start_agent: StartAgent, script: str, words: str
) -> None:
    async with start_agent() as node:
        healthy, sick = alone(coordinator, node, "checkpoint"), alone(coordinator, node, script)
        await coordinator.assign(node.address, healthy)
        await coordinator.until(lambda: coordinator.bodies(TaskReady, healthy.lease))
        coordinator.acknowledge = script != "flood"
        await coordinator.assign(node.address, sick)
        await coordinator.until(lambda: coordinator.bodies(TaskFailed, sick.lease))
        assert words in coordinator.bodies(TaskFailed, sick.lease)[0].reason
        assert len(coordinator.bodies(TaskFailed)) == 1
        await coordinator.until(lambda: len(node.pids()) == 1)
        await coordinator.command(node.address, healthy, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened, healthy.lease))


@pytest.mark.parametrize("name", ["../escape", "a/b", "worker.sock", ".."])
async def test_a_file_name_cannot_leave_the_jobs_folder(
    coordinator: Double, start_agent: StartAgent, name: str
) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "checkpoint")
        assign.files[name] = coordinator.store(b"evil")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))
        assert "cannot be the name of a job's file" in coordinator.bodies(TaskFailed)[0].reason


async def test_a_missing_artifact_fails_the_task_with_its_name(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = alone(coordinator, node, "checkpoint")
        coordinator.artifacts.clear()
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))
        assert assign.files["config.json"] in coordinator.bodies(TaskFailed)[0].reason


async def test_a_refused_node_stops_and_says_why(coordinator: Double, start_agent: StartAgent) -> None:
    coordinator.refusal = Refused("the key FooBar is used by another machine: give this one a key of its own")
    async with start_agent() as node:
        with pytest.raises(CoordinatorRefusedError, match="used by another machine"):
            await node.task
    assert len(coordinator.hellos) == 1


async def test_a_node_that_is_refused_for_a_while_shows_it_and_comes_back(
    coordinator: Double, start_agent: StartAgent
) -> None:
    coordinator.refusal = Refused("the key is used twice: wait a little", retry_seconds=0.2)
    async with start_agent() as node:
        await coordinator.until(lambda: node.agent.status().state == "refused")
        assert "used twice" in node.agent.status().reason
        coordinator.refusal = None
        await coordinator.until(lambda: node.agent.status().state == "online")


async def test_a_coordinator_under_a_foreign_name_gets_no_signature(
    coordinator: Double, start_agent: StartAgent
) -> None:
    coordinator.host = "another.example:443"
    async with start_agent() as node:
        coordinator.refusal = Refused("unused")
        await coordinator.until(lambda: "another.example" in node.agent.status().reason)
        assert not coordinator.hellos
