"""Every restriction of a worker's pod: how it is asked for, and how one sees that nobody has changed it. Pure.

A cluster is not believed: whoever may write its admission hooks adds containers, volumes or rights to a pod on its way. So all
that a pod has, and was not asked for, is a fault, but for what Kubernetes itself fills in.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import files
from typing import Any, Final

from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.restrictions import DATA, HOME_LABEL, INSIDE, LEASE_LABEL

USER: Final = 10001
GRACE_S: Final = 2  # Whom the cluster wants its place back from is gone within that.
KEPT_S: Final = 60  # A Job that has ended goes by itself, should its agent have died.
LOG_MB: Final = (
    256  # Of the machine's disk, for what standard output leaves there, sealed; Kubernetes turns it over at 50.
)
MAX_PROCESSES: Final = 1024  # Of all workers of one machine: the kernel counts by user. A fork bomb stops here.
HOSTNAME: Final = "kubernetes.io/hostname"
WORKER_LABELS: Final = {"app.kubernetes.io/name": "cottage-node", "app.kubernetes.io/component": "worker"}
"""By which the chart's policies find workers."""
NAME_LABEL: Final = "network.cottage.worker"
FIRST: Final = files("desktop.agent.cluster").joinpath("first_program.py").read_text()
DOOR: Final = files("desktop.agent.cluster").joinpath("door_program.py").read_text()

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Mounted:
    """A folder or file of a volume claim that a worker reads at ``target``. ``path``: within the claim."""

    claim: str
    path: str
    target: str


@dataclass(frozen=True)
class PodSurroundings:
    """What a worker's pod has of its cluster.

    Attributes:
        image: by digest. pull_secrets: for its registry. gpu: the resource that one card is; empty: none.
        priority_class: below all others. owner: reference to the agent's pod, with which its workers go.
        beside: labels of the agent's pod, where its volume can only be had on the same machine; empty: anywhere.
        node_selector, tolerations: as Kubernetes has them.
    """

    image: str
    owner: Mapping[str, Any]
    gpu: str = ""
    priority_class: str = ""
    pull_secrets: Sequence[Any] = ()
    beside: Mapping[str, str] | None = None
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[Any] = ()


@dataclass(frozen=True)
class PodPlan:
    """One worker. ``command``: what ``python3`` gets. ``lease``: whose; ``home``: of which agent."""

    name: str
    home: str
    lease: str
    command: Sequence[str]
    limits: SandboxLimits
    mounts: Sequence[Mounted] = ()


def job(plan: PodPlan, around: PodSurroundings) -> Manifest:
    """The Job of one worker, whose pod may do nothing but compute and use its standard streams."""
    labels = {**WORKER_LABELS, HOME_LABEL: plan.home, LEASE_LABEL: plan.lease, NAME_LABEL: plan.name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": plan.name, "labels": labels, "ownerReferences": [dict(around.owner)]},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod(plan, around)},
        },
    }


def _pod(plan: PodPlan, around: PodSurroundings) -> Manifest:
    """What runs. It has no account at Kubernetes' interface, no names of services, no rights and no disk."""
    claims = sorted({one.claim for one in plan.mounts})
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "hostname": "worker",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(plan, around)],
        "volumes": [
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": f"{plan.limits.temporary_mb}Mi"}},
            *(
                {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
                for number, claim in enumerate(claims)
            ),
        ],
    }
    if around.priority_class:
        spec["priorityClassName"] = around.priority_class
    if around.pull_secrets:
        spec["imagePullSecrets"] = [dict(one) for one in around.pull_secrets]
    if around.node_selector:
        spec["nodeSelector"] = dict(around.node_selector)
    if around.tolerations:
        spec["tolerations"] = [dict(one) for one in around.tolerations]
    if around.beside is not None:
        term = {"labelSelector": {"matchLabels": dict(around.beside)}, "topologyKey": HOSTNAME}
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return spec


def _container(plan: PodPlan, around: PodSurroundings) -> Manifest:
    claims = sorted({one.claim for one in plan.mounts})
    threads = str(plan.limits.threads)
    resources = {
        "cpu": threads,
        "memory": f"{plan.limits.memory_mb}Mi",
        "ephemeral-storage": f"{LOG_MB}Mi",
        **({around.gpu: "1"} if around.gpu else {}),
    }
    environment = {
        "HOME": "/tmp",  # noqa: S108 - the pod's own
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **({} if around.gpu else {"NVIDIA_VISIBLE_DEVICES": "void"}),
    }
    return {
        "name": "worker",
        "image": around.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", FIRST],
        "args": [
            *(str(one) for one in (MAX_PROCESSES, plan.limits.cpu_seconds, plan.limits.temporary_mb)),
            DOOR,
            *plan.command,
        ],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "stdin": True,
        "stdinOnce": True,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *(
                {
                    "name": f"claim-{claims.index(one.claim)}",
                    "mountPath": one.target,
                    **({"subPath": one.path} if one.path else {}),  # What is empty Kubernetes does not give back.
                    "readOnly": True,
                }
                for one in plan.mounts
            ),
        ],
    }


