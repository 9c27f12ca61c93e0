"""A cluster that lends, against a stand-in of Kubernetes' interface: real processes, real TLS, real WebSockets, no cluster."""

import asyncio
import functools
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from desktop.agent.cluster import kubernetes, manifest, pod_watch
from desktop.agent.cluster.kubernetes import TAMPERED, ClusterPlace, KubernetesSandbox, PodWorker
from desktop.agent.errors import NoImageError, SandboxError
from desktop.agent.sandbox.base import Exit, SandboxLimits
from protocol.task import BeginRound, OpenStep, RoundHolding, StepOpened, TaskFailed, TaskReady
from tests.desktop.cluster.api_server import AGENT, Cluster, Found, problem
from tests.desktop.conftest import SCRIPT, StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.installer.rendered import HELM, ROOT, helm
from tests.support.wait import HANGS_S

IMAGE = "registry.example.org/cottage-trainer@sha256:" + "ab" * 32
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pods run on Linux")
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a process namespace")


class Here(KubernetesSandbox):
    """Folders are where they are: the stand-in mounts none."""

    def inside(self, folder: Path) -> str:
        return str(folder)


@functools.cache
def rules() -> list[Found]:
    """Those of the chart's Role, where Helm is installed: what the agent asks for has to be what it may."""
    if not HELM:
        return [{"resources": ["*"], "verbs": ["*"]}]
    given = ("image.repository=x", f"worker.image={IMAGE}", "coordinator.address=https://x.example")
    words = [word for one in given for word in ("--set", one)]
    only = ("--show-only", "templates/rights.yaml", "--kube-version", "1.33")
    done = helm("template", "main", str(ROOT / "installer" / "chart-node"), *only, *words)
    assert done.returncode == 0, done.stderr
    (role,) = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] == "Role"]
    found: list[Found] = role["rules"]
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROOM_S": 0.3, "LOOK_AGAIN_S": 0.2, "YIELD_S": 1.5}.items():
        monkeypatch.setattr(kubernetes, name, value)
    monkeypatch.setattr(pod_watch, "RETRY_S", 0.05)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    found = Cluster(tmp_path / "account", rules())
    await found.begin()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(found.port))
    await found.add_agent("home-cottage-node-0", str(tmp_path))
    yield found
    await found.end()


@pytest.fixture
def sandbox(cluster: Cluster, tmp_path: Path) -> Here:
    place = ClusterPlace(AGENT, gpu="nvidia.com/gpu", priority_class="cottage-last", beside=True)
    limits = SandboxLimits(1024, 1)
    return Here(limits, IMAGE, owner=tmp_path, place=place, entry=(str(SCRIPT),), account=cluster.account)


@pytest.fixture
async def checked(sandbox: Here) -> AsyncIterator[Here]:
    assert await sandbox.check() == "sha256:" + "ab" * 32
    yield sandbox
    await sandbox.aclose()


async def until(holds: Callable[[], Any], seconds: float = 40.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := holds()):
            await asyncio.sleep(0.02)
        return found


async def ended(worker: PodWorker, seconds: float = 40.0) -> Exit:
    async with asyncio.timeout(seconds):
        while (found := await worker.ended()) is None:
            await asyncio.sleep(0.02)
        return found


def folder_in(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs" / "lease-1"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def test_a_task_runs_through_a_pod_from_end_to_end(
    cluster: Cluster, checked: Here, start_agent: StartAgent, coordinator: Double
) -> None:
    async with start_agent(sandbox=checked, readings=checked.room) as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        state = os.urandom(24 << 20)  # More than one window, both ways.
        begin = BeginRound(assign.plan, 0, 0, 5, 10, state=coordinator.store(state))
        await coordinator.command(node.address, assign, begin)
        await coordinator.until(lambda: coordinator.bodies(RoundHolding))
        assert coordinator.bodies(RoundHolding)[0].held == {0: hashlib.sha256(state).hexdigest()}
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert not coordinator.bodies(TaskFailed)
        pod = cluster.worker()
        (mount,) = [one for one in pod.found["spec"]["containers"][0]["volumeMounts"] if one["mountPath"] == "/job"]
        assert mount["readOnly"]
        assert mount["subPath"] == f"node/jobs/{assign.lease}-{assign.fence}"
        assert pod.attached == 1
    await until(lambda: list(cluster.pods) == [AGENT])
    assert not cluster.jobs


