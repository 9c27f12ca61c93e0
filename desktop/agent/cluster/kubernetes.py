"""Jobs in pods of the cluster that the agent itself runs in: a Job for each worker, one card each, and no rights at all."""

import asyncio
import contextlib
import hashlib
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from desktop.agent.base.log import LOG, printable
from desktop.agent.cluster.api import ACCOUNT, ClusterApi
from desktop.agent.cluster.door_program import REACHED_INTO
from desktop.agent.cluster.manifest import PodPlan, PodSurroundings, job, mounts, targets
from desktop.agent.cluster.pod_watch import PodWatch, SeenPod
from desktop.agent.cluster.room import ClusterRoom
from desktop.agent.cluster.sealed_stream import SealedStream
from desktop.agent.errors import NoImageError, SandboxError
from desktop.agent.sandbox import egress
from desktop.agent.sandbox.base import WORKER_BY_STDIO, Exit, SandboxLimits
from desktop.agent.sandbox.restrictions import DATA, HOME_LABEL, INSIDE
from protocol.node import SandboxKind

ENTRY: Final = ("-m", "trainer")
ROOM_S: Final = 10.0  # A pod that no machine has taken by then is told so by the scheduler, at the latest.
PLACED_S: Final = 900.0  # Its image may have gigabytes, and come for the first time.
LOOK_AGAIN_S: Final = 30.0  # For room, once there was none.
# From the cluster's wish until its agent has left by itself, which is a look of the lending keeper.
YIELD_S: Final = 3.0
GONE_S: Final = 30.0  # Longer than any grace: a machine that does not answer keeps its pods.
TRIAL_S: Final = 60.0
LAST_WORDS_S: Final = 3.0
DIGEST: Final = re.compile(r"^[^@\s]{1,255}@(sha256:[0-9a-f]{64})$")
TAMPERED: Final = "somebody in this cluster reached into the job's pod, so the job was ended"
NO_DIGEST: Final = (
    "in a cluster the image of jobs is named by its digest, as registry.example.org/cottage-trainer@sha256:..., "
    "since its tag may mean another one tomorrow, and {image!r} has none: give --image"
)
NEVER: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError"}
)
"""What a pod waits for that does not come by itself. ``CreateContainerConfigError`` comes and goes while volumes are mounted."""


@dataclass(frozen=True)
class ClusterPlace:
    """What the chart tells the agent of its pod. ``name``: the pod's; ``container``: the agent's own in it.

    ``gpu``: the resource that a worker asks one of; empty: it computes on processors. ``priority_class``: of workers.
    ``beside``: the agent's volume can only be had on the same machine.
    """

    name: str
    container: str = "node"
    gpu: str = ""
    priority_class: str = ""
    beside: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str], *, gpu: bool) -> "ClusterPlace":
        """By the variables that begin with COTTAGE_CLUSTER; ``gpu``: cards are lent."""
        return cls(
            environment.get("COTTAGE_CLUSTER_POD") or environment.get("HOSTNAME", ""),
            environment.get("COTTAGE_CLUSTER_CONTAINER") or "node",
            environment.get("COTTAGE_CLUSTER_GPU", "") if gpu else "",
            environment.get("COTTAGE_CLUSTER_PRIORITY", ""),
            environment.get("COTTAGE_CLUSTER_BESIDE") == "yes",
        )


