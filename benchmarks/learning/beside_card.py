"""What a real worker with a lean stage holds in main memory beside its card, in bytes a parameter, beside what the plan counts.

Two workers train one stage on the card of the tests (``tests/trainer/card.py``), which is main memory that is told apart: what is
``beside`` is what the process has grown by since before its stage was made, without what lies on the card. A thread looks every
two milliseconds. The model has some million parameters, so what goes part by part goes in parts a hundredth as long, and rounds
keep their first state alone, as those of large stages do. What is freed goes back to the system at once.

Phases: ``training`` with the contribution, the ``outer step`` until the next round, an ``audit`` of a round that came back from
the disk, run again and shown with and without its anchor, one of an ``outer audit``, and what somebody holds who runs another
replica's segment again (``auditor``).

What a process takes whatever it trains is left out: figures are those of a larger model, less those of a smaller one.

    python -m benchmarks.learning.beside_card [--widths 192,384] [--layers 3]
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.learning._replica import llama
from coordinator.domain.placement.layers import beside_of
from protocol.job.job import ModelSpec
from protocol.models.model import inspect_config, resolve
from protocol.task import (
    AuditReport,
    OpenOuter,
    OpenStep,
    Plan,
    ReplayOuter,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    StepOpened,
)
from tests.trainer import router as routers
from tests.trainer.router import Handle, Place, Process, Router, make_plan
from tests.trainer.small import VOCABULARY, job, write_tokens

LOOK_S, REST_S = 0.002, 1.5
PARTS = 1 << 15  # Values, and bytes, of what goes part by part.
STEPS, SEGMENT, ROUNDS = 4, 2, 3
LONG = 16  # Steps of the round in which audits are answered.
PROVER: Place = (0, 0)
AUDITOR: Place = (0, 1)
LEAN = {"memory": "lean", "precision": "bf16", "pseudo_gradient": "coarse", "outer_momentum": 0.5}
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


# --- the worker's side ---------------------------------------------------------------------------------------------------


class OnTheCard:
    """Bytes of all storages that lie on the card of the tests."""

    def __init__(self) -> None:
        self._lock, self._held, self.bytes = threading.RLock(), dict[int, list[int]](), 0

    def add(self, tensor: Any) -> None:
        """Count a tensor of the card as long as it lives."""
        storage = tensor.inner.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        with self._lock:
            held = self._held.setdefault(key, [0, size])
            if not held[0]:
                held[1] = size
                self.bytes += size
            held[0] += 1
        weakref.finalize(tensor, self._drop, key)

    def _drop(self, key: int) -> None:
        with self._lock:
            held = self._held[key]
            held[0] -= 1
            if not held[0]:
                self.bytes -= held[1]
                del self._held[key]


def work(socket: Path, out: Path) -> int:
    """Be a worker that computes on the card of the tests, and write what it holds beside it to ``out``."""
    import torch

    from protocol import audit
    from tests.trainer import card
    from trainer import transfer
    from trainer.codecs import coarse, framing, rans
    from trainer.files import tensors
    from trainer.stage import short
    from trainer.stage import stage as stages
    from trainer.worker.worker import Worker

    for module, name in (
        (short, "_PART"),
        (coarse, "AT_ONCE"),
        (framing, "AT_ONCE"),
        (rans, "_AT_ONCE"),
        (transfer, "_PART"),
        (tensors, "_WIDE_AT_ONCE"),
        (stages, "LEAN_PART"),
    ):
        assert hasattr(module, name)
        setattr(module, name, PARTS)
    audit.MAX_AUDIT_BYTES = 0
    there, made = OnTheCard(), card.OnCard.__new__

    def new(cls: type[card.OnCard], inner: torch.Tensor) -> card.OnCard:
        tensor = made(cls, inner)
        there.add(tensor)
        return tensor

    card.OnCard.__new__ = new  # type: ignore[method-assign,assignment]
    _warm_up()
    gc.collect()
    begun = _resident() - there.bytes
    threading.Thread(target=_look, args=(there, begun, out), daemon=True).start()
    return asyncio.run(Worker().run(socket))


def _warm_up() -> None:
    """What any stage imports and keeps, however small."""
    from protocol.boundary import Position
    from tests.trainer.card import NAME
    from tests.trainer.small import config_of, training
    from trainer.outer.inner_update import update
    from trainer.stage.model import Cut
    from trainer.stage.stage import Stage
    from trainer.stage.steps import Recorded, accumulate

    spec = training(**LEAN)
    stage = Stage(config_of(), Cut(0, 3, True, True), spec, device=NAME)
    windows = np.arange(4 * (spec.sequence + 1), dtype=np.int64).reshape(4, -1)
    for number in range(2):
        accumulate(stage, Position(0, 1), windows, Recorded({}))
        update(stage, Position(0, 1), Recorded({}), number, 10)


def _look(there: OnTheCard, begun: int, out: Path) -> None:
    with out.open("w") as file:
        while True:
            before = there.bytes
            held = _resident()
            # What went to the card, or away, in between is counted in favour of neither.
            print(time.monotonic(), held - max(before, there.bytes) - begun, file=file, flush=True)
            time.sleep(LOOK_S)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- the agents' and the coordinator's side -----------------------------------------------------------------------------------


class Cards(Router):
    """A ``Router`` whose workers compute on the card of the tests."""

    def out(self, place: Place) -> Path:
        """Where a worker writes what it holds."""
        return self.folder / f"held-{place[0]}-{place[1]}"

    async def _start(self, plan: Plan, place: Any, lie: str | None, restored: Any) -> None:
        path = self.folder / f"w{place[1]}.sock"
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
        server = await asyncio.start_unix_server(lambda r, w: connected.set_result((r, w)), path)
        command = [sys.executable, "-m", "benchmarks.learning.beside_card", "--work", str(path)]
        process = await asyncio.to_thread(_start, [*command, "--out", str(self.out(place))])
        async with asyncio.timeout(120):
            reader, writer = await connected
        server.close()
        await self._set_up(plan, place, Handle(Process(spawned=process), reader, writer), restored)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=os.environ | ALLOCATOR)


class Phases:
    """When what was done, and the most that each worker held meanwhile."""

    def __init__(self, cards: Cards, places: list[Place]) -> None:
        self._cards, self._places = cards, places
        self._spans: list[tuple[str, list[Place], float, float]] = []

    @asynccontextmanager
    async def phase(self, name: str, *places: Place) -> AsyncIterator[None]:
        """Something that is done in these places, or in all."""
        begun = time.monotonic()
        yield
        self._spans.append((name, list(places) or self._places, begun, time.monotonic()))

    def most(self) -> dict[str, int]:
        """Bytes beside the card, by phase."""
        looks = {}
        for place in self._places:
            lines = self._cards.out(place).read_text().splitlines()[:-1]
            looks[place] = [(float(at), int(held)) for at, held in (line.split() for line in lines)]
        found: dict[str, int] = {}
        for name, places, begun, ended in self._spans:
            for place in places:
                held = [size for at, size in looks[place] if begun <= at <= ended]
                found[name] = max(found.get(name, 0), *held)
        return found


async def measured(config: dict[str, Any], layers: int) -> dict[str, int]:
    """The most bytes beside the card, by phase."""
    spec = job(config=config, inner_steps=STEPS, commit_every=SEGMENT, batch=2, micro_batches=1, **LEAN)
    plan, total = make_plan([(0, layers)], [0, 1]), STEPS * ROUNDS + LONG
    routers.PIECE = 1 << 16
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(resolve(spec.model, VOCABULARY)))
        write_tokens(folder / "train.bin", 20_000, 1)
        write_tokens(folder / "heldout.bin", 2_000, 2)
        async with Cards(folder, spec, folder) as cards:
            cards.device, cards.recording, cards.keeping = "card", True, True
            phases = Phases(cards, [PROVER, AUDITOR])
            await cards.start(plan, [PROVER, AUDITOR])
            for number in range(ROUNDS):
                first = "" if number else ", first round"
                async with phases.phase(f"training{first}"):
                    await cards.begin(plan, number, STEPS * number, STEPS, total)
                    commits = await cards.wait_commits(plan, number)
                async with phases.phase(f"outer step{first}"):
                    await cards.apply(plan, number, commits)
                    await asyncio.sleep(REST_S)
            await cards.begin(plan, ROUNDS, STEPS * ROUNDS, LONG, total)
            await _audits(cards, phases, plan, total)
            await cards.wait_commits(plan, ROUNDS)
            async with phases.phase("audit after the last step", PROVER):
                await _opened(cards, OpenStep("f" * 32, 0, ROUNDS - 1, STEPS - 1))
            return phases.most()


async def _audits(cards: Cards, phases: Phases, plan: Plan, total: int) -> None:
    """In the middle of a round those before are opened, and the last one is run again by the other replica."""
    last = ROUNDS - 1
    async with phases.phase("audit", PROVER):
        await _opened(cards, OpenStep("a" * 32, 0, last, STEPS - 1, anchored=False))
    async with phases.phase("audit with its anchor", PROVER):
        whole = await _opened(cards, OpenStep("b" * 32, 0, last, STEPS - 1))
    async with phases.phase("audit of an outer step", PROVER):
        outer = await _opened(cards, OpenOuter("c" * 32, 0, last))
    commit, applied = (cards.of(PROVER, kind, round=last)[0] for kind in (RoundCommit, RoundApplied))
    before = cards.of(PROVER, RoundApplied, round=last - 1)[0].parameters
    earlier = cards.of(PROVER, RoundCommit, round=last - 1)[0].carried
    where = (plan, *PROVER, last, STEPS * last, STEPS - 1, total)
    for name, place, opening in (("a", "auditor", "a" * 32), ("b", "opening", "b" * 32)):
        shown = cards.of(PROVER, StepOpened, audit=opening)[0].opening
        replay = ReplayStep(
            name * 32, *where, commit.root, commit.leaves, commit.pseudo_gradient, before, shown,
            carried=commit.carried, local=earlier, anchor_in=place,
        )  # fmt: skip
        async with phases.phase(f"auditor, anchor from {place}", AUDITOR):
            await cards.command(AUDITOR, replay, cards.artifacts[shown])
            await _judged(cards, name * 32)
    contributors = {p: cards.of((0, p), RoundCommit, round=last)[0].pseudo_gradient for p in (0, 1)}
    again = ReplayOuter("c" * 32, plan, 0, last, contributors, applied.outer, applied.parameters, outer)
    async with phases.phase("auditor of an outer step", AUDITOR):
        await cards.command(AUDITOR, again, cards.artifacts[outer])
        await _judged(cards, "c" * 32)
    del whole


async def _opened(cards: Cards, command: OpenStep | OpenOuter) -> str:
    await cards.command(PROVER, command)
    await cards.until(lambda: cards.of(PROVER, StepOpened, audit=command.audit))
    [opened] = cards.of(PROVER, StepOpened, audit=command.audit)
    assert opened.opening is not None, opened.reason
    return str(opened.opening)


async def _judged(cards: Cards, audit: str) -> None:
    await cards.until(lambda: cards.of(AUDITOR, AuditReport, audit=audit))
    [report] = cards.of(AUDITOR, AuditReport, audit=audit)
    assert report.verdict == "match", report.detail


def planned(config: dict[str, Any]) -> float:
    """Bytes a parameter that the plan counts, the process itself not counted."""
    spec = job(config=config, inner_steps=STEPS, commit_every=SEGMENT, batch=2, micro_batches=1, **LEAN)
    shape = inspect_config(resolve(spec.model, VOCABULARY))
    large = msgspec.structs.replace(spec.training, inner_steps=20, commit_every=10)
    return (beside_of(shape, large, 2 * 10**9, 1) - beside_of(shape, large, 10**9, 1)) / 1e9


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="192,384")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        sys.exit(work(options.work, options.out))
    configs = [llama(int(width), options.layers, VOCABULARY) for width in options.widths.split(",")]
    small, large = (inspect_config(resolve(ModelSpec(config=one), VOCABULARY)).parameters for one in configs)
    least, most = (asyncio.run(measured(config, options.layers)) for config in configs)
    rows = {name: (held - least[name]) / (large - small) for name, held in most.items()}
    rows["planned"] = planned(configs[1])
    table = Table(title=f"bytes a parameter beside the card, of {small:,} to {large:,} parameters")
    table.add_column("")
    table.add_column("most", justify="right")
    for name, each in rows.items():
        table.add_row(name, f"{each:.2f}")
    Console(stderr=True).print(table)
    claim = "what a lean stage takes of main memory beside its card is within 10 % of what is planned"
    publish("beside_card", claim, {"parameters": [small, large], "bytes": [least, most], "rows": rows})


if __name__ == "__main__":
    main()
