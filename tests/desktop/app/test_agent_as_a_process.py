"""The program itself: how it starts, what it leaves behind when it is stopped or killed, and what it says of itself."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from desktop.agent.app import status
from desktop.agent.cli.cli import OPEN_FILES
from desktop.agent.errors import AgentError
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.node import Assign, JobEarned, LedgerInfo, Promised, Refused
from protocol.task import OpenStep, StepOpened, TaskFailed, TaskReady
from tests.desktop.conftest import assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.ledger.by_hand import promise
from tests.ledger.served import served
from tests.support.docker import IMAGE

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parents[1].joinpath("agent_program.py")


@dataclass
class Program:
    process: asyncio.subprocess.Process
    home: Path
    address: str

    async def end(self, number: int, patience: float = 25) -> tuple[int, str]:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        async with asyncio.timeout(patience):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


def agent_program(
    home: Path, url: str, *arguments: str, program: Path | None = PROGRAM, environment: Mapping[str, str] = os.environ
) -> AbstractAsyncContextManager[Program]:
    @contextlib.asynccontextmanager
    async def run() -> AsyncIterator[Program]:
        key = NodeKey.load_or_generate(home / "node.key")
        words = [str(program)] if program else ["-m", "desktop.agent"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            "run",
            "--always",
            "--home",
            str(home),
            "--coordinator",
            url,
            "--threads",
            "1",
            *arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment) | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(home / "xdg")},
        )
        try:
            yield Program(process, home, key.address)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return run()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def running_task(coordinator: Double, node: Program, script: str) -> tuple[Assign, int]:
    await coordinator.until(lambda: node.address in coordinator.nodes)
    assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, script)
    await coordinator.assign(node.address, assign)
    await coordinator.until(lambda: coordinator.bodies(TaskReady) or coordinator.bodies(TaskFailed))
    assert not coordinator.bodies(TaskFailed), coordinator.bodies(TaskFailed)
    view = await status.ask(node.home / "agent.sock")
    [task] = view.tasks
    assert task.pid is not None
    return assign, task.pid


@pytest.mark.one_in(2)
@pytest.mark.parametrize("script", ["checkpoint", "hanging"])
async def test_a_stopped_agent_says_goodbye_and_leaves_no_process_behind(
    coordinator: Double, tmp_path: Path, script: str
) -> None:
    async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process", "--loopback") as node:
        _, worker = await running_task(coordinator, node, script)
        code, log = await node.end(signal.SIGTERM)
        assert code == 0
        assert "Traceback" not in log
        assert "jobs run as plain processes with YOUR rights" in log
        assert coordinator.goodbyes == ["the owner stopped the agent"]
        assert not is_alive(worker)
        assert not (node.home / "agent.sock").exists()
        assert not list((node.home / "jobs").iterdir())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("script", ["checkpoint", "hanging"])
async def test_the_worker_of_a_killed_agent_dies_with_it(coordinator: Double, tmp_path: Path, script: str) -> None:
    async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as node:
        _, worker = await running_task(coordinator, node, script)
        await node.end(signal.SIGKILL)
        await coordinator.until(lambda: not is_alive(worker))


async def test_a_killed_agent_starts_again_with_the_same_key_and_no_leases(coordinator: Double, tmp_path: Path) -> None:
    for _ in range(2):
        async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as node:
            await running_task(coordinator, node, "checkpoint")
            await node.end(signal.SIGKILL)
        coordinator.reports.clear()
        await coordinator.until(lambda: not coordinator.nodes)
    first, second = coordinator.hellos
    assert first.node == second.node
    assert second.leases == ()


async def test_an_agent_that_finds_no_coordinator_waits_and_can_be_stopped(tmp_path: Path) -> None:
    async with agent_program(tmp_path / "home", "http://127.0.0.1:9", "--sandbox", "process") as node:
        assert node.process.stderr is not None
        async with asyncio.timeout(30):
            while b"no connection to http://127.0.0.1:9" not in await node.process.stderr.readline():
                pass
        view = await status.ask(node.home / "agent.sock")
        assert (view.state, view.tasks) == ("connecting", ())
        code, log = await node.end(signal.SIGTERM)
        assert (code, "Traceback" in log) == (0, False)


async def test_an_agent_may_open_more_files_than_systems_begin_with(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, before[1]))
    try:
        async with agent_program(tmp_path / "home", "http://127.0.0.1:9", "--sandbox", "process") as node:
            assert node.process.stderr is not None
            async with asyncio.timeout(30):
                while b"no connection to http://127.0.0.1:9" not in await node.process.stderr.readline():
                    pass
            soft, hard = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
            assert soft == min(hard, OPEN_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.long
async def test_a_second_agent_with_the_same_home_is_told_whom_it_meets(coordinator: Double, tmp_path: Path) -> None:
    async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as node:
        await coordinator.until(lambda: node.address in coordinator.nodes)
        async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as second:
            code, log = await second.end(0)
            assert code == 5
            assert f"process {node.process.pid}" in log
        assert node.address in coordinator.nodes


async def test_a_refusal_ends_the_program_with_its_reason_and_code_four(coordinator: Double, tmp_path: Path) -> None:
    coordinator.refusal = Refused("this key has been used by another machine: make a new one")
    async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as node:
        code, log = await node.end(0)
        assert code == 4
        assert "used by another machine" in log
        assert "Traceback" not in log


async def test_without_an_engine_the_agent_refuses_to_run_jobs(coordinator: Double, tmp_path: Path) -> None:
    os.environ["DOCKER_HOST"], before = f"unix://{tmp_path}/none.sock", os.environ.get("DOCKER_HOST")
    try:
        async with agent_program(tmp_path / "home", coordinator.url, program=None) as node:
            code, log = await node.end(0)
    finally:
        os.environ.pop("DOCKER_HOST")
        if before:
            os.environ["DOCKER_HOST"] = before
    assert code == 3
    assert "no Docker engine answers" in log
    assert "apt-get install docker.io" in log
    assert "Traceback" not in log
    assert not coordinator.hellos


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--coordinator", "ftp://x"), "ftp://x"),
        (("--payout", "nobody"), "nobody"),
        (("--stake", "1.23456789"), "1.23456789"),
        (("--memory-mb", "1"), "at least 512"),
        (("--threads", "-1"), "threads"),
    ],
)
async def test_a_bad_setting_is_named(tmp_path: Path, arguments: tuple[str, str], words: str) -> None:
    sandbox = ("--sandbox", "process")
    async with agent_program(tmp_path / "home", "http://127.0.0.1:9", *sandbox, *arguments) as node:
        code, log = await node.end(0)
        assert code == 2
        assert words in log
        assert "Traceback" not in log


async def words_of(*words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "desktop.agent",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_status_and_earnings_can_be_asked_for(coordinator: Double, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    async with agent_program(deep / "home", coordinator.url, "--sandbox", "process", "--name", "attic") as node:
        assign, worker = await running_task(coordinator, node, "checkpoint")
        await coordinator.send(node.address, JobEarned(assign.job, 2_500_000, 1_000_000, "5igna7ure"))
        await coordinator.send(node.address, JobEarned(assign.job, 2_000_000, 500_000))
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        code, text = await words_of("status", "--home", str(node.home), "--json")
        view: dict[str, Any] = json.loads(text)
        assert code == 0
        assert (view["state"], view["name"], view["node"]) == ("online", "attic", node.address)
        assert (view["verified"], view["paid"]) == (2_500_000, 1_000_000)
        assert [(task["lease"], task["state"], task["pid"]) for task in view["tasks"]] == [
            (assign.lease, "running", worker)
        ]
        code, text = await words_of("status", "--home", str(node.home))
        assert "attic" in text
        assert "stage 0 replica 0" in text
        await node.end(signal.SIGTERM)
        code, text = await words_of("earnings", "--home", str(node.home), "--json")
        [job] = json.loads(text)["jobs"]
        assert (job["job"], job["paid"], job["signature"]) == (assign.job, 1_000_000, "5igna7ure")
        code, text = await words_of("earnings", "--home", str(node.home))
        assert "2.5" in text
        code, text = await words_of("status", "--home", str(node.home))
        assert code == 1
        assert "no agent answers" in text
        with pytest.raises(AgentError):
            await status.ask(node.home / "agent.sock")


async def test_the_status_socket_is_for_its_owner_alone(coordinator: Double, tmp_path: Path) -> None:
    async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as node:
        await coordinator.until(lambda: node.address in coordinator.nodes)
        assert (node.home / "agent.sock").stat().st_mode & 0o777 == 0o600
        assert node.home.stat().st_mode & 0o777 == 0o700


# --- in Docker ----------------------------------------------------------------------------------------------------------


def containers() -> list[str]:
    client = docker.from_env()
    try:
        return [container.status for container in client.containers.list(all=True, ignore_removed=True)]
    finally:
        client.close()


DOCKER = ("--sandbox", "docker", "--image", IMAGE, "--memory-mb", "512")


@pytest.mark.long
@pytest.mark.docker
async def test_a_worker_in_docker_works_through_its_socket_and_leaves_with_its_agent(
    docker_engine: str, coordinator: Double, tmp_path: Path
) -> None:
    arguments = (*DOCKER, "--worker-argument=--note=lent")
    async with agent_program(tmp_path / "home", coordinator.url, *arguments) as node:
        assign, _ = await running_task(coordinator, node, "checkpoint")
        assert coordinator.hellos[0].profile.sandbox == "docker"
        assert coordinator.bodies(TaskReady)[0].env_class == "scripted --note=lent"
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        client = docker.from_env()
        label = {"label": f"network.cottage.lease={assign.lease}"}
        assert len(client.containers.list(filters=label)) == 1
        code, log = await node.end(signal.SIGTERM)
        assert (code, "Traceback" in log) == (0, False)
        assert client.containers.list(all=True, filters=label) == []
        client.close()


@pytest.mark.long
@pytest.mark.docker
async def test_the_container_of_a_killed_agent_stops_and_the_next_start_removes_it(
    docker_engine: str, coordinator: Double, tmp_path: Path
) -> None:
    client = docker.from_env()
    async with agent_program(tmp_path / "home", coordinator.url, *DOCKER) as node:
        assign, _ = await running_task(coordinator, node, "checkpoint")
        label = {"label": f"network.cottage.lease={assign.lease}"}
        await node.end(signal.SIGKILL)
        await coordinator.until(lambda: not client.containers.list(filters=label))
    async with agent_program(tmp_path / "home", coordinator.url, *DOCKER) as node:
        await coordinator.until(lambda: node.address in coordinator.nodes)
        assert client.containers.list(all=True, filters=label) == []
        await node.end(signal.SIGTERM)
    client.close()


@pytest.mark.docker
async def test_a_worker_in_docker_that_runs_out_of_memory_fails_its_task_with_a_clear_reason(
    docker_engine: str, coordinator: Double, tmp_path: Path
) -> None:
    async with agent_program(tmp_path / "home", coordinator.url, *DOCKER) as node:
        await coordinator.until(lambda: node.address in coordinator.nodes)
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "hungry")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))
        assert "needed more memory than the 512 MB" in coordinator.bodies(TaskFailed)[0].reason
        code, _ = await node.end(signal.SIGTERM)
        assert code == 0


async def test_what_was_promised_is_withdrawn_with_neither_coordinator_nor_agent(
    coordinator: Double, tmp_path: Path
) -> None:
    job, submitter, judge = "ab" * 16, NodeKey(b"s" * 32), NodeKey(b"j" * 32)
    with served(tmp_path) as server:
        url = server.start()
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            for key in (submitter, judge):
                await ledger.faucet(key.address, Amount(10**9))
            await ledger.open_escrow(submitter.seed, job_bytes(job), judge.address, Amount(1000), 2**40)
            coordinator.ledger = LedgerInfo(url, ledger.program, ledger.mint, judge.address)
            async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as node:
                await coordinator.until(lambda: node.address in coordinator.nodes)
                earned = ledger.earnings({judge.address: Amount(5), node.address: Amount(700)})
                await promise(ledger, judge.seed, submitter.address, job_bytes(job), earned.cumulative)
                old, proof = ledger.earnings({node.address: Amount(300)}), earned.proofs[node.address]
                first = old.proofs[node.address]
                await coordinator.send(
                    node.address,
                    Promised(job, submitter.address, node.address, 300, old.root.hex(), 0, 1, first.path),
                )
                await coordinator.send(
                    node.address,
                    Promised(
                        job,
                        submitter.address,
                        node.address,
                        700,
                        earned.root.hex(),
                        proof.index,
                        proof.count,
                        proof.path,
                    ),
                )
                await coordinator.until(lambda: len(list((node.home / "promises").glob("*.json"))) == 2)
                await node.end(signal.SIGKILL)
            coordinator.refusal = Refused("gone")
            code, text = await words_of("withdraw", "--home", str(node.home), "--json")
            (done,) = json.loads(text)
            assert (code, done["outcome"], done["amount"]) == (0, "paid", 700)
            assert await ledger.balance(node.address) == 700
            code, text = await words_of("withdraw", "--home", str(node.home))
            assert code == 0
            assert "nothing" in text
            assert await ledger.balance(node.address) == 700
        server.end(signal.SIGTERM)
        code, text = await words_of("withdraw", "--home", str(node.home))
        assert code == 1
        assert "failed" in text
