"""What an image's archive may hold, and what a stranger may try with one at the coordinator's door and at a node's."""

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coordinator.client.images import archives
from protocol.codec import encode_json
from protocol.identity import NodeKey
from protocol.images import archive as form
from protocol.images import layers as layer_rules
from protocol.images.archive import HEAD_BYTES, examine, header, manifest_of, padding, stated_in
from protocol.images.configuration import opened, reduced
from protocol.images.errors import ImageFormatError
from protocol.images.layers import look_through
from protocol.images.statement import PublishedImage, sign
from protocol.images.tar import MAX_HEADERS, TarWalk
from tests.support.arrays.images import KEY, configuration, entry, files, layer_of, oci, ready, saved

LOW, HIGH = files({"bin/one": b"1" * 5000}), files({"etc/two": b"2"})


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    ready(saved(tmp_path / "saved.tar", [LOW, HIGH, LOW], {"Cmd": ["one"]}), tmp_path / "ready.tar")
    return (tmp_path / "ready.tar").read_bytes()


def examined(data: bytes) -> form.ImageContents:
    return examine(io.BytesIO(data))


def packed(**changed: Any) -> bytes:
    """An archive that its publisher signed, with parts that are not as they should be."""
    layers = changed.get("layers", [LOW])
    document = changed.get("document") or encode_json(reduced(configuration(layers))[0])
    image = hashlib.sha256(document).hexdigest()
    stated = PublishedImage("a:1", image, "amd64", changed.get("unpacked", sum(map(len, layers))), KEY.address)
    members = {
        "cottage.json": changed.get("statement") or sign(stated, KEY),
        "manifest.json": changed.get("manifest")
        or manifest_of(image, opened(encode_json(reduced(configuration(layers))[0]))),
        f"{image}.json": document,
    } | {f"{hashlib.sha256(layer).hexdigest()}.tar": layer for layer in layers}
    members |= changed.get("more", {})
    return b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in members.items()) + bytes(1024)


# --- what is sent -------------------------------------------------------------------------------------------------------


def test_the_same_image_is_the_same_bytes_whoever_built_it_and_however_it_was_packed(tmp_path: Path) -> None:
    one = ready(saved(tmp_path / "docker.tar", [LOW, HIGH]), tmp_path / "a")
    other = ready(oci(tmp_path / "oci.tar", [LOW, HIGH], ("arm64", "amd64")), tmp_path / "b")
    assert one == other
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_archive_is_read_to_its_end_and_known_from_its_beginning(archive: bytes) -> None:
    found = examined(archive)
    assert found.stated == stated_in(archive[:HEAD_BYTES])
    assert found.stated.publisher == KEY.address
    assert found.stated.unpacked == len(LOW) + len(HIGH)  # The layer that comes twice lies there once.
    assert found.configuration.config.cmd == ("one",)
    assert len(found.configuration.rootfs.diff_ids) == 3


def test_who_pushes_is_told_what_no_task_will_have(tmp_path: Path) -> None:
    run = {
        "User": "root",
        "Volumes": {"/data": {}},
        "ExposedPorts": {"80/tcp": {}},
        "Healthcheck": {"Test": ["CMD", "x"]},
        "Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"],
        "OnBuild": ["RUN x"],
    }
    built = archives.survey(saved(tmp_path / "saved.tar", [LOW], run), "amd64")
    said = "\n".join(built.left_out)
    for one in ("'root'", "/data", "80/tcp", "health check", "NVIDIA_", "build upon"):
        assert one in said
    assert msgspec.json.decode(built.document)["config"] == {"Env": ["PATH=/bin"]}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (lambda path: path.write_bytes(b"text"), "no archive of docker save"),
        (lambda path: oci(path, [LOW], ("arm64",)), "holds 0 images for amd64"),
        (lambda path: saved(path, [LOW], os="windows"), "images for Linux on amd64 or arm64 run here"),
        (lambda path: saved(path, [LOW], architecture="riscv64"), "images for Linux on amd64 or arm64 run here"),
        (lambda path: saved(path, [LOW], {"Env": ["LD_PRELOAD=/x.so"]}), "sets LD_PRELOAD"),
        (lambda path: saved(path, [LOW, HIGH], rootfs={"diff_ids": [f"sha256:{'0' * 64}"] * 2}), "is another one"),
        (lambda path: saved(path, [LOW], rootfs={"diff_ids": []}), "must not be empty"),
    ],
)
def test_what_is_no_image_for_here_is_found_before_it_is_sent(
    tmp_path: Path, source: Callable[[Path], Any], why: str
) -> None:
    source(tmp_path / "x.tar")
    with pytest.raises(ImageFormatError, match=why):
        archives.survey(tmp_path / "x.tar", "amd64")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_a_layer_that_is_damaged_on_the_disk_is_said_in_words(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    damaged = bytearray(pack(LOW))
    damaged[10:20] = b"\xff" * 10
    document = configuration([LOW])
    inside = {"manifest.json": json.dumps([{"Config": "c.json", "Layers": ["l.tar"]}]).encode()}
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in (inside | {"c.json": document, "l.tar": bytes(damaged)}).items():
            tar.addfile(entry(name, size=len(data)), io.BytesIO(data))
    with pytest.raises(ImageFormatError):
        archives.survey(tmp_path / "x.tar", "amd64")


# --- what is taken ------------------------------------------------------------------------------------------------------

STRANGER = NodeKey(b"\7" * 32)
PLAIN = reduced(configuration([LOW]))[0]


def with_config(**changed: Any) -> bytes:
    told = msgspec.json.decode(encode_json(PLAIN))
    return encode_json(told | changed)


def forged() -> bytes:
    image = hashlib.sha256(encode_json(PLAIN)).hexdigest()
    theirs = sign(PublishedImage("a:1", image, "amd64", len(LOW), STRANGER.address), STRANGER)
    return theirs.replace(STRANGER.address.encode(), KEY.address.encode())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (packed(statement=forged()), "not by"),
        (packed(statement=b"{}"), "cannot be believed"),
        (packed(document=with_config(config={"User": "root"})), "User"),
        (packed(document=with_config(config={"Volumes": {"/x": {}}})), "Volumes"),
        (packed(document=with_config(config={"Env": ["NVIDIA_VISIBLE_DEVICES=all"]})), "sets NVIDIA_VISIBLE_DEVICES"),
        (packed(document=with_config(architecture="arm64")), "its statement says amd64"),
        (packed(manifest=b"[]"), "does not follow from its configuration"),
        (packed(more={f"{hashlib.sha256(LOW).hexdigest()}.tar": HIGH}), "do not have the|another one"),
        (packed(unpacked=1), "do not have the 1 bytes"),
        (packed(more={"repositories": b"{}"}), "holds more than its image"),
        (packed()[:-2000], "cut off"),
        (b"", "it is no image as `cottage image push` sends it"),
        (b"\x1f\x8b" + bytes(2000), "it is no image as `cottage image push` sends it"),
    ],
)
def test_an_archive_that_is_not_exactly_what_was_signed_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ImageFormatError, match=why):
        examined(data)


