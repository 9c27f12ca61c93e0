"""Owners of a world with secure sums: real keys, shares and masks, vectors drawn by lot, and files that hold them."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from protocol.federated.sums import (
    BoxesOfAll,
    KeysOfAll,
    SignedByAll,
    SumAnswer,
    SumBegins,
    SummandsOfAll,
    SumSaid,
    SumStep,
    VectorStored,
    terms_of,
)
from protocol.identity import NodeKey
from protocol.secure_sum import SumOwner
from protocol.task import ApplyRound, TaskReport
from tests.coordinator.fake_task import FakeTask
from tests.coordinator.fakes import FakeArtifacts


class KeptArtifacts(FakeArtifacts):
    """Everything that was ever named is there, and what was put is what it was."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory()
        return Path(self._folder.name)

    def keep(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        (self.folder / name).write_bytes(data)
        return name

    async def put(self, chunks: AsyncIterator[bytes], _expect: str | None, _limit: int) -> str:
        return self.keep(b"".join([chunk async for chunk in chunks]))

    @asynccontextmanager
    async def files(self, *digests: str) -> AsyncIterator[tuple[Path, ...]]:
        await asyncio.sleep(0)
        yield tuple(self.folder / name if self._folder is not None else Path(__file__) for name in digests)


class OwnerPart:
    """What a node has of one round's sum; it dies with the task."""

    def __init__(self, key: tuple[int, int], owner: SumOwner, length: int) -> None:
        self.key, self.owner, self.length = key, owner, length
        self.boxes: Mapping[str, bytes] | None = None
        self.told: set[type] = set()
        self.sent = False


class SimSums:
    """All owners' parts of one world.

    Attributes:
        vectors: by round, of each owner whose masked one left. ``masked``: by the pair of an owner's mask key.
        phases: how often each was answered.
    """

    def __init__(self) -> None:
        self.artifacts = KeptArtifacts()
        self.vectors: dict[tuple[str, int, int], dict[str, np.ndarray]] = {}  # type: ignore[type-arg]
        self.masked: dict[bytes, set[bytes]] = {}
        self.totals: dict[tuple[str, int, int], set[str]] = {}
        self.phases: dict[str, int] = {}
        self._parts: WeakKeyDictionary[FakeTask, OwnerPart] = WeakKeyDictionary()
        self._drawn = np.random.default_rng(31)

    def step(self, task: FakeTask, key: NodeKey, step: SumStep) -> list[TaskReport]:
        """As an agent answers; nothing to what it was asked before, or of a round that it has not begun."""
        begun, federated = task.begun, task.assign.spec.federated
        if begun is None or (begun.plan.epoch, begun.round) != (step.epoch, step.round) or federated is None:
            return []
        here = (step.epoch, step.round)
        part = self._parts.get(task)
        if isinstance(step.body, SumBegins) and (part is None or part.key != here):
            terms = terms_of(task.assign.job, federated, *here, step.body.length)
            part = self._parts[task] = OwnerPart(here, SumOwner(terms, key), step.body.length)
        if part is None or part.key != here or type(step.body) in part.told:
            return []
        part.told.add(type(step.body))
        answer: SumAnswer
        match step.body:
            case SumBegins():
                answer = part.owner.keys()
            case KeysOfAll(told=told):
                answer = part.owner.share(told)
            case BoxesOfAll(boxes=boxes):
                part.boxes = boxes
                return []
            case SummandsOfAll(summands=summands):
                answer = part.owner.sign(summands)
            case SignedByAll(signed=signed):
                answer = part.owner.show(signed)
        return [self._said(here, answer)]

    def trained(self, task: FakeTask, key: NodeKey) -> list[TaskReport]:
        """The masked vector, once its task has trained and all boxes are there."""
        part, begun = self._parts.get(task), task.begun
        if part is None or begun is None or part.sent or part.boxes is None or not task.trained:
            return []
        if part.key != (begun.plan.epoch, begun.round):
            return []
        part.sent = True
        vector = self._drawn.integers(0, 1 << 32, part.length, dtype=np.uint32)
        masked = part.owner.mask(part.boxes, vector.tobytes()).values
        self.vectors.setdefault((task.assign.job, *part.key), {})[key.address] = vector
        self.masked.setdefault(part.owner._masking.public_key().public_bytes_raw(), set()).add(masked)
        return [self._said(part.key, VectorStored(key.address, self.artifacts.keep(masked)))]

    def check(self, task: FakeTask, command: ApplyRound) -> None:
        """That what is applied is the sum of its contributors' vectors, and of nobody else's."""
        if command.total is None:
            return
        where = (task.assign.job, command.epoch, command.round)
        assert task.begun is not None
        counted = [task.begun.plan.node_of(0, replica) for replica in command.contributors]
        due = np.sum([self.vectors[where][node] for node in counted], axis=0, dtype=np.uint32)
        found = np.frombuffer((self.artifacts.folder / command.total).read_bytes(), dtype="<u4")
        if not np.array_equal(found, due):
            task.peers.violations.append(f"round {command.round}: another sum than that of its contributors")
        self.totals.setdefault(where, set()).add(command.total)

    def _said(self, key: tuple[int, int], answer: SumAnswer) -> SumSaid:
        name = type(answer).__name__
        self.phases[name] = self.phases.get(name, 0) + 1
        return SumSaid(*key, answer)
