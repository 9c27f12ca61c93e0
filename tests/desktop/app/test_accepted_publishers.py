"""Whose images an owner accepts, by the command and by its file, whether an agent runs or not."""

import json
from pathlib import Path

import msgspec
import pytest

from desktop.agent.app.array_parts import accepting
from desktop.agent.base.config import Home
from desktop.agent.cli.cli import main
from desktop.agent.errors import SettingsError, UnacceptedImageError
from desktop.agent.images import publishers as rules
from desktop.agent.images.publishers import KnownImage, Publishers
from protocol.identity import NodeKey
from protocol.images.statement import PublishedImage
from tests.support.arrays.images import KEY

STATED = PublishedImage("sweep:1", "0" * 64, "amd64", 5_000_000, KEY.address)


def cottage(tmp_path: Path, *words: str) -> int:
    return main(["images", *words, "--home", str(tmp_path / "node")])


def known(number: int, used: float, layers: tuple[str, ...] = ()) -> KnownImage:
    return KnownImage(f"{number:064x}", STATED, False, 512, used, layers)


def test_a_publisher_is_accepted_shown_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cottage(tmp_path, "list") == 0
    assert "Nobody's images are accepted yet" in capsys.readouterr().out
    assert cottage(tmp_path, "accept", KEY.address, "--name", "A friend") == 0
    assert cottage(tmp_path, "accept", KEY.address, "--name", "An old friend") == 0
    assert cottage(tmp_path, "list", "--json") == 0
    shown = json.loads(capsys.readouterr().out.split("\n", 2)[2])
    assert [(one["key"], one["name"]) for one in shown["publishers"]] == [(KEY.address, "An old friend")]
    assert cottage(tmp_path, "remove", "An old friend") == 0
    assert cottage(tmp_path, "remove", KEY.address) == 2
    assert "cottage node images list" in capsys.readouterr().err


def test_what_was_asked_for_is_shown_with_its_size_and_what_it_wants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    publishers = Publishers(Home.at(tmp_path / "node"))
    publishers.note(msgspec.structs.replace(known(1, 1.0), gpu=True))
    assert cottage(tmp_path, "list") == 0
    said = capsys.readouterr().out
    for words in ("sweep:1", "5 MB", "512 MB of memory, the GPU; no network, no files", "not accepted"):
        assert words in said
    assert f"cottage node images accept {KEY.address} --name NAME" in said


@pytest.mark.parametrize(
    ("key", "name"), [("no key", "x"), (KEY.address, ""), (KEY.address, "x\x1b[2J"), ("1" * 32, "x")]
)
def test_what_is_no_key_or_no_name_is_refused(tmp_path: Path, key: str, name: str) -> None:
    with pytest.raises(SettingsError, match="a publisher is a key"):
        Publishers(Home.at(tmp_path)).accept(key, name, 1.0)


def test_cottages_own_images_are_accepted_and_cannot_be_removed(tmp_path: Path) -> None:
    publishers = Publishers(Home.at(tmp_path), KEY.address)
    publishers.check(STATED)
    with pytest.raises(SettingsError, match="always accepted"):
        publishers.remove(KEY.address)
    with pytest.raises(UnacceptedImageError, match="not accepted"):
        publishers.check(msgspec.structs.replace(STATED, publisher=NodeKey(b"\7" * 32).address))


def test_a_damaged_file_accepts_nobody(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    home.publishers.write_bytes(b"{")
    with pytest.raises(SettingsError, match="Correct it or delete it"):
        Publishers(home, KEY.address).check(STATED)


def test_of_many_images_those_that_are_here_and_the_latest_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_KNOWN", 3)
    publishers = Publishers(Home.at(tmp_path))
    here = ("sha256:" + "a" * 64,)
    for image in (known(1, 1.0, here), known(2, 2.0), known(3, 3.0), known(4, 4.0)):
        publishers.note(image)
    assert [int(one.artifact, 16) for one in publishers.known()] == [4, 3, 1]
    publishers.forget_layers(f"{1:064x}")
    assert not any(one.layers for one in publishers.known())


def test_a_damaged_list_accepts_nobody_and_says_why_rather_than_keep_an_agent_from_starting(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    home.publishers.write_text("[{")
    accepts, fault = accepting(Publishers(home, "key of a release"))
    assert not accepts
    assert "publishers.json cannot be used" in fault
