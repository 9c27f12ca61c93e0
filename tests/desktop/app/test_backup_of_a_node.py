"""Key, settings and rules survive the loss of a disk; nobody else can open them."""

import json
from pathlib import Path

import msgspec
import pytest

from desktop.agent.app import backup
from desktop.agent.base.config import Home, Settings
from desktop.agent.cli import cli
from desktop.agent.errors import SettingsError
from desktop.agent.lending.keeper import load, store
from desktop.agent.lending.rules import Rules
from protocol.identity import NodeKey

PASSPHRASE = "correct horse battery"  # Of a key that is made and lost in the test.


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "COST", 2**14)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path / "old")
    home.key()
    home.remember(Settings(coordinator="https://cottage.example", name="attic"))
    store(home.lending, Rules(idle_minutes=11), 0.0)
    return home


def test_a_backup_brings_the_same_node_back(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "attic.cottage"
    address = backup.write(home, file, PASSPHRASE)
    assert address == home.key().address
    assert file.stat().st_mode & 0o777 == 0o600
    fresh = Home.at(tmp_path / "new")
    assert backup.restore(fresh, backup.read(file, PASSPHRASE)) == address
    assert fresh.key().address == address
    assert fresh.settings() == home.settings()
    assert load(fresh.lending).rules == Rules(idle_minutes=11)
    assert backup.restore(fresh, backup.read(file, PASSPHRASE)) == address, "once more is harmless"


def test_nothing_secret_can_be_read_in_the_file(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "b"
    backup.write(home, file, PASSPHRASE)
    text = file.read_bytes()
    assert home.key().address.encode() in text
    for secret in (home.key().seed, b"attic", b"cottage.example"):
        assert secret not in text


def test_another_passphrase_and_every_changed_part_are_refused(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "b"
    backup.write(home, file, PASSPHRASE)
    with pytest.raises(SettingsError, match="does not open"):
        backup.read(file, PASSPHRASE + "!")
    good = json.loads(file.read_bytes())
    for field, value in {
        "address": NodeKey.generate().address,
        "cost": 2**15,
        "salt": good["nonce"][:8] + good["salt"][8:],
        "nonce": "A" * 16,
        "data": good["data"][:-8] + "AAAAAAA=",
    }.items():
        file.write_text(json.dumps(good | {field: value}))
        with pytest.raises(SettingsError, match="does not open"):
            backup.read(file, PASSPHRASE)


@pytest.mark.parametrize("text", ["", "{}", '{"cottage": "node backup 2"}', "\xff"])
def test_what_is_no_backup_is_said(text: str, tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(SettingsError, match="no backup"):
        backup.read(file, PASSPHRASE)


def test_a_file_that_asks_for_endless_work_is_refused(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "b"
    backup.write(home, file, PASSPHRASE)
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"cost": 2**30}))
    with pytest.raises(SettingsError, match="no backup"):
        backup.read(file, PASSPHRASE)


def test_nothing_is_ever_overwritten(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.write_text("mine")
    with pytest.raises(SettingsError, match="never overwritten"):
        backup.write(home, file, PASSPHRASE)
    assert file.read_text() == "mine"
    other = Home.at(tmp_path / "other")
    before = other.key().address
    with pytest.raises(SettingsError, match=before):
        backup.restore(other, backup.BackupContent(home.key().seed, home.settings(), Rules()))
    assert other.key().address == before
    assert other.settings() == Settings()


def test_a_short_passphrase_is_refused(home: Home, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="at least 8"):
        backup.write(home, tmp_path / "b", "1234567")
    assert not (tmp_path / "b").exists()


def test_the_words_are_the_key() -> None:
    key = NodeKey(bytes(range(32)))
    words = backup.to_words(key)
    assert len(words.split()) == 24
    assert backup.from_words(f"  {words.upper()}\n").seed == key.seed


def test_the_words_are_those_of_bip_39() -> None:
    """A vector of the standard: 32 bytes of 0x7f."""
    eight = "legal winner thank year wave sausage worth useful"
    assert backup.to_words(NodeKey(b"\x7f" * 32)) == f"{eight} {eight} {eight.replace('useful', 'title')}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: ["wineer", *w[1:]], "did you mean"),
        (lambda w: w[:-1], "these are 23"),
        (lambda w: [w[1], w[0], *w[2:]], "do not belong together"),
        (lambda w: [*w[:-1], "zoo"], "do not belong together"),
    ],
)
def test_a_slip_of_the_pen_is_found(change: "object", words: str) -> None:
    written = backup.to_words(NodeKey(bytes(range(32)))).split()
    assert callable(change)
    with pytest.raises(SettingsError, match=words):
        backup.from_words(" ".join(change(written)))


def test_the_command_line_asks_for_nothing_that_was_given(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSPHRASE}\n")
    file, at = tmp_path / "b", ["--passphrase-file", str(secret)]
    assert cli.main(["backup", str(file), "--home", str(home.path), *at]) == 0
    assert cli.main(["restore", str(file), "--home", str(tmp_path / "new"), *at]) == 0
    assert Home.at(tmp_path / "new").key().address == home.key().address
    assert cli.main(["words", "--home", str(home.path)]) == 0
    shown = capsys.readouterr()
    assert "Nobody of Cottage will ever ask" in shown.err
    rows = [word for word in shown.out.split("now.\n")[1].split() if not word.isdigit()]
    assert " ".join(rows) == backup.to_words(home.key())


def test_a_backup_of_a_later_version_is_told(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(msgspec.Struct):
        seed: bytes
        more: int = 1

    file = tmp_path / "b"
    monkeypatch.setattr(backup, "BackupContent", lambda seed, *_: Later(seed))
    backup.write(home, file, PASSPHRASE)
    monkeypatch.undo()
    with pytest.raises(SettingsError, match="another version"):
        backup.read(file, PASSPHRASE)
