"""Rules by which a computer lends at all: the GPU's toolkit, and what follows when somebody reached into a job."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from desktop.agent.base.activity import Activity
from desktop.agent.earnings import stake_warnings
from desktop.agent.errors import GaveUpError
from desktop.agent.sandbox import toolkit
from desktop.agent.sandbox.base import Exit, SandboxLimits, SandboxWorker
from desktop.agent.sandbox.process import ProcessSandbox
from protocol.node import Beat, Unanswered
from protocol.task import TaskFailed
from tests.desktop.conftest import SCRIPT, StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.wait import HANGS_S

SAID = "NVIDIA Container Toolkit CLI version {}\ncommit: 68c5a0d\n"


@pytest.mark.parametrize("version", ["1.17.8", "1.17.9", "1.18.0-rc.2", "2.0.0", "1.17.8-1", "1.100.0"])
def test_toolkits_that_are_mended_may_give_a_gpu(version: str) -> None:
    assert toolkit.fault(SAID.format(version)) == ""


@pytest.mark.parametrize("version", ["1.17.7", "1.16.2", "1.9.0", "0.99.99", "1.17.8-rc.1", "1.17.8~rc.1"])
def test_toolkits_with_a_known_hole_may_not_and_the_text_names_version_hole_and_way_out(version: str) -> None:
    fault = toolkit.fault(SAID.format(version))
    assert version in fault
    assert "CVE-2025-23266" in fault
    assert "install nvidia-container-toolkit 1.17.8 or newer" in fault


@pytest.mark.parametrize("said", [None, "", "command not found", "version 1.17", "version " + "9" * 40 + ".1.1"])
def test_a_toolkit_that_does_not_say_its_version_may_not(said: str | None) -> None:
    assert "1.17.8 or newer" in toolkit.fault(said)


def test_the_toolkit_is_asked_by_its_own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert toolkit.installed() is None
    program = tmp_path / "nvidia-ctk"
    program.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'NVIDIA Container Toolkit CLI version 1.17.8'\n")
    program.chmod(0o755)
    assert toolkit.fault(toolkit.installed()) == ""


class ReachedInto(ProcessSandbox):
    """Its worker ends as one does that somebody reached into, once ``reached`` is set."""

    def __init__(self) -> None:
        super().__init__(SandboxLimits(1024, 1), command=(sys.executable, str(SCRIPT)))
        self.reached = False
        self.worker: Any = None

    async def start(  # type: ignore[override]
        self, lease: str, folder: Path, data: Path | None = None
    ) -> SandboxWorker:
        worker: Any = await super().start(lease, folder, data)
        ended = worker.ended

        async def seen() -> Exit | None:
            if self.reached:
                return Exit(None, "somebody on this computer reached into the job's container", tampered=True)
            found: Exit | None = await ended()
            return found

        worker.ended, self.worker = seen, worker
        return self.worker


async def test_who_was_reached_into_reports_it_takes_no_other_job_and_leaves(
    start_agent: StartAgent, coordinator: Double
) -> None:
    sandbox = ReachedInto()
    async with start_agent(sandbox=sandbox) as running:
        address = running.address
        await coordinator.assign(address, assignment(coordinator, plan_of((0, 0, address)), 0, 0, "checkpoint"))
        async with asyncio.timeout(HANGS_S):
            while not [task for task in running.agent.status().tasks if task.state == "running"]:
                await asyncio.sleep(0.02)
        sandbox.reached = True
        await sandbox.worker.stop(0)  # As the watch does.
        async with asyncio.timeout(HANGS_S):
            while not running.agent._gave_up:
                await asyncio.sleep(0.02)
        assert not running.agent.accepting()
        await asyncio.wait((running.task,), timeout=30)
        error = running.task.exception()
    assert isinstance(error, GaveUpError)
    assert "No other job is taken until you switch lending on again" in str(error)
    assert "Another time within 30 days costs 2 % of this node's stake" in str(error)
    assert (error.cause, error.detail["percent"]) == ("tampered", "2")
    assert error.detail["what"] in str(error)
    said = [report.body for _, report in coordinator.reports if isinstance(report.body, TaskFailed)]
    assert {body.tampered for body in said} == {True}
    assert len(coordinator.goodbyes) == 1


async def test_who_did_not_show_its_work_is_told_once_takes_no_other_job_and_leaves(
    start_agent: StartAgent, coordinator: Double, tmp_path: Path
) -> None:
    async with start_agent() as running:
        activity = running.agent._books.activity
        assert stake_warnings.unanswered(activity, 2.0, 1_700_000_000.5)
        await coordinator.send(running.address, Unanswered(1_700_000_000.5))  # As at each connection.
        await coordinator.send(running.address, Beat(0.3))
        beats = len(coordinator.beats)
        await coordinator.until(lambda: len(coordinator.beats) > beats + 2)
        assert running.agent.accepting(), "its owner knows of that one, and has switched lending on since"
        await coordinator.send(running.address, Unanswered(1_700_000_999.5))
        await asyncio.wait((running.task,), timeout=30)
        error = running.task.exception()
    assert isinstance(error, GaveUpError)
    assert "did not" in str(error)
    assert (error.cause, error.detail) == ("unanswered", {"days": "30", "percent": "5"})
    assert "No other job is taken until you switch lending on again" in str(error)
    assert "Another time within 30 days costs 5 % of this node's stake" in str(error)
    again = Activity(running.home.activity)
    told = [event for event in again.newest().events if event.kind == "unanswered"]
    assert [event.detail["when"] for event in told] == ["1700000999.500", "1700000000.500"]
    assert stake_warnings.unanswered(again, 3.0, 1_700_000_999.5) is None, "the next agent of this home knows it too"
    again.close()