class PodWorker:
    """One worker's pod."""

    def __init__(self, sandbox: "KubernetesSandbox", seen: SeenPod) -> None:
        """Take one that is about to be made."""
        self._sandbox, self._seen = sandbox, seen
        self._stream: SealedStream | None = None
        self._stopping = False
        self._taken_at, self._taken = 0.0, ""
        self._tampered = ""
        seen.changed = self._look

    @property
    def pid(self) -> None:
        """It is on another machine."""

    @property
    def connection(self) -> socket.socket | None:
        """Its standard streams."""
        return self._stream.end if self._stream else None

    @property
    def name(self) -> str:
        """Of its Job."""
        return str(self._seen.asked["metadata"]["name"])

    async def begin(self) -> None:
        """Return once it runs as it was asked for, and listens; raises SandboxError."""
        await self._running()
        if self._tampered or self._seen.tampered:
            raise SandboxError(
                f"the cluster did not put every restriction in force: {self._tampered or self._seen.tampered}"
            )
        try:
            attached = await self._sandbox.api.attach(self._seen.name, "worker")
        except SandboxError:
            await self._until(lambda: "terminated" in self._seen.container, LAST_WORDS_S)
            self._check_lives()
            raise
        self._stream = SealedStream(attached, self._tamper)
        await self._stream.begin()
        self._sandbox.placed.add(self)

    async def ended(self) -> Exit | None:
        """How it ended; None while it runs, and while the agent leaves a place that the cluster wants back."""
        if self._tampered:
            return Exit(None, f"{TAMPERED}: {self._tampered}", tampered=True)
        loop, seen = asyncio.get_running_loop(), self._seen
        if self._taken_at:
            if loop.time() < self._taken_at + YIELD_S:
                return None
            return Exit(None, f"the cluster took the job's place back: {self._taken}")
        if seen.gone:
            return Exit(None, "somebody removed the worker's pod")
        finished = seen.container.get("terminated")
        if finished is None:
            return None
        code, said = int(finished.get("exitCode", 1)), (self._stream.said() if self._stream else "").strip()
        last, said = printable(said.rpartition("\n")[2])[:500], printable(said[-1000:])
        if finished.get("reason") == "OOMKilled":
            memory = self._sandbox.limits.memory_mb
            return Exit(
                code, f"the job needed more memory than the {memory:,} MB it may use here, and was stopped", memory=True
            )
        if code == REACHED_INTO:
            return Exit(code, f"{TAMPERED}: {last}", tampered=True)
        if code == egress.LEAK:
            return Exit(code, egress.leaked(last))
        return Exit(code, f"the worker ended with exit code {code}{': ' + said if said else ''}")

    async def freeze(self) -> None:
        """Stop its processes; what a card is computing it completes."""
        if self._stream is not None:
            await self._stream.hold(True)

    async def thaw(self) -> None:
        """Go on."""
        if self._stream is not None:
            await self._stream.hold(False)

    async def stop(self, grace: float) -> None:
        """Remove Job and pod; returns once the pod is gone."""
        self._stopping = True
        if self._stream is not None:
            await self._stream.close()
        api, seen = self._sandbox.api, self._seen
        try:
            await api.delete_job(self.name)
            if seen.name and not seen.gone:
                await api.delete_pod(seen.name, max(1, int(grace)))
            await self._until(lambda: not seen.name or seen.gone, GONE_S + grace)
            if seen.name and not seen.gone:
                LOG.warning("the pod %s is still there: its machine does not answer", seen.name)
        finally:  # What cannot be removed holds no place: its input has ended, and its Job goes by itself.
            self._sandbox.forget(self)

    async def _running(self) -> None:
        """Wait for a machine, then for the image; raises SandboxError."""
        loop, seen = asyncio.get_running_loop(), self._seen
        began = loop.time()
        while not {"running", "terminated"} & set(seen.container):
            waited = loop.time() - began
            placed = seen.condition("PodScheduled")
            if waited > ROOM_S and (seen.pod is None or placed.get("status") != "True"):
                why = (
                    placed.get("message")
                    or "no pod was made of its Job: a quota or a policy of the namespace forbids it"
                )
                await self._no_room(printable(str(why))[:300])
            if seen.gone or seen.taken:
                await self._no_room(seen.taken)
            waiting = seen.container.get("waiting", {})
            if waiting.get("reason") in NEVER:
                raise NoImageError(
                    printable(f"the worker's pod does not start: {waiting['reason']}: {waiting.get('message', '')}")[
                        :500
                    ]
                )
            if waited > PLACED_S:
                raise SandboxError(
                    f"the worker's pod has not started within {PLACED_S:.0f} s: {waiting.get('reason', 'it is not said why')}"
                )
            seen.news.clear()
            await self._until(seen.news.is_set, 1.0)
        self._check_lives()

    def _check_lives(self) -> None:
        """Raises SandboxError where its first program has ended it, or something else did."""
        ended = self._seen.container.get("terminated")
        if ended is None:
            return
        code, last = ended.get("exitCode"), printable(str(ended.get("message") or ""))[:500]
        if code == egress.LEAK:
            raise SandboxError(egress.leaked(last))
        raise SandboxError(f"the worker's pod ended with exit code {code} before anybody spoke with it: {last}")

    async def _until(self, holds: Callable[[], bool], patience: float) -> None:
        """Return once it is so, or after ``patience`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not holds():
                    self._seen.news.clear()
                    await self._seen.news.wait()

    async def _no_room(self, why: str) -> None:
        """Tell the keeper, who has the lease end as for the owner's switch; whoever is still here then has failed."""
        if self._sandbox.holds_another(self):
            raise SandboxError(f"another job has this agent's place in the cluster: {why}")
        self._sandbox.no_room(why)
        await asyncio.sleep(YIELD_S)
        raise SandboxError(f"the cluster has no room for a worker: {why}")

    def _look(self) -> None:
        """The cluster has said something of the pod."""
        seen = self._seen
        if seen.tampered:
            self._tamper(seen.tampered)
        elif not self._stopping and not self._taken_at and "terminated" not in seen.container and seen.taken:
            self._taken_at, self._taken = asyncio.get_running_loop().time(), seen.taken
            self._sandbox.no_room(self._taken)

    def _tamper(self, how: str) -> None:
        """Somebody reached into it: end it at once."""
        if self._tampered or self._stopping:
            return
        self._tampered = how
        LOG.error("the job's pod was reached into (%s), so the job was ended", printable(how))
        self._sandbox.end_soon(self._seen.name)


