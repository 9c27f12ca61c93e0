"""What the machine can do, measured in the same sandbox that jobs run in, and remembered until something changes.

The memory belongs to the machine and its user, not to one agent: agents on one machine would only disturb each other's
measurement, and then differ by chance where they are the same.
"""

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from common.clock import Clock
from common.own_folders import NoHomeError, cache_folder
from common.untrusted_text import Told
from desktop.agent.base.file_lock import HeldError, held
from desktop.agent.base.gpu import Device
from desktop.agent.base.log import LOG
from desktop.agent.errors import SandboxError
from desktop.agent.sandbox.base import Sandbox
from protocol.codec import MessageError, decode_json
from protocol.ids import Mark, ShortText

BENCH_TIMEOUT_S = 300.0  # It computes for seconds; a crowded machine and the first import of PyTorch may add minutes.
MAX_REMEMBERED = 16
MAX_AGE_S = 7 * 86_400.0
BUSY_SHARE = 0.7
BUSY_AGE_S = 600.0  # What was measured of a busy machine is believed for so long.
ASKED_AGE_S = 30.0  # And what its owner wants measured again: two who ask at once measure once.
LOCK_LOOK_S = 0.2


class Benchmark(Told, frozen=True):
    """What ``python -m trainer bench`` prints; fields it may have beside these are of no interest here.

    ``share``: of the processor time that it could have had, what it got; less than 1 where other programs computed.
    """

    flops: Annotated[float, Meta(gt=0, le=1e18)]
    env_class: Mark
    device: ShortText
    memory_mb: Annotated[int, Meta(ge=0, le=10**8)]
    threads: Annotated[int, Meta(ge=1, le=1024)]
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0

    @property
    def was_busy(self) -> bool:
        """Other programs took so much that this says little of the machine."""
        return self.share < BUSY_SHARE


class _Remembered(msgspec.Struct, frozen=True):
    at: float
    result: Benchmark


def default_cache() -> Path:
    """Where this user's measurements are."""
    try:
        return cache_folder() / "bench.json"
    except NoHomeError:
        return Path(os.devnull) / "bench.json"  # Nothing can be kept there, so everything is measured anew.


async def measure(
    sandbox: Sandbox, identity: str, device: Device, threads: int, cache: Path, clock: Clock, *, again: bool = False
) -> Benchmark:
    """The benchmark of this machine: from ``cache`` where code, device and threads are the same, else measured now.

    Args:
        again: its owner asks for a measurement.
    Raises:
        SandboxError: it cannot be run, or prints something else than a benchmark.
    """
    key = hashlib.sha256(f"{sandbox.kind}|{identity}|{device.kind}|{device.name}|{threads}".encode()).hexdigest()
    if not _can_remember(cache):
        return await measure_now(sandbox, device, threads)
    async with _alone(cache.with_suffix(".lock"), clock):
        known = _read(cache)
        if key in known and 0 <= clock.time() - known[key].at <= _believed_s(known[key].result, again):
            return known[key].result
        result = await measure_now(sandbox, device, threads)
        known.pop(key, None)
        kept = dict(list(known.items())[-(MAX_REMEMBERED - 1) :]) | {key: _Remembered(clock.time(), result)}
        draft = cache.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(kept))
        draft.replace(cache)
        return result


def _believed_s(result: Benchmark, again: bool) -> float:
    if again:
        return ASKED_AGE_S
    return BUSY_AGE_S if result.was_busy else MAX_AGE_S


async def measure_now(sandbox: Sandbox, device: Device, threads: int) -> Benchmark:
    """The benchmark, run now; raises SandboxError where the machine cannot run it."""
    LOG.info("measuring what this machine can do (%s, %d threads)", device.name, threads)
    output = await sandbox.measure(("bench", "--threads", str(threads), "--device", device.kind), BENCH_TIMEOUT_S)
    try:
        result: Benchmark = decode_json(output.strip().rpartition(b"\n")[2], Benchmark)
    except MessageError as error:
        raise SandboxError(f"the benchmark printed something else than its result: {error}") from error
    return result


def _can_remember(cache: Path) -> bool:
    """A service may have no home, or one that it cannot write to: then each start measures."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(cache.parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        LOG.warning("what is measured cannot be remembered: %s cannot be written to", cache.parent)
    return writable


def _read(cache: Path) -> dict[str, _Remembered]:
    try:
        known: dict[str, _Remembered] = decode_json(cache.read_bytes(), dict[str, _Remembered])
    except (OSError, MessageError):
        return {}  # None yet, or of another version: measuring again is cheap.
    return known


@contextlib.asynccontextmanager
async def _alone(lock: Path, clock: Clock) -> AsyncIterator[None]:
    """One measurement at a time on this machine."""
    while True:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(lock))
            except HeldError:
                await clock.sleep(LOCK_LOOK_S)
                continue
            yield
            return
