"""What the compose file promises of each container, read from the file; ``test_compose.py`` brings it up."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "installer" / "compose"
OPEN_TO_OTHERS = {"proxy": ["80:80", "443:443"]}
"""Published on every address; all else on loopback, or not at all. The relay is on the host's network."""


def services() -> dict[str, Any]:
    """Each service with all that it has, also what it has from another file."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for name, service in found.items():
        if "extends" in service:
            other = yaml.safe_load((FOLDER / service["extends"]["file"]).read_text())["services"]
            found[name] = other[service["extends"]["service"]] | service
    return found


@pytest.mark.parametrize("name", services())
def test_no_container_has_rights_that_it_does_not_need(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "proxy" else [])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert not {"privileged", "devices", "pid", "ipc", "userns_mode"} & set(service)
    assert "docker.sock" not in str(service)
    outside = [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")]
    assert outside == OPEN_TO_OTHERS.get(name, [])
    assert (service.get("network_mode") == "host") == (name == "relay")


def test_secrets_are_files_that_git_and_images_leave_out() -> None:
    document = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert all(one["file"].startswith("./secrets/") for one in document["secrets"].values())
    for name in ("secrets/database_password", ".env", "tls/key.pem"):
        ignored = subprocess.run(["git", "check-ignore", "-q", f"installer/compose/{name}"], cwd=ROOT, check=False)
        assert ignored.returncode == 0, name
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {"installer/compose/.env", "installer/compose/secrets", "installer/compose/tls", ".git"} <= set(left_out)
    for service in services().values():
        for name, value in service.get("environment", {}).items():
            secret = "PASSWORD" in name
            assert not secret or value.startswith("/run/secrets/"), name


def test_every_setting_that_is_read_is_in_the_example() -> None:
    text = "".join((ROOT / "installer" / name / "compose.yaml").read_text() for name in ("compose", "relay"))
    read = set(re.findall(r"\$\{(\w+)", text))
    given = set(re.findall(r"^(\w+)=", (FOLDER / ".env.example").read_text(), re.MULTILINE))
    assert read <= given
    assert given - read == {"COMPOSE_PROJECT_NAME", "COMPOSE_PROFILES"}, "what Compose itself reads"


def test_both_coordinators_are_the_same_but_for_whom_they_wait_for() -> None:
    first, second = (dict(services()[name]) for name in ("coordinator-1", "coordinator-2"))
    assert first.pop("depends_on") == {"database": {"condition": "service_healthy"}}
    assert second.pop("depends_on") == {"coordinator-1": {"condition": "service_healthy"}}
    assert first == second
    named = re.findall(r"(coordinator-\d):8470", (FOLDER / "Caddyfile").read_text())
    assert named == ["coordinator-1", "coordinator-2"]


@pytest.mark.parametrize("name", ["compose", "relay"])
def test_the_file_is_as_the_published_schema_has_it(name: str) -> None:
    file = ROOT / "installer" / name / "compose.yaml"
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed: apt-get install caddy")
@pytest.mark.parametrize("tls", ["operator@example.org", "internal", "/etc/caddy/tls/cert.pem /etc/caddy/tls/key.pem"])
def test_the_proxy_understands_its_file_with_each_kind_of_certificate(tls: str, tmp_path: Path) -> None:
    command = ["caddy", "adapt", "--config", str(FOLDER / "Caddyfile"), "--adapter", "caddyfile"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    settings = {"COTTAGE_SITE": "cottage.example.org", "COTTAGE_TLS": tls}
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Caddyfile input is not formatted" not in done.stderr
    told = json.dumps(json.loads(done.stdout)["apps"]["tls"])
    assert {"internal": '"module": "internal"', "operator@example.org": '"module": "acme"'}.get(tls, "cert.pem") in told
