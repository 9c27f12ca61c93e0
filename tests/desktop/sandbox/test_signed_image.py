"""Which sandbox image is run: what somebody who holds the server, the line or the engine's names, but not the key, may try."""

import contextlib
import hashlib
import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import msgspec
import pytest
from docker.errors import ImageNotFound

from desktop.agent.base.config import DEFAULT_IMAGE, Home
from desktop.agent.errors import SettingsError, UnsignedImageError, UpdateError
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.docker import DockerSandbox
from desktop.agent.sandbox.statement import Archive, Newest, SandboxImage, judge, read, sign
from desktop.agent.updates import sandbox_images
from desktop.agent.updates.release import Release
from desktop.agent.updates.sandbox_images import Images
from installer.image.sign import described, ids
from protocol.identity import NodeKey
from tests.desktop.updates.support import KEY, Server
from tests.support.docker import IMAGE

NOW = 1_800_000_000
RIGHT, WRONG = (f"sha256:{digit * 64}" for digit in "ab")
STRANGER = NodeKey(b"\7" * 32)
STATED = SandboxImage(
    5, "cottage-trainer:0.2.0", (RIGHT,), Archive("image.tar", "0" * 64, 1), NOW - 10, NOW + 10, KEY.address
)
DOCUMENT = sign(STATED, KEY)
SIGNED = "cottage-signed:test"  # Not the name that other tests' jobs run under.


def stated(**changed: Any) -> SandboxImage:
    return msgspec.structs.replace(STATED, **changed)


def images_of(folder: Path, shipped: bytes = b"", *, now: float = NOW, url: str = "", key: str = KEY.address) -> Images:
    folder.mkdir(exist_ok=True)
    return Images(Home.at(folder), Release("0.2.0", key, url), signed=SIGNED, shipped=shipped, now=lambda: now)


# --- the statement ------------------------------------------------------------------------------------------------------


def test_a_statement_is_read_as_it_was_signed() -> None:
    assert read(DOCUMENT, KEY.address) == STATED
    assert judge(STATED, Newest(), NOW).number == 5
    assert judge(STATED, judge(STATED, Newest(), NOW), NOW).number == 5  # Seen again.


def test_another_key_is_not_believed_and_does_not_sign_for_this_one() -> None:
    with pytest.raises(UnsignedImageError, match="not by"):
        read(sign(stated(key=STRANGER.address), STRANGER), KEY.address)
    with pytest.raises(UnsignedImageError, match="would sign it"):
        sign(STATED, STRANGER)


@pytest.mark.parametrize(
    ("image", "newest", "why"),
    [
        (stated(expires=NOW), Newest(), "has expired"),
        (STATED, Newest(6, "x"), "is older than 6, which was seen before"),
        (STATED, Newest(5, "another"), "two statements about the sandbox image with the number 5"),
    ],
)
def test_a_signed_statement_that_must_not_be_followed(image: SandboxImage, newest: Newest, why: str) -> None:
    with pytest.raises(UnsignedImageError, match=why):
        judge(image, newest, NOW)


# --- which image may run ------------------------------------------------------------------------------------------------


def test_only_the_image_that_was_signed_may_run_under_the_signed_name(tmp_path: Path) -> None:
    assert "as " + KEY.address in images_of(tmp_path, DOCUMENT).admit(SIGNED, RIGHT)
    with pytest.raises(UnsignedImageError, match=f"is not the one that {KEY.address} signed"):
        images_of(tmp_path, DOCUMENT).admit(SIGNED, WRONG)
    with pytest.raises(UnsignedImageError, match="no signed statement about the image"):
        images_of(tmp_path / "other").admit(SIGNED, RIGHT)
    with pytest.raises(UnsignedImageError, match="not by"):
        images_of(tmp_path / "other", DOCUMENT, key=STRANGER.address).admit(SIGNED, RIGHT)


def test_an_image_that_its_owner_names_or_made_is_said_to_be_unsigned(tmp_path: Path) -> None:
    assert "its owner's own choice" in images_of(tmp_path, DOCUMENT).admit("my-own:latest", WRONG)
    assert "nobody signed it" in images_of(tmp_path, key="").admit(SIGNED, WRONG)
    assert (
        Images(Home.at(tmp_path), Release()).admit(DEFAULT_IMAGE, WRONG).startswith("this build names no release key")
    )


def test_what_was_kept_is_newer_than_what_came_with_the_build_and_is_never_gone_behind(tmp_path: Path) -> None:
    newer = sign(stated(number=6, ids=(WRONG,)), KEY)
    images_of(tmp_path, DOCUMENT).keep(newer)
    assert images_of(tmp_path, DOCUMENT).admit(SIGNED, WRONG)
    with pytest.raises(UnsignedImageError, match="is not the one"):
        images_of(tmp_path, DOCUMENT).admit(SIGNED, RIGHT)
    with pytest.raises(UnsignedImageError, match="is older than 6"):
        images_of(tmp_path).keep(DOCUMENT)
    Home.at(tmp_path).image_statement.unlink()  # Whoever may delete it brings nothing back.
    with pytest.raises(UnsignedImageError, match="is older than 6"):
        images_of(tmp_path, DOCUMENT).admit(SIGNED, RIGHT)
    with pytest.raises(UnsignedImageError, match="has expired"):
        images_of(tmp_path / "other", DOCUMENT, now=NOW + 10).admit(SIGNED, RIGHT)


