"""The first minute of a coordinator that was restored from a backup: nodes are asked what they keep, and nothing else is done.

A file in the data folder says that it was restored; it goes once every job is up to date.
"""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

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
    (data / MARK).touch()


def is_restored(data: Path) -> bool:
    """Whether there is something to catch up on."""
    return (data / MARK).exists()


async def catch_up(context: Context, chain: ChainPort, artifacts: ArtifactStore, key: NodeKey) -> None:
    """Ask nodes for a while at the address where they will find the coordinator, then bring every job up to date."""
    config, clock = context.config, context.clock
    work = CatchingUp(context, chain, artifacts)
    wanted = await work.at_work()
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
    finally:
        await runner.cleanup()
    found = sum(map(len, recall.found.values()))
    LOG.warning("nodes have returned %d entries, of %d jobs", found, len(recall.found))
    await work.run(recall.found)
    (config.data / MARK).unlink()


async def _lives(_request: web.Request) -> web.Response:
    return web.json_response({"status": "restoring"})


async def _wait(recall: Recall, wanted: Collection[str]) -> None:
    """Until somebody has returned something of each job, or nobody will."""
    began = asyncio.get_running_loop().time()
    while (passed := asyncio.get_running_loop().time() - began) < MOST_S:
        await asyncio.sleep(LOOK_S)
        if passed >= LEAST_S and not recall.waits and all(job in recall.found for job in wanted):
            return
