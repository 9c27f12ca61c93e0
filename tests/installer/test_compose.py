"""A network's servers in containers, as docs/how-to/operate.md brings them up: a job through the proxy, and a coordinator that is killed.

The engine, its networks and all that the containers publish are in a network namespace of the test. Images are made of this machine's
own programs, since no registry is asked; so those of the Dockerfiles and of the public are not tried, and Grafana is left out.
"""

import json
import os
import re
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

from tests.support import containers
from tests.support.small_job import CORPUS_BYTES, small_job
from tests.testbed.relay import make_certificate

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.docker,
    pytest.mark.skipif(bool(containers.missing()), reason=containers.missing()),
]

PAGE = containers.ROOT / "docs" / "how-to" / "operate.md"
SITE = "https://localhost"
OURS = ("coordinator-1", "coordinator-2", "ledger", "database", "proxy", "relay", "prometheus")
FILES = ("compose", "coordinator", "relay")
PASSWORD = "a password of the operator"
PATIENCE_S = 400.0
KILLED_AFTER, ROUNDS = 2, 8
SETTINGS = {
    "COTTAGE_SITE": "localhost",
    "COTTAGE_TLS": "/etc/caddy/tls/cert.pem /etc/caddy/tls/key.pem",
    "LEDGER_URL": "http://ledger:8899",
    "COMPOSE_PROFILES": "trial",
    "COORDINATOR_OPTIONS": "--price-per-petaflop 1000000000 --audits-per-round 1",
    "RELAY_OPTIONS": f"--coordinator {SITE} --listen 127.0.0.1",
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

    def ready(self, service: str) -> bool:
        """Whether this coordinator works."""
        networks = self.container(service).attrs["NetworkSettings"]["Networks"]
        [address] = [one["IPAddress"] for one in networks.values()]
        return bool(address) and self.ask(f"http://{address}:8470/readyz") is not None

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
    """The section's commands, one after the other; between two of them the settings are written, as it says."""
    for line in lines():
        if line.startswith("cd ") or line == "docker compose build":
            continue
        if line == "docker compose up -d" and "secrets/metrics_key" not in (servers.folder / ".env").read_text():
            pass
        here = line.replace("exec coordinator-1", "exec -T coordinator-1")
        if " add ada" in line:
            until(lambda: servers.ask(f"{SITE}/readyz") is not None, servers)
            here += " --password-stdin"
        said = servers.type(here, f"{PASSWORD}\n")
        if line.startswith("cp "):
            servers.set(**SETTINGS)
        elif line.startswith("docker compose logs relay"):
            address = re.findall(r"--relay (\w{32,44})", said)[0]
            servers.set(COORDINATOR_OPTIONS=f"{SETTINGS['COORDINATOR_OPTIONS']} --relay {address}")


def test_a_job_trains_through_the_proxy_while_the_coordinator_at_work_is_killed(
    servers: Servers, tmp_path: Path
) -> None:
    brought_up(servers)
    servers.key = (servers.folder / "secrets" / "metrics_key").read_text().strip()
    assert servers.key.startswith("cottage_")
