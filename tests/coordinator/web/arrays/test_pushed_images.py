"""Images of submitters from ``cottage image push`` to the list of them, over cuts, and what the coordinator's door refuses."""

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.client import Client, ProblemError
from coordinator.client.cli import main
from coordinator.client.files import sha256_of
from protocol.identity import NodeKey
from protocol.images.archive import stated_in
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_tenants import member
from tests.support.arrays.images import KEY, files, ready, saved

LAYERS = [files({"bin/one": b"1" * 50_000}), files({"etc/two": b"2"})]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTTAGE_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return saved(tmp_path / "sweep.tar", LAYERS, {"User": "root", "Cmd": ["one"]})


async def cottage(house: House, *words: str) -> int:
    return await asyncio.to_thread(main, [*words, "--server", house.url])


async def test_an_image_is_pushed_listed_and_pushed_again_as_the_same(
    house: House, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cottage(house, "image", "push", str(built), "--name", "sweep:1") == 0
    said = capsys.readouterr()
    key = NodeKey.load(tmp_path / "config" / "publisher.key")
    assert f"cottage node images accept {key.address}" in said.out
    assert "left out: the user 'root'" in said.err
    key_file = str(tmp_path / "config" / "publisher.key")
    assert await cottage(house, "image", "push", str(built), "--name", "sweep:1", "--key", key_file) == 0
    again = capsys.readouterr()
    assert f"artifact: {said.out.split()[1]}" in again.out
    assert f"--name sweep:1 --key {key_file} --architecture amd64" in again.err, (
        "it is the same archive only with these"
    )
    assert await cottage(house, "image", "list", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["name"], one["publisher"], one["architecture"]) == ("sweep:1", key.address, "amd64")
    assert one["unpacked"] == sum(map(len, LAYERS))
    kept = house.artifacts.path(one["artifact"]).read_bytes()
    assert len(kept) == one["size"]
    assert stated_in(kept).image == one["image"]
    assert list((tmp_path / "cache" / "cottage").iterdir()) == []  # Nothing is left of what was made ready.


async def test_a_push_that_was_cut_goes_on_where_it_was(house: House, built: Path, tmp_path: Path) -> None:
    statement, archive = ready(built, tmp_path / "ready.tar"), tmp_path / "ready.tar"
    digest, begun, kept = sha256_of(archive), list[str](), list[int]()

    def cut(done: int, _all: int) -> None:
        kept.append(done)
        raise KeyboardInterrupt

    async with Client(house.url) as client:
        from coordinator.client import files as transfers

        whole, transfers.PIECE_BYTES = transfers.PIECE_BYTES, 20_000
        try:
            with pytest.raises(KeyboardInterrupt):
                await client.push_image(archive, statement.name, digest, cut, begun=lambda one: begun.append(one.id))
            await house.stop()
            await house.start()
            upload = await client.push_image(archive, statement.name, digest, resume=begun[0])
        finally:
            transfers.PIECE_BYTES = whole
        assert kept == [20_000]
        assert upload.artifact == digest
        assert [one.artifact for one in await client.images()] == [digest]


async def test_an_image_that_was_changed_on_the_way_is_refused_in_words(
    house: House, built: Path, tmp_path: Path
) -> None:
    ready(built, tmp_path / "ready.tar")
    data = bytearray((tmp_path / "ready.tar").read_bytes())
    at = data.index(b"1" * 50)
    data[at] = ord("2")
    (tmp_path / "changed.tar").write_bytes(data)
    async with Client(house.url) as client:
        with pytest.raises(ProblemError, match=r"this image is not taken: the layer \w+ is another one"):
            await client.push_image(tmp_path / "changed.tar", "x", sha256_of(tmp_path / "changed.tar"))
        assert not await client.images()


async def test_a_wrong_archive_ends_the_command_before_anything_is_sent(
    house: House, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar")
    assert await cottage(house, "image", "push", str(tmp_path / "x.tar")) == 2
    assert "no archive of docker save, nor an OCI archive" in capsys.readouterr().err
    assert await cottage(house, "image", "push", str(tmp_path / "nothing.tar")) == 2
    assert "docker save IMAGE -o" in capsys.readouterr().err
    assert await cottage(house, "image", "push", str(built), "--name", "no name") == 2
    assert "cannot be an image's name" in capsys.readouterr().err
    (tmp_path / "no.key").write_text("no key")
    assert await cottage(house, "image", "push", str(built), "--key", str(tmp_path / "no.key")) == 2
    assert "no.key" in capsys.readouterr().err


async def test_an_account_sees_its_own_images_only(town: House, built: Path, tmp_path: Path) -> None:
    ready(built, tmp_path / "ready.tar")
    tokens = [(await member(town, name))["Authorization"].removeprefix("Bearer ") for name in ("ada", "bob")]
    async with Client(town.url, tokens[0]) as ada, Client(town.url, tokens[1]) as bob:
        await ada.push_image(tmp_path / "ready.tar", "made:here", sha256_of(tmp_path / "ready.tar"))
        assert [one.publisher for one in await ada.images()] == [KEY.address]
        assert not await bob.images()
