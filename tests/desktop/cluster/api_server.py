"""Kubernetes without a cluster: its interface over TLS, with its own schemas, one namespace, a scheduler and a machine.

Whatever is sent is looked at with Kubernetes' own OpenAPI schemas of several versions. Rights are those of a Role. Pods run as
real processes in a process namespace of their own; attaching goes to their standard streams, over a WebSocket.

Not here: controllers beyond a Job's one pod, container images, networks and volumes. No cluster was ever seen by these tests.
"""

import asyncio
import contextlib
import copy
import datetime as dt
import ipaddress
import json
import os
import secrets
import signal
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
from aiohttp import WSMsgType, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.test_rooms import ROOT

VERSIONS = ("1.30", "1.33", "1.37")
NAMESPACE = "lab"
AGENT = "cottage-node-0"
Found = dict[str, Any]
EVERYTHING = [{"resources": ["*"], "verbs": ["*"]}]


class Pod:
    """One pod with its process."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.process: asyncio.subprocess.Process | None = None
        self.attached = 0
        self.grace = 1e6
        self.ending: list[asyncio.Task[None]] = []
        self.tasks: list[asyncio.Task[None]] = []


class Cluster:
    """Everything that the agent sees of one. ``begin`` it, ``end`` it."""

    def __init__(self, folder: Path, rules: Sequence[Found] = EVERYTHING) -> None:
        """``folder``: for the agent's account; ``rules``: of its Role."""
        self.account, self.rules = folder, rules
        self.pods: dict[str, Pod] = {}
        self.jobs: dict[str, Found] = {}
        self.version, self.forgotten = 100, 0
        self.events: list[tuple[int, str, Found]] = []
        self.news = asyncio.Condition()
        self.room = 1
        self.mutate: Callable[[Found], None] = lambda pod: None
        self.trouble: list[web.Response] = []
        self.lost = 0
        """So many Jobs are made, and their makers not told."""
        self.asked: list[tuple[str, str, str]] = []
        self.objects: list[Found] = []
        self.heard = bytearray()
        """All that containers have said on standard output, as a machine's logs have it."""
        self.port = 0
        self.tokens: set[str] = set()
        self._runner: web.AppRunner | None = None

    # --- the agent's side -----------------------------------------------------------------------------------------------

    def new_token(self) -> None:
        """The old one is worth nothing; the new one lies in the account's folder, as the kubelet does it."""
        token = secrets.token_hex(16)
        self.tokens = {token}
        (self.account / "token").write_text(token)

    async def begin(self) -> None:
        self.account.mkdir()
        (self.account / "namespace").write_text(NAMESPACE)
        self.new_token()
        context = self._certificate()
        app = web.Application(middlewares=[self._guard])
        core, batch = f"/api/v1/namespaces/{NAMESPACE}", f"/apis/batch/v1/namespaces/{NAMESPACE}"
        app.router.add_get(f"{core}/pods", self._list_pods)
        app.router.add_get(f"{core}/pods/{{name}}", self._get_pod)
        app.router.add_delete(f"{core}/pods/{{name}}", self._delete_pod)
        app.router.add_get(f"{core}/pods/{{name}}/attach", self._attach)
        app.router.add_post(f"{batch}/jobs", self._create_job)
        app.router.add_get(f"{batch}/jobs", self._list_jobs)
        app.router.add_delete(f"{batch}/jobs/{{name}}", self._delete_job)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def end(self) -> None:
        for pod in list(self.pods.values()):
            await self._kill(pod)
            for task in pod.tasks:
                task.cancel()
            await asyncio.gather(*pod.tasks, return_exceptions=True)
        assert self._runner is not None
        await self._runner.cleanup()

    def _certificate(self) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .sign(key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (self.account / "ca.crt").write_bytes(pem)
        own = self.account.with_suffix(".pem")
        own.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + pem
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own)
        return context

    # --- what happens in a cluster --------------------------------------------------------------------------------------

    def worker(self) -> Pod:
        """The newest pod that is no agent's."""
        return [pod for name, pod in self.pods.items() if name != AGENT][-1]

    async def add_agent(self, claim: str, path: str) -> None:
        """The agent's own pod, whose home is on a volume claim."""
        await self.store(
            Pod(
                {
                    "metadata": {
                        "name": AGENT,
                        "uid": "0001",
                        "labels": {"statefulset.kubernetes.io/pod-name": AGENT},
                    },
                    "spec": {
                        "nodeName": "machine-1",
                        "imagePullSecrets": [{"name": "registry"}],
                        "tolerations": [{"key": "gpu", "operator": "Exists"}],
                        "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": claim}}],
                        "containers": [{"name": "node", "volumeMounts": [{"name": "home", "mountPath": path}]}],
                    },
                    "status": {"phase": "Running"},
                }
            )
        )

    async def change(self, pod: Pod, how: Callable[[Found], None]) -> None:
        """As somebody with the rights to write pods does."""
        how(pod.found)
        await self._tell("MODIFIED", pod)

    async def preempt(self, pod: Pod, grace: float | None = None) -> None:
        """The scheduler wants the place for a pod of higher priority: its condition, a deletion, and the pod's own grace."""
        waits = float(pod.found["spec"]["terminationGracePeriodSeconds"]) if grace is None else grace
        pod.found["status"].setdefault("conditions", []).append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": "default-scheduler: preempting to accommodate a higher priority pod",
            }
        )
        self.room = 0
        await self._remove(pod, waits)

    async def run_in(self, pod: Pod, *command: str) -> asyncio.subprocess.Process:
        """As ``kubectl exec`` has the machine do it: a process in the pod's namespaces whose parent is outside."""
        assert pod.process is not None
        found = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children").read_text().split()
        return await asyncio.create_subprocess_exec("nsenter", "-t", found[0], "-p", "-m", *command)

    async def forget(self) -> None:
        """The server's store is compacted: who asks from before is told 410."""
        self.version += 1
        self.forgotten = self.version
        self.events.clear()
        async with self.news:
            self.news.notify_all()

    # --- the store ------------------------------------------------------------------------------------------------------

    async def store(self, pod: Pod) -> None:
        self.pods[pod.found["metadata"]["name"]] = pod
        await self._tell("ADDED", pod)

    async def _tell(self, kind: str, pod: Pod) -> None:
        self.version += 1
        pod.found["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, copy.deepcopy(pod.found)))
        async with self.news:
            self.news.notify_all()

    async def _schedule(self, pod: Pod) -> None:
        status = pod.found["status"]
        if self.room < 1:
            message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
            placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            status["conditions"] = [placed]
            await self._tell("MODIFIED", pod)
            while self.room < 1:
                await asyncio.sleep(0.02)
        pod.found["spec"]["nodeName"] = "machine-1"
        pod.found["spec"].setdefault("tolerations", []).append({"key": "node.kubernetes.io/not-ready"})
        status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        status["containerStatuses"] = [{"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}]
        await self._tell("MODIFIED", pod)
        await self._start(pod)

    async def _start(self, pod: Pod) -> None:
        container = pod.found["spec"]["containers"][0]
        command = [sys.executable if word == "python3" else word for word in container["command"]] + container["args"]
        if os.geteuid() == 0:
            command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command]
        environment = {one["name"]: one["value"] for one in container["env"]}
        pod.process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            cwd=self.account,
        )
        pod.found["status"]["phase"] = "Running"
        pod.found["status"]["containerStatuses"][0]["state"] = {"running": {}}
        await self._tell("MODIFIED", pod)
        code = await pod.process.wait()
        finished = {"exitCode": code if code >= 0 else 128 - code, "reason": "Completed" if code == 0 else "Error"}
        if code and not pod.attached and pod.process.stderr is not None:
            finished["message"] = (await pod.process.stderr.read()).decode()  # What its program left for Kubernetes.
        pod.found["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        pod.found["status"]["containerStatuses"][0]["state"] = {"terminated": finished}
        await self._tell("MODIFIED", pod)

    async def _kill(self, pod: Pod) -> None:
        if pod.process is not None and pod.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                pod.process.send_signal(signal.SIGKILL)
            await pod.process.wait()

    async def _remove(self, pod: Pod, grace: float) -> None:
        meta = pod.found["metadata"]
        if "deletionTimestamp" not in meta:
            meta["deletionTimestamp"] = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            await self._tell("MODIFIED", pod)
            if pod.process is not None and pod.process.returncode is None:
                pod.process.send_signal(signal.SIGCONT if os.geteuid() == 0 else signal.SIGTERM)

        pod.grace = min(pod.grace, grace)  # A second deletion may shorten it.
        for task in pod.ending:
            task.cancel()

        async def finish() -> None:
            with contextlib.suppress(TimeoutError):
                if pod.process is not None and pod.grace > 0:
                    async with asyncio.timeout(pod.grace):
                        await pod.process.wait()
            await self._kill(pod)
            if self.pods.pop(meta["name"], None) is not None:
                await self._tell("DELETED", pod)

        pod.ending = [asyncio.create_task(finish())]
        pod.tasks += pod.ending

    # --- the interface --------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        resource = "jobs" if "/jobs" in request.path else "pods"
        verb = {"GET": "get", "POST": "create", "DELETE": "delete"}[request.method]
        if request.path.endswith("/attach"):
            resource = "pods/attach"
        elif verb == "get" and "name" not in request.match_info:
            verb = "watch" if request.query.get("watch") in ("True", "true") else "list"
        self.asked.append((verb, resource, request.query_string))
        if request.headers.get("Authorization", "") not in {f"Bearer {token}" for token in self.tokens}:
            return problem(401, "Unauthorized")
        if not any(
            {verb, "*"} & set(rule["verbs"]) and {resource, "*"} & set(rule["resources"]) for rule in self.rules
        ):
            return problem(403, f'User "system:serviceaccount:lab:cottage-node" cannot {verb} resource "{resource}"')
        if self.trouble:
            return self.trouble.pop(0)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _create_job(self, request: web.Request) -> web.Response:
        found = await request.json()
        self.objects.append(found)
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(found, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                return problem(422, f"Job.batch is invalid in {version}: {error}")
        name = found["metadata"]["name"]
        if name in self.jobs:
            return problem(409, f'jobs.batch "{name}" already exists')
        found["metadata"]["uid"] = secrets.token_hex(8)
        if request.query.get("dryRun") != "All":
            self.jobs[name] = found
            template = copy.deepcopy(found["spec"]["template"])
            pod = Pod({"metadata": template["metadata"], "spec": template["spec"], "status": {"phase": "Pending"}})
            pod.found["metadata"] |= {"name": f"{name}-{secrets.token_hex(2)}", "uid": secrets.token_hex(8)}
            pod.found["metadata"]["labels"] |= {"batch.kubernetes.io/job-name": name, "job-name": name}
            filled(pod.found["spec"])
            self.mutate(pod.found)
            await self.store(pod)
            pod.tasks.append(asyncio.create_task(self._schedule(pod)))
            if self.lost:
                self.lost -= 1
                return problem(504, "the request did not complete within the allotted timeout")
        return web.json_response(found, status=201)

    async def _list_jobs(self, request: web.Request) -> web.Response:
        items = [one for one in self.jobs.values() if chosen(one, request)]
        return web.json_response(
            {
                "kind": "JobList",
                "apiVersion": "batch/v1",
                "metadata": {"resourceVersion": str(self.version)},
                "items": items,
            }
        )

    async def _delete_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if self.jobs.pop(name, None) is None:
            return problem(404, f'jobs.batch "{name}" not found')
        for pod in list(self.pods.values()):
            if pod.found["metadata"]["labels"].get("job-name") == name:
                await self._remove(pod, float(pod.found["spec"]["terminationGracePeriodSeconds"]))
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _get_pod(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        return problem(404, "pod not found") if pod is None else web.json_response(pod.found)

    async def _delete_pod(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return problem(404, "pod not found")
        await self._remove(pod, float(request.query.get("gracePeriodSeconds", 30)))
        return web.json_response(pod.found)

    async def _list_pods(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") in ("True", "true"):
            return await self._watch(request)
        items = [pod.found for pod in self.pods.values() if chosen(pod.found, request)]
        return web.json_response(
            {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}, "items": items}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)

        async def say(kind: str, found: Found) -> None:
            await response.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")

        with contextlib.suppress(ConnectionError):
            while True:
                if at < self.forgotten:
                    await say("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})
                    return response
                for version, kind, found in list(self.events):
                    if version > at:
                        at = version
                        if chosen(found, request):
                            await say(kind, found)
                async with self.news:
                    if at >= self.forgotten and (not self.events or self.events[-1][0] <= at):
                        await self.news.wait()
        return response

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        pod = self.pods.get(request.match_info["name"])
        if pod is None or pod.process is None:
            return problem(400, "the container is not running")
        process = pod.process
        pod.attached += 1
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), max_msg_size=0)
        await socket.prepare(request)

        async def pump(channel: int, stream: asyncio.StreamReader) -> None:
            while data := await stream.read(32 << 10):
                self.heard += data if channel == 1 else b""
                await socket.send_bytes(bytes((channel,)) + data)

        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        out = [asyncio.create_task(pump(1, process.stdout)), asyncio.create_task(pump(2, process.stderr))]
        try:
            reading = asyncio.create_task(self._into(socket, process.stdin))
            await asyncio.wait(out)
            reading.cancel()
            await socket.send_bytes(b"\x03" + json.dumps({"status": "Success"}).encode())
            await socket.close()
        except ConnectionError:
            pass
        finally:
            for task in out:
                task.cancel()
        return socket

    async def _into(self, socket: web.WebSocketResponse, stdin: asyncio.StreamWriter) -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\x00":
                stdin.write(message.data[1:])
                with contextlib.suppress(ConnectionError):
                    await stdin.drain()
        stdin.close()  # As stdinOnce has it: who attached has gone.


def chosen(found: Found, request: web.Request) -> bool:
    wanted = dict(one.split("=") for one in request.query.get("labelSelector", "").split(",") if one)
    return wanted.items() <= found["metadata"].get("labels", {}).items()


def problem(status: int, message: str, **headers: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status},
        status=status,
        headers=headers,
    )


def filled(spec: Found) -> None:
    """What Kubernetes adds to every pod, as kubernetes.io has it, and how it writes quantities."""
    spec |= {
        "schedulerName": "default-scheduler",
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "priority": -1000,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    spec["containers"][0] |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
    spec["containers"][0]["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    for mount in spec["containers"][0]["volumeMounts"]:
        if mount.get("subPath") == "":
            del mount["subPath"]
    for amounts in spec["containers"][0]["resources"].values():
        if amounts["memory"].endswith("Mi") and int(amounts["memory"][:-2]) % 1024 == 0:
            amounts["memory"] = f"{int(amounts['memory'][:-2]) // 1024}Gi"
