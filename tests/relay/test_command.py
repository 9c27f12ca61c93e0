"""``cottage relay`` as a process, its options, and the files that install it."""

import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cottage import relay_options
from cottage.relay import EXIT_UNUSABLE, main
from tests.relay.conftest import asker, code, needs_coturn, relayed
from tests.support.addresses import free_port
from transport.ice.ice import IceServer, turn_credentials
from transport.relay.errors import OptionsError
from transport.relay.peer_policy import FORBIDDEN

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "installer" / "relay" / "cottage-relay.service"
LIMIT_S = 30.0


@contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command as a process, and the lines of its ready file."""
    ready = folder / "ready"
    command = [sys.executable, "-m", "cottage", "relay", "--listen", "127.0.0.1", "--ready-file", str(ready)]
    command += ["--secret-file", str(folder / "secret"), "--key-file", str(folder / "key.json"), *options]
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, text=True)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not ready.exists():
            assert process.poll() is None, (folder / "out").read_text()
            assert time.monotonic() < deadline, (folder / "out").read_text()
            time.sleep(0.02)
        yield process, ready.read_text().splitlines()
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def parse(tmp_path: Path, *options: str) -> relay_options.RelayCommand:
    files = ["--secret-file", str(tmp_path / "secret"), "--key-file", str(tmp_path / "key.json")]
    listen = [] if "--listen" in options else ["--listen", "127.0.0.1"]
    return relay_options.parse([*listen, *files, *options])


@pytest.mark.parametrize("kind", ["ours", pytest.param("coturn", marks=needs_coturn)])
async def test_the_command_relays_and_ends_cleanly(tmp_path: Path, kind: str) -> None:
    low = 30000 + os.getpid() % 300 * 50
    options = {
        "ours": ["--port", "0", "--nat-port", "0", "--max-port", "0", "--metrics", "127.0.0.1:0"],
        "coturn": ["--coturn", "--port", str(free_port()), "--min-port", str(low), "--max-port", str(low + 49)],
    }[kind]
    with running(tmp_path, *options, "--allow-peers", "127.0.0.1") as (process, lines):
        secret = (tmp_path / "secret").read_text().strip()
        server = IceServer(lines[0], *turn_credentials(secret, "node", time.time()))
        async with asker((server.host, server.port)) as client:
            client.username, client.password = server.username, server.credential
            assert code(await client.allocate()) == 0
            assert code(await client.permit("127.0.0.1")) == 0
            assert code(await client.permit("10.0.0.1")) == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    out = (tmp_path / "out").read_text()
    assert server.url in out
    assert "Traceback" not in out
    assert secret not in out
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


async def test_tls_is_served_with_the_given_certificate_and_a_new_one_is_read_on_sighup(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    files = ["--cert", str(certificate[0]), "--key", str(certificate[1]), "--tls-port", "0"]
    with running(tmp_path, "--port", "0", "--no-nat-port", "--max-port", "0", *files) as (process, lines):
        process.send_signal(signal.SIGHUP)
        tls = [IceServer(line, "u", "p") for line in lines if line.startswith("turns:")]
        trust = ssl.create_default_context(cafile=str(certificate[0]))
        secret = (tmp_path / "secret").read_text().strip()
        async with relayed((tls[0].host, tls[0].port), "tcp", trust, secret=secret) as (_, transport):
            assert transport.get_extra_info("sockname")[0] == "127.0.0.1"
        assert process.poll() is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--listen", "0.0.0.0"], "stands for many addresses"),
        (["--listen", "relay.example.org"], "no IP address"),
        (["--listen", "127.0.0.1", "--external-ip", "2001:db8::1"], "no --listen address of its family"),
        (["--cert", "/nowhere"], "both --cert and --key"),
        (["--cert", "/nowhere", "--key", "/nowhere"], "no such file"),
        (["--min-port", "2000", "--max-port", "1999"], "cannot be relayed"),
        (["--min-port", "80"], "choose within 1024-65535"),
        (["--allow-peers", "192.168.1.1/24"], "expected a network"),
        (["--coordinator", "http://cottage.example.org"], "use https"),
        (["--realm", 'a"b'], "no realm"),
        (["--metrics", "9641"], "HOST:PORT"),
        (["--coturn", "--port", "0"], "coturn needs a port"),
        (["--coturn", "--metrics", "127.0.0.1:1"], "no metrics"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(tmp_path: Path, options: list[str], complaint: str) -> None:
    with pytest.raises(OptionsError, match=complaint):
        parse(tmp_path, *options)


def test_a_secret_file_is_kept_and_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    first = parse(tmp_path).options.secret
    assert len(first) >= 32
    assert parse(tmp_path).options.secret == first
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(OptionsError, match="chmod 600"):
        parse(tmp_path)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "secret").write_text("short")
    with pytest.raises(OptionsError, match="16 to 128"):
        parse(tmp_path)


def test_nodes_are_told_public_addresses_or_a_name_where_the_operator_gives_one(tmp_path: Path) -> None:
    local = parse(tmp_path, "--listen", "127.0.0.1", "--listen", "::1")
    assert local.urls() == (
        "turn:127.0.0.1:3478?transport=udp",
        "turn:[::1]:3478?transport=udp",
        "turn:127.0.0.1:3478?transport=tcp",
        "turn:[::1]:3478?transport=tcp",
    )
    public = parse(tmp_path, "--listen", "127.0.0.1", "--listen", "::1", "--external-ip", "8.8.8.8")
    assert public.urls() == ("turn:8.8.8.8:3478?transport=udp", "turn:8.8.8.8:3478?transport=tcp")
    assert parse(tmp_path, "--host", "relay.example.org").urls()[0] == "turn:relay.example.org:3478?transport=udp"
    for url in local.urls():
        IceServer(url, "u", "p")


def test_the_printed_settings_of_coturn_deny_every_forbidden_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--secret-file", str(tmp_path / "secret"), "--key-file", str(tmp_path / "key.json")]
    assert main(["--coturn", "--print-config", "--listen", "127.0.0.1", *files]) == 0
    text = capsys.readouterr().out
    assert sum(line.startswith("denied-peer-ip=") for line in text.splitlines()) == len(FORBIDDEN)
    assert "allowed-peer-ip" not in text
    for flag in ("use-auth-secret", "no-cli", "no-multicast-peers", "no-tcp-relay", "no-rfc5780", "stale-nonce=3600"):
        assert flag in text.splitlines()


def test_a_port_that_is_taken_ends_the_command_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ["--listen", "127.0.0.1", "--port", str(port), "--secret-file", str(tmp_path / "secret")]
        assert main(options) == EXIT_UNUSABLE
    assert f"cannot use TCP port {port} of 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cottage-relay.service", "Dockerfile", "compose.yaml"])
def test_the_installed_files_use_options_that_the_command_knows(name: str) -> None:
    text = (SERVICE.parent / name).read_text()
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(_command_lines(text))))
    known = {option for action in relay_options._parser()._actions for option in action.option_strings}
    assert named
    assert named <= known


def _command_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(r"ExecStart=|RELAY_OPTIONS|ENTRYPOINT|^CMD|command:", line)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_systemd_unit_holds_and_is_confined(tmp_path: Path) -> None:
    unit = tmp_path / SERVICE.name
    unit.write_text(SERVICE.read_text().replace("/opt/cottage/bin/cottage", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if SERVICE.name in line]
    assert done.returncode == 0, done.stderr
    assert not complaints
    for line in ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "LimitNOFILE=65536"):
        assert line in unit.read_text().splitlines()
