"""The download: cut anywhere, swapped, blown up, or led astray."""

import re
import secrets
from pathlib import Path

import pytest

from desktop.agent.errors import UpdateError
from desktop.agent.updates.fetch import fetch, manifest_at
from desktop.agent.updates.release import checked_url
from tests.desktop.updates.support import KEY, NAME, Server, described, manifest_of

DATA = secrets.token_bytes(2000)
PACKAGE = described(DATA)


async def until_whole(server: Server, folder: Path) -> tuple[Path, int]:
    for tries in range(1, 300):
        try:
            return await fetch(server.url, PACKAGE, folder), tries
        except UpdateError as error:
            if not re.search("not fetched whole|was cut off", str(error)):
                raise
    raise AssertionError("it never becomes whole")


@pytest.mark.parametrize("cut", [1999, 1000, 97])
async def test_a_download_that_is_cut_goes_on_where_it_was(tmp_path: Path, cut: int) -> None:
    async with Server({f"channel/{NAME}": DATA}, cut=cut) as server:
        path, tries = await until_whole(server, tmp_path)
        assert path.read_bytes() == DATA
        assert tries == -(-len(DATA) // cut)
        assert server.asked[1] == f"bytes={cut}-"


async def test_a_part_of_any_length_is_completed(tmp_path: Path) -> None:
    async with Server({f"channel/{NAME}": DATA}) as server:
        for length in (*range(0, 2000, 97), 1999, 2000):
            folder = tmp_path / str(length)
            folder.mkdir()
            (folder / f"{PACKAGE.sha256}.part").write_bytes(DATA[:length])
            assert (await fetch(server.url, PACKAGE, folder)).read_bytes() == DATA
            asked = len(server.asked)
            await fetch(server.url, PACKAGE, folder)
            assert len(server.asked) == asked  # What is whole is not asked for again.


async def test_a_server_that_knows_no_ranges_begins_anew_and_one_that_shifts_them_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{PACKAGE.sha256}.part").write_bytes(DATA[:500])
    async with Server({f"channel/{NAME}": DATA}, shifted=True) as server:
        with pytest.raises(UpdateError, match="with another one"):
            await fetch(server.url, PACKAGE, tmp_path)
        server.whole = True
        assert (await fetch(server.url, PACKAGE, tmp_path)).read_bytes() == DATA


async def test_a_swapped_or_damaged_file_is_thrown_away_and_the_right_one_taken_later(tmp_path: Path) -> None:
    async with Server({f"channel/{NAME}": DATA[:-1] + b"!"}) as server:
        (tmp_path / f"{PACKAGE.sha256}.part").write_bytes(b"?" + DATA[1:500])
        for _ in range(2):
            with pytest.raises(UpdateError, match="is not the file that the manifest names"):
                await fetch(server.url, PACKAGE, tmp_path)
        assert list(tmp_path.iterdir()) == []
        server.files[f"channel/{NAME}"] = DATA
        assert (await fetch(server.url, PACKAGE, tmp_path)).read_bytes() == DATA


async def test_more_bytes_than_were_promised_are_not_kept(tmp_path: Path) -> None:
    async with Server({f"channel/{NAME}": DATA + bytes(1 << 20)}) as server:
        with pytest.raises(UpdateError, match="larger than the 2,000 bytes"):
            await fetch(server.url, PACKAGE, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= PACKAGE.size


async def test_a_manifest_without_end_is_not_read_to_its_end() -> None:
    async with Server({"channel/update.json": b" " * (8 << 20)}) as server:
        with pytest.raises(UpdateError, match="cannot be believed"):
            await manifest_at(server.url, KEY.address)


async def test_another_host_is_not_followed_and_a_circle_ends(tmp_path: Path) -> None:
    async with Server() as server, Server({f"channel/{NAME}": DATA}) as other:
        for there in (other.url, "http://example.org/x", "https://127.0.0.1/x", "//evil.example/x"):
            server.elsewhere = there
            with pytest.raises(UpdateError, match="leads to another host"):
                await fetch(server.url, PACKAGE, tmp_path)
            with pytest.raises(UpdateError, match="leads to another host"):
                await manifest_at(server.url, KEY.address)
        assert other.asked == []
        server.elsewhere = "/channel/update.json"
        with pytest.raises(UpdateError, match="round in circles"):
            await manifest_at(server.url, KEY.address)


async def test_a_host_that_is_gone_and_one_without_the_file_say_so(tmp_path: Path) -> None:
    async with Server() as server:
        server.publish(manifest_of(PACKAGE))
        assert await manifest_at(server.url, KEY.address) == manifest_of(
            PACKAGE, expires=(await manifest_at(server.url, KEY.address)).expires
        )
        with pytest.raises(UpdateError, match="answers 404"):
            await fetch(server.url, PACKAGE, tmp_path)
    with pytest.raises(UpdateError, match="cannot be reached"):
        await manifest_at(server.url, KEY.address)


@pytest.mark.parametrize("url", ["http://example.org/update.json", "ftp://127.0.0.1/x", "", "file:///etc/passwd"])
def test_updates_come_over_https_only(url: str) -> None:
    with pytest.raises(UpdateError, match="only fetched over https"):
        checked_url(url)
