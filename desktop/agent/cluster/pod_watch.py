"""What becomes of this agent's pods: who changes them, who ends them, and how they end themselves.

Kubernetes tells every change of a pod's object. What makes none (``kubectl exec``, attach, a debugger below) is not seen here.
The pod's own second program sees the first, and the chart forbids both to everybody but this agent.
"""

import asyncio
import copy
import sys
from collections.abc import Callable
from typing import Any

from desktop.agent.base.log import LOG, printable
from desktop.agent.cluster.api import ClusterApi, GoneVersionError
from desktop.agent.cluster.manifest import NAME_LABEL, faults
from desktop.agent.errors import SandboxError

assert sys.platform != "win32", "``startup.make_sandbox`` refuses it there: an agent in a cluster runs on Linux"

RETRY_S = 0.5


class SeenPod:
    """What is known of one worker's pod. ``changed`` is called with each new look at it, and with None once it is gone."""

    def __init__(self, job: dict[str, Any]) -> None:
        """``job``: as it was asked for."""
        self.asked = job
        self.pod: dict[str, Any] | None = None
        self.gone = False
        self.news = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None
        self._settled: dict[str, Any] | None = None
        self.tampered = ""

    def look(self, pod: dict[str, Any] | None) -> None:
        """Take what the cluster says."""
        if pod is None:
            self.gone = True
        else:
            self.pod = pod
            self._judge(pod)
        self.news.set()
        self.changed()

    @property
    def name(self) -> str:
        """The pod's; empty: there is none yet."""
        return str(self.pod["metadata"]["name"]) if self.pod else ""

    @property
    def phase(self) -> str:
        """As Kubernetes has it."""
        return str(self.pod.get("status", {}).get("phase", "Pending")) if self.pod else "Pending"

    @property
    def container(self) -> dict[str, Any]:
        """The state of its only container: waiting, running or terminated."""
        statuses = (self.pod or {}).get("status", {}).get("containerStatuses") or [{}]
        state: dict[str, Any] = statuses[0].get("state") or {}
        return state

    def condition(self, kind: str) -> dict[str, Any]:
        """One of its conditions; empty: it has none of that kind."""
        conditions = (self.pod or {}).get("status", {}).get("conditions") or ()
        return next((one for one in conditions if one.get("type") == kind), {})

    @property
    def taken(self) -> str:
        """Why the cluster wants its place back; empty: it does not."""
        pod = self.pod or {}
        disrupted = self.condition("DisruptionTarget")
        if disrupted.get("status") == "True":
            return printable(f"{disrupted.get('reason')}: {disrupted.get('message', '')}")[:300]
        status = pod.get("status", {})
        if status.get("reason") in ("Evicted", "Preempting", "NodeShutdown", "Terminated", "NodeLost"):
            return printable(f"{status['reason']}: {status.get('message', '')}")[:300]
        if "deletionTimestamp" in pod.get("metadata", {}) or self.gone:
            return "its pod was deleted"
        return ""

    def _judge(self, pod: dict[str, Any]) -> None:
        """From the moment that it has a place nothing of it may change any more."""
        if self.tampered or "nodeName" not in pod["spec"]:
            return
        if found := faults(pod, self.asked):
            self.tampered = f"its pod was changed: {'; '.join(found)}"
        elif self._settled is not None and pod["spec"] != self._settled:
            changed = sorted(
                key for key in {*pod["spec"], *self._settled} if pod["spec"].get(key) != self._settled.get(key)
            )
            self.tampered = f"its pod was changed: {', '.join(changed)}"
        else:
            self._settled = copy.deepcopy(pod["spec"])


class PodWatch:
    """Follows the pods of one home, from ``start`` to ``close``."""

    def __init__(self, api: ClusterApi, selector: str) -> None:
        """``selector``: labels of this home's pods."""
        self._api, self._selector = api, selector
        self._seen: dict[str, SeenPod] = {}
        self._following = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; returns once the first list has come, or after a while where the server does not answer."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pod-watch")
        try:
            async with asyncio.timeout(RETRY_S * 10):
                await self._following.wait()
        except TimeoutError:
            LOG.warning("the cluster does not tell of its pods yet")

    def add(self, job: dict[str, Any]) -> SeenPod:
        """Look after the pod of a Job that is about to be made."""
        seen = self._seen[job["metadata"]["name"]] = SeenPod(job)
        return seen

    def remove(self, job: str) -> None:
        """It is of no interest any more."""
        self._seen.pop(job, None)

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                    self._following.set()
                async for kind, pod in self._api.changes(self._selector, version):
                    version = str(pod["metadata"]["resourceVersion"])
                    if kind != "BOOKMARK":
                        self._tell(pod, kind == "DELETED")
            except GoneVersionError:
                version = ""
            except (SandboxError, KeyError, TypeError) as error:
                LOG.warning("the cluster's word of its pods ended, trying again: %s", printable(str(error)))
                version = ""
                await asyncio.sleep(RETRY_S)

    async def _list(self) -> str:
        """Everything anew: what happened meanwhile shows in what is there, and in what is not."""
        pods, version = await self._api.pods(self._selector)
        here = {pod["metadata"]["name"] for pod in pods}
        for pod in pods:
            self._tell(pod, gone=False)
        for seen in list(self._seen.values()):
            if seen.pod is not None and seen.name not in here:
                seen.look(None)
        return version

    def _tell(self, pod: dict[str, Any], gone: bool) -> None:
        job, name = pod["metadata"].get("labels", {}).get(NAME_LABEL), pod["metadata"]["name"]
        # A label that somebody took away does not hide its pod.
        seen = self._seen.get(str(job)) or next((one for one in self._seen.values() if one.name == name), None)
        if seen is None:
            return
        seen.look(pod)
        if gone:
            seen.look(None)
