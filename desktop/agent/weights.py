"""A stage's weights, fetched as byte ranges of the job's files and checked tensor by tensor."""

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from desktop.agent.artifacts import DAMAGED_TRIES, Artifacts
from desktop.agent.errors import ArtifactError
from desktop.agent.log import LOGGER
from transport.wire.task import Layers, Plan
from transport.wire.weights import MAX_INDEX_BYTES, Span, WeightIndex, belongs, header, spans, weights_name

_CHUNK = 1 << 20


class StageWeights:
    """The weights that a job starts from, laid into a worker's folder for the stages that it needs."""

    def __init__(self, artifacts: Artifacts, index: str, folder: Path) -> None:
        """Take weights from the index that is the artifact ``index``."""
        self._artifacts = artifacts
        self._digest = index
        self._folder = folder
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
        LOGGER.info(
            "fetching %s bytes of weights in %d ranges for layers %d to %d", f"{total:,}", len(wanted), *_pair(layers)
        )
        part = path.with_suffix(".part")
        head = header(index, wanted)
        part.write_bytes(head)
        at = len(head)
        for span in wanted:
            await self._fetch_span(index, span, part, at)
            at += span.end - span.begin
        part.chmod(0o444)
        os.replace(part, path)

    async def _fetch_span(self, index: WeightIndex, span: Span, part: Path, at: int) -> None:
        for _ in range(DAMAGED_TRIES):
            await self._artifacts.fetch_range(index.files[span.file], span.begin, span.end, part, at)
            wrong = await asyncio.to_thread(_first_wrong, index, span.names, part, at)
            if wrong is None:
                return
            LOGGER.warning("tensor %s arrived damaged", wrong)
        raise ArtifactError(f"the coordinator sent other bytes than tensor {wrong} has, {DAMAGED_TRIES} times")

    async def _index(self) -> WeightIndex:
        path = await self._artifacts.fetch(self._digest)
        if path.stat().st_size > MAX_INDEX_BYTES:
            raise ArtifactError(f"the index of the weights has more than {MAX_INDEX_BYTES:,} bytes")
        try:
            index = msgspec.json.decode(await asyncio.to_thread(path.read_bytes), type=WeightIndex)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ArtifactError(f"the index of the weights cannot be read: {error}") from error
        if any(not tensor.begin <= tensor.end or tensor.file >= len(index.files) for tensor in index.tensors.values()):
            raise ArtifactError("the index of the weights names places that cannot be")
        return index


def _pair(layers: Layers) -> tuple[int, int]:
    return layers.first, layers.last


def _first_wrong(index: WeightIndex, names: Sequence[str], part: Path, at: int) -> str | None:
    """The first of the tensors, which lie in ``part`` from ``at`` on, whose digest is another than the index says."""
    with part.open("rb") as file:
        file.seek(at)
        for name in names:
            tensor, hasher = index.tensors[name], hashlib.sha256()
            left = tensor.end - tensor.begin
            while left and (chunk := file.read(min(left, _CHUNK))):
                hasher.update(chunk)
                left -= len(chunk)
            if hasher.hexdigest() != tensor.sha256:
                return name
    return None