class KubernetesSandbox:
    """Runs ``python3`` + ``entry`` + arguments in pods beside the agent's own."""

    kind: SandboxKind = "kubernetes"
    stdio = True

    def __init__(
        self,
        limits: SandboxLimits,
        image: str,
        *,
        owner: Path,
        place: ClusterPlace,
        extra: Sequence[str] = (),
        entry: Sequence[str] = ENTRY,
        account: Path = ACCOUNT,
    ) -> None:
        """Args:
        image: by digest. owner: the agent's home folder, on a volume claim of its pod.
        extra: appended to a worker's arguments. account: see ``ClusterApi``.
        """
        self.limits, self.room = limits, ClusterRoom()
        self._image, self._place, self._account = image, place, account
        self._home = hashlib.sha256(str(owner).encode() + place.name.encode()).hexdigest()[:32]
        self._extra, self._entry = tuple(extra), tuple(entry)
        self._api: ClusterApi | None = None
        self._watch: PodWatch | None = None
        self._own: dict[str, Any] = {}
        self._around: PodSurroundings | None = None
        self.placed: set[PodWorker] = set()
        """Workers that run."""
        self._later: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def api(self) -> ClusterApi:
        """The cluster; raises SandboxError where this program runs in none."""
        if self._api is None:
            self._api = ClusterApi(self._account)
        return self._api

    async def check(self) -> str:
        """The image's digest, once the cluster has said that it would take such a Job; raises SandboxError as the base says."""
        match = DIGEST.match(self._image)
        if match is None:
            raise SandboxError(NO_DIGEST.format(image=self._image))
        self._own = await self.api.pod(self._place.name)
        self._around = self._surroundings()
        await self.api.create(job(self._plan("trial", ()), self._around), only_try=True)
        if self._watch is None:
            self._watch = PodWatch(self.api, f"{HOME_LABEL}={self._home}")
            await self._watch.start()
        return match[1]

    async def sweep(self) -> int:
        """Remove this home's Jobs; its agent is the only one and has just begun."""
        left = await self.api.jobs(f"{HOME_LABEL}={self._home}")
        for one in left:
            await self.api.delete_job(one["metadata"]["name"])
        return len(left)

    async def measure(self, arguments: Sequence[str], timeout: float, data: Path | None = None) -> bytes:
        """Run to the end in a pod without a job's folder; raises SandboxError as the base says."""
        return await self._run((*self._entry, *arguments), timeout, data)

    async def start(self, lease: str, folder: Path, data: Path | None = None) -> PodWorker:
        """Start a worker with every restriction in force; raises SandboxError as the base says."""
        return await self._started(lease, (*self._entry, *WORKER_BY_STDIO, *self._extra), folder, data)

    def inside(self, folder: Path) -> str:
        """Where the folder is mounted."""
        return INSIDE

    def data_inside(self, data: Path) -> str:
        """Where the owner's own data is mounted."""
        return DATA

    async def aclose(self) -> None:
        """Let go of the cluster."""
        waited = [task for task in (*self._later, self._looking) if task is not None]
        for task in waited:
            task.cancel()
        await asyncio.gather(*waited, return_exceptions=True)
        if self._watch is not None:
            await self._watch.close()
        if self._api is not None:
            await self._api.aclose()
            self._api = None

    def holds_another(self, worker: PodWorker) -> bool:
        """Whether a job of this agent has a place: then there was room, and it is in use."""
        return bool(self.placed - {worker})

    def no_room(self, why: str) -> None:
        """The cluster has none for now: lend nothing until a pod finds a place again."""
        self.room.why = why
        LOG.info("the cluster has no room for workers: %s", printable(why))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_for_room(), name="look-for-room")

    def end_soon(self, pod: str) -> None:
        """Remove a pod without waiting for it."""

        async def end() -> None:
            try:
                await self.api.delete_pod(pod, 0)
            except SandboxError as error:
                LOG.error("%s", error)

        task = asyncio.create_task(end(), name=f"end-{pod}")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def forget(self, worker: PodWorker) -> None:
        """Its pod has gone."""
        self.placed.discard(worker)
        if self._watch is not None:
            self._watch.remove(worker.name)

    async def _look_for_room(self) -> None:
        """Until a pod like a worker's finds a place."""
        while self.room.why:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                await self._run(("-c", "pass"), TRIAL_S + PLACED_S, None)
                self.room.why = ""
                LOG.info("the cluster has room for workers again")
            except SandboxError as error:
                LOG.debug("no room yet: %s", error)

    async def _run(self, command: Sequence[str], timeout: float, data: Path | None) -> bytes:
        """The standard output of a pod."""
        worker: PodWorker | None = None
        try:
            async with asyncio.timeout(timeout):
                worker = await self._started("measure", command, None, data)
                output = await _all_of(worker.connection)
                while (ended := await worker.ended()) is None:  # noqa: ASYNC110 - it is the cluster that says so
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise SandboxError(f"{' '.join(command)} took longer than {timeout:.0f} s") from None
        finally:
            if worker is not None:
                await worker.stop(0)
        if ended.code != 0:
            raise SandboxError(f"{' '.join(command)}: {ended.reason}")
        return output

    async def _started(self, lease: str, command: Sequence[str], folder: Path | None, data: Path | None) -> PodWorker:
        if self._watch is None or self._around is None:
            await self.check()
        assert self._watch is not None
        assert self._around is not None
        sources = targets(None if folder is None else str(folder), None if data is None else str(data))
        try:
            mounted = mounts(self._own, self._place.container, sources)
        except ValueError as error:
            raise SandboxError(str(error)) from error
        asked = job(self._plan(lease, command, mounted), self._around)
        worker = PodWorker(self, self._watch.add(asked))
        try:
            await self.api.create(asked)
            await worker.begin()
        except BaseException:
            await worker.stop(0)
            raise
        return worker

    def _plan(self, lease: str, command: Sequence[str], mounted: Sequence[Any] = ()) -> PodPlan:
        name = f"cottage-worker-{lease[:12]}-{secrets.token_hex(4)}"
        return PodPlan(name, self._home, lease, command, self.limits, mounted)

    def _surroundings(self) -> PodSurroundings:
        """By the agent's own pod: its workers go where it may go, and go with it."""
        meta, spec = self._own["metadata"], self._own["spec"]
        beside = {name: value for name, value in meta.get("labels", {}).items() if name in BESIDE_LABELS}
        if self._place.beside and not beside:
            raise SandboxError(
                f"the agent's pod has none of the labels {', '.join(BESIDE_LABELS)}, by which a worker finds it"
            )
        return PodSurroundings(
            self._image,
            {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]},
            self._place.gpu,
            self._place.priority_class,
            spec.get("imagePullSecrets", ()),
            beside if self._place.beside else None,
            spec.get("nodeSelector"),
            [
                one
                for one in spec.get("tolerations", ())
                if not str(one.get("key", "")).startswith("node.kubernetes.io/")
            ],
        )


BESIDE_LABELS: Final = ("statefulset.kubernetes.io/pod-name",)
"""By which one pod is found among several of an agent."""


async def _all_of(end: socket.socket | None) -> bytes:
    assert end is not None
    loop, parts = asyncio.get_running_loop(), []
    while data := await loop.sock_recv(end, 1 << 16):
        parts.append(data)
    return b"".join(parts)
