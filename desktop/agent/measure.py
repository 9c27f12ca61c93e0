"""What the machine can do, measured in the same sandbox that jobs run in, and remembered until something changes."""

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from desktop.agent.errors import SandboxError
from desktop.agent.gpu import Device
from desktop.agent.log import LOGGER
from desktop.agent.sandbox.base import Sandbox
from transport.wire.codec import MessageError, decode_json, encode_json
from transport.wire.ids import ShortText

BENCH_TIMEOUT_S = 300.0  # It computes for seconds; a crowded machine and the first import of PyTorch may add minutes.
MAX_REMEMBERED = 16


class Benchmark(msgspec.Struct, frozen=True):
    """What ``python -m trainer bench`` prints; fields it may have beside these are of no interest here."""

    flops: Annotated[float, Meta(gt=0, le=1e18)]
    env_class: ShortText
    device: ShortText
    memory_mb: Annotated[int, Meta(ge=0, le=10**8)]
    threads: Annotated[int, Meta(ge=1, le=1024)]


async def measure(sandbox: Sandbox, identity: str, device: Device, threads: int, cache: Path) -> Benchmark:
    """The benchmark of this machine: from ``cache`` where code, device and threads are the same, else measured now.

    Raises:
        SandboxError: it cannot be run, or prints something else than a benchmark.
    """
    key = hashlib.sha256(f"{sandbox.kind}|{identity}|{device.kind}|{device.name}|{threads}".encode()).hexdigest()
    known = _read(cache)
    if key in known:
        return known[key]
    LOGGER.info("measuring what this machine can do (%s, %d threads)", device.name, threads)
    output = await sandbox.measure(("bench", "--threads", str(threads), "--device", device.kind), BENCH_TIMEOUT_S)
    try:
        result: Benchmark = decode_json(output.strip().rpartition(b"\n")[2], Benchmark)
    except MessageError as error:
        raise SandboxError(f"the benchmark printed something else than its result: {error}") from error
    kept = dict(list(known.items())[-(MAX_REMEMBERED - 1) :]) | {key: result}
    draft = cache.with_suffix(".new")
    draft.write_bytes(encode_json(kept))
    draft.replace(cache)
    return result


def _read(cache: Path) -> dict[str, Benchmark]:
    try:
        known: dict[str, Benchmark] = decode_json(cache.read_bytes(), dict[str, Benchmark])
    except (OSError, MessageError):
        return {}  # None yet, or of another version: measuring again is cheap.
    return known
