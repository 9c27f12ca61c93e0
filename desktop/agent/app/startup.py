"""From settings to a running agent: the sandbox is checked and the machine measured before the coordinator hears of it."""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from common.clock import SystemClock
from common.untrusted_text import untrusted
from common.urls import is_loopback, parse_url
from desktop.agent.app.array_parts import accepting
from desktop.agent.app.parts import AgentParts
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import Device, detect, processor
from desktop.agent.base.log import LOG
from desktop.agent.errors import SandboxError
from desktop.agent.hardware.benchmark import Benchmark, default_cache, measure
from desktop.agent.images.publishers import Publishers
from desktop.agent.lending.keeper import Readings
from desktop.agent.sandbox.base import Sandbox, SandboxLimits
from desktop.agent.sandbox.containers import DockerContainers
from desktop.agent.sandbox.docker import DockerSandbox
from desktop.agent.sensors.here import sensors
from desktop.agent.updates.release import this_release, version
from desktop.agent.updates.sandbox_images import Images
from protocol.node import NodeProfile, SandboxKind

NO_LIBRARY = (
    "--sandbox kubernetes needs the package kubernetes-asyncio ({error}): pip install 'cottage[kubernetes]', "
    "or take the image that installer/node/Dockerfile makes"
)
NO_PROTECTION = (
    "--sandbox process: jobs run as plain processes with YOUR rights and can read your files and use your network. "
    "This is for the demo and for development only; lend a machine with --sandbox docker."
)
AUDITS_UNPROTECTED = (
    "--sandbox process: steps are run again by plain processes with this user's rights. They read strangers' numbers, "
    "never their code; where an engine is at hand, --sandbox docker keeps even a defect in that from this machine."
)


def make_sandbox(settings: Settings, home: Home, device: Device, worker_arguments: Sequence[str] = ()) -> Sandbox:
    """The sandbox that the settings ask for."""
    limits = SandboxLimits(memory_mb=settings.memory_mb, threads=settings.threads)
    if settings.sandbox != "docker" and getattr(sys, "frozen", False):
        raise SandboxError(
            f"--sandbox {settings.sandbox} needs Cottage installed with pip: this program has no part for it"
        )
    if settings.sandbox == "docker":
        return DockerSandbox(
            limits,
            settings.image,
            owner=home.path,
            gpu=device.gpu,
            extra=worker_arguments,
            admit=Images(home, this_release()).admit,
        )
    if sys.platform == "win32":
        raise SandboxError(f"--sandbox {settings.sandbox} does not run on Windows: use --sandbox docker")
    else:  # noqa: RET506 - the modules are none for Windows, which mypy sees by this branch only
        if settings.sandbox == "kubernetes":
            return _of_cluster(limits, settings, home, device, worker_arguments)
        from desktop.agent.sandbox.process import ProcessSandbox

        return ProcessSandbox(limits, worker_arguments, gpu=device.gpu)


if sys.platform != "win32":

    def _of_cluster(
        limits: SandboxLimits, settings: Settings, home: Home, device: Device, worker_arguments: Sequence[str]
    ) -> Sandbox:
        try:
            from desktop.agent.cluster.kubernetes import ClusterPlace, KubernetesSandbox
        except ImportError as error:
            raise SandboxError(NO_LIBRARY.format(error=error)) from error
        place = ClusterPlace.of(os.environ, gpu=bool(device.gpu))
        return KubernetesSandbox(limits, settings.image, owner=home.path, place=place, extra=worker_arguments)


def _readings(home: Home, settings: Settings, device: Device, sandbox: Sandbox) -> Readings | None:
    """What tells whether to lend now; None: nothing does, and it always lends."""
    if settings.sandbox == "kubernetes":
        room: Readings | None = getattr(sandbox, "room", None)
        return room
    return None if settings.always else sensors(home.path, device.gpu)


