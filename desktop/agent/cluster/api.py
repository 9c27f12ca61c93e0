"""Kubernetes' own interface as an agent in the cluster asks it: with its pod's account, in its own namespace, and no more.

::

    jobs   create, list, delete        pods   get, list, watch, delete, attach
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
from kubernetes_asyncio.client import ApiClient, BatchV1Api, Configuration, CoreV1Api
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.incluster_config import load_incluster_config
from kubernetes_asyncio.stream import WsApiClient
from kubernetes_asyncio.watch import Watch

from desktop.agent.base.log import LOG, printable
from desktop.agent.errors import SandboxError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_S: Final = 30.0
WATCH_S: Final = 240  # Then it is begun anew from where it was; servers end one after five to ten minutes.
TRIES: Final = 4
WAIT_S: Final = 0.5  # Before another try; doubled with each.
BUSY: Final = frozenset({429, 500, 503, 504})
BEAT_S: Final = 20.0  # So that nothing on the way closes an attachment where nobody says anything.
OUTSIDE: Final = (
    "--sandbox kubernetes is for an agent that runs in a cluster, and this one does not ({error}): "
    "install it there with the chart installer/chart-node, or lend this computer with --sandbox docker"
)

T = TypeVar("T")
Found = dict[str, Any]


class GoneVersionError(Exception):
    """The server does not remember as far back: list again."""


class ClusterApi:
    """One namespace of one cluster."""

    def __init__(self, account: Path = ACCOUNT) -> None:
        """``account``: the folder with the pod's token, its namespace and the cluster's certificate.

        Raises:
            SandboxError: this program runs in no pod.
        """
        self._account = account
        self._settings = Configuration()
        try:
            self._load()
            self.namespace = (account / "namespace").read_text().strip()
            self._client = ApiClient(self._settings)
            self._attaching = WsApiClient(self._settings, heartbeat=BEAT_S)
        except (ConfigException, OSError, ssl.SSLError) as error:
            raise SandboxError(OUTSIDE.format(error=printable(str(error)))) from error
        self._pods, self._jobs = CoreV1Api(self._client), BatchV1Api(self._client)

    async def pod(self, name: str) -> Found:
        """One pod; raises SandboxError."""
        return await self._found(
            lambda: self._pods.read_namespaced_pod(
                name, self.namespace, _preload_content=False, _request_timeout=CALL_S
            ),
            f"the pod {name} cannot be read",
        )

    async def pods(self, selector: str) -> tuple[list[Found], str]:
        """Pods by their labels, and the version of that list; raises SandboxError."""
        found = await self._found(
            lambda: self._pods.list_namespaced_pod(
                self.namespace, label_selector=selector, _preload_content=False, _request_timeout=CALL_S
            ),
            "pods cannot be listed",
        )
        return list(found["items"]), str(found["metadata"]["resourceVersion"])

    async def changes(self, selector: str, version: str) -> AsyncIterator[tuple[str, Found]]:
        """What happens to such pods after ``version``, as (ADDED, MODIFIED, DELETED or BOOKMARK; the pod), for some minutes.

        Raises:
            GoneVersionError: that is too long ago.
            SandboxError: the server does not answer.
        """
        watch = Watch("object")  # As it comes: the library's classes know neither newer fields nor half an object.
        try:
            stream = watch.stream(
                self._pods.list_namespaced_pod,
                self.namespace,
                label_selector=selector,
                resource_version=version,
                timeout_seconds=WATCH_S,
                allow_watch_bookmarks=True,
                _request_timeout=aiohttp.ClientTimeout(sock_connect=CALL_S, sock_read=WATCH_S + CALL_S),
            )
            async for event in stream:
                yield event["type"], event["raw_object"]
        except ApiException as error:
            if error.status == 410:
                raise GoneVersionError from error
            if error.status == 401:
                self._load()
            raise SandboxError(f"pods cannot be watched: {_said(error)}") from error
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            raise SandboxError(f"pods cannot be watched: {printable(str(error) or type(error).__name__)}") from error
        finally:
            await watch.close()

    async def create(self, job: Found, *, only_try: bool = False) -> Found:
        """Make a Job, or have the cluster say what it would do with it; raises SandboxError."""
        more: dict[str, Any] = {"dry_run": "All"} if only_try else {}
        body: Any = job  # The library takes its own classes and plain objects alike.
        return await self._found(
            lambda: self._jobs.create_namespaced_job(
                self.namespace, body, _preload_content=False, _request_timeout=CALL_S, **more
            ),
            "the cluster takes no Job of this agent",
            job,
        )

    async def jobs(self, selector: str) -> list[Found]:
        """Jobs by their labels; raises SandboxError."""
        found = await self._found(
            lambda: self._jobs.list_namespaced_job(
                self.namespace, label_selector=selector, _preload_content=False, _request_timeout=CALL_S
            ),
            "Jobs cannot be listed",
        )
        return list(found["items"])

    async def delete_job(self, name: str) -> None:
        """Remove a Job; one that is gone is no error. Its pod goes after it."""
        await self._gone(
            lambda: self._jobs.delete_namespaced_job(
                name,
                self.namespace,
                propagation_policy="Background",
                _preload_content=False,
                _request_timeout=CALL_S,
            ),
            f"the Job {name} cannot be removed",
        )

    async def delete_pod(self, name: str, grace: int) -> None:
        """Remove a pod, by force after ``grace`` seconds; one that is gone is no error."""
        await self._gone(
            lambda: self._pods.delete_namespaced_pod(
                name,
                self.namespace,
                grace_period_seconds=grace,
                _preload_content=False,
                _request_timeout=CALL_S,
            ),
            f"the pod {name} cannot be removed",
        )

    async def attach(self, pod: str, container: str) -> aiohttp.ClientWebSocketResponse:
        """The standard streams of a running container; raises SandboxError."""

        async def connect() -> aiohttp.ClientWebSocketResponse:
            connecting: Any = await CoreV1Api(self._attaching).connect_get_namespaced_pod_attach(
                pod,
                self.namespace,
                container=container,
                stdin=True,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
            found: aiohttp.ClientWebSocketResponse = await connecting
            return found

        return await self._ask(connect, f"the pod {pod} cannot be attached to")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()
        await self._attaching.close()

    def _load(self) -> None:
        """The account's token, which the cluster writes anew every hour or so; raises SandboxError."""
        try:
            load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=self._settings,
                token_filename=str(self._account / "token"),
                cert_filename=str(self._account / "ca.crt"),
            )
        except (ConfigException, OSError) as error:
            raise SandboxError(OUTSIDE.format(error=printable(str(error)))) from error

    async def _found(self, ask: Callable[[], Awaitable[Any]], failed: str, made: Found | None = None) -> Found:
        """The answer's document, whatever its fields: newer servers have some that the library does not know."""

        async def answered() -> Found:
            response = await ask()
            data = await response.read()
            if response.status >= 300:
                raise _AnswerError(response.status, data, response.headers.get("Retry-After"))
            found: Found = json.loads(data)
            return found

        return await self._ask(answered, failed, made)

    async def _gone(self, ask: Callable[[], Awaitable[Any]], failed: str) -> None:
        async def answered() -> None:
            response = await ask()
            data = await response.read()
            if response.status >= 300 and response.status != 404:
                raise _AnswerError(response.status, data, response.headers.get("Retry-After"))

        await self._ask(answered, failed)

    async def _ask(self, ask: Callable[[], Awaitable[T]], failed: str, made: T | None = None) -> T:
        """Once more with a new token where the old one has expired, and later where the server is busy.

        ``made``: what is to be made by a name of its own; where it is there at the second try, the first one's answer was lost.
        """
        wait, why = WAIT_S, ""
        for attempt in range(TRIES):
            try:
                return await ask()
            except (_AnswerError, aiohttp.WSServerHandshakeError) as error:
                why = error.text if isinstance(error, _AnswerError) else f"it answered {error.status}"
                if error.status == 409 and attempt and made:
                    return made
                if error.status == 401:
                    LOG.debug("the account's token has expired: reading it anew")
                    self._load()
                elif error.status not in BUSY:
                    raise SandboxError(f"{failed}: {why}") from error
                delay = error.after if isinstance(error, _AnswerError) and error.after else wait
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                why, delay = printable(str(error) or type(error).__name__), wait
            if attempt + 1 < TRIES:
                await asyncio.sleep(min(delay, CALL_S))
                wait *= 2
        raise SandboxError(f"{failed}: {why}")


class _AnswerError(Exception):
    """What the server answered instead of what was asked for. ``after``: seconds until one may ask again."""

    def __init__(self, status: int, data: bytes, after: str | None) -> None:
        super().__init__(status)
        self.status, self.after = status, float(after) if after is not None and after.isdigit() else 0.0
        try:
            said = json.loads(data)["message"]
        except (ValueError, KeyError, TypeError):
            said = data[:200].decode(errors="replace")
        self.text = printable(f"it answered {status}: {said}")[:600]


def _said(error: ApiException) -> str:
    return printable(f"it answered {error.status} {error.reason}")[:600]
