"""What an agent needs for array jobs, where its sandbox has an engine."""

import asyncio
from collections.abc import Awaitable, Callable

from desktop.agent.app.parts import AgentParts
from desktop.agent.arrays.held_array import ArrayTools, HeldArray
from desktop.agent.base.log import LOG
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.errors import AgentError, SettingsError
from desktop.agent.images.publishers import Publishers
from desktop.agent.images.store import ElementImages
from desktop.agent.jobs.tasks import HeldTask, Tools
from protocol.node import Assign

LOOK_S = 3.0  # An owner who accepts a publisher waits no longer for the first job.


def array_tools(parts: AgentParts, artifacts: Artifacts) -> ArrayTools | None:
    """None where no containers of others run."""
    if parts.containers is None:
        return None
    publishers = Publishers(parts.home, parts.release_key)
    limit = parts.settings.disk_gb * 10**9
    images = ElementImages(publishers, artifacts, parts.containers, parts.clock, limit)
    gpu = parts.profile.kind == "cuda"
    return ArrayTools(
        parts.containers, images, parts.settings.memory_mb, parts.settings.threads, gpu, parts.profile.env_class
    )


def held_task(arrays: ArrayTools | None, assign: Assign, tools: Tools, *, may_die: bool = False) -> HeldTask:
    """What holds a new lease; one of an array job that came though none runs here fails in words."""
    if assign.spec.array is None:
        return HeldTask(assign, tools, may_die=may_die)
    return HeldArray(assign, tools, arrays=arrays)


def lend_disk(arrays: ArrayTools | None, limit: int) -> None:
    """Images may have so many bytes from now on."""
    if arrays is not None:
        arrays.images.limit = limit


def accepting(publishers: Publishers) -> tuple[bool, str]:
    """Whether the owner accepts anybody's images, and what is wrong with the file: one that cannot be read accepts nobody."""
    try:
        return bool(publishers.all()), ""
    except SettingsError as error:
        return False, str(error)


async def look_after(arrays: ArrayTools | None, offer: Callable[[bool], Awaitable[None]]) -> None:
    """Have the engine forget images that nobody uses, and ``offer`` told for ever whether the owner accepts anybody's.

    What goes wrong is told, once.
    """
    if arrays is None:
        return
    try:
        await arrays.images.sweep()
    except AgentError as error:
        LOG.warning("images of array jobs cannot be looked through: %s", error)
    told = ""
    while True:
        accepts, fault = await asyncio.to_thread(accepting, arrays.images.publishers)
        if fault and fault != told:
            LOG.warning("%s", fault)
        told = fault
        await offer(accepts)
        await arrays.images.clock.sleep(LOOK_S)
