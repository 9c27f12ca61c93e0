"""The chart as Helm renders it, and what its network policies let through."""

import ipaddress
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "installer" / "chart"
VALUES = Path(__file__).parent / "values"
SETS = sorted(file.stem for file in VALUES.glob("*.yaml"))
BESIDE = Path(sys.executable).with_name("helm")
HELM = str(BESIDE) if BESIDE.exists() else shutil.which("helm") or ""

Object = dict[str, Any]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """What Helm says, with its settings of this user left alone."""
    return subprocess.run([HELM, *words], capture_output=True, text=True, check=False, timeout=60)


def render(name: str, *more: str, release: str = "main") -> list[Object]:
    """Every object of the chart with the values ``name``, and ``more`` options of Helm."""
    done = helm("template", release, str(CHART), "--namespace", "lab", "-f", str(VALUES / f"{name}.yaml"), *more)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """The template of each kind of pod, by its part."""
    for one in objects:
        if one["kind"] in {"Deployment", "StatefulSet", "DaemonSet"}:
            template = one["spec"]["template"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template


def pod(objects: list[Object], part: str) -> Object:
    """The template of one part's pods."""
    return dict(pods(objects))[part]


def named(objects: list[Object], kind: str, ending: str = "") -> Object:
    """The one object of a kind, whose name ends so."""
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(ending)]
    return found


def settings(objects: list[Object]) -> str:
    """The coordinator's file of settings."""
    text = named(objects, "ConfigMap", "-coordinator")["data"]["coordinator.toml"]
    assert isinstance(text, str)
    return text


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector chooses a pod; the chart has ``matchLabels`` alone."""
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


@dataclass(frozen=True)
class Peer:
    """Whom a pod talks with: a pod of this namespace, one of another namespace, or an address."""

    labels: Mapping[str, str] | None = None
    namespace: Mapping[str, str] | None = None
    ip: str | None = None


def lets(objects: list[Object], part: str, direction: str, peer: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies let a part's pods be reached by (``ingress``), or reach (``egress``) a peer at a port.

    A pod that no policy chooses is open, and one rule that lets it is enough.
    Source: kubernetes.io/docs/concepts/services-networking/network-policies.
    """
    labels = pod(objects, part)["metadata"]["labels"]
    chosen = [
        one["spec"]
        for one in objects
        if one["kind"] == "NetworkPolicy"
        and matches(one["spec"]["podSelector"], labels)
        and direction.title() in one["spec"]["policyTypes"]
    ]
    if not chosen:
        return True
    rules = [rule for policy in chosen for rule in policy.get(direction, [])]
    side = "from" if direction == "ingress" else "to"
    return any(_port(rule.get("ports"), port, protocol) and _peer(rule.get(side), peer) for rule in rules)


def _port(ports: list[Object] | None, port: int, protocol: str) -> bool:
    if not ports:
        return True
    return any(one.get("port", port) == port and one.get("protocol", "TCP") == protocol for one in ports)


def _peer(peers: list[Object] | None, peer: Peer) -> bool:
    return not peers or any(_one_peer(one, peer) for one in peers)


def _one_peer(rule: Object, peer: Peer) -> bool:
    if "ipBlock" in rule:
        block = rule["ipBlock"]
        if peer.ip is None:
            return False
        address = ipaddress.ip_address(peer.ip)
        inside = address in ipaddress.ip_network(block["cidr"])
        return inside and not any(address in ipaddress.ip_network(one) for one in block.get("except", []))
    if "namespaceSelector" in rule:
        return peer.namespace is not None and matches(rule["namespaceSelector"], peer.namespace)
    return peer.labels is not None and peer.namespace is None and matches(rule["podSelector"], peer.labels)
