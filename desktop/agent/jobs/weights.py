"""A stage's weights, fetched as byte ranges of the job's files and checked tensor by tensor; encrypted on the disk.

Tensors that an earlier lease had are taken from the disk, as long as the cache keeps them. What peers of the job have comes from
them (``weight_gathering``), and the rest from the coordinator.
"""

import asyncio
from pathlib import Path

import msgspec

from common.encrypted_files import fresh_key
from common.errors import SealedFileError
from desktop.agent.base.log import LOG
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.errors import ArtifactError
from desktop.agent.jobs.weight_exchange import Circle
from desktop.agent.jobs.weight_gathering import Gathering
from desktop.agent.jobs.weight_layout import TensorRun, WeightLayout
from protocol.audit import ReplayStep
from protocol.job.job import JobSpec
from protocol.models.model import starts_tied
from protocol.models.weights import MAX_INDEX_BYTES, WeightIndex, belongs, spans, weights_name
from protocol.task import Layers, Plan


class StageWeights:
    """The weights that a job starts from, laid into a worker's folder for the stages that it needs.

    Attributes:
        key: what all files that are laid out can be read with.
        layouts: those files, and those that are still coming.
    """

    def __init__(self, artifacts: Artifacts, index: str, folder: Path, circle: Circle | None = None) -> None:
        """Take weights from the index that is the artifact ``index``; ``circle``: who else may have them."""
        self._artifacts = artifacts
        self._digest = index
        self._folder = folder
        self._circle = circle
        self.key = fresh_key()
        self.layouts: dict[Layers, WeightLayout] = {}
        self._lock = asyncio.Lock()

    async def lay_out(self, plan: Plan, stage: int) -> Path:
        """Fetch what stage ``stage`` of ``plan`` begins with; what is there already stays.

        Raises:
            ArtifactError: the index is malformed, or the coordinator keeps sending other bytes than it names.
            OSError: the disk does not take it.
        """
        layers = plan.layers[stage]
        path = self._folder / weights_name(layers)
        async with self._lock:
            if not path.exists():
                # Another seat here that is at the same weights leaves them in the cache.
                async with self._artifacts.contents.turn(f"{self._digest} {path.name}"):
                    await self._fetch(plan, stage, path)
        return path

    async def _fetch(self, plan: Plan, stage: int, path: Path) -> None:
        layers, index = plan.layers[stage], await self._index()
        wanted = spans(index, belongs(index.tensors, layers, stage == 0, stage == len(plan.layers) - 1))
        layout = await asyncio.to_thread(WeightLayout, index, wanted, path, self.key)
        self.layouts[layers] = layout
        try:
            await self._gather(layout, plan, stage)
            await asyncio.to_thread(layout.finish)
        except BaseException as error:
            del self.layouts[layers]
            layout.abandon()
            if isinstance(error, SealedFileError):
                raise ArtifactError(f"the weights cannot be laid out: {error}") from error
            raise
        kept = await asyncio.to_thread(self._artifacts.adopt, path, self.key)
        if kept is not None:
            tensors = (index.tensors[name] for span in wanted for name in span.names)
            self._artifacts.contents.note(kept, tensors, layout.begins)

    async def _gather(self, layout: WeightLayout, plan: Plan, stage: int) -> None:
        """Have all tensors: those on this disk first."""
        for run in layout.runs():
            await asyncio.to_thread(self._copy, layout, run)
        layers, missing = plan.layers[stage], layout.runs()
        whole = sum(unit.size for unit in layout.units)
        lacking = sum(run.size for run in missing)
        LOG.info(
            "fetching %s of %s bytes of weights in %d parts for layers %d to %d",
            f"{lacking:,}",
            f"{whole:,}",
            len(missing),
            layers.first,
            layers.last,
        )
        nodes = tuple(sorted({member.node for member in plan.members if member.stage == stage}))
        gathering = Gathering(layout, layers, self._artifacts.fetch_range, self._circle, nodes)
        await gathering.run()
        if lacking and self._circle is not None:
            LOG.info("of these weights %s bytes came from peers", f"{gathering.from_peers:,}")

    def _copy(self, layout: WeightLayout, run: TensorRun) -> None:
        """Take what this disk has of a run, tensor by tensor, where that is still what it was."""
        contents = self._artifacts.contents
        for name in run.span.names:
            tensor = layout.index.tensors[name]
            place = contents.find(tensor)
            if place is None:
                continue
            (span,) = spans(layout.index, [name])
            one = TensorRun(run.unit, span, run.offset + tensor.begin - run.span.begin)
            done = 0

            def take(data: bytes, one: TensorRun = one) -> None:
                nonlocal done
                layout.put(one, data, done)
                done += len(data)

            if contents.copy(tensor, place, take):
                layout.have(one)
            else:
                LOG.warning("tensor %s was damaged on the disk: fetching it again", name)

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


def asks_for_weights(audit: ReplayStep, spec: JobSpec) -> bool:
    """Whether an audit needs what the job began with: in its first round, and always where some of it is frozen."""
    return audit.first_step == 0 or spec.training.lora is not None or starts_tied(spec.model)
