"""Jobs in Docker containers: no network, nothing writable, no capabilities, bounded in memory, processes and time."""

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, TLSParameterError

from desktop.agent.base.log import LOG, printable
from desktop.agent.errors import NoEngineError, NoImageError, SandboxError
from desktop.agent.sandbox import egress, toolkit
from desktop.agent.sandbox.attached import Attached
from desktop.agent.sandbox.base import MAX_LOG_BYTES, SOCKET_NAME, WORKER, WORKER_BY_STDIO, Exit, SandboxLimits
from desktop.agent.sandbox.container_plan import ContainerPlan
from desktop.agent.sandbox.restrictions import (
    DATA,
    HOME_LABEL,
    INSIDE,
    LEASE_LABEL,
    container_faults,
    container_options,
    engine_faults,
    group_of,
    own_groups,
)
from desktop.agent.sandbox.tamper import WAYS, Watch
from protocol.node import SandboxKind

T = TypeVar("T")

ENGINE_TIMEOUT_S = 60.0  # Creating a container waits for a disk that others use too.
ENGINE_CALLS = 8  # At a time; the event loop never waits for the engine itself.
MEASURE_POLL_S = 0.2
MAX_EARLY = 64  # Containers that are not known here; most are other programs'.
CONFLICT = 409
KILLED = 137  # 128 + SIGKILL
# The engine hears that memory ran out in a message of its own, at times after the end.
LATE_LOOKS, LATE_LOOK_S = 5, 0.1
USUAL_ENGINE = "npipe:////./pipe/docker_engine" if sys.platform == "win32" else "unix:///var/run/docker.sock"
DESKTOP = "Docker Desktop"  # What such an engine says of its operating system: a virtual machine of its own.
STREAMS = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
ENTRY = ("python3", "-m", "trainer")
NO_ENGINE = (
    "no Docker engine answers at {address} ({error}). Jobs run only inside one, so that they cannot reach "
    "your files and network. Install it (Debian and Ubuntu: apt-get install docker.io; Windows and macOS: Docker Desktop), "
    "start it, let this user use it (usermod -aG docker $USER, then log in again), or point DOCKER_HOST to one."
)
ADDRESSES = "write it as unix:///var/run/docker.sock or tcp://HOST:PORT, or leave it out for this system's engine"
_NO_ADDRESS = (
    DockerException,
    requests.exceptions.InvalidSchema,
    requests.exceptions.InvalidURL,
    ValueError,
    NameError,
)
"""What the library makes of such a one; the last where ssh:// lacks a package."""
TAMPERED = "somebody on this computer reached into the job's container, so the job was ended"
NO_IMAGE = (
    "the engine has no image {image!r}: take the signed one with `cottage node image`, or make your own with "
    "`python -m installer.image.build {image}`, and try again."
)
NO_GPU_RUNTIME = (
    "the engine cannot give a GPU to a container: install the NVIDIA container toolkit (package nvidia-container-toolkit), run "
    "`nvidia-ctk runtime configure`, and restart the engine."
)


