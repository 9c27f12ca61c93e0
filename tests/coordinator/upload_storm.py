"""Uploads of random and hostile bytes, straight at the service: what must be true whatever they hold.

Beside the service goes a small account of who may have begun what, so that each yes and each no is known before it is given.
"""

import hashlib
import io
import random
import struct
import tempfile
import zipfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from coordinator.errors import CottageError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.uploads import (
    EMPTY_S,
    IDLE_S,
    MAX_OPEN_OF_ACCOUNT,
    STALE_S,
    Checksum,
    UploadService,
)
from protocol.job.job import DatasetFormat
from protocol.rest.api import NewUpload

MAX_BYTES = 3000
MAX_OPEN, MAX_OPEN_BYTES = MAX_OPEN_OF_ACCOUNT + 4, 30_000  # So small that a crowd meets each of the three limits.
CROWD = 60  # Cases in which most begin and do not go on, out of every ``CALM``.
CALM = 200
PURPOSES: tuple[Literal["dataset", "weights", "tokenizer"], ...] = ("dataset", "weights", "tokenizer")
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


@dataclass
class _Begun:
    """An unfinished upload, as the limits count it."""

    owner: str
    length: int
    touched: float
    bytes_: int = 0


class _Account:
    """Who has begun what: the limits of ``UploadService``, told once more in the plainest way."""

    def __init__(self) -> None:
        self.begun: dict[str, _Begun] = {}

    def may_begin(self, owner: str, length: int, now: float) -> str:
        """Empty where it must be taken, else the code of the refusal. What is idle too long is out."""
        self.begun = {name: one for name, one in self.begun.items() if now - one.touched <= IDLE_S}
        if sum(one.owner == owner for one in self.begun.values()) >= MAX_OPEN_OF_ACCOUNT:
            return "too_many"
        others = {name: one for name, one in self.begun.items() if one.owner != owner}
        goes = [name for name, one in others.items() if now - one.touched > (STALE_S if one.bytes_ else EMPTY_S)]
        goes.sort(key=lambda name: (others[name].bytes_ > 0, others[name].touched, name))
        while len(self.begun) >= MAX_OPEN or length > MAX_OPEN_BYTES - self.promised():
            if not goes:
                return "full"
            del self.begun[goes.pop(0)]
        return ""

    def promised(self) -> int:
        """Bytes that may come, with those that have."""
        return sum(one.length for one in self.begun.values())