async def test_a_statement_is_fetched_from_beside_the_update_manifest(tmp_path: Path) -> None:
    async with Server({"channel/image.json": DOCUMENT}) as server:
        assert await images_of(tmp_path, url=server.url).refresh() == STATED
        assert images_of(tmp_path).admit(SIGNED, RIGHT)
        server.files["channel/image.json"] = DOCUMENT[:-3]
        with pytest.raises(UnsignedImageError, match="cannot be believed"):
            await images_of(tmp_path, url=server.url).refresh()
        server.files.clear()
        with pytest.raises(UpdateError, match="404"):
            await images_of(tmp_path, url=server.url).refresh()
        assert images_of(tmp_path).admit(SIGNED, RIGHT)
    with pytest.raises(SettingsError, match="names nobody whose images"):
        await images_of(tmp_path).refresh()


# --- with an engine -----------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(docker_engine: str) -> Iterator[Any]:
    client = docker.from_env()
    yield client
    with contextlib.suppress(ImageNotFound):
        client.images.remove(SIGNED, force=True)
    client.close()


def saved(engine: Any, folder: Path, text: bytes) -> Path:
    """An image with one file, as ``docker save`` writes it; the engine does not keep it."""
    root = io.BytesIO()
    with tarfile.open(fileobj=root, mode="w") as tar:
        member = tarfile.TarInfo("who")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    engine.api.import_image_from_data(root.getvalue(), repository="cottage-signing", tag="test")
    archive = folder / "image.tar"
    archive.write_bytes(b"".join(engine.images.get("cottage-signing:test").save()))
    engine.images.remove("cottage-signing:test", force=True)
    return archive


@pytest.mark.docker
async def test_the_signed_archive_is_fetched_loaded_and_held_against_its_statement(engine: Any, tmp_path: Path) -> None:
    archive = saved(engine, tmp_path, b"release")
    image = described(archive, 7, "cottage-trainer:0.2.0", KEY.address, int(time.time()), 1)
    files = {"channel/image.json": sign(image, KEY), "channel/image.tar": archive.read_bytes()}
    async with Server(files) as server:
        here = images_of(tmp_path / "home", url=server.url, now=time.time())
        assert await here.take() == str(engine.images.get(SIGNED).id)
        sandbox = DockerSandbox(SandboxLimits(256, 1), SIGNED, owner=tmp_path, admit=here.admit)
        assert await sandbox.check() in image.ids
        # Somebody gives the name to another image.
        engine.images.get(IMAGE).tag(*SIGNED.split(":"))
        with pytest.raises(UnsignedImageError, match="is not the one that"):
            await sandbox.check()
        await sandbox.aclose()
        # Somebody puts another archive in its place, of the same length.
        files["channel/image.tar"] = archive.read_bytes()[:-1] + b"!"
        server.files.update(files)
        with pytest.raises(UpdateError, match="is not the file that"):
            await here.take()
    with pytest.raises(SettingsError, match="cannot be read"):
        await here.take(tmp_path / "nowhere")


@pytest.mark.docker
async def test_an_archive_with_another_image_than_was_stated_gets_no_name(engine: Any, tmp_path: Path) -> None:
    archive = saved(engine, tmp_path, b"another")
    image = described(archive, 8, "cottage-trainer:0.2.0", KEY.address, int(time.time()), 1)
    (tmp_path / sandbox_images.FILE).write_bytes(sign(msgspec.structs.replace(image, ids=(WRONG,)), KEY))
    with pytest.raises(UnsignedImageError, match="holds another image than its statement names"):
        await images_of(tmp_path / "home", now=time.time()).take(tmp_path)
    with pytest.raises(ImageNotFound):
        engine.images.get(SIGNED)
    for found in image.ids:
        with contextlib.suppress(ImageNotFound):
            engine.images.remove(found, force=True)


@pytest.mark.docker
async def test_a_job_starts_in_the_signed_image(engine: Any, tmp_path: Path) -> None:
    found = engine.images.get(IMAGE)
    found.tag(*SIGNED.split(":"))
    shipped = sign(stated(ids=(WRONG, str(found.id))), KEY)
    sandbox = DockerSandbox(
        SandboxLimits(256, 1),
        SIGNED,
        owner=tmp_path,
        entry=("python3",),
        admit=images_of(tmp_path / "home", shipped).admit,
    )
    try:
        assert await sandbox.check() == str(found.id)
        assert await sandbox.measure(("-c", "print('begun')"), 60) == b"begun\n"
    finally:
        await sandbox.aclose()


# --- the one who signs --------------------------------------------------------------------------------------------------


def archive_of(folder: Path, **files: Any) -> Path:
    archive = folder / "made.tar"
    with tarfile.open(archive, "w") as tar:
        for name, value in files.items():
            data = json.dumps(value).encode()
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive


def test_an_archive_is_described_by_every_name_that_engines_have_for_it(tmp_path: Path) -> None:
    configuration = "c" * 64
    old = archive_of(tmp_path, manifest=[{"Config": f"{configuration}.json"}])
    assert ids(old) == [f"sha256:{configuration}"]
    new = archive_of(
        tmp_path, manifest=[{"Config": f"blobs/sha256/{configuration}"}], index={"manifests": [{"digest": RIGHT}]}
    )
    assert ids(new) == [f"sha256:{configuration}", RIGHT]
    image = described(new, 1, "cottage-trainer:0.2.0", KEY.address, NOW, 2)
    assert (image.archive.sha256, image.expires) == (hashlib.sha256(new.read_bytes()).hexdigest(), NOW + 172_800)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no archive of docker save"),
        ({"manifest": [{"Config": "a"}, {"Config": "b"}]}, "holds 2 images"),
        ({"manifest": [{}]}, "no archive of docker save"),
    ],
)
def test_what_is_not_one_image_is_not_signed(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ids(archive_of(tmp_path, **files))