def mounts(own: Manifest, container: str, sources: Mapping[str, str]) -> tuple[Mounted, ...]:
    """Where paths of the agent's own pod lie within its volume claims.

    Args:
        own: the agent's pod. container: its name there.
        sources: target in the worker -> absolute path here.
    Raises:
        ValueError: a path lies on no claim.
    """
    spec = own["spec"]
    (here,) = [one for one in spec["containers"] if one["name"] == container]
    volumes = {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in spec.get("volumes", ())
        if "persistentVolumeClaim" in one
    }
    found = []
    for target, path in sources.items():
        holding = [
            one
            for one in here.get("volumeMounts", ())
            if one["name"] in volumes and f"{path}/".startswith(f"{one['mountPath'].rstrip('/')}/")
        ]
        if not holding:
            raise ValueError(f"{path} lies on no volume claim of this pod, so no other pod can be given it")
        best = max(holding, key=lambda one: len(one["mountPath"]))
        inner = path[len(best["mountPath"].rstrip("/")) :].strip("/")
        above = str(best.get("subPath", "")).strip("/")
        found.append(Mounted(volumes[best["name"]], "/".join(part for part in (above, inner) if part), target))
    return tuple(found)


def targets(folder: str | None, data: str | None) -> dict[str, str]:
    """Where a worker sees its job's folder, and what its owner lends of their own: target -> path here."""
    return {**({} if folder is None else {INSIDE: folder}), **({} if data is None else {DATA: data})}


FILLED: Final[Mapping[str, frozenset[str]]] = {
    "spec": frozenset(
        {
            "nodeName",
            "schedulerName",
            "serviceAccount",
            "serviceAccountName",
            "priority",
            "preemptionPolicy",
            "tolerations",
            "imagePullSecrets",
            "nodeSelector",
        }
    ),
    "spec.containers[0]": frozenset({"terminationMessagePath", "terminationMessagePolicy", "resizePolicy"}),
}
"""What Kubernetes itself adds to a pod: where it runs, and how its image is had. It has no account but the namespace's usual one,
whose token it does not get."""
_QUANTITY: Final = re.compile(r"^([0-9.]+)([mkMGTPE]?|[KMGTPE]i)$")
_POWERS: Final = "kMGTPE"
_LABELS_OF_JOBS: Final = frozenset(
    {"batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"}
)


def faults(found: Manifest, asked: Manifest) -> list[str]:
    """What a pod has otherwise than its Job asked for; empty: every restriction is there, and nothing beside it.

    Args:
        found: the pod. asked: its Job.
    """
    template = asked["spec"]["template"]
    labels = found["metadata"].get("labels", {})
    wanted = template["metadata"]["labels"]
    differences = [
        f"the label {name} is {labels.get(name)!r}, not {wanted.get(name)!r}"
        for name in sorted({*labels, *wanted} - _LABELS_OF_JOBS)
        if labels.get(name) != wanted.get(name)
    ]
    return [*differences, *_differences(found["spec"], template["spec"], "spec")]


def _differences(found: Any, asked: Any, at: str) -> Iterator[str]:
    if isinstance(asked, Mapping) and isinstance(found, Mapping):
        for key in sorted({*found, *asked}):
            place = f"{at}.{key}"
            if key not in asked:
                if key not in FILLED.get(at, ()) and found[key] not in (None, [], {}):
                    yield f"{place} is {_short(found[key])}, and was not asked for"
            elif key == "tolerations" and at == "spec":
                yield from (
                    f"{place} lacks {_short(one)}" for one in asked[key] if one not in list(found.get(key) or ())
                )
            else:
                yield from _differences(found.get(key), asked[key], place)
    elif isinstance(asked, list) and isinstance(found, list) and len(found) == len(asked):
        for number, (one, other) in enumerate(zip(found, asked, strict=True)):
            yield from _differences(one, other, f"{at}[{number}]")
    elif found != asked and not (at.endswith(_AMOUNTS) and _amount(found) == _amount(asked)):
        yield f"{at} is {_short(found)}, not {_short(asked)}"


_AMOUNTS: Final = ("cpu", "memory", "ephemeral-storage", "sizeLimit")


def _amount(quantity: Any) -> Decimal | None:
    """A quantity of Kubernetes, which says 1Gi where 1024Mi was asked for; None: it is none."""
    match = _QUANTITY.match(str(quantity))
    if match is None:
        return None
    number, unit = Decimal(match[1]), match[2]
    if unit == "m":
        return number / 1000
    base = 1024 if unit.endswith("i") else 1000
    power = _POWERS.index(unit[0].replace("K", "k")) + 1 if unit else 0
    return number * Decimal(base**power)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
