"""A network's servers in containers, as docs/how-to/operate.md brings them up: a job by the proxy, and a coordinator is killed.

The engine, its networks and all that the containers publish are in a network namespace of the test. Images are made of this
machine's own programs, since no registry is asked. So public images and builds from the Dockerfiles are not tried, and Grafana,
which Debian does not have, is left out.
"""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import msgspec
import pytest

from cottage.demo.corpus import write_corpus
from tests.installer import containers
from tests.support.small_job import CORPUS_BYTES, small_job
from tests.testbed.relay import make_certificate

LACKING = containers.missing()
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.docker,
    pytest.mark.skipif(bool(LACKING), reason=LACKING),
]

PAGE = containers.ROOT / "docs" / "how-to" / "operate.md"
SITE = "https://localhost"
OURS = ("coordinator-1", "coordinator-2", "ledger", "database", "proxy", "relay", "prometheus")
FILES = ("compose", "coordinator", "relay")
PASSWORD = "a password of the operator"
PATIENCE_S = 400.0
KILLED_AFTER, ROUNDS, STEPS = 2, 8, 8
PACE_S = 0.1  # Of each pass of a micro-batch: the job is to last for some seconds.
MOST_FILES = min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # A container of tests may not raise it.
BUDGET = 9_000_000
USER = 65_432  # Of our images.
COORDINATORS = ("coordinator-1", "coordinator-2")
SETTINGS = {
    "COTTAGE_SITE": "localhost",
    "COTTAGE_TLS": "/etc/caddy/tls/cert.pem /etc/caddy/tls/key.pem",
    "LEDGER_URL": "http://ledger:8899",
    "COMPOSE_PROFILES": "trial",
    "COORDINATOR_OPTIONS": "--audits-per-round 1",
    "RELAY_OPTIONS": f"--coordinator {SITE} --listen {containers.ADDRESS}",
}


def lines() -> list[str]:
    """What the operator types."""
    section = PAGE.read_text().partition("\n## With containers\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


class Servers:
    """The operator's folder with the compose file, and what is asked of its containers."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder = folder / "installer" / "compose"
        for name in FILES:
            shutil.copytree(containers.ROOT / "installer" / name, folder / "installer" / name)
        tls = self.folder / "tls"
        tls.mkdir()
        make_certificate(["localhost"], tls / "cert.pem", tls / "key.pem")
        self.authority = tls / "cert.pem"
        trusting = {"environment": {"SSL_CERT_FILE": "/tls/cert.pem"}, "volumes": ["./tls:/tls:ro"]}
        instead: dict[str, dict[str, Any]] = {name: {"image": f"cottage-{name}:test"} for name in OURS}
        instead |= {name: {"image": "cottage-coordinator:test"} for name in OURS[:3]}
        instead["relay"] |= trusting
        for name in (*COORDINATORS, "proxy", "relay"):
            instead[name]["ulimits"] = {"nofile": MOST_FILES}
        (self.folder / "test.yaml").write_text(json.dumps({"services": instead}))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        files = {"DOCKER_HOST": host, "COMPOSE_FILE": "compose.yaml:test.yaml", "COMPOSE_HTTP_TIMEOUT": "300"}
        self.env = {**os.environ, **files, "PATH": path, "SSL_CERT_FILE": str(self.authority), "HF_HUB_OFFLINE": "1"}
        self.client = docker.DockerClient(host, timeout=300)
        self.key = ""

    def type(self, line: str, answer: str = "") -> str:
        """Run a line that must succeed; what it said."""
        done = subprocess.run(
            ["bash", "-c", line.replace("docker compose", "docker-compose")],
            cwd=self.folder,
            env=self.env | ({"COTTAGE_SERVER": SITE, "COTTAGE_TOKEN": self.key} if self.key else {}),
            input=answer,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}\n{self.said()}"
        return done.stdout

    def set(self, **changed: str) -> None:
        """Write settings into ``.env``."""
        file = self.folder / ".env"
        text = file.read_text()
        for name, value in changed.items():
            text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
            assert count == 1, name
        file.write_text(text)

    def ask(self, url: str) -> Any:
        """The answer's JSON, or its text; None where the status is no success."""
        trusted = ssl.create_default_context(cafile=str(self.authority)) if url.startswith("https") else None
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.key}"} if self.key else {})
        try:
            with urllib.request.urlopen(asked, timeout=20, context=trusted) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, OSError):
            return None
        return json.loads(text) if answer.headers.get_content_type() == "application/json" else text

    def container(self, service: str) -> Any:
        """A service's container, as it is now."""
        [found] = self.client.containers.list(filters={"label": f"com.docker.compose.service={service}"})
        return found

    def works(self, service: str) -> bool:
        """Whether this coordinator works."""
        networks = self.container(service).attrs["NetworkSettings"]["Networks"]
        [address] = [one["IPAddress"] for one in networks.values()]
        return bool(address) and self.ask(f"http://{address}:8470/healthz") == {"status": "ok"}

    def said(self) -> str:
        """The end of each container's log."""
        logs = [f"{one.name}:\n{one.logs(tail=15).decode()}" for one in self.client.containers.list(all=True)]
        return "\n".join(logs)

    def close(self) -> None:
        """End all containers."""
        for one in self.client.containers.list(all=True):
            one.remove(force=True)
        self.client.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Nothing is up yet; the images are there."""
    with containers.engine_of_its_own() as host:
        made = Servers(tmp_path, host)
        try:
            containers.make_images(made.client, tmp_path / "images")
            yield made
        finally:
            made.close()


def until(true: Callable[[], bool], servers: Servers) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, servers.said()
        time.sleep(0.5)


def brought_up(servers: Servers) -> None:
    """The section's commands, one after the other; the settings are written where it says so."""
    for line in lines():
        if line.startswith("cd ") or line == "docker compose build":
            continue
        here = line.replace("exec coordinator-1", "exec -T coordinator-1")
        said = servers.type(f"{here} --password-stdin" if " add ada" in line else here, f"{PASSWORD}\n")
        if line.startswith("cp "):
            servers.set(**SETTINGS)
        elif line.startswith("docker compose logs relay"):
            [address] = set(re.findall(r"--relay (\w{32,44})\b", said))
            servers.set(COORDINATOR_OPTIONS=f"{SETTINGS['COORDINATOR_OPTIONS']} --relay {address}")
        elif line.startswith("docker compose up"):
            until(lambda: servers.ask(f"{SITE}/readyz") is not None, servers)


