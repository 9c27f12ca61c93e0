"""One file with every setting of ``cottage serve``, and what it says of one that cannot be used."""

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from coordinator import cli
from coordinator.admin import backup
from coordinator.admin import cli as accounts
from coordinator.config import IdentityConfig, RetentionPolicy
from coordinator.settings import database_of

GOOD = """
[relay]
port = 3478

[serve]
data = "data"
ledger-url = "http://127.0.0.1:8899"
open = true
no-sign-up = false
port = 9000
lease-seconds = 12.5
webhook-network = ["10.0.0.0/8", "192.168.0.0/16"]
token-worth = "0.92 EUR"
"""
TYPED = (
    *("--data", "data", "--ledger-url", "http://127.0.0.1:8899", "--open", "--port", "9000", "--lease-seconds", "12.5"),
    *("--webhook-network", "10.0.0.0/8", "--webhook-network", "192.168.0.0/16", "--token-worth", "0.92 EUR"),
)


def written(folder: Path, text: str) -> str:
    (folder / "cottage.toml").write_text(text)
    return str(folder / "cottage.toml")


def test_a_file_says_what_can_be_typed_and_what_is_typed_counts_more(tmp_path: Path) -> None:
    file, parser = written(tmp_path, GOOD), cli._parser()
    typed = cli._config(parser.parse_args(TYPED))
    assert cli._config(parser.parse_args(["--config", file])) == typed
    assert cli._config(parser.parse_args(["--config", file, "--port", "1", "--no-sign-up"])) != typed
    assert parser.parse_args(["--config", file, "--port", "1"]).port == 1


def test_the_address_of_a_database_with_its_password_may_be_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTTAGE_DATABASE_URL", "postgresql+asyncpg://user:password@host/name")
    options = cli._parser().parse_args(["--config", written(tmp_path, GOOD)])
    assert cli._config(options).database == "postgresql+asyncpg://user:password@host/name"


def test_the_password_of_a_database_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("a/word with @ signs\n")
    monkeypatch.setenv("COTTAGE_DATABASE_URL", "postgresql+asyncpg://user@host/name")
    monkeypatch.setenv("COTTAGE_DATABASE_PASSWORD_FILE", str(tmp_path / "password"))
    url = make_url(cli._config(cli._parser().parse_args(["--config", written(tmp_path, GOOD)])).database)
    assert (url.username, url.password, url.host) == ("user", "a/word with @ signs", "host")
    for other in (accounts._parser().parse_args(["list"]), backup._parser().parse_args(["restore", "--data", "data"])):
        assert make_url(database_of(other) or "") == url


def test_a_password_that_no_database_has_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COTTAGE_DATABASE_PASSWORD_FILE", str(tmp_path / "password"))
    assert accounts.main(["--data", str(tmp_path), "list"]) == accounts.EXIT_USAGE
    assert "changes nothing without --database-url" in capsys.readouterr().err
    words = ["--data", str(tmp_path), "--database-url", "postgresql+asyncpg://user@host/name"]
    assert backup.main(["backup", str(tmp_path), *words]) == backup.EXIT_USAGE
    assert f"{tmp_path / 'password'} cannot be read" in capsys.readouterr().err
    (tmp_path / "password").touch()
    file = written(tmp_path, GOOD + 'database-url = "postgresql+asyncpg://user@host/name"\n')
    assert cli.main(["--config", file, "--check-config"]) == cli.EXIT_USAGE
    assert f"{tmp_path / 'password'} is empty" in capsys.readouterr().err