async def prepare(
    home: Home, settings: Settings, worker_arguments: Sequence[str] = (), *, auditor: bool = False, alone: bool = True
) -> AgentParts:
    """Check and measure everything; what remains to be done is to run ``Agent(parts)``, or ``Auditor(parts)``.

    Args:
        alone: where a card cannot be used, the processor is lent in its place; others work beside it otherwise.
    Raises:
        SettingsError: the key or a setting cannot be used.
        SandboxError: jobs cannot be run safely on this machine, or not at all.
    """
    key = home.key()
    settings = settings.completed(key.address)
    device = await asyncio.to_thread(chosen, settings.gpu, settings.sandbox)
    if not alone and device.gpu != settings.gpu:
        missing = (
            f"{settings.gpu} is not in this computer: choose others under Settings, or `cottage node settings --gpu`"
        )
        raise SandboxError(missing if device.gone else device.note)
    LOG.info("%s", device.name if auditor else f"{device.name}. {device.note}")
    await asyncio.to_thread(_empty, home.jobs)
    if settings.sandbox == "process":
        LOG.warning(AUDITS_UNPROTECTED if auditor else NO_PROTECTION)
    if _is_readable_on_the_way(settings.coordinator):
        LOG.warning("%s: others on the way can read and change what is said; use https://", settings.coordinator)
    try:
        sandbox, bench = await measured(home, settings, device, worker_arguments)
    except SandboxError as error:
        if device.kind == "cpu" or not alone or settings.sandbox == "kubernetes":
            raise  # A cluster's cards come back when others have done with them.
        LOG.warning("%s cannot be used for jobs: %s", device.name, error)
        device = processor(f"{device.name} is here, but jobs cannot use it ({error}): they run on the processor.")
        sandbox, bench = await measured(home, settings, device, worker_arguments)
    if settings.sandbox == "kubernetes":  # What it has shows inside a worker only; and nothing here has power over it.
        device = replace(device, name=bench.device, memory_mb=max(1, bench.memory_mb), gpu="")
    release_key = this_release().key
    containers = DockerContainers(sandbox) if isinstance(sandbox, DockerSandbox) and not auditor else None
    profile = NodeProfile(
        name=untrusted(settings.name),
        device=untrusted(device.name),
        kind=device.kind,
        memory_mb=device.memory_mb if device.kind == "cuda" else settings.memory_mb,
        flops=bench.flops,
        env_class=bench.env_class,
        sandbox=sandbox.kind,
        agent_version=version(),
        floor=settings.floor,
        auditor=auditor,
        beside_mb=settings.memory_mb if device.kind == "cuda" else None,
        containers=containers is not None and accepting(Publishers(home, release_key))[0],
    )
    readings = _readings(home, settings, device, sandbox)
    return AgentParts(home, settings, key, profile, sandbox, SystemClock(), device, readings, containers, release_key)


def chosen(gpu: int | str, sandbox: SandboxKind = "docker") -> Device:
    """What is lent: that GPU, or for -1 the processor; in a cluster what its chart says."""
    if gpu == -1:
        return processor("Its owner lends the processor only.")
    if sandbox == "kubernetes":
        resource = os.environ.get("COTTAGE_CLUSTER_GPU", "")
        if not resource:
            return processor("The chart names no resource for cards.")
        return Device("cuda", "A card of the cluster", 0, f"A worker asks for one {resource}.", resource)
    return detect(gpu)


async def measured(
    home: Home, settings: Settings, device: Device, worker_arguments: Sequence[str], *, again: bool = False
) -> tuple[Sandbox, Benchmark]:
    """The sandbox for ``device``, and what it can do in there, measured ``again`` or remembered; raises SandboxError."""
    sandbox = make_sandbox(settings, home, device, worker_arguments)
    try:
        identity = await sandbox.check()
        left = await sandbox.sweep()
        if left:
            LOG.info("removed %d workers that an earlier agent left behind", left)
        cache, clock = default_cache(), SystemClock()
        return sandbox, await measure(sandbox, identity, device, settings.threads, cache, clock, again=again)
    except BaseException:
        await sandbox.aclose()
        raise


def without_coordinator(settings: Settings) -> Settings:
    """For what can be found out before anybody is lent to."""
    return msgspec.structs.replace(settings, coordinator="http://localhost")


async def inspect(home: Home, settings: Settings) -> AgentParts:
    """What ``prepare`` finds, with everything let go again; raises as it does. A coordinator need not be set."""
    if not settings.coordinator:
        settings = without_coordinator(settings)
    parts = await prepare(home, settings)
    await parts.sandbox.aclose()
    return parts


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)


def _is_readable_on_the_way(coordinator: str) -> bool:
    """Plain HTTP that leaves this machine."""
    url = parse_url(coordinator)
    return url.scheme != "https" and not is_loopback(url.raw_host or "")
