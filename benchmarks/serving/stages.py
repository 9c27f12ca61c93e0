"""A model in two stages over an emulated line, beside one process that has all of it, and ``transformers.generate``.

Both stages are worker processes of this machine, with a thread each. The line between them is one of homes: every payload waits
for those before it at ``--mbit`` and comes ``--trip`` / 2 later; this process holds it back, no kernel does. Everything runs one
after the other, ``--runs`` times, and of each figure the median counts, and of ratios that of each round's.

    python -m benchmarks.serving.stages --model FOLDER [--tokens 48] [--runs 3] [--trip 0.05] [--mbit 20] [--llama build/rpc/bin]

``whole``, ``single`` and ``repeats``: tokens a second of one answer, behind the first. ``bound``: if nothing but a round trip and
the whole model's computing took time. ``first``: seconds to the first piece of text of new words; ``known_first``: of the same
words once more. ``repeats``: of a text that repeats itself, where drafts come true. ``cache``: memory that
both workers grew by while 16 answers were under way, beside the pages that their tokens lie in. ``--llama``: a folder with
``llama-server`` and ``rpc-server`` of llama.cpp, which hold the same layers with the same line between them; where they are not
there, their rows are left out. Writes build/bench/stages.json.
"""

import argparse
import asyncio
import contextlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.serving._line import Line
from benchmarks.serving._rpc import programs, rpc_model
from benchmarks.serving.answers import Plain, Served
from coordinator.domain.teams import cut_for
from coordinator.services.artifacts.model_archives import pack
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from protocol.models.model import inspect_config
from protocol.plan import Layers, Member, Plan
from protocol.serving import (
    DRAFT_ARCHIVE,
    MODEL_ARCHIVE,
    AnsweredReport,
    GenerateCommand,
    RefusedReport,
    Sampling,
    TextReport,
)
from protocol.task import AskModel, JoinStages, ModelSaid, TaskFailed, TaskReady
from protocol.worker import (
    PeerDeliver,
    PeerSend,
    Setup,
    WorkerCommand,
    WorkerMessage,
    WorkerReport,
    read_frame,
    write_frame,
)
from trainer.serve.stages.pages import PAGE, pages_of

STREAMS = 16
TIMER_S = 0.001  # How exact a loop's timers are.
Rows = dict[str, list[float]]
SPEC = JobSpec("moo", ModelSpec(from_job="ab" * 16), 1000, serve=ServeSpec(context=2048))
FREE, GREEDY = Sampling(seed=1), Sampling(temperature=0)
REPEATED = (
    "The old keeper climbed the stairs and counted the ships that went by. One night he saw a light on the shore. "
)


async def until(due: float) -> None:
    """Wait until then by the loop's clock, to less than the millisecond that its timers are exact to."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, due - loop.time() - TIMER_S))
    while loop.time() < due:  # noqa: ASYNC110 - for less than a millisecond
        await asyncio.sleep(0)


@dataclass
class Answering:
    """What came of some requests: when the first piece of text, tokens of each answer, and the text of all."""

    expected: int
    first: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    text: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Workers:
    """Two worker processes, each with half of a model."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._processes: list[asyncio.subprocess.Process] = []
        self._turns = [asyncio.Lock(), asyncio.Lock()]
        self._ready = [asyncio.Event(), asyncio.Event()]
        self._answering: Answering | None = None
        self.failed = ""

    async def begin(
        self, folder: Path, plan: Plan, spec: JobSpec = SPEC, program: Sequence[str] = ("-m", "trainer")
    ) -> list[asyncio.Task[None]]:
        """Start both, and wait until they have joined. ``program``: what Python runs."""
        tasks = []
        for stage in range(len(plan.layers)):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *program, "worker", "--stdio"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._processes.append(process)
            await self._write(stage, Setup(spec, plan, stage, 0, str(folder), 1))
            tasks.append(asyncio.create_task(self._read(stage), name=f"stage {stage}"))
        for ready in self._ready:
            await ready.wait()
        if self.failed:
            raise SystemExit(self.failed)
        for stage in range(len(plan.layers)):
            await self._write(stage, WorkerCommand(JoinStages(plan)))
        return tasks

    async def end(self) -> None:
        """End both."""
        for one in self._processes:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            await one.wait()

    def resident(self) -> int:
        """Bytes of memory of both."""
        page = resource.getpagesize()
        return sum(int(Path(f"/proc/{one.pid}/statm").read_text().split()[1]) * page for one in self._processes)

    async def answer(self, prompts: Sequence[str], tokens: int, sampling: Sampling) -> tuple[float, float, Answering]:
        """Seconds to the first piece of text, tokens a second of all, and what came of them."""
        answering = self._answering = Answering(len(prompts))
        began = time.perf_counter()
        for number, prompt in enumerate(prompts):
            command = GenerateCommand(f"{began}-{number}", prompt, tokens=tokens, sampling=sampling)
            await self._write(0, WorkerCommand(AskModel(command)))
        await answering.over.wait()
        if self.failed:
            raise SystemExit(self.failed)
        rate = sum(answering.tokens.values()) / (time.perf_counter() - began)
        return answering.first - began, rate, answering

    async def _write(self, stage: int, message: Any, payload: bytes = b"") -> None:
        writer = self._processes[stage].stdin
        assert writer is not None
        async with self._turns[stage]:
            await write_frame(writer, message, payload)

    async def _read(self, stage: int) -> None:
        reader = self._processes[stage].stdout
        assert reader is not None
        arriving: asyncio.Queue[tuple[float, PeerSend, bytes]] = asyncio.Queue()
        carrying = asyncio.create_task(self._carry(stage, arriving), name="line")
        try:
            while True:
                message, payload = await read_frame(reader, WorkerMessage)
                if isinstance(message, PeerSend):
                    arriving.put_nowait((self._lines[stage].due(len(payload)), message, payload))
                elif isinstance(message, WorkerReport):
                    self._hear(stage, message)
        except EOFError:
            carrying.cancel()

    async def _carry(self, stage: int, arriving: "asyncio.Queue[tuple[float, PeerSend, bytes]]") -> None:
        while True:
            due, message, payload = await arriving.get()
            await until(due)
            await self._write(message.stage, PeerDeliver(stage, message.replica, message.name), payload)

    def _hear(self, stage: int, message: WorkerReport) -> None:
        answering = self._answering
        match message.body:
            case TaskReady():
                self._ready[stage].set()
            case TaskFailed(reason=reason):
                self.failed = str(reason)
                for ready in self._ready:
                    ready.set()
            case ModelSaid(reports=reports) if answering is not None:
                for one in reports:
                    if isinstance(one, TextReport):
                        answering.first = answering.first or time.perf_counter()
                        answering.text += one.text
                    elif isinstance(one, AnsweredReport):
                        answering.tokens[one.id], answering.prompts[one.id] = one.tokens, one.prompt
                    elif isinstance(one, RefusedReport):
                        self.failed = one.detail
        if answering is not None and (self.failed or len(answering.tokens) == answering.expected):
            answering.over.set()


