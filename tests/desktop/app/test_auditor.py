"""The operator's auditor as a program: says what it is, takes no seat, finishes what it has begun, stays through everything."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from desktop.agent.app import auditor as auditor_module
from desktop.agent.cli import auditor_cli
from desktop.agent.jobs.holdings import END_TASKS_S
from protocol.identity import NodeKey
from protocol.node import Assign, Refused
from protocol.task import AuditReport, ReplayStep, TaskFailed, TaskReady
from tests.desktop.conftest import assignment, plan_of
from tests.desktop.coordinator_double import Double

PROGRAM = Path(__file__).parents[1].joinpath("agent_program.py")
ROOT = Path(__file__).parents[3]
SOMEBODY = NodeKey(b"s" * 32).address
OTHER = "cd" * 16


@dataclass
class Program:
    process: asyncio.subprocess.Process
    data: Path
    log: Path

    @property
    def address(self) -> str:
        return NodeKey.load(self.data / "node.key").address

    async def ended(self, patience: float = 40) -> tuple[int, str]:
        async with asyncio.timeout(patience):
            code = await self.process.wait()
        return code, self.log.read_text()

    async def says(self, text: str, patience: float = 40) -> None:
        async with asyncio.timeout(patience):
            while text not in self.log.read_text():
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def auditor(folder: Path, url: str, *arguments: str, data: Path | None = None) -> AsyncIterator[Program]:
    """The program with the scripted worker; its standard input stays open until it has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    data, log = data or folder / "data", folder / "output"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            "auditor",
            "--coordinator",
            url,
            "--data",
            str(data),
            "--sandbox",
            "process",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "xdg")},
        )
    try:
        yield Program(process, data, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def lease_of(coordinator: Double, program: Program, script: str = "pondering") -> Assign:
    """A spare lease whose worker is ready."""
    await coordinator.until(lambda: coordinator.nodes)
    assign = assignment(coordinator, plan_of((0, 0, SOMEBODY)), None, None, script)
    await coordinator.assign(program.address, assign)
    await coordinator.until(lambda: coordinator.bodies(TaskReady, assign.lease))
    return assign


def replay(coordinator: Double, assign: Assign, audit: str = "ab" * 16) -> ReplayStep:
    opening = coordinator.store(b"an opened step")
    return ReplayStep(audit, assign.plan, 0, 0, 2, 0, 5, 100, "12" * 32, 10, "34" * 32, None, opening)


async def test_it_makes_a_key_says_its_address_and_what_it_is(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        await coordinator.until(lambda: coordinator.nodes)
        [hello] = coordinator.hellos
        assert hello.profile.auditor
        assert (hello.node, hello.payout, hello.profile.name) == (program.address, program.address, "auditor")
        assert f"cottage serve --auditor {program.address}" in program.log.read_text()
        await coordinator.until(lambda: coordinator.beats)  # Now it can say goodbye.
        program.process.terminate()
        code, log = await program.ended()
        assert (code, "Traceback" in log) == (0, False)
    await coordinator.until(lambda: coordinator.goodbyes)
    assert coordinator.goodbyes == ["the auditor was stopped"]
    async with auditor(tmp_path, coordinator.url) as again:
        await coordinator.until(lambda: len(coordinator.hellos) == 2)
        assert coordinator.hellos[1].node == hello.node
        again.process.terminate()
        await again.ended()


@pytest.mark.long
async def test_its_key_may_lie_elsewhere(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url, "--key", str(tmp_path / "my.key")):
        await coordinator.until(lambda: coordinator.nodes)
        assert coordinator.hellos[0].node == NodeKey.load(tmp_path / "my.key").address


async def test_it_takes_no_seat_and_runs_again_what_it_is_given(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        await coordinator.until(lambda: coordinator.nodes)
        seat = assignment(coordinator, plan_of((0, 0, program.address)), 0, 0, "checkpoint")
        await coordinator.assign(program.address, seat)
        assign = await lease_of(coordinator, program)
        await coordinator.command(program.address, assign, replay(coordinator, assign))
        await coordinator.until(lambda: coordinator.bodies(AuditReport))
        assert [(r.audit, r.verdict) for r in coordinator.bodies(AuditReport)] == [("ab" * 16, "match")]
        assert not coordinator.bodies(TaskReady, seat.lease)
        assert "an auditor takes no seat" in program.log.read_text()
        await program.says("round 3, step 5 of stage 0 replica 0: match")


@pytest.mark.long
async def test_what_it_has_begun_is_finished_before_it_leaves(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        assign = await lease_of(coordinator, program)
        await coordinator.command(program.address, assign, replay(coordinator, assign))
        await coordinator.until(lambda: coordinator.beats)
        await asyncio.sleep(0.5)  # The command is with the program; nothing tells that.
        program.process.terminate()
        await coordinator.until(lambda: not coordinator.beats[-1][1].accepting)
        await coordinator.command(program.address, assign, replay(coordinator, assign, OTHER))
        code, log = await program.ended()
        assert (code, "Traceback" in log) == (0, False)
        assert [r.audit for r in coordinator.bodies(AuditReport)] == ["ab" * 16], "what comes later is left to others"
        await coordinator.until(lambda: coordinator.goodbyes)
        assert coordinator.goodbyes == ["the auditor was stopped"]


@pytest.mark.long
async def test_a_second_signal_does_not_wait(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        assign = await lease_of(coordinator, program)
        for audit in range(10):  # Half a minute of it.
            await coordinator.command(program.address, assign, replay(coordinator, assign, f"{audit:032x}"))
        await coordinator.until(lambda: coordinator.bodies(AuditReport))
        program.process.terminate()
        await program.says("leaving once")
        program.process.terminate()
        code, _ = await program.ended(15)
        assert code == 0
        assert len(coordinator.bodies(AuditReport)) < 10
        await coordinator.until(lambda: coordinator.goodbyes)
        assert coordinator.goodbyes == ["the auditor was stopped"]


@pytest.mark.long
async def test_however_many_steps_are_asked_for_each_is_run_again_once(coordinator: Double, tmp_path: Path) -> None:
    count = 100  # A worker takes 64.
    async with auditor(tmp_path, coordinator.url) as program:
        assign = await lease_of(coordinator, program, "hasty")
        audits = [f"{number:032x}" for number in range(count)]
        for audit in audits + audits:
            await coordinator.command(program.address, assign, replay(coordinator, assign, audit))
        await coordinator.until(lambda: len(coordinator.bodies(AuditReport)) >= count, 60)
        await asyncio.sleep(1.0)
        assert [report.audit for report in coordinator.bodies(AuditReport)] == audits


@pytest.mark.long
async def test_a_worker_that_does_not_come_to_an_end_is_given_up(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        assign = await lease_of(coordinator, program, "silent")
        await coordinator.command(program.address, assign, replay(coordinator, assign))
        await program.says("its worker has not come to an end of a step")
        await coordinator.until(lambda: not coordinator.beats[-1][1].leases)


async def test_it_comes_back_to_a_coordinator_that_was_away_and_keeps_its_lease(
    coordinator: Double, tmp_path: Path
) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        assign = await lease_of(coordinator, program)
        await coordinator.stop()
        await program.says("next try in")
        await coordinator.start()
        await coordinator.until(lambda: coordinator.nodes)
        assert [held.lease for held in coordinator.hellos[-1].leases] == [assign.lease]
        await coordinator.command(program.address, assign, replay(coordinator, assign))
        await coordinator.until(lambda: coordinator.bodies(AuditReport))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("retry", [0.2, None])
async def test_a_refusal_is_said_and_it_knocks_again(coordinator: Double, tmp_path: Path, retry: float | None) -> None:
    coordinator.refusal = Refused("this auditor is not named here", retry)
    async with auditor(tmp_path, coordinator.url) as program:
        await program.says("this auditor is not named here")
        coordinator.refusal = None
        await coordinator.until(lambda: coordinator.nodes, 60)
        assert "Traceback" not in program.log.read_text()


async def test_a_job_whose_files_cannot_be_used_gives_the_auditor_no_rest(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        await coordinator.until(lambda: coordinator.nodes)
        plan = plan_of((0, 0, SOMEBODY))
        await coordinator.assign(program.address, assignment(coordinator, plan, None, None, "unusable"))
        await program.says("the job itself cannot go on: wte.weight is (8, 4), the config makes it (16, 4)")
        assert "failed in a row" not in program.log.read_text()
        await lease_of(coordinator, program)


async def test_a_worker_that_fails_is_told_and_the_next_lease_waits_a_little(
    coordinator: Double, tmp_path: Path
) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        await coordinator.until(lambda: coordinator.nodes)
        plan = plan_of((0, 0, SOMEBODY))
        await coordinator.assign(program.address, assignment(coordinator, plan, None, None, "failing"))
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))
        await program.says("1 workers failed in a row, the last one: the dataset is not what it seems")
        await coordinator.until(lambda: coordinator.beats and coordinator.beats[-1][1].accepting)
        await lease_of(coordinator, program)


@pytest.mark.long
async def test_a_second_one_with_the_same_data_is_told_whom_it_meets(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url) as program:
        await coordinator.until(lambda: coordinator.nodes)
        async with auditor(tmp_path / "second", coordinator.url, data=program.data) as second:
            code, log = await second.ended()
            assert code == 5
            assert f"process {program.process.pid}" in log
        assert len(coordinator.hellos) == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("words", "named"),
    [(("--threads", "-1"), "threads"), (("--memory-mb", "1"), "at least 512"), (("--gpu", "99"), "gpu")],
)
async def test_a_bad_setting_is_named(tmp_path: Path, words: tuple[str, str], named: str) -> None:
    async with auditor(tmp_path, "http://127.0.0.1:9", *words) as program:
        code, log = await program.ended()
        assert (code, "Traceback" in log) == (2, False)
        assert named in log


async def test_a_bound_one_ends_with_whoever_started_it(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url, "--bound") as program:
        await lease_of(coordinator, program)
        workers = children(program.process.pid)
        assert workers
        assert program.process.stdin is not None
        program.process.stdin.close()
        code, log = await program.ended()
        assert (code, "Traceback" in log) == (0, False)
        assert "has ended" in log
        assert not any(is_alive(worker) for worker in workers)


@pytest.mark.long
async def test_a_bound_one_ends_even_where_its_loop_stands_still(coordinator: Double, tmp_path: Path) -> None:
    async with auditor(tmp_path, coordinator.url, "--bound") as program:
        await coordinator.until(lambda: coordinator.nodes)
        assert program.process.stdin is not None
        program.process.send_signal(signal.SIGUSR1)
        await program.says("the loop stands still")
        program.process.stdin.close()
        code, _ = await program.ended()
        assert code == 1


SERVICE = ROOT / "installer" / "auditor" / "cottage-auditor.service"


def test_the_unit_uses_options_that_the_command_knows() -> None:
    lines = [line for line in SERVICE.read_text().splitlines() if "ExecStart=" in line or "AUDITOR_OPTIONS=" in line]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(lines)))
    known = {option for action in auditor_cli._parser()._actions for option in action.option_strings}
    assert named >= {"--data", "--coordinator", "--sandbox"}
    assert named <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_systemd_unit_holds_is_confined_and_leaves_time_to_finish(tmp_path: Path) -> None:
    unit = tmp_path / SERVICE.name
    unit.write_text(SERVICE.read_text().replace("/opt/cottage/bin/cottage", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if SERVICE.name in line]
    lines = unit.read_text().splitlines()
    for line in ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "KillMode=mixed"):
        assert line in lines
    [stop] = [float(line.partition("=")[2]) for line in lines if line.startswith("TimeoutStopSec=")]
    assert stop > auditor_module.DRAIN_S + END_TASKS_S


def test_it_loads_neither_links_nor_a_ledger() -> None:
    program = "import sys, desktop.agent.cli.auditor_cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert "desktop.agent.coordinator.session" in loaded
    assert not {"aiortc", "solana", "ledger.client", "torch", "transport.peer.peer"} & loaded
