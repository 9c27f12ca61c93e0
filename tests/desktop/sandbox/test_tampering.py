"""Every way to reach into a job's container on a real engine: what is seen, and that the job ends; and what is harmless."""

import asyncio
import io
import json
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError

from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.docker import TAMPERED, DockerSandbox, DockerWorker
from desktop.agent.sandbox.tamper import MAX_REPLAYED, Watch, judged
from tests.support.docker import IMAGE

TABLE = Path(__file__).parents[3] / "build" / "bench" / "tampering.json"
SLEEPER = "import time\nwhile True:\n    time.sleep(1)\n"
GRACE_S = 10.0


@pytest.fixture
async def worker(docker_engine: str, tmp_path: Path) -> AsyncIterator[DockerWorker]:
    job = tmp_path / "job"
    job.mkdir(mode=0o755)
    (job / "sleep.py").write_text(SLEEPER)
    sandbox = DockerSandbox(SandboxLimits(256, 1), IMAGE, owner=tmp_path, entry=("python3", "/job/sleep.py"))
    await sandbox.check()
    started = await sandbox.start("cd" * 16, job)
    try:
        yield started
    finally:
        await started.stop(0)
        await sandbox.aclose()


async def test_of_several_ways_in_the_first_is_told_once(
    worker: DockerWorker, caplog: pytest.LogCaptureFixture
) -> None:
    for how in ("a command was run in it", "somebody attached to it"):
        await asyncio.to_thread(worker.tamper, how)
    assert worker.tampered == "a command was run in it"
    assert caplog.text.count("was reached into") == 1


def run_in_it(container: Any) -> None:
    container.exec_run(["true"])


def prepare_a_command(container: Any) -> None:
    container.client.api.exec_create(container.id, ["true"])


def attach(container: Any) -> None:
    container.attach_socket().close()


def copy_out(container: Any) -> None:
    container.get_archive("/etc/passwd")


def copy_out_of_memory(container: Any) -> None:
    container.get_archive("/tmp")


def export(container: Any) -> None:
    next(iter(container.export()), None)


def commit(container: Any) -> None:
    image = container.commit()
    image.remove(force=True)


def give_more_memory(container: Any) -> None:
    container.update(mem_limit="512m", memswap_limit="512m")


def save(name: str, milliseconds: float, reason: str) -> None:
    """For docs/explanation/sandbox.md."""
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    table[name] = {"ended_after_ms": round(milliseconds), "seen": reason.removeprefix(f"{TAMPERED}: ")}
    TABLE.write_text(json.dumps(table, indent=2) + "\n")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("way", "seen"),
    [
        (run_in_it, "a command was run in it"),
        (prepare_a_command, "a command was run in it"),
        (attach, "somebody attached to it"),
        (copy_out, "a file was copied out of it"),
        (copy_out_of_memory, "a file was copied out of it"),
        (export, "its files were exported"),
        (commit, "an image was made of it"),
        (give_more_memory, "its limits were changed"),
    ],
    ids=lambda value: value.__name__.replace("_", " ") if callable(value) else "",
)
async def test_who_reaches_into_a_container_ends_the_job(
    worker: DockerWorker, docker_engine: str, way: Callable[[Any], None], seen: str
) -> None:
    container = docker.from_env().containers.get(worker.container.id)
    begun = time.perf_counter()
    reaching = asyncio.create_task(asyncio.to_thread(way, container))
    async with asyncio.timeout(GRACE_S):
        while (ended := await worker.ended()) is None:
            await asyncio.sleep(0.005)
        while container.status == "running":
            await asyncio.to_thread(container.reload)
    save(way.__name__.replace("_", " "), 1000 * (time.perf_counter() - begun), ended.reason)
    assert (ended.tampered, ended.reason) == (True, f"{TAMPERED}: {seen}")
    await asyncio.wait((reaching,))
    assert reaching.exception() is None or isinstance(reaching.exception(), APIError)  # It came too late.


