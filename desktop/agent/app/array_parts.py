"""What an agent needs for array jobs, where its sandbox has an engine."""

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


async def look_after(arrays: ArrayTools | None, offer: Callable[[bool], Awaitable[None]]) -> None:
    """Have the engine forget images that nobody uses, and ``offer`` told for ever whether the owner accepts anybody's.

    What goes wrong is told; a file that cannot be read accepts nobody.
    """
    if arrays is None:
        return
    try:
        await arrays.images.sweep()
    except AgentError as error:
        LOG.warning("images of array jobs cannot be looked through: %s", error)
    while True:
        try:
            accepts = bool(arrays.images.publishers.all())
        except SettingsError as error:
            LOG.warning("%s", error)
            accepts = False
        await offer(accepts)
        await arrays.images.clock.sleep(LOOK_S)
