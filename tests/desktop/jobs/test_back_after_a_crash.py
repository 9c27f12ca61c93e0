"""An agent, or a worker, that dies: the next one has the records of its rounds, says so, and opens what is drawn of them."""

import hashlib
import os
import signal

import pytest

from desktop.agent.app.agent import TRAFFIC_S
from desktop.agent.base.activity import Activity
from desktop.agent.jobs import worker_bridge
from protocol.node import Acknowledged, Assign, HeldLease
from protocol.task import (
    ApplyRound,
    BeginRound,
    OpeningMade,
    OpenStep,
    RoundApplied,
    RoundCommit,
    ShowLeaf,
    StepOpened,
    StopTask,
    TaskFailed,
    TaskReady,
    Traffic,
)
from tests.desktop.conftest import Running, StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.desktop.scripted_worker import RECORD, STATE

AUDIT = "ef" * 16


async def two_rounds(coordinator: Double, node: Running, job: str = "recording") -> Assign:
    """The node does a round, applies it, and commits to another; the coordinator has stored all of it."""
    assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, job)
    await coordinator.assign(node.address, assign)
    for number in (0, 1):
        await coordinator.command(node.address, assign, BeginRound(assign.plan, number, 10 * number, 10, 100))
        await coordinator.until(lambda number=number: len(coordinator.bodies(RoundCommit)) > number)
        if number == 0:
            await coordinator.command(node.address, assign, ApplyRound(0, 0, {0: "ab" * 32}))
            await coordinator.until(lambda: coordinator.bodies(RoundApplied))
    return assign


def last_seq(coordinator: Double) -> int:
    return max(report.seq for _, report in coordinator.reports)


async def crash(coordinator: Double, node: Running) -> None:
    """As if the process were killed: nothing is said, and nothing is put away."""
    node.task.cancel()
    await coordinator.until(lambda: node.task.done() and node.address not in coordinator.nodes)


def named(coordinator: Double, worker: str) -> bool:
    return any(lease.worker == worker for lease in coordinator.beats[-1][1].leases)


async def test_the_next_agent_says_what_it_has_opens_it_and_goes(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = await two_rounds(coordinator, node)
        before = last_seq(coordinator)
        await crash(coordinator, node)
    assert coordinator.goodbyes == []
    async with start_agent() as node:
        assert coordinator.hellos[-1].leases == (HeldLease(assign.lease, assign.fence, "restoring"),)
        await coordinator.until(lambda: named(coordinator, "restored"))
        coordinator.reports.clear()
        coordinator.acknowledge = False  # Whoever hears of it late is asked late.
        await coordinator.command(node.address, assign, OpenStep(AUDIT, 0, 1, 3))
        await coordinator.command(node.address, assign, BeginRound(assign.plan, 2, 20, 10, 100))
        await coordinator.send(node.address, Acknowledged(assign.lease, before))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        opening = b"|".join((STATE, RECORD + b"\x01"))
        assert [report.seq for _, report in coordinator.reports] == [before + 1, before + 2]
        assert [report.lease for _, report in coordinator.reports] == [assign.lease] * 2
        digest = hashlib.sha256(opening).hexdigest()
        assert coordinator.bodies(OpeningMade) == [OpeningMade(AUDIT, digest, len(opening))]
        assert coordinator.bodies(StepOpened)[0].opening == digest
        assert coordinator.artifacts[digest] == opening
        [event] = [event for event in Activity(node.home.activity).newest().events if event.kind == "returned"]
        assert event.text == "back after a crash: shows the work of round 2 of job 'recording', so that it is paid"
        [task] = node.agent.status().tasks
        assert task.shown == 1
        await coordinator.command(node.address, assign, StopTask("what was drawn of it is opened"))
        await coordinator.until(lambda: not coordinator.beats[-1][1].leases)
        await coordinator.until(lambda: not any(node.home.records.iterdir()))
    assert not coordinator.bodies(RoundCommit), "it trains no more"
    assert not coordinator.bodies(TaskReady)


async def test_a_lease_that_the_coordinator_has_let_go_is_let_go_here(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = await two_rounds(coordinator, node)
        await crash(coordinator, node)
    coordinator.gone.append(assign.lease)
    async with start_agent() as node:
        await coordinator.until(lambda: not any(node.home.records.iterdir()))
        await coordinator.until(lambda: coordinator.beats[-1][1].leases == ())
        assert coordinator.bodies(TaskFailed) == []


async def test_who_leaves_by_intent_keeps_no_records(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        await two_rounds(coordinator, node)
        assert any(node.home.records.iterdir())
    assert coordinator.goodbyes
    assert not any(node.home.records.iterdir())
    async with start_agent():
        assert coordinator.hellos[-1].leases == ()


async def test_torn_records_are_none(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        await two_rounds(coordinator, node)
        await crash(coordinator, node)
    for file in node.home.records.rglob("*.steps.sealed"):
        file.write_bytes(file.read_bytes()[:-3])
    async with start_agent() as node:
        assert coordinator.hellos[-1].leases == ()
        assert not any(node.home.records.iterdir())


async def test_a_round_that_is_not_among_them_is_no_refusal(coordinator: Double, start_agent: StartAgent) -> None:
    """A refusal would cost stake the second time; who is back without its records has left."""
    async with start_agent() as node:
        assign = await two_rounds(coordinator, node)
        before = last_seq(coordinator)
        await crash(coordinator, node)
    coordinator.reports.clear()
    async with start_agent() as node:
        await coordinator.until(lambda: named(coordinator, "restored"))
        beats = len(coordinator.beats)
        await coordinator.until(lambda: len(coordinator.beats) > beats + 2 * TRAFFIC_S / coordinator.heartbeat_seconds)
        await coordinator.send(node.address, Acknowledged(assign.lease, before))
        await coordinator.command(node.address, assign, OpenStep(AUDIT, 0, 7, 3))
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))
        assert not any(isinstance(report.body, Traffic) for _, report in coordinator.reports)
        assert "the records on the disk do not show it: not here" in coordinator.bodies(TaskFailed)[0].reason
        assert coordinator.bodies(StepOpened) == []


async def test_a_worker_that_is_killed_while_its_agent_lives_is_followed_by_another(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = await two_rounds(coordinator, node)
        before = last_seq(coordinator)
        [pid] = node.pids()
        os.kill(pid, signal.SIGKILL)
        await coordinator.until(lambda: named(coordinator, "restoring") or named(coordinator, "restored"))
        await coordinator.until(lambda: named(coordinator, "restored"))
        await coordinator.send(node.address, Acknowledged(assign.lease, before))
        await coordinator.command(node.address, assign, OpenStep(AUDIT, 0, 0, 3))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert coordinator.artifacts[coordinator.bodies(StepOpened)[0].opening] == RECORD + b"\x00"
        assert coordinator.bodies(TaskFailed) == []
        kinds = [event.kind for event in reversed(Activity(node.home.activity).newest().events)]
        assert kinds[-3:] == ["job began", "job failed", "returned"]
        [other] = node.pids()
        os.kill(other, signal.SIGKILL)
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))
        await coordinator.until(lambda: not any(node.home.records.iterdir()))


async def test_the_second_worker_that_dies_in_one_job_has_failed_it(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        first = await two_rounds(coordinator, node)
        os.kill(node.pids()[0], signal.SIGKILL)
        await coordinator.until(lambda: named(coordinator, "restored"))
        await coordinator.command(node.address, first, StopTask("opened"))
        await coordinator.until(lambda: not node.pids())
        coordinator.reports.clear()
        second = await two_rounds(coordinator, node)
        os.kill(node.pids()[0], signal.SIGKILL)
        await coordinator.until(lambda: coordinator.bodies(TaskFailed, second.lease))
        assert "SIGKILL" in coordinator.bodies(TaskFailed)[0].reason


async def test_a_worker_that_dies_before_its_first_round_has_failed(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "recording")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        os.kill(node.pids()[0], signal.SIGKILL)
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))