def cut_of(config: Any) -> int:
    """How many layers the first stage has: as the planner has it."""
    cut = cut_for(inspect_config(config.to_dict()), 2)
    if cut is None:
        raise SystemExit("the model has too few layers for two stages")
    return cut[0].last


@contextlib.asynccontextmanager
async def two_stages(
    options: argparse.Namespace,
    config: Any,
    spec: JobSpec = SPEC,
    program: Sequence[str] = ("-m", "trainer"),
    draft: Path | None = None,
) -> AsyncIterator[Workers]:
    """Both workers, joined by the line. ``draft``: the folder of a draft model; ``program``: what Python runs."""
    layers, cut = config.num_hidden_layers, cut_of(config)
    plan = Plan(1, (Layers(0, cut), Layers(cut, layers)), tuple(Member(stage, 0, "1" * 32) for stage in range(2)))
    rate = options.mbit * 1e6 / 8
    workers = Workers([Line(options.trip / 2, rate), Line(options.trip / 2, rate)])
    with tempfile.TemporaryDirectory() as folder:
        pack(options.model, Path(folder) / MODEL_ARCHIVE)
        if draft is not None:
            pack(draft, Path(folder) / DRAFT_ARCHIVE)
        tasks = await workers.begin(Path(folder), plan, spec, program)
        try:
            yield workers
        finally:
            await workers.end()
            await asyncio.gather(*tasks)