async def test_a_cluster_that_wants_its_place_back_has_it_and_the_lease_is_left_as_by_the_owners_switch(
    cluster: Cluster, checked: Here, start_agent: StartAgent, coordinator: Double
) -> None:
    """Its grace is 2 s, see ``test_pods.py``; here it has longer, so that a busy machine shows who acts: the agent."""
    async with start_agent(sandbox=checked, readings=checked.room) as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        pod = cluster.worker()
        await cluster.preempt(pod, grace=60)
        await coordinator.until(lambda: node.agent.status().lending_state == "away")
        await until(lambda: list(cluster.pods) == [AGENT], 30)
        assert "other workloads of the cluster come first" in node.agent.status().lending
        assert not coordinator.bodies(TaskFailed)
        cluster.room = 1
        await coordinator.until(lambda: node.agent.status().lending_state == "lending")
        again = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.until(lambda: node.address in coordinator.nodes)
        await coordinator.assign(node.address, again)
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2)


async def test_where_no_machine_has_room_the_scheduler_says_why_and_nothing_is_lent(
    cluster: Cluster, checked: Here, tmp_path: Path
) -> None:
    cluster.room = 0
    with pytest.raises(SandboxError, match="no room for a worker: 0/1 nodes are available: 1 Insufficient"):
        await checked.start("ab" * 16, folder_in(tmp_path))
    assert "Insufficient nvidia.com/gpu" in checked.room.read(0.0, busy=False).no_room
    await until(lambda: not checked.room.why or None if cluster.room else setattr(cluster, "room", 1))
    assert checked.room.why == ""


@root
async def test_a_command_that_is_run_in_a_pod_ends_the_job(cluster: Cluster, checked: Here, tmp_path: Path) -> None:
    worker = await checked.start("ab" * 16, folder_in(tmp_path))
    try:
        await asyncio.sleep(0.5)
        assert await worker.ended() is None
        process = await cluster.run_in(cluster.worker(), "sleep", "5")
        found = await ended(worker)
        await process.wait()
    finally:
        await worker.stop(0)
    assert found.tampered
    assert found.reason == f"{TAMPERED}: a command was run in its container"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            lambda pod: pod["spec"].update(ephemeralContainers=[{"name": "debugger", "image": "x"}]),
            "ephemeralContainers",
        ),
        (lambda pod: pod["spec"]["containers"][0].update(image="other"), "image is 'other'"),
        (lambda pod: pod["spec"].update(activeDeadlineSeconds=1), "activeDeadlineSeconds"),
        (lambda pod: pod["metadata"]["labels"].pop("app.kubernetes.io/component"), "component is None, not 'worker'"),
        (lambda pod: pod["metadata"]["labels"].pop("network.cottage.worker"), "network.cottage.worker is None"),
        (
            lambda pod: pod["spec"]["containers"][0]["resources"]["limits"].update(memory="64Gi"),
            "memory is '64Gi', not '1024Mi'",
        ),
    ],
    ids=["debugger", "image", "deadline", "out of the policy", "hidden", "resized"],
)
async def test_a_pod_that_somebody_changes_is_ended(
    cluster: Cluster, checked: Here, tmp_path: Path, how: Callable[[Found], None], said: str
) -> None:
    worker = await checked.start("ab" * 16, folder_in(tmp_path))
    await cluster.change(cluster.worker(), how)
    found = await ended(worker)
    await until(lambda: list(cluster.pods) == [AGENT])
    await worker.stop(0)
    assert found.tampered
    assert said in found.reason


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda pod: pod["spec"]["containers"].append({"name": "mesh"}), "spec.containers is"),
        (lambda pod: pod["spec"].update(initContainers=[{"name": "mesh"}]), "spec.initContainers is"),
        (lambda pod: pod["spec"].update(hostNetwork=True), "spec.hostNetwork is True, and was not asked for"),
        (
            lambda pod: pod["spec"].update(automountServiceAccountToken=True),
            "automountServiceAccountToken is True, not False",
        ),
        (lambda pod: pod["spec"].update(shareProcessNamespace=True), "shareProcessNamespace"),
        (
            lambda pod: pod["spec"]["containers"][0]["env"].append({"name": "LD_PRELOAD", "value": "x"}),
            "spec.containers[0].env is",
        ),
        (
            lambda pod: pod["spec"]["containers"][0]["securityContext"]["capabilities"].update(add=["NET_RAW"]),
            "capabilities.add is ['NET_RAW'], and was not asked for",
        ),
    ],
    ids=["sidecar", "init", "network", "token", "processes", "loader", "capability"],
)
async def test_a_pod_that_a_hook_has_changed_on_its_way_is_not_used(
    cluster: Cluster, checked: Here, tmp_path: Path, how: Callable[[Found], None], said: str
) -> None:
    cluster.mutate = how
    with pytest.raises(SandboxError, match="did not put every restriction in force") as raised:
        await checked.start("ab" * 16, folder_in(tmp_path))
    assert said in str(raised.value)
    await until(lambda: list(cluster.pods) == [AGENT])