def test_settings_are_checked_without_serving(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--config", written(tmp_path, GOOD), "--check-config"]) == 0
    assert capsys.readouterr().out == "The settings can be used.\n"
    file = written(tmp_path, GOOD + 'host = "0.0.0.0"\n')
    assert cli.main(["--config", file, "--check-config"]) == cli.EXIT_USAGE
    assert "--open on 0.0.0.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("the attic", "names no database"),
        ("postgresql://user:hunter2@host/name", "write postgresql+asyncpg://"),
        ("mysql://user:hunter2@host/name", "write postgresql+asyncpg://"),
    ],
)
@pytest.mark.parametrize("words", [["--check-config"], []])
def test_an_address_that_no_database_can_have_is_told_before_anything_starts(
    tmp_path: Path, url: str, says: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cells = "cells = 3\n" if url.startswith("postgresql") else ""
    file = written(tmp_path, f'{GOOD}database-url = "{url}"\n{cells}')
    assert cli.main(["--config", file, *words]) == cli.EXIT_DATA
    said = capsys.readouterr().err
    assert says in said
    assert "hunter2" not in said


@pytest.mark.parametrize("words", [["--check-config"], []])
def test_several_cells_are_reached_without_tls_and_that_is_told_before_anything_starts(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shared = f'{GOOD}database-url = "postgresql+asyncpg://user@host/name"\nreachable-at = "https://one.example:8443"\n'
    assert cli.main(["--config", written(tmp_path, shared), "--check-config"]) == 0, "one that stands by has one port"
    file = written(tmp_path, f"{shared}cells = 3\n")
    capsys.readouterr()
    assert cli.main(["--config", file, *words]) == cli.EXIT_USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "--reachable-at https://one.example:8443 with --cells 3" in said
    assert "write http://one.example, or" in said
    assert cli.main(["--config", file, "--check-config", "--reachable-at", "http://one.example"]) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD + "prot = 1\n", "unrecognized arguments: --prot=1"),
        (GOOD + "cell = 1\n", "unrecognized arguments: --cell=1"),
        ("cells = 1\n" + GOOD, "has cells outside of the table [serve]"),
        (GOOD.replace("port = 9000", "port = 99999"), "argument --port: 99999 is no port: choose 0 to 65535"),
        (GOOD.replace("true", "ture"), "Couldn't parse TOML file"),
        ("data = 'x'\n", "has no settings in a table [serve]"),
        ("[relay]\nport = 3478\n", "has no settings in a table [serve]"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--config", written(tmp_path, text), "--check-config"])
    assert ended.value.code == cli.EXIT_USAGE
    assert says in capsys.readouterr().err


def test_for_how_long_files_stay_is_read_and_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, GOOD + "keep-job-files = 7\nkeep-uploads = 365\n")
    assert cli._config(cli._parser().parse_args(["--config", file])).retention == RetentionPolicy(7, 365)
    for word, days in (("--keep-job-files", "6"), ("--keep-uploads", "0"), ("--keep-uploads", "3651")):
        with pytest.raises(SystemExit):
            cli.main(["--config", file, word, days, "--check-config"])
        assert f"{days} is out of bounds" in capsys.readouterr().err


def test_who_may_lend_is_read_from_the_file_and_its_list_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "lenders.txt"
    file = written(tmp_path, f'{GOOD}who-may-lend = "listed"\nlenders = "{listed}"\n')
    checked = ["--config", file, "--check-config"]
    listed.write_text("# the lab\nowner ada\n")
    assert cli.main(checked) == 0
    config = cli._config(cli._parser().parse_args(["--config", file]))
    assert (config.who_may_lend, config.lenders) == ("listed", listed)
    capsys.readouterr()
    listed.write_text("# the lab\n\nada\n")
    assert cli.main(checked) == cli.EXIT_USAGE
    assert f"--lenders {listed}: line 3: it begins with 'ada': write `node ADDRESS`" in capsys.readouterr().err
    listed.unlink()
    assert cli.main(checked) == cli.EXIT_USAGE
    assert f"--lenders {listed}: it cannot be read: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('who-may-lend = "listed"\n', "--who-may-lend listed needs --lenders FILE"),
        ('lenders = "lenders.txt"\n', "--lenders changes nothing while everybody may lend"),
    ],
)
def test_a_rule_without_what_it_needs_is_told(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--config", written(tmp_path, GOOD + text), "--check-config"]) == cli.EXIT_USAGE
    assert says in capsys.readouterr().err


SIGNED_IN = GOOD.replace("open = true\n", "")
PROVIDER = 'identity-provider = "https://id.example/realms/lab"\nidentity-client = "cottage"\n'


def test_an_identity_provider_is_read_from_the_file_and_its_secret_from_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("kept in a file\n")

    def read(text: str = "") -> IdentityConfig | None:
        file = written(tmp_path, SIGNED_IN + PROVIDER + text)
        return cli._config(cli._parser().parse_args(["--config", file])).identity

    issuer = "https://id.example/realms/lab"
    assert read() == IdentityConfig(issuer, "cottage"), "a public client has none"
    assert read(f'identity-secret = "{secret}"\n') == IdentityConfig(issuer, "cottage", "kept in a file")
    monkeypatch.setenv("COTTAGE_IDENTITY_SECRET", "of the environment")
    found = read()
    assert found == IdentityConfig(issuer, "cottage", "of the environment")
    assert "environment" not in repr(found)
    assert read(f'identity-secret = "{secret}"\n') == IdentityConfig(issuer, "cottage", "kept in a file")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            SIGNED_IN + 'identity-client = "cottage"\n',
            "--identity-client changes nothing without --identity-provider URL",
        ),
        (SIGNED_IN + 'identity-secret = "file"\n', "--identity-secret changes nothing without --identity-provider URL"),
        (SIGNED_IN + PROVIDER.partition("\n")[0], "redirect address https://cottage.example/sign-in/identity"),
        (
            SIGNED_IN + PROVIDER.partition("\n")[0] + '\npublic-url = "https://lab.example"\n',
            "redirect address https://lab.example/sign-in/identity",
        ),
        (SIGNED_IN + PROVIDER + 'host = "0.0.0.0"\n', "--identity-provider needs --public-url"),
        (SIGNED_IN + PROVIDER + "behind-proxy = true\n", "--identity-provider needs --public-url"),
        (
            SIGNED_IN + PROVIDER + 'identity-secret = "none"\n',
            "--identity-secret none cannot be read: there is no such file",
        ),
        (GOOD + PROVIDER, "--identity-provider with --open"),
        (SIGNED_IN + 'who-may-lend = "verified"\n', "--who-may-lend verified needs --identity-provider URL"),
    ],
)
def test_an_identity_provider_without_what_it_needs_is_told(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--config", written(tmp_path, text), "--check-config"]) == cli.EXIT_USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://id.example", "is not https://"),
        ("id.example", "https://HOST"),
        ("https://id.example?x=1", "it has no ? and no # in it"),
        ("https://id.example#", "it has no ? and no # in it"),
        ("https://id.example/.well-known/openid-configuration", "leave /.well-known/openid-configuration out"),
    ],
)
def test_an_issuer_that_cannot_be_one_is_told(url: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*TYPED, "--identity-provider", url, "--identity-client", "cottage", "--check-config"])
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("url", "says"), [("nonsense", "http://HOST"), ("http://:8899", "names no machine"), ("ftp://a", "http://HOST")]
)
def test_a_ledger_that_cannot_be_one_is_told(url: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--ledger-url", url, "--check-config"])
    told = " ".join(capsys.readouterr().err.split())
    assert "--ledger-url" in told
    assert says in told


def test_a_file_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--config", str(tmp_path / "none.toml")])
    assert "Unable to open config file" in capsys.readouterr().err
