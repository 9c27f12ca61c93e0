"""Uploads of random and hostile bytes, straight at the service: what must be true whatever they hold."""

import hashlib
import io
import random
import struct
import tempfile
import zipfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from coordinator.errors import CottageError
from coordinator.services.artifacts import ArtifactStore
from coordinator.services.uploads import IDLE_S, Checksum, UploadService
from transport.wire.api import NewUpload

MAX_BYTES = 3000
ACCOUNTS = ("a" * 32, "b" * 32)


class _Clock:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def time(self) -> float:
        return self.at


def _bytes(chance: random.Random) -> bytes:
    """A file: plain text, lines of JSON, half a safetensors, an archive with names that lead elsewhere, or noise."""
    match chance.randrange(6):
        case 0:
            return b"to be or not to be\n" * chance.randint(1, 100)
        case 1:
            return b'{"text": "words"}\n' * chance.randint(1, 100)
        case 2:
            header = b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
            length = chance.choice((len(header), 0, 2**63, chance.randrange(2**64)))
            return (
                struct.pack("<Q", length)
                + header[: chance.randint(0, len(header))]
                + bytes(chance.choice((0, 16, 400)))
            )
        case 3:
            made = io.BytesIO()
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(
                    chance.choice(("../up", "/etc/x", "a/../../b", "n" * 300, "ok")), bytes(chance.randint(0, 9000))
                )
            return made.getvalue()
        case 4:
            return b'{"version": "1.0", "model": {"type": "BPE"' + b"[" * chance.randint(0, 1000)
        case _:
            return chance.randbytes(chance.randint(1, MAX_BYTES))


async def storm(cases: int, seed: int) -> dict[str, int]:
    """Do ``cases`` uploads; returns how each ended.

    Raises:
        AssertionError: something stayed on the disk, an artifact is not what was sent, or room was lost.
    """
    chance, clock, ends = random.Random(seed), _Clock(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        artifacts = ArtifactStore(root / "artifacts")
        uploads = UploadService(root / "uploads", artifacts, clock)  # type: ignore[arg-type]
        accepted: set[str] = set()
        for _ in range(cases):
            ends[await _one(uploads, chance, accepted)] += 1
            clock.at += 1.0
            if chance.random() < 0.02:
                clock.at += IDLE_S + 1.0  # What nobody went on with is given up by the next one.
        clock.at += IDLE_S + 1.0
        last = await uploads.create(NewUpload(1), ACCOUNTS[0])
        await uploads.terminate(last.id)
        left = [path.name for path in (root / "uploads").iterdir()]
        assert left == [], f"left behind: {left[:5]}"
        kept = {path.name for path in (root / "artifacts").rglob("*") if path.is_file()}
        assert kept == accepted, "an artifact is there for every file that was taken, and for nothing else"
        for digest in kept:
            assert hashlib.sha256(artifacts.path(digest).read_bytes()).hexdigest() == digest
        assert {path.relative_to(root).parts[0] for path in root.rglob("*")} <= {"artifacts", "uploads"}
    return dict(ends)


async def _one(uploads: UploadService, chance: random.Random, accepted: set[str]) -> str:
    data = _bytes(chance)
    purpose = chance.choice(("dataset", "weights", "tokenizer"))
    kind = chance.choice(("text", "jsonl", "parquet", "npy", "uint16"))
    name = chance.choice(("a.txt", "../../etc/passwd", "\u202egpj.exe", "x" * 200, ""))
    said = len(data) if chance.random() < 0.8 else chance.randint(1, MAX_BYTES)
    sha256 = hashlib.sha256(data).hexdigest() if chance.random() < 0.3 else "0" * 64 if chance.random() < 0.1 else None
    owner, other = chance.sample(ACCOUNTS, 2)

    async def chunks(part: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(part), 700):
            yield part[start : start + 700]
            if chance.random() < 0.03:
                raise ConnectionResetError("the line was cut")

    try:
        made = await uploads.create(NewUpload(said, name, purpose, kind, sha256=sha256), owner)
    except CottageError as error:
        return f"refused: {error.code}"
    await _hidden_from(uploads, made.id, other)
    ended = "cut"
    for _ in range(3):
        at = (await uploads.get(made.id)).offset
        wrong = Checksum("sha256", bytes(32)) if chance.random() < 0.1 else None
        try:
            done = await uploads.append(made.id, at, chunks(data[at:]), wrong)
        except ConnectionResetError:
            continue
        except CottageError as error:
            ended = error.code
            if error.code in ("invalid", "too_large"):
                break
            continue
        ended = "taken" if done.artifact else "short"
        if done.artifact:
            accepted.add(done.artifact)
        break
    if ended != "taken" and chance.random() < 0.9:
        await uploads.terminate(made.id)
    return ended


async def _hidden_from(uploads: UploadService, upload: str, account_id: str) -> None:
    try:
        await uploads.check_owner(upload, account_id)
    except CottageError:
        return
    raise AssertionError("another account sees the upload")
