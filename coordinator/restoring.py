"""The first minute of a coordinator that was restored from a backup: nodes are asked what they keep, and nothing else is done.

A file in the data folder says that it was restored; it goes once every job is up to date.
"""

import asyncio
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from aiohttp import web

from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.context import Context
from coordinator.services.core.store_retry import Patience
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.chain import ChainPort
from coordinator.services.recovery.catching_up import CatchingUp
from coordinator.services.recovery.job_records import RecordsSeal
from coordinator.services.recovery.recall import NobodysLeases, Recall
from coordinator.web.connections import listen, put_off
from coordinator.web.signal import NodeSocket
from protocol.identity import NodeKey

MARK = "restored"
LEAST_S = 12.0  # Nodes that hold a lease try again every two seconds.
MOST_S = 75.0  # Others wait for up to a minute.
LOOK_S = 0.25
SHUTDOWN_S = 2.0
SAID = "This coordinator was restored from a backup, and asks its nodes what they know. Come back in a minute."
BACK_S = 60  # Whoever asks meanwhile comes back then.
PROBES = ("/healthz", "/readyz")  # Of load balancers, behind which nodes come in only where both are answered.

LOG = logging.getLogger(__name__)


def mark(data: Path) -> None:
    """Have the next coordinator of this folder ask its nodes."""
    (data / MARK).write_bytes(b"")


def is_restored(data: Path) -> bool:
    """Whether there is something to catch up on."""
    return (data / MARK).exists()


class EndedError(Exception):
    """The coordinator is to end before all is up to date: the next one goes on with it."""


async def catch_up(
    context: Context, chain: ChainPort, artifacts: ArtifactStore, key: NodeKey, ends: Sequence[asyncio.Event] = ()
) -> None:
    """Ask nodes for a while at the address where they will find the coordinator, then bring every job up to date.

    Raises:
        EndedError: one of ``ends`` says that the coordinator is to end.
    """
    catching = asyncio.create_task(_catch_up(context, chain, artifacts, key), name="catching-up")
    waiting = [asyncio.create_task(end.wait()) for end in ends]
    try:
        await asyncio.wait((catching, *waiting), return_when=asyncio.FIRST_COMPLETED)
        if not catching.done():
            raise EndedError
        catching.result()
    finally:
        for task in (catching, *waiting):
            task.cancel()
        await asyncio.gather(catching, *waiting, return_exceptions=True)


def _as_in_backup(data: Path, now: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Where jobs stood when this was begun, which the mark remembers: a crash in the middle leaves some that have gone ahead."""
    if known := (data / MARK).read_bytes():
        return msgspec.json.decode(known, type=dict[str, tuple[int, int]])
    draft = data / f"{MARK}.draft"
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(now))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(data / MARK)
    return dict(now)


async def _catch_up(context: Context, chain: ChainPort, artifacts: ArtifactStore, key: NodeKey) -> None:
    config, clock = context.config, context.clock
    work = CatchingUp(context, chain, artifacts)
    wanted = await work.at_work()
    backup = _as_in_backup(config.data, wanted)
    nodes = Nodes(context, NobodysLeases(context), chain, key.address, lambda _node: (), key)
    await nodes.recover()
    recall = Recall(context, nodes, RecordsSeal(key.seed), wanted)
    app = web.Application()
    NodeSocket(context, nodes, recall, Patience(clock, context.metrics)).setup(app)
    for path in PROBES:
        app.router.add_get(path, _lives)
    put_off(app, SAID, BACK_S)
    runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    LOG.warning(
        "restored from a backup: nodes are asked for what they keep of %d jobs, for %g to %g s",
        len(wanted),
        LEAST_S,
        MOST_S,
    )
    try:
        await listen(runner, config.host, config.port)
        await _wait(recall, wanted)
        found = {job: tuple(records) for job, records in recall.found.items()}
        LOG.warning("nodes have returned %d entries, of %d jobs", sum(map(len, found.values())), len(found))
        await work.run(found, backup)
    finally:
        await runner.cleanup()
    (config.data / MARK).unlink()


async def _lives(_request: web.Request) -> web.Response:
    return web.json_response({"status": "restoring"})


async def _wait(recall: Recall, wanted: Collection[str]) -> None:
    """Until somebody has returned something of each job, or nobody will."""
    began = asyncio.get_running_loop().time()
    while (passed := asyncio.get_running_loop().time() - began) < MOST_S:
        await asyncio.sleep(LOOK_S)
        recall.look()
        if passed >= LEAST_S and not recall.waits and all(job in recall.found for job in wanted):
            return