async def test_a_restored_worker_is_asked_for_leaves_too_and_does_nothing_else(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = await two_rounds(coordinator, node)
        await crash(coordinator, node)
    async with start_agent() as node:
        await coordinator.until(lambda: named(coordinator, "restored"))
        [task] = node.agent._holdings.alive()
        assert task.command(ShowLeaf(AUDIT, 0, 1, 3))
        assert not task.command(ApplyRound(0, 1, {0: "ab" * 32}))
        assert not task.command(BeginRound(assign.plan, 2, 20, 10, 100))


@pytest.mark.parametrize("words", ["No space left on device", "Input/output error"])
async def test_a_disk_that_takes_no_records_costs_the_records_only(
    words: str, coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_agent() as node:

        def full(*_: object) -> None:
            raise OSError(words)

        monkeypatch.setattr(node.agent._records, "keep", full)
        await two_rounds(coordinator, node)
        assert len(coordinator.bodies(RoundCommit)) == 2
        assert coordinator.bodies(TaskFailed) == []
        await crash(coordinator, node)
    async with start_agent():
        assert coordinator.hellos[-1].leases == ()


async def test_a_worker_has_back_what_it_let_go_a_little_at_a_time(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_bridge, "RETURNED_AT_ONCE", 1000)
    async with start_agent() as node:
        assign = await two_rounds(coordinator, node, "recalling")
        await coordinator.command(node.address, assign, OpenStep(AUDIT, 0, 1, 3))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        [opened] = coordinator.bodies(StepOpened)
        assert coordinator.artifacts[opened.opening] == b"|".join((STATE, RECORD + b"\x01"))
        assert opened.reason == "kept were 1", "of the first round the agent has not got what it began with"


async def test_what_the_disk_has_lost_does_not_come_back(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = await two_rounds(coordinator, node, "recalling")
        for file in node.home.records.rglob("0-1.steps.sealed"):
            file.unlink()
        await coordinator.command(node.address, assign, OpenStep(AUDIT, 0, 1, 3))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert coordinator.bodies(StepOpened) == [StepOpened(AUDIT, None, "lost; kept were 1")]