class _Storm:
    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.chance, self.clock, self.account = random.Random(seed), _Clock(), _Account()
        self.artifacts = DiskArtifacts(root / "artifacts")
        self.uploads = UploadService(root / "uploads", self.artifacts, self.clock, MAX_OPEN, MAX_OPEN_BYTES)  # type: ignore[arg-type]
        self.accepted: set[str] = set()

    async def one(self, stays: float, greedy: float) -> str:
        """One case. ``stays``: how likely it is begun and left there; ``greedy``: that it is the first account's."""
        data = _bytes(self.chance)
        new, said = self._described(data)
        owner, other = ACCOUNTS if self.chance.random() < greedy else reversed(ACCOUNTS)
        due = self.account.may_begin(owner, said, self.clock.at)
        made, refused = None, ""
        try:
            made = await self.uploads.create(new, owner)
        except CottageError as error:
            refused = error.code
        assert refused == due, f"{refused or 'a yes'} where {due or 'a yes'} was due"
        if made is None:
            return f"refused: {refused}"
        self.account.begun[made.id] = _Begun(owner, said, self.clock.at)
        await _hidden_from(self.uploads, made.id, other)
        if self.chance.random() < stays:
            return "left unfinished"
        ended = await self._sent(made.id, data)
        if ended not in ("taken", "invalid"):
            self.account.begun[made.id].bytes_ = (await self.uploads.get(made.id)).offset
        else:
            del self.account.begun[made.id]  # Room is held for what may still come.
        if ended != "taken" and self.chance.random() < 0.9:
            await self.uploads.terminate(made.id)
            self.account.begun.pop(made.id, None)
        return ended

    def _described(self, data: bytes) -> tuple[NewUpload, int]:
        chance = self.chance
        purpose = chance.choice(PURPOSES)
        kind = chance.choice(get_args(DatasetFormat))
        name = chance.choice(("a.txt", "../../etc/passwd", "\u202egpj.exe", "x" * 200, ""))
        said = len(data) if chance.random() < 0.8 else chance.randint(1, MAX_BYTES)
        sha256 = (
            hashlib.sha256(data).hexdigest() if chance.random() < 0.3 else "0" * 64 if chance.random() < 0.1 else None
        )
        return NewUpload(said, name, purpose, kind, sha256=sha256), said

    async def _sent(self, upload: str, data: bytes) -> str:
        async def chunks(part: bytes) -> AsyncIterator[bytes]:
            for start in range(0, len(part), 700):
                yield part[start : start + 700]
                if self.chance.random() < 0.03:
                    raise ConnectionResetError("the line was cut")

        ended = "cut"
        for _ in range(3):
            at = (await self.uploads.get(upload)).offset
            wrong = Checksum("sha256", bytes(32)) if self.chance.random() < 0.1 else None
            try:
                done = await self.uploads.append(upload, at, chunks(data[at:]), wrong)
            except ConnectionResetError:
                continue
            except CottageError as error:
                ended = error.code
                if error.code in ("invalid", "too_large"):
                    break
                continue
            ended = "taken" if done.artifact else "short"
            if done.artifact:
                self.accepted.add(done.artifact)
            break
        return ended

    def check_held(self) -> None:
        """No more bytes lie there than were promised."""
        held = sum(path.stat().st_size for path in (self.root / "uploads").glob("*.part"))
        promised = self.account.promised()
        assert held <= promised <= MAX_OPEN_BYTES, f"{held:,} bytes held, {promised:,} promised"

    async def check_end(self) -> None:
        """After two idle days nothing is left but what was taken, whole."""
        self.clock.at += IDLE_S + 1.0
        last = await self.uploads.create(NewUpload(1), ACCOUNTS[0])
        await self.uploads.terminate(last.id)
        left = [path.name for path in (self.root / "uploads").iterdir()]
        assert left == [], f"left behind: {left[:5]}"
        kept = {path.name for path in (self.root / "artifacts").rglob("*") if path.is_file()}
        assert kept == self.accepted, "an artifact is there for every file that was taken, and for nothing else"
        for digest in kept:
            assert hashlib.sha256(self.artifacts.path(digest).read_bytes()).hexdigest() == digest
        assert {path.relative_to(self.root).parts[0] for path in self.root.rglob("*")} <= {"artifacts", "uploads"}


async def storm(cases: int, seed: int, folder: Path | None = None) -> dict[str, int]:
    """Do ``cases`` uploads below ``folder`` (the system's for temporary files); returns how each ended.

    Raises:
        AssertionError: something stayed on the disk, an artifact is not what was sent, or a limit was not kept to the byte.
    """
    ends = Counter[str]()
    with tempfile.TemporaryDirectory(dir=folder) as made:
        world = _Storm(Path(made), seed)
        for number in range(cases):
            crowd = number % CALM < CROWD
            greedy = (0.9, 0.5)[number // CALM % 2]
            ends[await world.one(0.9, greedy) if crowd else await world.one(0.02, 0.5)] += 1
            world.clock.at += 1.0
            if crowd and world.chance.random() < 0.03:
                world.clock.at += EMPTY_S + 1.0  # What has no byte yet makes place for others.
            if number % CALM == CROWD or (not crowd and world.chance.random() < 0.02):
                world.clock.at += IDLE_S + 1.0  # What nobody went on with is given up by the next one.
            if number % 20 == 0:
                world.check_held()
        await world.check_end()
    return dict(ends)


async def _hidden_from(uploads: UploadService, upload: str, account_id: str) -> None:
    try:
        await uploads.check_owner(upload, account_id)
    except CottageError:
        return
    raise AssertionError("another account sees the upload")
