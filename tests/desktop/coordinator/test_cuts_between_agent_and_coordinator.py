"""The connection breaks, the coordinator restarts, acknowledgements get lost: nothing is said twice as new, nothing is lost."""

from desktop.agent.jobs.holdings import ORPHAN_S
from protocol.node import Acknowledged, HeldLease, Signal
from protocol.task import ApplyRound, BeginRound, OpenStep, RoundApplied, StepOpened, TaskReady
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double

BEGIN = {"round": 3, "first_step": 30, "steps": 10, "total_steps": 100}


async def test_after_a_restart_of_the_coordinator_the_node_names_its_leases(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        [pid] = node.pids()
        await coordinator.stop()
        await coordinator.until(lambda: node.agent.status().state != "online")
        await coordinator.start()
        await coordinator.until(lambda: len(coordinator.hellos) == 2)
        assert coordinator.hellos[1].leases == (HeldLease(assign.lease, assign.fence),)
        await coordinator.until(lambda: node.address in coordinator.nodes)
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert node.pids() == [pid]


async def test_reports_are_sent_again_until_they_are_acknowledged(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        coordinator.acknowledge = False
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.command(node.address, assign, ApplyRound(0, 3, {}, checkpoint=True))
        await coordinator.until(lambda: coordinator.bodies(RoundApplied))
        first = [report for _, report in coordinator.reports if report.seq]
        coordinator.reports.clear()
        await coordinator.send(node.address, Acknowledged(assign.lease, 1))
        await coordinator.stop()
        await coordinator.start()
        await coordinator.until(lambda: coordinator.bodies(RoundApplied))
        assert [report for _, report in coordinator.reports if report.seq] == first[1:]
        coordinator.acknowledge = True
        await coordinator.stop()
        await coordinator.start()
        await coordinator.until(lambda: len(node.agent._holdings.tasks[assign.lease].outbox) == 0)
        seen = len([report for _, report in coordinator.reports if report.seq])
        await coordinator.stop()
        await coordinator.start()
        await coordinator.until(lambda: len(coordinator.hellos) == 4 and node.address in coordinator.nodes)
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert len([report for _, report in coordinator.reports if report.seq]) == seen + 1


async def test_a_report_made_while_the_coordinator_is_away_arrives_afterwards(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        task = node.agent._holdings.tasks[assign.lease]
        await coordinator.until(lambda: len(task.outbox) == 0)
        await coordinator.stop()
        await coordinator.until(lambda: node.agent.status().state != "online")
        assert task.bridge.command(ApplyRound(0, 3, {}, checkpoint=True))
        await coordinator.start()
        await coordinator.until(lambda: coordinator.bodies(RoundApplied))
        [applied] = coordinator.bodies(RoundApplied)
        assert applied.checkpoint in coordinator.artifacts


async def test_a_failure_is_told_even_when_nobody_listens_at_first(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "failing")
        coordinator.acknowledge = False
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: not node.agent.held() and coordinator.reports)
        heard = len(coordinator.reports)  # A crowded machine may have lost its connection, and told it again, already.
        coordinator.acknowledge = True
        await coordinator.stop()
        await coordinator.start()
        await coordinator.until(lambda: len(coordinator.reports) > heard)
        assert all(report == coordinator.reports[0] for report in coordinator.reports)
        assert coordinator.hellos[-1].leases == ()
        await coordinator.until(lambda: not node.agent.status().tasks)


async def test_a_download_that_was_cut_goes_on_where_it_stopped(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        data = bytes(range(256)) * 20_000
        digest = coordinator.store(data)
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        coordinator.cut_after = 2_000_000
        await coordinator.command(node.address, assign, BeginRound(assign.plan, **BEGIN, state=digest))
        await coordinator.until(lambda: (node.home.cache / digest).exists())
        ranges = [span for method, name, span in coordinator.requests if (method, name) == ("GET", digest)]
        assert ranges[0] == ""
        assert ranges[1].startswith("bytes=")
        assert ranges[1] != "bytes=0-"
        assert (await node.agent._artifacts.fetch_payload(digest)).read() == data
        assert len([request for request in coordinator.requests if request[1] == digest]) == 2


async def test_a_damaged_download_is_thrown_away_and_fetched_again(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        coordinator.damage = 1
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        assert len([r for r in coordinator.requests if r[0] == "GET"]) == 2


async def test_signals_without_a_known_peer_do_no_harm(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        await coordinator.send(node.address, Signal(node.address, b"\xffnonsense"))
        seen = len(coordinator.beats)
        await coordinator.until(lambda: len(coordinator.beats) > seen + 2)
        assert node.agent.status().state == "online"


async def test_workers_do_not_go_on_for_a_coordinator_that_never_comes_back(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        await coordinator.stop()
        await coordinator.until(lambda: node.agent.status().state != "online")
        node.agent._session.last_seen -= ORPHAN_S
        await coordinator.until(lambda: not node.pids())
        assert node.agent.held() == ()