def test_the_archive_that_the_refused_ones_are_made_of_is_taken() -> None:
    assert examined(packed()).stated.name == "a:1"


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([(entry("dev/sda", tarfile.BLKTYPE, devmajor=8), b"")], "holds a device"),
        ([(entry("dev/mem", tarfile.CHRTYPE, devmajor=1), b"")], "holds a device"),
        ([(entry("run/pipe", tarfile.FIFOTYPE), b"")], "holds a pipe"),
        ([(entry("../../etc/cron.d/x"), b"x")], "leads out"),
        ([(entry("a", tarfile.LNKTYPE, linkname="../../../etc/shadow"), b"")], "leads out"),
        ([(entry("x" * 200 + "/../../y"), b"x")], "leads out"),
        ([(entry("a", pax_headers={"SCHILY.xattr.trusted.overlay.redirect": "/"}), b"")], "trusted.overlay.redirect"),
        ([(entry("a", pax_headers={"GNU.sparse.size": "1000000000000"}), b"")], "file with holes"),
        ([(entry("a", tarfile.CONTTYPE), b"")], "of a kind of its own"),
        ([(entry("./in", tarfile.SYMTYPE, linkname="/proc/1/root"), b"")], "must be a folder"),
        ([(entry("out", tarfile.LNKTYPE, linkname="etc/passwd"), b"")], "must be a folder"),
        ([(entry("tmp"), b"x")], "must be a folder"),
    ],
)
def test_a_layer_that_holds_more_than_files_folders_and_links_is_refused(
    members: list[tuple[tarfile.TarInfo, bytes]], why: str
) -> None:
    with pytest.raises(ImageFormatError, match=why):
        look_through(io.BytesIO(layer_of(members)))


def test_links_that_a_system_has_and_long_names_are_let_through() -> None:
    for form_ in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        layer = layer_of(
            [
                (entry("lib", tarfile.SYMTYPE, linkname="../usr/lib"), b""),  # Followed only within the container.
                (entry("bin", tarfile.DIRTYPE), b""),
                (entry("d/" * 90 + "name"), b"x" * 700),
                (entry("same", tarfile.LNKTYPE, linkname="d/" * 90 + "name"), b""),
            ],
            form_,
        )
        assert look_through(io.BytesIO(layer)) == 4


def test_headers_that_claim_gigabytes_cost_no_memory() -> None:
    class Endless(io.RawIOBase):
        def __init__(self, first: bytes) -> None:
            self.first, self.served = first, 0

        def read(self, size: int = -1, /) -> bytes:
            data, self.first = self.first[:size], self.first[size:]
            self.served += len(data) or size
            return data or bytes(size)

    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
        source = Endless(entry("x", kind, size=1 << 33).tobuf(tarfile.GNU_FORMAT))
        with pytest.raises(ImageFormatError, match="8,589,934,592 bytes"):
            TarWalk(source).following()
        assert source.served <= MAX_HEADERS


def test_a_million_files_are_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_rules, "MAX_MEMBERS", 3)
    with pytest.raises(ImageFormatError, match="more than 3 files"):
        look_through(io.BytesIO(files({str(number): b"" for number in range(4)})))


@given(st.binary(max_size=3000), st.integers(0, 20_000), st.integers(0, 255))
def test_whatever_the_bytes_are_the_only_error_is_the_one_that_is_told(junk: bytes, at: int, byte: int) -> None:
    damaged = bytearray(packed())
    damaged[at % len(damaged)] = byte
    for data in (junk, bytes(damaged)):
        with contextlib.suppress(ImageFormatError):
            assert examined(data).stated.publisher == KEY.address  # Only padding was hit.
