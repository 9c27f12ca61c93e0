"""One file with every setting of ``cottage serve``, and what it says of one that cannot be used."""

from pathlib import Path

import pytest

from coordinator import cli

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


def test_settings_are_checked_without_serving(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--config", written(tmp_path, GOOD), "--check-config"]) == 0
    assert capsys.readouterr().out == "The settings can be used.\n"
    file = written(tmp_path, GOOD + 'host = "0.0.0.0"\n')
    assert cli.main(["--config", file, "--check-config"]) == cli.EXIT_USAGE
    assert "--open on 0.0.0.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD + "prot = 1\n", "unrecognized arguments: --prot=1"),
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


def test_a_file_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--config", str(tmp_path / "none.toml")])
    assert "Unable to open config file" in capsys.readouterr().err
