"""The image is fetched because its owner pressed a button: once at a time, counted, and told how it ended."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from desktop.agent.app.image_fetch import ImageFetch, ImageOrder
from desktop.agent.errors import SandboxError, UpdateError
from desktop.agent.sandbox import docker
from desktop.agent.updates.sandbox_images import Images, _counted
from tests.support.wait import HANGS_S

ORDER = ImageOrder()


class Slow:
    """Takes an image when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.go, self.taken = error, asyncio.Event(), 0

    async def take(self, progress: Callable[[str, int, int], None]) -> str:
        self.taken += 1
        progress("fetching", 3, 10)
        await self.go.wait()
        progress("loading", 10, 10)
        if self.error is not None:
            raise self.error
        return "sha256:0"


def fetching(images: Slow, notes: list[str]) -> ImageFetch:
    return ImageFetch(lambda: cast(Images, images), True, notes.append)


async def until(fetch: ImageFetch, stage: str) -> None:
    async with asyncio.timeout(HANGS_S):
        while fetch.view().stage != stage:
            await asyncio.sleep(0)


async def test_it_counts_begins_once_and_says_that_it_is_here() -> None:
    images, notes = Slow(), list[str]()
    fetch = fetching(images, notes)
    assert fetch.view().stage == "missing"
    fetch.begin(ORDER)
    await until(fetch, "fetching")
    await asyncio.sleep(0)
    assert (fetch.view().done, fetch.view().size) == (3, 10)
    assert fetch.begin(ORDER).stage == "fetching"
    images.go.set()
    await until(fetch, "here")
    assert images.taken == 1
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("error", "says"), [(UpdateError("the server is away"), "the server is away"), (ValueError("x"), "log says why")]
)
async def test_a_failure_is_told_and_can_be_tried_again(error: Exception, says: str) -> None:
    images, notes = Slow(error), list[str]()
    fetch = fetching(images, notes)
    images.go.set()
    fetch.begin(ORDER)
    await until(fetch, "failed")
    assert says in fetch.view().text
    images.error = None
    fetch.begin(ORDER)
    await until(fetch, "here")
    assert images.taken == 2


async def test_the_agents_end_ends_it() -> None:
    images = Slow(SandboxError("unused"))
    fetch = fetching(images, [])
    fetch.begin(ORDER)
    await asyncio.sleep(0)
    await fetch.aclose()
    assert fetch._fetching is not None
    assert fetch._fetching.cancelled()


async def test_a_build_that_names_nobody_fetches_nothing() -> None:
    images = Slow()
    fetch = ImageFetch(lambda: cast(Images, images), False, [].append)
    assert fetch.begin(ORDER).stage == fetch.view().stage == "own"
    await asyncio.sleep(0)
    assert images.taken == 0


def test_what_the_engine_takes_is_counted_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(bytes(3_000_000))
    told: list[tuple[int, int]] = []
    with (tmp_path / "archive").open("rb") as file:
        taken = b"".join(_counted(file, 3_000_000, lambda done, size: told.append((done, size))))
    assert len(taken) == 3_000_000
    assert told[-1] == (3_000_000, 3_000_000)
    assert len(told) == 3


@pytest.mark.parametrize(
    ("error", "dockerd", "host", "why"),
    [
        (FileNotFoundError(2, "x"), None, "", "absent"),
        (FileNotFoundError(2, "x"), "/usr/sbin/dockerd", "", "stopped"),
        (ConnectionRefusedError(111, "x"), "/usr/sbin/dockerd", "", "stopped"),
        (PermissionError(13, "x"), "/usr/sbin/dockerd", "", "denied"),
        (PermissionError(13, "x"), None, "unix:///else", "elsewhere"),
    ],
)
def test_what_of_the_engine_is_missing_is_one_word(
    monkeypatch: pytest.MonkeyPatch, error: OSError, dockerd: str | None, host: str, why: str
) -> None:
    monkeypatch.setattr(docker.shutil, "which", lambda name, path: dockerd)
    monkeypatch.setenv("DOCKER_HOST", host)
    assert docker._lack(error) == why
