"""Stages of a replica as engines of one process, whose payloads a carrier takes from one to the next, late and out of turn."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from safetensors.torch import load_file

from protocol.job.job import JobSpec, ModelSpec, ServedWeights, ServeSpec
from protocol.plan import Plan
from protocol.serving import EngineCommand, EngineReport, SketchReport
from protocol.worker import PeerSend, Setup
from tests.trainer.router import make_plan
from tests.trainer.serve.answering import Asking, Reports
from trainer.serve.adapters import AdapterFiles
from trainer.serve.stages.draft_model import DraftModel
from trainer.serve.stages.engine import StageEngine
from trainer.serve.stages.pages import PageTables

CUTS: dict[int, list[tuple[int, int]]] = {2: [(0, 1), (1, 3)], 3: [(0, 1), (1, 2), (2, 3)]}
"""Of a model with three layers."""
T = TypeVar("T")
Change = Callable[[int, PeerSend, bytes], bytes]
Sketched = dict[tuple[str, int, str], SketchReport]


def key_of(stage: int) -> bytes:
    """Of a stage's sketches."""
    return bytes([stage]) * 16


def tensors_of(folder: Path) -> dict[str, Any]:
    """All tensors of a folder, by name."""
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


@dataclass
class Ring:
    """The stages, and what they say.

    Attributes:
        delay: seconds that a payload is under way at most; each takes another time, so that some overtake others.
        change: what a payload becomes: called with the stage that sends it.
        sketches: what was told, by request, stage and side.
        payloads: how many a stage has sent.
    """

    plan: Plan
    delay: float = 0.0
    change: Change = lambda _stage, _name, payload: payload
    stages: list[StageEngine] = field(default_factory=list)
    asking: Asking = field(default_factory=Asking)
    sketches: Sketched = field(default_factory=dict)
    payloads: list[int] = field(default_factory=list)
    watched: list[asyncio.Future[BaseException | None]] = field(default_factory=list)
    _chance: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def lead(self) -> StageEngine:
        return self.stages[0]

    def say(self, stage: int, report: EngineReport) -> None:
        if isinstance(report, SketchReport):
            self.sketches[report.id, stage, report.side] = report
        self.asking.say(report) if not isinstance(report, SketchReport) else None

    def send(self, loop: asyncio.AbstractEventLoop, stage: int, name: PeerSend, pieces: Sequence[Any]) -> None:
        self.payloads[stage] += 1
        payload = self.change(stage, name, b"".join(bytes(one) for one in pieces))
        target = self.stages[name.stage]
        late = self._chance.uniform(0, self.delay)
        loop.call_soon_threadsafe(loop.call_later, late, target.deliver, name.name, stage, name.replica, payload)

    def join(self, epoch: int) -> None:
        """Tell every stage of a new epoch."""
        self.plan = msgspec.structs.replace(self.plan, epoch=epoch)
        for stage, one in enumerate(self.stages):
            one.join(self.plan, key_of(stage))

    async def over(self, *commands: EngineCommand) -> Reports:
        """All that comes of these; raises what ended a stage."""
        return await self.unless_ended(self.asking.over(self.lead, *commands))  # type: ignore[arg-type]

    async def unless_ended(self, waiting: Coroutine[Any, Any, T]) -> T:
        """What is waited for; raises what ended a stage before it came."""
        task = asyncio.ensure_future(waiting)
        await asyncio.wait([task, *self.watched], return_when=asyncio.FIRST_COMPLETED)
        for one in self.watched:
            if one.done() and (error := one.result()) is not None:
                task.cancel()
                raise error
        return await task

    async def sketched(self, request: str) -> Sketched:
        """What all stages tell of a request that is over."""
        expected = 2 * (len(self.stages) - 1)
        async with asyncio.timeout(60):
            while len(found := {key: one for key, one in self.sketches.items() if key[0] == request}) < expected:
                await asyncio.sleep(0.005)
        return found

    async def in_step(self, request: str) -> None:
        """Once the last request is over, every stage gives the pages that the first stage's book says."""
        await self.sketched(request)  # A stage tells its sketches first, then gives the pages, on a thread of its own.
        led = self.lead._lead
        assert led is not None
        expected = [pages_by_owner(led._pages)] * len(self.stages)
        until = asyncio.get_running_loop().time() + 60
        while (found := [pages_by_owner(one.layers.cache.tables) for one in self.stages]) != expected:
            assert asyncio.get_running_loop().time() < until, (found, expected)
            await asyncio.sleep(0.005)


def pages_by_owner(tables: PageTables) -> tuple[int, set[frozenset[tuple[int, int]]]]:
    """How many pages are free; and of each other, whose it is and which of theirs; stages may number them otherwise."""
    pages: dict[int, set[tuple[int, int]]] = {}
    for owner, held in list(tables._held.items()):
        for place, page in enumerate(held):
            pages.setdefault(page, set()).add((owner, place))
    return tables.free, {frozenset(one) for one in pages.values()}


@contextlib.asynccontextmanager
async def ring(
    folder: Path,
    stages: int = 2,
    delay: float = 0.0,
    context: int | None = 256,
    weights: Mapping[int, Mapping[str, Any]] | None = None,
    cuts: list[tuple[int, int]] | None = None,
    joined: bool = True,
    held: ServedWeights | Mapping[int, ServedWeights] = "float32",
    adapters: Mapping[int, Sequence[AdapterFiles]] | None = None,
    draft: DraftModel | None = None,
    device: str = "cpu",
) -> AsyncIterator[Ring]:
    """The stages of a folder's model, joined.

    Args:
        weights: those that a stage has in place of the folder's. adapters: of each stage; None: it has none.
        draft: of the first stage.
        held: how stages hold them, each in its own way or all in one.
    """
    made = make_plan(cuts or CUTS[stages], [0])
    loop, whole = asyncio.get_running_loop(), tensors_of(folder)
    here = Ring(made, delay, payloads=[0] * stages)
    async with contextlib.AsyncExitStack() as stack:
        for stage in range(stages):
            kind = held if isinstance(held, str) else held[stage]
            serve = ServeSpec(context=context, weights=kind)
            spec = JobSpec("moo", ModelSpec(from_job="ab" * 16), 1000, serve=serve)
            setup = Setup(spec, made, stage, 0, str(folder), 1, device=device)
            own = whole if weights is None else weights.get(stage, whole)
            beside = (adapters or {}).get(stage, ())
            say, send = partial(here.say, stage), partial(here.send, loop, stage)
            engine = StageEngine(folder, setup, say, send, own, beside, draft if stage == 0 else None)
            here.stages.append(await stack.enter_async_context(engine))
            here.watched.append(asyncio.ensure_future(engine.beside(_for_ever())))
        if joined:
            here.join(1)
        try:
            yield here
        finally:
            for one in here.watched:
                one.cancel()


async def _for_ever() -> None:
    await asyncio.Event().wait()