@pytest.mark.docker
async def test_looking_from_outside_harms_nothing(worker: DockerWorker, docker_engine: str) -> None:
    container = docker.from_env().containers.get(worker.container.id)
    for look in (
        container.logs,
        container.top,
        container.diff,
        lambda: container.stats(stream=False),
        container.reload,
    ):
        await asyncio.to_thread(look)
    await worker.freeze()
    await worker.thaw()
    await asyncio.to_thread(container.client.api.exec_create, worker.container.id, ["true"])
    async with asyncio.timeout(GRACE_S):  # Events come in order: all before this one were harmless.
        while (ended := await worker.ended()) is None:
            await asyncio.sleep(0.005)
    assert ended.reason == f"{TAMPERED}: a command was run in it"


@pytest.mark.docker
async def test_another_programs_containers_are_its_own_business(worker: DockerWorker, docker_engine: str) -> None:
    client = docker.from_env()
    other = client.containers.run(IMAGE, ["-c", SLEEPER], entrypoint=["python3"], network_mode="none", detach=True)
    try:
        await asyncio.to_thread(other.exec_run, ["true"])
        data = io.BytesIO()
        tarfile.open(fileobj=data, mode="w").close()
        await asyncio.to_thread(other.put_archive, "/tmp", data.getvalue())
        assert await worker.ended() is None
    finally:
        other.remove(force=True)


@pytest.mark.parametrize(
    ("event", "container", "how"),
    [
        ({"Type": "container", "Action": "exec_create: sh", "Actor": {"ID": "a"}}, "a", "a command was run in it"),
        ({"Type": "container", "Action": "extract-to-dir", "Actor": {"ID": "a"}}, "a", "a file was copied into it"),
        ({"Type": "container", "Action": "exec_die", "Actor": {"ID": "a"}}, "a", ""),
        ({"Type": "container", "Action": "top", "Actor": {"ID": "a"}}, "a", ""),
        (
            {
                "Type": "network",
                "Action": "connect",
                "Actor": {"ID": "n", "Attributes": {"container": "a", "name": "bridge"}},
            },
            "a",
            "it was connected to a network",
        ),
        (
            {
                "Type": "network",
                "Action": "connect",
                "Actor": {"ID": "n", "Attributes": {"container": "a", "name": "none"}},
            },
            "a",
            "",
        ),
        ({"Type": "network", "Action": "disconnect", "Actor": {"ID": "n", "Attributes": {"container": "a"}}}, "a", ""),
        ({}, "", ""),
    ],
)
def test_an_event_is_judged_by_what_it_lets_somebody_do(event: dict[str, Any], container: str, how: str) -> None:
    assert judged(event) == (container, how)


class Engine:
    """Events that were prepared; the second connection begins where the first was cut."""

    def __init__(self, *streams: list[dict[str, Any]]) -> None:
        self.streams = list(streams)
        self.asked: list[float] = []

    def __call__(self) -> "Engine":
        return self

    def events(self, since: float, **_: object) -> Any:
        self.asked.append(since)
        if not self.streams:
            raise OSError("the engine is gone")
        return iter(self.streams.pop(0))

    def close(self) -> None:
        """Nothing to close."""


def happened(action: str, at: float, container: str = "a") -> dict[str, Any]:
    return {"Type": "container", "Action": action, "Actor": {"ID": container}, "timeNano": int(at * 1e9)}


def follow(engine: Engine) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    watch = Watch(engine, lambda *what: seen.append(what))
    watch._closed.set()
    for _ in range(len(engine.streams)):
        watch._follow()
    return seen


def test_after_a_cut_it_goes_on_where_it_was() -> None:
    engine = Engine([happened("start", 100.0)], [happened("attach", 101.0)])
    assert follow(engine) == [("a", "somebody attached to it")]
    assert engine.asked == [0.0, 100.0]


def test_more_events_than_the_engine_remembers_may_hide_one() -> None:
    engine = Engine([happened("top", 100.0 + n / 1000) for n in range(MAX_REPLAYED)])
    assert follow(engine) == [("", "more happened at the engine than it remembers")]
    engine = Engine([happened("top", 100.0 + n / 1000) for n in range(MAX_REPLAYED - 1)])
    assert follow(engine) == []
