"""``cottage nettest`` without a network: options, files and coordinators that cannot be used, and what it then says."""

import json
from pathlib import Path

import pytest

from cottage import cli, nettest
from tests.nettest.conftest import SECRET
from tests.relay.conftest import relay_options
from transport.relay.server import RelayServer


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return file


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--relay", "turn:a.test"], 2, "give --relay-secret-file"),
        (["--relay", "turn:a.test", "--relay-secret-file", "{folder}/none"], 2, "cannot read the secret"),
        (["--relay", "http://a.test", "--relay-secret-file", "{secret}"], 2, "is no ICE server"),
        (["--relay", "stun:a.test", "--relay-secret-file", "{secret}"], 3, "no relay is named"),
        (["--home", "{folder}/home"], 2, "Give --coordinator URL"),
        (["--home", "{folder}/home", "--coordinator", "ftp://x"], 3, "write it as http://HOST or https://HOST"),
        (["--home", "{folder}/home", "--coordinator", "http://127.0.0.1:9"], 3, "cannot be asked"),
        (["--home", "{folder}/secret/home", "--coordinator", "http://127.0.0.1:9"], 2, "cannot be used"),
        (["--relay", "turn:127.0.0.1:9", "--relay-secret-file", "{secret}", "--peer", "what?"], 3, "no such code"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_way_out(
    secret: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, complaint: str
) -> None:
    given = [word.format(folder=secret.parent, secret=secret) for word in words]
    assert cli.main(["nettest", *given]) == code
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_an_empty_secret_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_text("")
    assert nettest.main(["--relay", "turn:a.test", "--relay-secret-file", str(tmp_path / "secret")]) == 2
    assert "empty" in capsys.readouterr().err


def test_damaged_settings_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.json").write_text("{")
    assert nettest.main(["--home", str(tmp_path)]) == 2
    assert "settings.json" in capsys.readouterr().err


def test_a_relay_that_is_not_there_ends_in_time_with_its_own_code(
    secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--relay", "turn:127.0.0.1:9?transport=udp", "--relay-secret-file", str(secret), "--json"]
    assert nettest.main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["relays"] == [{"relay": words[1], "rtt_s": None, "loss": 0.0, "udp": False, "stream": False}]
    assert found["seconds"] < 9.5


async def test_the_settings_of_the_node_name_the_coordinator(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"coordinator": "http://127.0.0.1:9", "name": "attic"}')
    assert nettest._settled_coordinator(tmp_path) == "http://127.0.0.1:9"


async def test_the_wrong_secret_is_said_beside_what_could_be_measured(secret: Path) -> None:
    options = nettest._parser().parse_args(["--relay", "turn:127.0.0.1:1", "--relay-secret-file", str(secret)])
    async with RelayServer(relay_options(secret="quite another secret")) as relay:
        options.relay = [f"turn:127.0.0.1:{relay.addresses[0][1]}?transport=udp"]
        found = await nettest.run(await nettest.relays(options))
    assert found.nat == "none"
    assert (found.up, found.down) == (None, None)
    assert "does not accept the credentials" in found.note
