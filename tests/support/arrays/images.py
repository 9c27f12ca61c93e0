"""Container images as builders write them, made here without a registry: from files in memory, or from this machine's busybox."""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.client.images import archives
from protocol.identity import NodeKey
from protocol.images.statement import PublishedImage

KEY = NodeKey(b"publishers of tests sign by this")
BUSYBOX = shutil.which("busybox")
TOOLS = (
    "sh",
    "cat",
    "echo",
    "sleep",
    "ls",
    "id",
    "mkdir",
    "ln",
    "mkfifo",
    "dd",
    "wc",
    "rm",
    "mount",
    "chmod",
    "sha256sum",
)


def entry(name: str, kind: bytes = tarfile.REGTYPE, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, 0o755
    for key, value in more.items():
        setattr(info, key, value)
    return info


def layer_of(members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer's tar."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def files(content: Mapping[str, bytes]) -> bytes:
    """A layer of plain files."""
    return layer_of((entry(name), data) for name, data in content.items())


def configuration(layers: Sequence[bytes], run: Mapping[str, Any] | None = None, **more: Any) -> bytes:
    """As builders write it."""
    ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    told = {"architecture": "amd64", "os": "linux", "config": dict(run or {}), "created": "2026-01-01T00:00:00Z"}
    return json.dumps(told | {"rootfs": {"type": "layers", "diff_ids": ids}} | more).encode()


def saved(path: Path, layers: Sequence[bytes], run: Mapping[str, Any] | None = None, **more: Any) -> Path:
    """What ``docker save`` writes."""
    document = configuration(layers, run, **more)
    name = hashlib.sha256(document).hexdigest()
    inside = {f"layer{number}/layer.tar": layer for number, layer in enumerate(layers)}
    manifest = [{"Config": f"{name}.json", "RepoTags": ["made:here"], "Layers": list(inside)}]
    _write(path, {**inside, f"{name}.json": document, "manifest.json": json.dumps(manifest).encode()})
    return path


def oci(path: Path, layers: Sequence[bytes], architectures: Sequence[str] = ("amd64",)) -> Path:
    """An OCI archive, its layers gzipped, one image an architecture, and what builders note beside them."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    entries = []
    for architecture in architectures:
        config = blob(configuration(layers, architecture=architecture))
        packed = [blob(gzip.compress(layer, mtime=0)) for layer in layers]
        manifest = blob(json.dumps({"config": config, "layers": packed}).encode())
        entries.append(manifest | {"platform": {"os": "linux", "architecture": architecture}})
    noted = blob(json.dumps({"config": blob(b"{}"), "layers": []}).encode())
    entries.append(noted | {"platform": {"os": "unknown", "architecture": "unknown"}})
    inner = blob(json.dumps({"manifests": entries}).encode())
    _write(path, {**blobs, "oci-layout": b"{}", "index.json": json.dumps({"manifests": [inner]}).encode()})
    return path


def _write(path: Path, inside: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in inside.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def ready(source: Path, target: Path, name: str = "made:here", key: NodeKey = KEY) -> PublishedImage:
    """The archive that is sent, as ``cottage image push`` makes it; what is stated."""
    built = archives.survey(source, "amd64")
    statement = archives.stated(built, name, key)
    archives.write(built, statement, key, target)
    return statement


def busybox_layer(more: Mapping[str, bytes] | None = None, tools: Sequence[str] = TOOLS) -> bytes:
    """A shell and some tools, which need nothing else, and the files of a test."""
    assert BUSYBOX is not None
    members = [(entry(name, tarfile.DIRTYPE), b"") for name in ("bin", "in", "out")]
    members.append((entry("tmp", tarfile.DIRTYPE, mode=0o1777), b""))
    members.append((entry("bin/busybox"), Path(BUSYBOX).read_bytes()))
    members += [(entry(f"bin/{tool}", tarfile.SYMTYPE, linkname="busybox"), b"") for tool in tools]
    members += [(entry(name), data) for name, data in (more or {}).items()]
    return layer_of(members)