async def cache_memory(workers: Workers, prompt: str, each: int, tokens: int) -> dict[str, float]:
    """What 16 answers take beside what their tokens' pages are planned to take, in MB. ``each``: bytes of a token."""
    # A prompt goes in up to three parts: of so long a one they are full passes, and whatever these need is there from now on.
    _, _, one = await workers.answer([prompt * 10], 2, GREEDY)
    before = workers.resident()
    _, _, answering = await workers.answer([f"{number}. {prompt * 2}" for number in range(STREAMS)], tokens, FREE)
    after = workers.resident()

    def pages(found: Answering, count: Callable[[int], int] = pages_of) -> int:
        return sum(count(found.prompts[one] + found.tokens[one]) for one in found.tokens)

    # The first one's full pages are kept for what begins as it did, which none of these does.
    planned = (pages(answering) - pages(one) + pages(one, lambda tokens: (tokens - 1) // PAGE)) * PAGE * each
    return {"grown_mb": (after - before) / 1e6, "planned_mb": planned / 1e6, "ratio": (after - before) / planned}


async def of_llama(options: argparse.Namespace, config: Any, prompts: Sequence[str], several: Sequence[str]) -> Rows:
    """The same of llama.cpp's two processes; nothing where they are not here."""
    rows: Rows = {}
    found = programs(options.llama)
    if found is None:
        print(
            f"{options.llama} has no llama-server and rpc-server of llama.cpp: their rows are left out", file=sys.stderr
        )
        return rows
    far, rate = config.num_hidden_layers - cut_of(config), options.mbit * 1e6 / 8
    with tempfile.TemporaryDirectory() as made:
        limits = (options.trip / 2, rate, STREAMS, Path(made))
        async with rpc_model(found, options.model, far, *limits) as llama:
            for run in range(options.runs + 1):  # The first one warms it up.
                first, single = await llama.answer(prompts, options.tokens)
                _, many = await llama.answer(several, options.tokens)
                if run:
                    rows.setdefault("llama_first", []).append(first)
                    rows.setdefault("llama", []).append(going_on(first, single, options.tokens))
                    rows.setdefault("llama_16", []).append(many)
    return rows


def going_on(first: float, rate: float, tokens: int) -> float:
    """Tokens a second behind the first one, of one answer with so many tokens."""
    return (tokens - 1) / (tokens / rate - first)


def median_of(found: Sequence[float], beside: Sequence[float]) -> float:
    """Of the ratios of what was measured right after each other: what else a machine does meets both."""
    return statistics.median(one / other for one, other in zip(found, beside, strict=True))


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    plain = Plain(options.model, 1)
    config = plain._model.config
    prompts, several = plain.asked(1), plain.asked(STREAMS)
    repeated = [REPEATED * 3]
    served = await Served.begin(options.model, 1)
    rows: Rows = {}

    def note(**found: float) -> None:
        for name, value in found.items():
            rows.setdefault(name, []).append(value)

    heads = config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # Keys and values, and halves with a scale of what crosses: sent by one stage, and got by the other.
    each = 2 * config.num_hidden_layers * heads * size * 4 + 2 * (2 * config.hidden_size + 4)
    async with two_stages(options, config) as workers:
        cache = await cache_memory(workers, REPEATED * 6, each, 8)  # While no page was ever used.
        for run in range(options.runs + 1):  # The first one warms all up.
            new = [f"{run}. {prompts[0]}"]  # Nothing of it is kept from before.
            whole_first, whole = await served.answer(new, options.tokens)
            whole = going_on(whole_first, whole, options.tokens)
            first, single, _ = await workers.answer(new, options.tokens, FREE)
            single = going_on(first, single, options.tokens)
            known, _, _ = await workers.answer(new, 2, FREE)
            behind, again, _ = await workers.answer(repeated, options.tokens, GREEDY)
            again = going_on(behind, again, options.tokens)
            _, whole_many = await served.answer(several, options.tokens)
            _, many, _ = await workers.answer(several, options.tokens, GREEDY)
            generate = await asyncio.to_thread(plain.answer, prompts, options.tokens)
            generate_many = await asyncio.to_thread(plain.answer, several, options.tokens)
            if run:
                note(whole=whole, single=single, repeats=again, whole_16=whole_many, stages_16=many)
                note(whole_first=whole_first, first=first, known_first=known)
                note(generate=generate, generate_16=generate_many)
    await served.end()
    rows |= await of_llama(options, config, prompts, several)
    medians = {name: statistics.median(values) for name, values in rows.items()}
    bounds = [1 / (options.trip + 1 / whole) for whole in rows["whole"]]
    ratios = {
        "single_of_bound": median_of(rows["single"], bounds),
        "repeats_of_single": medians["repeats"] / medians["single"],
        "stages_of_whole_16": median_of(rows["stages_16"], rows["whole_16"]),
        "stages_of_generate_16": medians["stages_16"] / medians["generate_16"],
        "first_beside_whole_and_trip": median_of(rows["first"], [one + options.trip for one in rows["whole_first"]]),
        "first_of_known_words": medians["known_first"] / medians["first"],
        "cache": cache["ratio"],
    }
    if "llama" in medians:
        ratios["single_of_llama"] = medians["single"] / medians["llama"]
        ratios["stages_of_llama_16"] = medians["stages_16"] / medians["llama_16"]
    bound = statistics.median(bounds)
    return {"trip_s": options.trip, "mbit": options.mbit, "bound": bound, **medians, "cache": cache, "ratios": ratios}


def shown(found: dict[str, Any]) -> Table:
    """For people."""
    table = Table(title="two stages over a line of homes")
    table.add_column("ratio")
    table.add_column("measured", justify="right")
    for name, value in found["ratios"].items():
        table.add_row(name.replace("_", " "), f"{value:.2f}")
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trip", type=float, default=0.05)
    parser.add_argument("--mbit", type=float, default=20.0)
    parser.add_argument(
        "--llama", type=Path, default=Path("build/rpc/bin"), help="llama-server and rpc-server of llama.cpp"
    )
    found = asyncio.run(measured(parser.parse_args()))
    Console(stderr=True).print(shown(found))
    publish("stages", "two stages answer at 90 % of what a round trip and the model's computing allow", found)


if __name__ == "__main__":
    main()