async def test_a_token_that_expires_is_read_anew_and_a_busy_server_is_asked_again(
    cluster: Cluster, checked: Here, tmp_path: Path
) -> None:
    cluster.new_token()
    cluster.trouble = [problem(429, "slow down", **{"Retry-After": "0"}), problem(503, "no leader")]
    worker = await checked.start("ab" * 16, folder_in(tmp_path))
    cluster.new_token()
    await cluster.forget()  # The watch's place is compacted away: 410, a new list, with the new token.
    await cluster.change(cluster.worker(), lambda pod: pod["spec"].update(activeDeadlineSeconds=1))
    assert (await ended(worker)).tampered
    await worker.stop(0)


async def test_a_job_whose_making_was_not_answered_is_made_once_and_used(
    cluster: Cluster, checked: Here, tmp_path: Path
) -> None:
    cluster.lost = 1
    worker = await checked.start("ab" * 16, folder_in(tmp_path))
    assert len(cluster.jobs) == 1
    assert await worker.ended() is None
    await worker.stop(0)


async def test_a_worker_whose_removal_fails_holds_no_place_and_a_token_that_is_missing_is_said(
    cluster: Cluster, checked: Here, tmp_path: Path
) -> None:
    worker = await checked.start("ab" * 16, folder_in(tmp_path))
    (cluster.account / "token").unlink()
    cluster.tokens = set()
    with pytest.raises(SandboxError, match="token"):
        await worker.stop(0)
    assert not checked.placed


async def test_a_pod_that_vanished_while_nobody_could_tell_is_missed(
    cluster: Cluster, checked: Here, tmp_path: Path
) -> None:
    worker = await checked.start("ab" * 16, folder_in(tmp_path))
    pod = cluster.worker()
    cluster.pods.pop(pod.found["metadata"]["name"])
    await cluster.forget()
    found = await ended(worker)
    assert "the cluster took the job's place back: its pod was deleted" in found.reason
    await cluster._kill(pod)
    await worker.stop(0)


async def test_what_the_last_agent_left_is_removed(cluster: Cluster, checked: Here, tmp_path: Path) -> None:
    await checked.start("ab" * 16, folder_in(tmp_path))
    other = Here(checked.limits, IMAGE, owner=tmp_path, place=ClusterPlace(AGENT), account=cluster.account)
    try:
        await other.check()
        assert await other.sweep() == 1
        await until(lambda: list(cluster.pods) == [AGENT])
    finally:
        await other.aclose()


