"""An agent as the chart starts it: what its variables and settings make of it, with the real trainer in a pod of the stand-in."""

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from desktop.agent.app import startup
from desktop.agent.base.config import Home, Settings
from desktop.agent.cluster import kubernetes
from desktop.agent.cluster.room import ClusterRoom
from desktop.agent.errors import SandboxError
from tests.desktop.cluster.api_server import AGENT, Cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pods run on Linux")
SETTINGS = Settings(
    coordinator="http://localhost",
    sandbox="kubernetes",
    image="registry.example.org/cottage-trainer@sha256:" + "ab" * 32,
    threads=1,
    memory_mb=2048,
    always=True,
)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    found = Cluster(tmp_path / "account")
    await found.begin()
    await found.add_agent("home-cottage-node-0", str(tmp_path))
    variables = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(found.port),
        "COTTAGE_CLUSTER_POD": AGENT,
        "COTTAGE_CLUSTER_PRIORITY": "lab-cottage-last",
        "COTTAGE_CLUSTER_BESIDE": "yes",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    here = partial(kubernetes.KubernetesSandbox, account=found.account)
    monkeypatch.setattr(kubernetes, "KubernetesSandbox", here)
    yield found
    await found.end()


@pytest.mark.slow
async def test_the_real_trainer_measures_a_pod_and_the_agent_lends_it(cluster: Cluster, tmp_path: Path) -> None:
    parts = await startup.prepare(Home.at(tmp_path / "node"), SETTINGS)
    try:
        assert parts.profile.sandbox == "kubernetes"
        assert parts.profile.kind == "cpu"
        assert parts.profile.flops > 0
        assert not parts.profile.containers, "a cluster runs no images of strangers"
        assert isinstance(parts.readings, ClusterRoom), "what the cluster leaves decides, whatever `always` says"
        assert parts.device.gpu == "", "nothing of this machine's own driver is asked about a cluster's card"
        (trial, measured) = cluster.objects
        spec = measured["spec"]["template"]["spec"]
        assert spec["priorityClassName"] == "lab-cottage-last"
        assert spec["affinity"]["podAffinity"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert trial["metadata"]["ownerReferences"][0]["name"] == AGENT
    finally:
        await parts.sandbox.aclose()


async def test_a_card_that_is_not_to_be_had_is_waited_for_and_no_processor_lent_instead(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTTAGE_CLUSTER_GPU", "nvidia.com/gpu")
    monkeypatch.setattr(kubernetes, "ROOM_S", 0.1)
    monkeypatch.setattr(kubernetes, "YIELD_S", 0.1)
    cluster.room = 0
    with pytest.raises(SandboxError, match="no room for a worker: 0/1 nodes are available"):
        await startup.prepare(Home.at(tmp_path / "node"), SETTINGS)
    asked = cluster.objects[-1]["spec"]["template"]["spec"]["containers"][0]
    assert asked["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("name", ["kubernetes", "process"])
def test_the_packaged_program_says_that_it_has_no_part_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    settings = Settings(coordinator="http://localhost", sandbox=name)
    with pytest.raises(SandboxError, match=f"--sandbox {name} needs Cottage installed with pip"):
        startup.make_sandbox(settings, Home.at(tmp_path), startup.processor(""))


def test_without_the_library_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "desktop.agent.cluster.kubernetes", None)
    with pytest.raises(SandboxError, match=r"pip install 'cottage\[kubernetes\]'"):
        startup.make_sandbox(SETTINGS, Home.at(tmp_path), startup.processor(""))
