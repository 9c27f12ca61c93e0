"""What carries an element's files: nothing that a hostile program leaves stops it, or leads it elsewhere."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from desktop.agent.arrays.porter_link import CarryError, PorterLink
from desktop.agent.arrays.results import collect
from desktop.agent.base.payloads import SmallPayload
from desktop.agent.errors import WorkerDiedError
from desktop.agent.jobs.spool import Spool
from desktop.agent.sandbox.porter import Porter
from protocol.job.elements import INLINE_BYTES
from protocol.job.results import packed


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[PorterLink]:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    mine, theirs = socket.socketpair()
    porter = Porter(str(tmp_path / "in"), str(tmp_path / "out"), theirs.makefile("rb"), theirs.makefile("wb"))

    def serve() -> None:
        with contextlib.suppress(SystemExit, OSError):
            porter.serve()
        theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    reader, writer = await asyncio.open_connection(sock=mine, limit=4 << 20)
    yield PorterLink(reader, writer)
    writer.close()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


async def test_inputs_are_laid_in_read_only_and_taken_away_with_their_folders(link: PorterLink, tmp_path: Path) -> None:
    await link.lay((), {"a/b/one": SmallPayload(b"1" * 3_000_000), "a/two": SmallPayload(b"")})
    assert (tmp_path / "in/a/b/one").read_bytes() == b"1" * 3_000_000
    assert (tmp_path / "in/a/b/one").stat().st_mode & 0o777 == 0o444
    await link.lay(["a/b/one"], {})
    assert [str(path.relative_to(tmp_path / "in")) for path in (tmp_path / "in").rglob("*")] == ["a", "a/two"]
    with pytest.raises(CarryError, match="No such file"):
        await link.lay(["a/b/one", "a/two"], {"new": SmallPayload(b"3")})
    assert (tmp_path / "in/new").read_bytes() == b"3", "each was answered, so the next question has its own answer"
    assert (await link.left(0)).sizes == {}


async def test_results_small_and_large_are_the_archive_that_everybody_makes(link: PorterLink, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "sub").mkdir()
    found = {"b": b"2", "sub/a": b"1" * 10, "a" * 110: b"long"}
    for path, data in found.items():
        (out / path).write_bytes(data)
    left = await link.left(1000)
    assert left.sizes == {path: len(data) for path, data in found.items()}
    spool = Spool(tmp_path, b"secret", 1 << 30)
    result = await collect(link, left, spool)
    assert result.payload.read() == packed(found)
    (out / "large").write_bytes(found.setdefault("large", os.urandom(2_500_000)))
    result = await collect(link, await link.left(1 << 30, take=True), spool)
    assert result.payload.size > INLINE_BYTES
    assert result.payload.read() == packed(found)
    assert b"".join(path.read_bytes() for path in tmp_path.glob("*.part")).count(found["large"][:64]) == 0  # Sealed.
    await link.clear()
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("link", r"it left a link \('x'\)"),
        ("pipe", "it left a pipe, socket or device"),
        ("socket", "it left a pipe, socket or device"),
        ("sparse", "more than 1,000 bytes"),
        ("many", "more than 100,000 files"),
        ("deep", "nested more than 16 deep"),
        ("bytes", "a name that is no text"),
        ("dot", "no part of it may begin with a dot"),
    ],
)
async def test_what_is_no_plain_file_or_too_much_is_not_taken(
    link: PorterLink, tmp_path: Path, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out" / "x"
    match kind:
        case "link":
            place.symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(place)
        case "socket":
            monkeypatch.chdir(tmp_path / "out")
            socket.socket(socket.AF_UNIX).bind("x")
        case "sparse":
            place.touch()
            os.truncate(place, 1 << 40)
        case "many":
            why = "more than 2 files"
            monkeypatch.setattr("desktop.agent.arrays.porter_link.MAX_RESULT_FILES", 2)
            for number in range(3):
                (tmp_path / "out" / str(number)).touch()
        case "deep":
            (tmp_path / "out" / ("d/" * 30)).mkdir(parents=True)
        case "bytes":
            Path(os.fsdecode(os.fsencode(tmp_path / "out") + b"/\xff")).touch()
        case "dot":
            (tmp_path / "out" / ".git").touch()
    with pytest.raises(CarryError, match=why):
        await collect(link, await link.left(1000, take=True), Spool(tmp_path, b"secret", 1 << 30))
    if kind == "deep":
        with pytest.raises(CarryError, match="nested more"):
            await link.clear()
    else:
        await link.clear()
        assert (await link.left(0)).sizes == {}


async def test_what_is_little_comes_with_its_list_and_nothing_of_it_stays(link: PorterLink, tmp_path: Path) -> None:
    found = {"b": b"2", "sub/a": b"1" * 10, "sub/empty": b""}
    (tmp_path / "out/sub/none").mkdir(parents=True)
    for path, data in found.items():
        (tmp_path / "out" / path).write_bytes(data)
    left = await link.left(1000, take=True)
    assert left.contents == found
    assert not list((tmp_path / "out").iterdir())
    result = await collect(link, left, Spool(tmp_path, b"secret", 1 << 30))
    assert result.payload.read() == packed(found)
    (tmp_path / "out" / "x").write_bytes(bytes(INLINE_BYTES + 1))
    left = await link.left(1 << 20, take=True)
    assert left.contents is None
    assert left.sizes == {"x": INLINE_BYTES + 1}


async def test_a_file_that_became_a_link_after_the_list_is_not_followed(link: PorterLink, tmp_path: Path) -> None:
    place = tmp_path / "out" / "x"
    place.write_bytes(b"1234")
    await link.left(1000)
    place.unlink()
    (tmp_path / "secret").write_bytes(b"5678")
    place.symlink_to(tmp_path / "secret")
    with pytest.raises(CarryError, match="symbolic link"):
        _ = [piece async for piece in link.get("x", 4)]


async def test_a_porter_that_has_gone_is_told_of(link: PorterLink) -> None:
    link.close()
    with pytest.raises(WorkerDiedError, match="has ended"):
        await link.clear()