async def test_a_worker_is_held_where_it_is_and_goes_on(cluster: Cluster, sandbox: Here, tmp_path: Path) -> None:
    counts = "import itertools,sys,time\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.02)"
    sandbox._entry = ("-c", counts)
    worker = await sandbox.start("ab" * 16, folder_in(tmp_path))
    assert worker.connection is not None
    reader, writer = await asyncio.open_connection(sock=worker.connection)
    try:
        writer.write(bytes(6 << 20))  # It reads none of this, and a word to hold it does not wait behind it.
        await reader.readline()
        await worker.freeze()
        await asyncio.sleep(0.3)
        while True:
            try:
                async with asyncio.timeout(0.3):
                    await reader.readline()
            except TimeoutError:
                break
        await worker.thaw()
        async with asyncio.timeout(HANGS_S):
            assert await reader.readline()
    finally:
        writer.close()
        await worker.stop(0)
        await sandbox.aclose()


async def test_output_of_a_measurement_and_its_failure(cluster: Cluster, sandbox: Here, tmp_path: Path) -> None:
    try:
        sandbox._entry = ("-c", "import sys; print('x' * 300_000); sys.exit(int(sys.argv[1]))")
        assert await sandbox.measure(("0",), 20) == b"x" * 300_000 + b"\n"
        with pytest.raises(SandboxError, match="ended with exit code 3"):
            await sandbox.measure(("3",), 20)
    finally:
        await sandbox.aclose()


async def test_what_kubernetes_writes_to_its_log_is_sealed(cluster: Cluster, sandbox: Here) -> None:
    """The kubelet writes standard output to the machine's disk, and whoever may read logs or attach has it."""
    sandbox._entry = ("-c", "print('the job and its data' * 100)")
    try:
        assert b"the job and its data" in await sandbox.measure((), 20)
    finally:
        await sandbox.aclose()
    assert len(cluster.heard) > 2000
    assert b"data" not in cluster.heard


async def test_a_pod_that_keeps_a_way_out_begins_no_job(
    cluster: Cluster, checked: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "FIRST", manifest.FIRST.replace("    restrict()\n", ""))
    try:
        worker = await checked.start("ab" * 16, folder_in(tmp_path))
    except SandboxError as error:
        said = str(error)
    else:  # It was attached to before it had ended.
        said = (await ended(worker)).reason
        await worker.stop(0)
    assert "the job was not begun, for its container has a way out: a socket of AF_INET" in said


@pytest.mark.parametrize("reason", ["ErrImagePull", "InvalidImageName"])
async def test_an_image_that_does_not_come_is_said(
    cluster: Cluster, checked: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    async def never(pod: Any) -> None:
        pod.found["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": reason, "message": "not found"}}
        await cluster._tell("MODIFIED", pod)

    monkeypatch.setattr(cluster, "_start", never)
    with pytest.raises(NoImageError, match=f"{reason}: not found"):
        await checked.start("ab" * 16, folder_in(tmp_path))


async def test_what_cannot_be_used_is_said_in_a_sentence(
    cluster: Cluster, sandbox: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ClusterPlace(AGENT)

    def other(image: str = IMAGE, account: Path = cluster.account) -> Here:
        return Here(SandboxLimits(512, 1), image, owner=tmp_path, place=place, account=account)

    with pytest.raises(SandboxError, match="named by its digest"):
        await other("cottage-trainer:latest").check()
    with pytest.raises(SandboxError, match="is for an agent that runs in a cluster"):
        await other(account=tmp_path / "nowhere").check()
    cluster.rules = [{"resources": ["pods"], "verbs": ["get"]}]
    with pytest.raises(
        SandboxError, match=r'takes no Job of this agent: it answered 403: .* cannot create resource "jobs"'
    ):
        await sandbox.check()
    await sandbox.aclose()


async def test_a_folder_that_no_other_pod_can_have_is_refused(checked: Here) -> None:
    with pytest.raises(SandboxError, match="lies on no volume claim"):
        await checked.start("ab" * 16, Path("/srv/elsewhere"))