class DockerWorker:
    """One container."""

    def __init__(self, sandbox: "DockerSandbox", container: Any, attached: Attached | None = None) -> None:
        """Take a started container, and its standard streams where those are its way to speak."""
        self._sandbox = sandbox
        self.container = container
        self._attached = attached
        self.tampered = ""
        self.died = asyncio.Event()
        """Set soon after it has ended, where the engine says so."""

    @property
    def pid(self) -> int | None:
        """Its first process, in the engine's own count."""
        return int(self.container.attrs["State"]["Pid"]) or None

    @property
    def connection(self) -> socket.socket | None:
        """Its standard streams, where the sandbox has ``stdio``."""
        return self._attached.end if self._attached else None

    async def ended(self) -> Exit | None:
        """How it ended; ``None`` while it runs."""
        return await self._sandbox.call(self._look)

    async def freeze(self) -> None:
        """Pause the container: the kernel's freezer holds every process in it at once."""
        await self._sandbox.call(lambda: _ask(self.container.pause))

    async def thaw(self) -> None:
        """Go on."""
        await self._sandbox.call(lambda: _ask(self.container.unpause))

    async def kill(self) -> None:
        """End whatever runs in it; the container stays until ``stop``."""
        await self._sandbox.call(lambda: _ask(self.container.kill))

    async def stop(self, grace: float) -> None:
        """Stop and remove the container."""
        self._sandbox.forget(self)
        await self._sandbox.call(lambda: _ask(self.container.unpause))
        await self._sandbox.call(lambda: _remove(self.container, grace))
        if self._attached is not None:
            self._attached.close()

    def tamper(self, how: str) -> None:
        """Somebody reached into it: end it at once, before they see anything. Called in the watch's thread."""
        if self.tampered:
            return
        self.tampered = how
        with contextlib.suppress(DockerException, requests.RequestException):
            self.container.kill()
        LOG.error("the job's container was reached into (%s), so the job was ended", how)

    def _look(self) -> Exit | None:
        if self.tampered:
            return Exit(None, f"{TAMPERED}: {self.tampered}", tampered=True)
        try:
            self.container.reload()
        except NotFound:
            return Exit(None, "somebody removed the worker's container")
        state = self.container.attrs["State"]
        if state["Status"] in ("created", "running", "restarting", "paused"):
            return None
        code = int(state["ExitCode"])
        if state.get("OOMKilled") or code == KILLED:
            state = self._told_why(state)
            memory = int(self.container.attrs["HostConfig"]["Memory"]) >> 20
            text = f"the job needed more memory than the {memory:,} MB it may use here, and was stopped"
            return Exit(code, text, memory=bool(state.get("OOMKilled")))
        if code == egress.LEAK:
            return Exit(code, egress.leaked(printable(self.said().strip().rpartition("\n")[2][:500])))
        text = printable(self.said().strip()[-1000:])
        return Exit(code, f"the worker ended with exit code {code}{': ' + text if text else ''}")

    def _told_why(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its state once the engine has had time to hear why it was killed."""
        for _ in range(LATE_LOOKS):
            if state.get("OOMKilled"):
                break
            time.sleep(LATE_LOOK_S)
            try:
                self.container.reload()
            except NotFound:
                break
            state = self.container.attrs["State"]
        return state

    def said(self) -> str:
        """The last that it printed; in a thread."""
        said = self._attached.said() if self._attached else self.container.logs(tail=20)[-MAX_LOG_BYTES:]
        return said.decode(errors="replace")


class DockerSandbox:
    """Runs ``entry`` + arguments in containers of one image."""

    kind: SandboxKind = "docker"

    def __init__(
        self,
        limits: SandboxLimits,
        image: str,
        *,
        owner: Path,
        gpu: str = "",
        extra: Sequence[str] = (),
        entry: Sequence[str] = ENTRY,
        admit: Callable[[str, str], str] | None = None,
        stdio: bool = sys.platform != "linux",
    ) -> None:
        """Args:
        owner: the agent's home folder, whose containers these are.
        gpu: the one that jobs get, as the driver names it; "": none.
        extra: appended to a worker's arguments.
        stdio: see ``Sandbox``; where Docker Desktop answers it is so in any case.
        admit: why the image of that name and id may hold jobs, in words; raises UnsignedImageError. None: whichever has the name.
        """
        self._limits = limits
        self._image = image
        self._owner = owner_of(owner)
        self._gpu = gpu
        self._extra = tuple(extra)
        self._entry = tuple(entry)
        self._admit = admit
        self.stdio = stdio
        self._threads = ThreadPoolExecutor(ENGINE_CALLS, thread_name_prefix="docker")
        self._client: Any = None
        self._watch: Watch | None = None
        self._workers: dict[str, DockerWorker] = {}
        self._early: dict[str, str] = {}
        self._attaching: set[str] = set()
        self._image_id = ""
        self._group = ""

    async def check(self) -> str:
        """The image's digest, once the engine has shown that it can hold a job; raises SandboxError as the base says."""
        return await self.call(self._check)

    async def sweep(self) -> int:
        """Remove the containers of this home; its agent is the only one and has just begun."""
        return await self.call(self._sweep)

    async def measure(self, arguments: Sequence[str], timeout: float, data: Path | None = None) -> bytes:
        """Run to the end in a container without a job's folder; raises SandboxError as the base says."""
        plan = ContainerPlan("measure", (*self._entry, *arguments), self._limits, gpu=self._gpu, data=data)
        container, _ = await self._started(plan)
        worker = DockerWorker(self, container)
        try:
            async with asyncio.timeout(timeout):
                while (ended := await worker.ended()) is None:  # noqa: ASYNC110 - the engine has nothing to wait on
                    await asyncio.sleep(MEASURE_POLL_S)
            if ended.code:
                raise SandboxError(f"{' '.join(arguments)}: {ended.reason}")
            output: bytes = await self.call(lambda: container.logs(stdout=True, stderr=False))
            return output
        except TimeoutError:
            raise SandboxError(f"{' '.join(arguments)} took longer than {timeout:.0f} s") from None
        finally:
            await worker.stop(0)

    async def start(self, lease: str, folder: Path, data: Path | None = None) -> DockerWorker:
        """Start a worker with every restriction in force; raises SandboxError as the base says."""
        way = WORKER_BY_STDIO if self.stdio else (*WORKER, f"{INSIDE}/{SOCKET_NAME}")
        command = (*self._entry, *way, *self._extra)
        return await self.watched(ContainerPlan(lease, command, self._limits, folder=folder, gpu=self._gpu, data=data))

    async def watched(self, plan: ContainerPlan) -> DockerWorker:
        """Start a container, and end it as soon as somebody reaches into it; raises SandboxError as the base says."""
        if self._watch is None:
            loop = asyncio.get_running_loop()

            def died(container: str) -> None:
                loop.call_soon_threadsafe(self._has_died, container)

            # Events may not come for hours.
            self._watch = Watch(lambda: connect(timeout=None), self._reached_into, died)
            await self.call(self._watch.start)
        worker = DockerWorker(self, *await self._started(plan))
        self._workers[worker.container.id] = worker
        if worker.container.id in self._early:
            await self.call(lambda: worker.tamper(self._early[worker.container.id]))
        return worker

    def forget(self, worker: DockerWorker) -> None:
        """Its container is about to go."""
        self._workers.pop(worker.container.id, None)
        self._attaching.discard(worker.container.id)

    def _has_died(self, container: str) -> None:
        if (worker := self._workers.get(container)) is not None:
            worker.died.set()

    def _reached_into(self, container: str, how: str) -> None:
        if how == WAYS["attach"] and container in self._attaching:
            self._attaching.discard(container)  # By this agent, once; whoever else does makes it two.
            return
        if container and container not in self._workers:
            self._early[container] = how  # Perhaps one that is only just starting.
            while len(self._early) > MAX_EARLY:
                self._early.pop(next(iter(self._early)))
        for worker in list(self._workers.values()):
            if container in ("", worker.container.id):
                worker.tamper(how)

    def labels(self, lease: str) -> dict[str, str]:
        """By which one finds what is this home's."""
        return {HOME_LABEL: self._owner, LEASE_LABEL: lease}

    @property
    def owner(self) -> str:
        """What this home's containers are labelled with."""
        return self._owner

    @property
    def client(self) -> Any:
        """The engine, once ``check`` has found it; for threads."""
        return self._client

    @property
    def gpu(self) -> str:
        """The card that is lent; empty: none."""
        return self._gpu

    def inside(self, folder: Path) -> str:
        """Where the folder is mounted."""
        return INSIDE

    def data_inside(self, data: Path) -> str:
        """Where the owner's own data is mounted."""
        return DATA

    async def aclose(self) -> None:
        """Close the connection to the engine."""
        if self._watch is not None:
            self._watch.close()
        if self._client is not None:
            await self.call(self._client.close)
        self._threads.shutdown(wait=False)

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread; the engine's errors become SandboxError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (DockerException, requests.RequestException) as error:
            raise SandboxError(_explain(error)) from error

    # --- in threads -----------------------------------------------------------------------------------------------------

    def _check(self) -> str:
        if self._client is None:
            self._client = connect()
        info = self._client.info()
        faults = engine_faults(info)
        if self._gpu and (fault := toolkit.fault(toolkit.installed())):
            faults.append(fault)
        self.stdio = self.stdio or DESKTOP in str(info.get("OperatingSystem"))
        if faults:
            raise SandboxError(f"this Docker engine cannot hold a job: {'; '.join(faults)}")
        try:
            found = str(self._client.images.get(self._image).id)
        except ImageNotFound:
            raise NoImageError(NO_IMAGE.format(image=self._image)) from None
        if self._admit is not None:
            LOG.info("%s", self._admit(self._image, found))
        self._image_id, self._group = found, group_of(info, own_groups())
        return self._image_id

    def _sweep(self) -> int:
        return remove_containers(self._client, self._owner)

    async def _started(self, plan: ContainerPlan) -> tuple[Any, Attached | None]:
        """A started container, and its standard streams where it has them; one that nobody waits for is removed again."""
        starting = asyncio.ensure_future(self.call(lambda: self._start(plan)))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                container, attached = await starting
                await self.call(lambda: _remove(container, 0))
                if attached is not None:
                    attached.close()
            raise

    def _start(self, plan: ContainerPlan) -> tuple[Any, Attached | None]:
        try:
            return self._start_in(self._group, plan)
        except APIError as error:
            if not self._group or not plan.trusted:
                raise
            started = self._start_in("", plan)  # Raises the same where the group is not the reason.
            LOG.warning(
                "this engine cannot put jobs beside this computer's other programs (%s): the processor is shared evenly",
                _explain(error),
            )
            self._group = ""
            return started

    def _start_in(self, group: str, plan: ContainerPlan) -> tuple[Any, Attached | None]:
        stdio = plan.streams or (self.stdio and plan.folder is not None)
        options = container_options(
            plan.limits, plan.folder, self.labels(plan.lease), plan.gpu, group, stdio, plan.volumes, plan.data
        )
        options["environment"] |= plan.environment
        container = self._client.containers.create(
            plan.image or self._image_id,
            [*(egress.ARGUMENTS if plan.trusted else ()), *plan.command[1:]],
            entrypoint=[plan.command[0]],
            name=f"cottage-{plan.lease[:12]}-{secrets.token_hex(4)}",
            working_dir=plan.working_dir or None,
            **options,
        )
        attached = None
        try:
            if stdio:
                self._attaching.add(container.id)
                attached = Attached(container.attach_socket(params=STREAMS))
            container.start()
            container.reload()
            faults = container_faults(
                container.attrs, plan.limits, plan.folder, plan.gpu, group, stdio, plan.volumes, plan.data
            )
            if faults:
                raise SandboxError(f"the engine did not put every restriction in force: {'; '.join(faults)}")
        except (SandboxError, DockerException, requests.RequestException):
            self._attaching.discard(container.id)
            _remove(container, 0)
            if attached is not None:
                attached.close()
            raise
        return container, attached


def owner_of(home: Path) -> str:
    """What the containers of one home are labelled with."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:32]


def remove_containers(client: Any, owner: str) -> int:
    """Remove the containers of one home, whether they run or not, and their folders in memory; returns how many containers."""
    mine = {"label": f"{HOME_LABEL}={owner}"}
    left = client.containers.list(all=True, filters=mine, ignore_removed=True)
    for container in left:
        _remove(container, 0)
    for volume in client.volumes.list(filters=mine):
        with contextlib.suppress(NotFound):
            volume.remove(force=True)
    return len(left)


def connect(timeout: float | None = ENGINE_TIMEOUT_S) -> Any:
    """The engine of DOCKER_HOST, or this system's; raises NoEngineError."""
    address = os.environ.get("DOCKER_HOST") or USUAL_ENGINE
    try:
        return docker.from_env(timeout=timeout)
    except TLSParameterError as error:
        folder = os.environ.get("DOCKER_CERT_PATH") or "~/.docker"
        raise NoEngineError(
            f"DOCKER_TLS_VERIFY and DOCKER_CERT_PATH ask for TLS, and {printable(folder)} holds no usable ca.pem, cert.pem and "
            "key.pem: put them there, or unset both"
        ) from error
    except (DockerException, requests.RequestException, ValueError) as error:
        if isinstance(_root(error), _NO_ADDRESS):
            raise NoEngineError(f"DOCKER_HOST is {printable(address)!r}, no engine's address: {ADDRESSES}") from error
        text = NO_ENGINE.format(address=printable(address), error=_root_cause(error))
        raise NoEngineError(text, why=_lack(_root(error)), address=printable(address)) from error


def _lack(error: BaseException) -> str:
    """What is missing, in a word."""
    if os.environ.get("DOCKER_HOST"):
        return "elsewhere"
    if isinstance(error, PermissionError):
        return "denied"
    # On Debian no user's own path has the folder that it is in.
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    return "stopped" if shutil.which("dockerd", path=path) else "absent"


def _ask(change: Callable[[], None]) -> None:
    """Pause or go on; a container that is gone, has ended, or is in that state already is left as it is."""
    try:
        change()
    except NotFound:
        return
    except APIError as error:
        if error.status_code not in (409, 500):  # Older engines say 500 where newer ones say 409.
            raise


def _remove(container: Any, grace: float) -> None:
    with contextlib.suppress(NotFound):
        if grace > 0:
            container.stop(timeout=int(grace))
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code != CONFLICT:  # Somebody else is removing it.
                raise


def _explain(error: Exception) -> str:
    text = printable(str(error.explanation if isinstance(error, APIError) and error.explanation else error))
    if "could not select device driver" in text or "nvidia-container" in text:
        LOG.error("%s", text)
        return NO_GPU_RUNTIME
    return f"the Docker engine failed: {text}"


def _root(error: BaseException) -> BaseException:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


def _root_cause(error: BaseException) -> str:
    error = _root(error)
    said = error.strerror if isinstance(error, OSError) else None
    return printable(said or str(error)) or type(error).__name__