def submitted(servers: Servers, folder: Path) -> str:
    """A job of the operator's, by the commands of a submitter; returns its id."""
    write_corpus(folder / "corpus.txt", CORPUS_BYTES)
    spec = small_job("", BUDGET, 1, 1, rounds=ROUNDS, steps=STEPS, commit_every=2)
    document = json.loads(msgspec.json.encode(spec))
    del document["dataset"]["artifact"]
    (folder / "job.json").write_text(json.dumps(document))
    said = servers.type(f"cottage submit {folder}/job.json --data {folder}/corpus.txt --yes --json")
    return re.findall(r"\b[0-9a-f]{32}\b", said)[0]


@contextlib.contextmanager
def lender(servers: Servers, folder: Path) -> Iterator[Path]:
    """A node beside the containers, which knows the proxy's address alone; its log."""
    words = ["run", "--always", "--coordinator", SITE, "--home", str(folder / "node"), "--sandbox", "process"]
    words += ["--loopback", "--threads", "1", f"--worker-argument=--pace={PACE_S}"]
    log = folder / "node.log"
    with log.open("wb") as out:
        node = subprocess.Popen(
            [sys.executable, "-m", "cottage", "node", *words], env=servers.env, stdout=out, stderr=out
        )
        try:
            yield log
        finally:
            node.send_signal(signal.SIGTERM)
            try:
                node.wait(60)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


def backed_up(servers: Servers, folder: Path) -> None:
    """The page's own line, with another folder."""
    [line] = re.findall(r"`(docker compose run [^`]+)`", PAGE.read_text())
    folder.mkdir()
    os.chown(folder, USER, USER)
    assert "Backed up" in servers.type(line.replace("/mnt/other", str(folder)))
    assert (folder / "cottage" / "backup.json").is_file()


def kept_apart(servers: Servers) -> None:
    """No secret is in what the engine shows of a container, and no server of ours is its root."""
    secrets = [file.read_text().strip() for file in (servers.folder / "secrets").iterdir()]
    assert len(secrets) == 3
    for one in servers.client.containers.list():
        shown = json.dumps(one.attrs)
        assert not [secret for secret in secrets if secret in shown], one.name
        users = {row[0] for row in one.top(ps_args="-eo uid,pid")["Processes"]}
        assert ("0" in users) == ("proxy" in one.name), f"{one.name} runs as {users}"


def up(servers: Servers) -> str:
    """What Prometheus has of the coordinator: "1" where it answered the last time."""
    answer = servers.ask("http://127.0.0.1:9090/api/v1/query?query=up%7Bjob%3D%22cottage%22%7D")
    found = answer["data"]["result"] if answer else []
    return str(found[0]["value"][1]) if found else ""


@pytest.mark.timeout(3_000)
def test_a_job_trains_through_the_proxy_while_the_coordinator_at_work_is_killed(
    servers: Servers, tmp_path: Path
) -> None:
    brought_up(servers)
    assert (servers.works("coordinator-1"), servers.works("coordinator-2")).count(True) == 1
    until(lambda: up(servers) == "1", servers)
    kept_apart(servers)
    account = "docker compose exec -T coordinator-1 cottage accounts --data /var/lib/cottage"
    servers.key = servers.type(f"{account} key ada --days 1").strip()
    until(lambda: [one["state"] for one in servers.ask(f"{SITE}/api/v1/relays") or ()] == ["up"], servers)
    with lender(servers, tmp_path) as log:
        until(lambda: "connected to" in log.read_text(), servers)
        job = f"{SITE}/api/v1/jobs/{submitted(servers, tmp_path)}"
        until(lambda: (servers.ask(job) or {}).get("rounds_done", 0) >= KILLED_AFTER, servers)
        [victim] = [name for name in COORDINATORS if servers.works(name)]
        [other] = {*COORDINATORS} - {victim}
        os.kill(servers.container(victim).attrs["State"]["Pid"], signal.SIGKILL)
        until(lambda: servers.works(other), servers)
        until(lambda: (servers.ask(job) or {}).get("state") in ("settled", "failed", "cancelled"), servers)
        assert servers.ask(job)["state"] == "settled", servers.said()
        assert servers.works(other)
        assert servers.container(victim).attrs["RestartCount"] == 1
        assert not servers.works(victim), "what was started again stands by"
        rounds = Counter(
            one["round"] for one in servers.ask(f"{job}/rounds") if one["tokens"] and one["state"] == "complete"
        )
        assert rounds == Counter(range(ROUNDS)), "each round is done once"
        assert "is banned" not in json.dumps(servers.ask(f"{job}/events"))
    backed_up(servers, tmp_path / "backup")
    until(lambda: up(servers) == "1", servers)
