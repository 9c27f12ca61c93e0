"""Follows a job and tells its tracker of each round, without ever waiting for it."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from common.clock import within
from common.untrusted_text import untrusted
from coordinator.client.client import Client, JobUpdate
from coordinator.client.errors import ClientError
from coordinator.client.tracking.target import (
    RunBegin,
    RunEnd,
    RunRow,
    State,
    TrackerAnswer,
    TrackerError,
    begin_of,
    rows_of,
    target_of,
)
from protocol.rest import api

OPEN_S = 60.0  # For a library to begin and find its run.
ANSWER_S = 40.0  # For one row, or for all that waits at the end.
AGAIN_S = 60.0  # Between two tries at a tracker that failed.
LEAVE_S = 5.0  # For its process to end where nobody waits for it.
_MAX_LINE = 1 << 16
_LATER, _WAY = "it is tried again while the job goes on", "the same command again sends what is missing"
LOG = logging.getLogger(__name__)


async def track(
    client: Client,
    job: str,
    tracker: str,
    on_update: Callable[[JobUpdate], None] | None = None,
    on_warning: Callable[[str], None] = LOG.warning,
) -> api.JobView:
    """Follow a job until it is over, as ``Client.wait`` does, and have its rounds in a tracker as they come.

    Asked again for the same job it goes on in the same run: no round is there twice.

    Args:
        client: of the job's coordinator, which learns nothing of the tracker.
        job: its id.
        tracker: ``mlflow``, ``mlflow:URI``, ``wandb`` or ``wandb:PROJECT``. Keys are taken from the environment.
        on_update: called with each update.
        on_warning: called with a sentence where the tracker does not take its rows; the job is followed all the same.
    Raises:
        TrackerError: there is no such tracker, or its library is not installed.
        ProblemError: the coordinator has no such job.
    """
    target = target_of(tracker)
    view = await client.get(job)
    if view.spec.serve is not None:
        raise TrackerError(f"job {job} serves a model and has no curve: follow it without a tracker")
    feed = _Feed(begin_of(target, view, client.address), on_warning)
    feeding = asyncio.create_task(feed.run(), name="track")
    try:
        seen = -1
        async with contextlib.aclosing(client.watch(job)) as updates:  # type: ignore[type-var]
            async for update in updates:
                if on_update is not None:
                    on_update(update)
                view = update.job or view
                if view.rounds_done != seen and await feed.read(client, view):
                    seen = view.rounds_done
        view = await client.get(job)
        await feed.read(client, view)
        feed.close(view.state)
        await feeding
        return view
    finally:
        feeding.cancel()
        await asyncio.wait((feeding,))


class _Feed:
    """What a tracker is still to be told, and the process that tells it."""

    def __init__(self, begin: RunBegin, warn: Callable[[str], None]) -> None:
        self._begin, self._warn = begin, warn
        self._rows: list[RunRow] = []
        self._known = 0
        self._state: State = "running"
        self._news = asyncio.Event()
        self._news.set()
        self._process: asyncio.subprocess.Process | None = None
        self._not_before = 0.0
        self._said = set[str]()

    async def read(self, client: Client, view: api.JobView) -> bool:
        """Ask the coordinator for the rounds; whether it answered."""
        try:
            self._rows = rows_of(view, await client.rounds(view.id))
        except ClientError as error:
            self._tell(f"the job's rounds are not sent to the tracker for now: {error}")
            return False
        self._news.set()
        return True

    def close(self, state: str) -> None:
        """No more rows come."""
        self._state = msgspec.convert(state, State)
        self._news.set()

    async def run(self) -> None:
        """Tell the tracker of each row, until the job is over or the caller stops."""
        try:
            while self._state == "running":
                await self._news.wait()
                self._news.clear()
                if self._state != "running" or time.monotonic() >= self._not_before:
                    await self._try()
        finally:
            if self._process is not None:
                await _leave(self._process)

    async def _try(self) -> None:
        try:
            await self._send()
        except (TrackerError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            self._not_before = time.monotonic() + AGAIN_S
            if self._process is not None:
                await _kill(self._process)
                self._process = None
            why = "it does not answer" if isinstance(error, TimeoutError) else untrusted(error, 300)
            last = _LATER if self._state == "running" else _WAY
            self._tell(f"{self._begin.target.kind} does not take the job's rounds: {why}; {last}")

    async def _send(self) -> None:
        if self._process is None:
            self._process = await _started()
            self._known = await self._ask(self._begin, OPEN_S)
        while waiting := [row for row in self._rows if row.round > self._known]:
            for row in waiting:
                self._known = await self._ask(row, ANSWER_S)
        if self._state != "running":
            await self._ask(RunEnd(self._state), ANSWER_S)

    async def _ask(self, told: msgspec.Struct, seconds: float) -> int:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # Why it is gone stands in what it said last.
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            await process.stdin.drain()
        line = await within(seconds, process.stdout.readline())
        if not line:
            raise TrackerError("its library ended without a word")
        answer = msgspec.json.decode(line, type=TrackerAnswer)
        if answer.problem:
            raise TrackerError(answer.problem)
        return answer.round

    def _tell(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._warn(sentence)


async def _started() -> asyncio.subprocess.Process:
    """In a process group of its own: what interrupts the watching lets it end by itself, and its helpers end with it."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "coordinator.client.tracking",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        limit=_MAX_LINE,
    )


async def _leave(process: asyncio.subprocess.Process) -> None:
    """Let it end by itself for a moment: Weights & Biases sends what it has."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await within(LEAVE_S, process.wait())
    await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End it with its helpers; one that has ended is left as it is."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()
