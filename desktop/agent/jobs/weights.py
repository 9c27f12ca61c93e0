"""A stage's weights, fetched as byte ranges of the job's files and checked tensor by tensor; encrypted on the disk."""

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.encrypted_files import SealedWriter, fresh_key
from common.errors import SealedFileError
from desktop.agent.base.log import LOG
from desktop.agent.coordinator.artifacts import DAMAGED_TRIES, Artifacts
from desktop.agent.errors import ArtifactError
from protocol.models.weights import MAX_INDEX_BYTES, Span, WeightIndex, belongs, header, spans, weights_name
from protocol.task import Layers, Plan


class StageWeights:
    """The weights that a job starts from, laid into a worker's folder for the stages that it needs.

    Attributes:
        key: what all files that are laid out can be read with.
    """

    def __init__(self, artifacts: Artifacts, index: str, folder: Path) -> None:
        """Take weights from the index that is the artifact ``index``."""
        self._artifacts = artifacts
        self._digest = index
        self._folder = folder
        self.key = fresh_key()
        self._lock = asyncio.Lock()

    async def lay_out(self, plan: Plan, stage: int) -> Path:
        """Fetch what stage ``stage`` of ``plan`` begins with; what is there already stays.

        Raises:
            ArtifactError: the index is malformed, or the coordinator keeps sending other bytes than it names.
        """
        layers = plan.layers[stage]
        path = self._folder / weights_name(layers)
        async with self._lock:
            if not path.exists():
                await self._fetch(layers, stage == 0, stage == len(plan.layers) - 1, path)
        return path

    async def _fetch(self, layers: Layers, is_first: bool, is_last: bool, path: Path) -> None:
        index = await self._index()
        wanted = spans(index, belongs(index.tensors, layers, is_first, is_last))
        total = sum(span.end - span.begin for span in wanted)
        LOG.info(
            "fetching %s bytes of weights in %d ranges for layers %d to %d", f"{total:,}", len(wanted), *_pair(layers)
        )
        writer = SealedWriter(path.with_suffix(".part"), self.key)
        try:
            writer.write(header(index, wanted))
            for span in wanted:
                await self._fetch_span(index, span, writer)
            await asyncio.to_thread(writer.finish)
        except BaseException:
            writer.abandon()
            raise
        writer.path.chmod(0o444)
        os.replace(writer.path, path)

    async def _fetch_span(self, index: WeightIndex, span: Span, writer: SealedWriter) -> None:
        at = writer.size
        for _ in range(DAMAGED_TRIES):
            check = _Check(index, span.names)

            def take(data: bytes, check: "_Check" = check) -> None:
                check.update(data)
                writer.write(data)

            await self._artifacts.fetch_range(index.files[span.file], span.begin, span.end, take)
            wrong = check.first_wrong()
            if wrong is None:
                return
            LOG.warning("tensor %s arrived damaged", wrong)
            try:
                await asyncio.to_thread(writer.rewind, at)
            except SealedFileError as error:
                raise ArtifactError(f"the weights cannot be laid out: {error}") from error
        raise ArtifactError(f"the coordinator sent other bytes than tensor {wrong} has, {DAMAGED_TRIES} times")

    async def _index(self) -> WeightIndex:
        cached = await self._artifacts.fetch(self._digest)
        if cached.path.stat().st_size > MAX_INDEX_BYTES:
            raise ArtifactError(f"the index of the weights has more than {MAX_INDEX_BYTES:,} bytes")
        try:
            index = msgspec.json.decode(await asyncio.to_thread(cached.read), type=WeightIndex)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ArtifactError(f"the index of the weights cannot be read: {error}") from error
        if any(not tensor.begin <= tensor.end or tensor.file >= len(index.files) for tensor in index.tensors.values()):
            raise ArtifactError("the index of the weights names places that cannot be")
        return index


def _pair(layers: Layers) -> tuple[int, int]:
    return layers.first, layers.last


class _Check:
    """Holds tensors that come one after the other against their digests."""

    def __init__(self, index: WeightIndex, names: Sequence[str]) -> None:
        self._coming = deque((name, index.tensors[name]) for name in names)
        self._wrong: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._hasher = hashlib.sha256()
        self._left = self._coming[0][1].end - self._coming[0][1].begin if self._coming else 0

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        view = memoryview(data)
        while self._coming:
            self._hasher.update(view[: self._left])
            taken = min(len(view), self._left)
            self._left, view = self._left - taken, view[taken:]
            if self._left:
                return
            name, tensor = self._coming.popleft()
            if self._wrong is None and self._hasher.hexdigest() != tensor.sha256:
                self._wrong = name
            self._begin()

    def first_wrong(self) -> str | None:
        """The first of the tensors that has not come, or whose digest is another than the index says."""
        self.update(b"")
        return self._wrong or next((name for name, _ in self._coming), None)
