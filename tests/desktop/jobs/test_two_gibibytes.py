"""A state beyond two gibibytes, from a worker to store and coordinator and back to others, past the agent's memory."""

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import web

from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.web.http import read_chunks
from coordinator.web.sending import send_artifact
from protocol.task import ApplyRound, BeginRound, KeptState, RoundApplied, RoundHolding, StopTask, TaskFailed, TaskReady
from tests.desktop.app.test_agent_as_a_process import agent_program
from tests.desktop.conftest import assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.desktop.scripted_worker import LARGE, LARGE_MOMENTS, zeros_digest

PATIENCE_S = 240.0
MOST_MB = 100  # That the agent's process grows by: queues of sockets, and a megabyte here and there.
BEGIN = {"first_step": 30, "steps": 10, "total_steps": 100}


class Storing(Double):
    """Keeps artifacts on the disk, as the coordinator does."""

    store_at: DiskArtifacts

    async def _put(self, request: web.Request) -> web.Response:
        self._check_token(request)
        digest = await self.store_at.put(read_chunks(request), request.match_info["digest"], 64 << 30)
        self.uploads.append(digest)
        await self._tell()
        return web.Response(status=204)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        digest = request.match_info["digest"]
        if digest in self.artifacts:
            return await super()._get(request)
        self._check_token(request)
        return await send_artifact(request, self.store_at, digest, {})


def peak_mb(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


@pytest.mark.long
async def test_a_state_of_two_gibibytes_goes_all_its_ways_past_the_agents_memory(tmp_path: Path) -> None:
    coordinator = Storing()
    coordinator.store_at = DiskArtifacts(tmp_path / "artifacts")
    await coordinator.start()
    digest = await asyncio.to_thread(zeros_digest, LARGE)
    both = await asyncio.to_thread(zeros_digest, LARGE + LARGE_MOMENTS)
    async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process", "--loopback") as node:
        await coordinator.until(lambda: node.address in coordinator.nodes)
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "large")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        before = peak_mb(node.process.pid)

        async def held(number: int, **more: object) -> str:
            begin = BeginRound(assign.plan, number, **BEGIN, **more)  # type: ignore[arg-type]
            await coordinator.command(node.address, assign, begin)
            await coordinator.until(
                lambda: coordinator.bodies(TaskFailed) or coordinator.bodies(RoundHolding, assign.lease), PATIENCE_S
            )
            assert not coordinator.bodies(TaskFailed), coordinator.bodies(TaskFailed)
            return str(coordinator.bodies(RoundHolding, assign.lease)[-1].held[0])

        await coordinator.command(node.address, assign, ApplyRound(0, 3, {}, checkpoint=True))
        await coordinator.until(lambda: coordinator.bodies(RoundApplied), PATIENCE_S)
        [applied] = coordinator.bodies(RoundApplied)
        assert applied.checkpoint == digest
        assert applied.kept is not None
        assert applied.moments is not None
        assert coordinator.uploads == [digest]
        assert await coordinator.store_at.size(digest) == LARGE

        await coordinator.command(node.address, assign, StopTask("another one goes on"))
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "large")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady, assign.lease))
        assert await held(4, kept=KeptState(applied.kept, ()), moments=KeptState(applied.moments, ())) == both

        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "large")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady, assign.lease))
        assert await held(5, state=digest) == digest
        # What came from the coordinator goes onto the store as well.
        await coordinator.until(lambda: not list((node.home / "states").glob("*.part")), PATIENCE_S)
        peak = peak_mb(node.process.pid)
        assert peak - before < MOST_MB, f"the agent held {peak} MB, and {before} before"
    await coordinator.stop()
