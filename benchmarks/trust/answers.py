"""Whether a check of an answer finds who answers with something else than the model, and never blames an honest node.

In each world a new node is asked three things, whose answers are always checked, and something with a long prompt. Honest nodes
answer alone, in company, in parts, with other threads and instructions. Each way of cheating answers the same requests. One
process in float32 checks all. *Off* is an answer with other tokens than the honest one beside it; who saves memory may well
say what the model says, and nobody minds. Of what is wrong in a world, two processes look whether no rounding explains it, which
costs stake where they come to the same bits; with ``--proofs``, since each of these is 33 passes.

    python -m benchmarks.trust.answers --model FOLDER [--worlds 20] [--tokens 48] [--threads 1] [--only WORDS] [--proofs]
"""

import argparse
import asyncio
import hashlib
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.trust._answering import Answers, AskedNode, Liar, here, there
from benchmarks.trust._asked import ANSWERS, AskedWorld, kind_of, world
from benchmarks.trust._other_weights import OTHER_WEIGHTS, in_bf16, read
from benchmarks.trust.across import PLAIN
from protocol.serving import CheckCommand, GenerateCommand, ProveCommand, Sampling
from trainer.serve.checking import TOLERANCE

CLAIM = "no honest node is blamed; other models and draws are found within three answers, int8 and bfloat16 not always"
TOGETHER = 16
CROWD = 30  # Whose answers cheats make together, which is quicker.
MIXED = "four at a time, one with a long prompt"
_PLACE = re.compile(r"^token ([\d,]+) of")


@dataclass
class Seen:
    """One answer that was checked. ``off``: of other tokens than the honest one."""

    kind: str
    tokens: int
    wrong: str
    worst: float
    seconds: float
    off: bool

    @property
    def place(self) -> int | None:
        """Tokens until the first one that is not the model's; None: no token was found to be another."""
        found = _PLACE.match(self.wrong)
        return int(found[1].replace(",", "")) if found else None


@dataclass
class Measuring:
    """One run of all."""

    checker: AskedNode
    worlds: Sequence[AskedWorld]
    model: Path
    threads: int
    only: str
    honest: Answers = field(default_factory=dict)
    seen: dict[str, dict[str, Seen]] = field(default_factory=lambda: defaultdict(dict))
    took: dict[str, list[float]] = field(default_factory=dict)
    other: AskedNode | None = None  # Another process of the class; None: nothing is to be proven.
    proven: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    apart: int = 0  # Proofs of which the two processes came to other bits.
    began: float = field(default_factory=time.perf_counter)

    @property
    def asked(self) -> list[GenerateCommand]:
        """The three requests of every world."""
        return [one for each in self.worlds for one in each.asked]

    @property
    def some(self) -> Sequence[AskedWorld]:
        """Every second world, for what takes long."""
        return self.worlds[::2]

    async def look(self, way: str, answers: Answers) -> None:
        """Have all of these checked."""
        for name, answer in answers.items():
            report, seconds = await self.checker.check(answer)
            before = len(answer.asked.begun)
            off = name in self.honest and answer.tokens != self.honest[name].tokens[before:]
            kind = kind_of(answer.asked)
            self.seen[way][name] = Seen(kind, len(answer.tokens), report.wrong, report.worst, seconds, off)
        if self.other is not None:
            for world in self.worlds:
                wrong = [answers[one.id] for one in world.asked if one.id in answers and self.seen[way][one.id].wrong]
                if wrong:
                    self.proven[way].append(await self._is_proven(self.other, wrong))
        wrong = sum(bool(one.wrong) for one in self.seen[way].values())
        spent = time.perf_counter() - self.began
        print(f"{spent:5.0f} s  {way}: {wrong} of {len(self.seen[way])} are wrong", file=sys.stderr, flush=True)

    async def _is_proven(self, other: AskedNode, answers: Sequence[CheckCommand]) -> bool:
        """Whether one of these costs stake."""
        for answer in answers:
            seed = hashlib.sha256(f"{self.began} {answer.id}".encode()).hexdigest()
            command = ProveCommand("proof", answer, seed)
            one, same = await asyncio.gather(self.checker.prove(command), other.prove(command))
            self.apart += one != same
            if one == same and one.wrong:
                return True
        return False

    async def honestly(self) -> None:
        """In every company; the first one is what lies are held beside."""
        self.honest, self.took["sixteen"] = await self.checker.answers(self.asked, TOGETHER)
        await self.look("sixteen at a time", self.honest)
        firsts = [one.asked[0] for one in self.some]
        alone, self.took["alone"] = await self.checker.answers(firsts, 1)
        await self.look("alone", alone)
        mixed = Answers()
        for one in self.some:
            mixed |= (await self.checker.answers(one.all, len(one.all)))[0]
        await self.look(MIXED, mixed)
        halves = [begun_of(self.honest[one.id]) for one in self.asked]
        rest, _ = await self.checker.answers(halves, TOGETHER)
        await self.look("behind another node's half", rest)
        for way, threads, how, commands in (
            ("two threads", 2, {}, self.asked),
            ("a processor without AVX", self.threads, PLAIN, firsts),
        ):
            async with there(self.model, threads, how) as node:
                answers, _ = await node.answers(commands, TOGETHER)
            await self.look(way, answers)

    async def with_other_models(self) -> None:
        """Who holds something else than the model."""
        weights = read(self.model)
        for way, change in OTHER_WEIGHTS.items():
            if self.only in way:
                async with here(self.model, self.threads, change(weights)) as node:
                    answers, _ = await node.answers(self.asked, CROWD)
                await self.look(way, answers)
        if self.only in (way := "computes in bf16"):
            async with here(self.model, self.threads, change=in_bf16) as node:
                answers, _ = await node.answers(self.asked, CROWD)
            await self.look(way, answers)

    async def with_lies(self) -> None:
        """Who holds the model, and says something else."""
        for way, drawn in (("greedy in place of the draw", _likeliest), ("another seed's answer", _of_another_seed)):
            if self.only in way:
                asked = [msgspec.structs.replace(one, sampling=drawn(one.sampling)) for one in self.asked]
                answers, _ = await self.checker.answers(asked, CROWD)
                said = {one.id: msgspec.structs.replace(answers[one.id], asked=one) for one in self.asked}
                await self.look(way, said)
        liar = Liar(self.checker.engine, next(iter(self.checker.engine._ends), None))
        lies: dict[str, Answers] = defaultdict(dict)
        for at, one in enumerate(self.asked):
            other = self.honest[self.asked[(at + ANSWERS) % len(self.asked)].id]
            for way, lie in liar.lies(self.honest[one.id], other).items():
                lies[way][one.id] = lie
        for way, answers in lies.items():
            if self.only in way:
                await self.look(way, answers)


def begun_of(check: CheckCommand) -> GenerateCommand:
    """The request for the second half of an answer."""
    return msgspec.structs.replace(check.asked, begun=check.tokens[: len(check.tokens) // 2])


def _likeliest(_: Sampling) -> Sampling:
    return Sampling(temperature=0)


def _of_another_seed(sampling: Sampling) -> Sampling:
    return msgspec.structs.replace(sampling, seed=sampling.seed + 1)


def cheat_row(worlds: Sequence[AskedWorld], seen: dict[str, Seen], proven: Sequence[bool]) -> dict[str, Any]:
    """What became of one way of cheating."""
    tried = [found for one in worlds if (found := [seen[each.id] for each in one.asked if each.id in seen])]
    until = [tokens for found in tried if (tokens := _until(found)) is not None]
    off = [one for one in seen.values() if one.off]
    return {
        "worlds": len(tried),
        "caught": sum(any(one.wrong for one in found) for found in tried),
        "stake_lost": sum(proven) if proven else None,
        "tokens_until": statistics.median(until) if until else None,
        "off": len(off),
        "off_called_wrong": sum(bool(one.wrong) for one in off),
        "off_worst": _spread([one.worst for one in off]) if until else None,
        "wrong_by_kind": {kind: _called([one for one in seen.values() if one.kind == kind]) for kind in _kinds(seen)},
    }


def _until(found: Iterable[Seen]) -> int | None:
    """Tokens of a world's answers until the first one that is not the model's; None: none was found."""
    tokens = 0
    for one in found:
        if one.place is not None:
            return tokens + one.place
        tokens += one.tokens
    return None


def _kinds(seen: dict[str, Seen]) -> list[str]:
    return sorted({one.kind for one in seen.values()})


def _called(seen: Sequence[Seen]) -> str:
    return f"{sum(bool(one.wrong) for one in seen)} of {len(seen)}"


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    rising = sorted(values)
    return {
        "p50": rising[len(rising) // 2],
        "p99": rising[min(len(rising) - 1, len(rising) * 99 // 100)],
        "max": rising[-1],
    }


def honest_row(seen: dict[str, Seen]) -> dict[str, Any]:
    """What became of honest answers that were made in one way. ``off``: they had other tokens than in other company."""
    return {
        "answers": len(seen),
        "tokens": sum(one.tokens for one in seen.values()),
        "off": sum(one.off for one in seen.values()),
        "called_wrong": [f"{name}: {one.wrong}" for name, one in seen.items() if one.wrong],
        "worst": _spread([one.worst for one in seen.values()]),
    }


def costs(run: Measuring) -> dict[str, Any]:
    """A processor's seconds of an answer and of its check."""
    sixteen = sum(run.took["sixteen"]) / len(run.honest)
    check = [one.seconds for one in run.seen["sixteen at a time"].values()]
    mixed = run.seen[MIXED]
    ones = zip(run.seen["alone"].values(), run.took["alone"], strict=True)
    return {
        "answer_alone_s": statistics.median(run.took["alone"]),
        "answer_among_sixteen_s": sixteen,
        "check_s": statistics.mean(check),
        "check_long_prompt_s": statistics.mean(one.seconds for name, one in mixed.items() if name.endswith("long")),
        "of_an_answer_alone": statistics.median(one.seconds / took for one, took in ones),
        "of_an_answer_among_sixteen": statistics.mean(check) / sixteen,
    }


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All of it."""
    async with here(options.model, options.threads) as checker, AsyncExitStack() as stack:
        template = checker.engine._requests._chat.there
        worlds = [world(number, options.tokens, template) for number in range(options.worlds)]
        run = Measuring(checker, worlds, options.model, options.threads, options.only)
        if options.proofs:
            run.other = await stack.enter_async_context(there(options.model, options.threads, {}))
        await checker.answers(run.asked[:1], 1)  # Warms it up.
        await run.honestly()
        honest = set(run.seen)
        await run.with_other_models()
        await run.with_lies()
    return {
        "tolerance": TOLERANCE,
        "worlds": options.worlds,
        "honest": {way: honest_row(seen) for way, seen in run.seen.items() if way in honest},
        "cheats": {
            way: cheat_row(worlds, seen, run.proven[way]) for way, seen in run.seen.items() if way not in honest
        },
        "other_bits": run.apart,
        "honest_slashed": sum(any(run.proven[way]) for way in honest),
        "costs": costs(run),
        "seconds": time.perf_counter() - run.began,
    }


def shown(found: dict[str, Any]) -> Iterator[Table]:
    """For people."""
    honest = Table(title="honest nodes")
    for name in ("way", "answers", "other tokens", "called wrong", "furthest, nats"):
        honest.add_column(name, justify="left" if name == "way" else "right")
    for way, row in found["honest"].items():
        cells = (row["answers"], row["off"], len(row["called_wrong"]), f"{row['worst']['max']:.5f}")
        honest.add_row(way, *map(str, cells))
    yield honest
    cheats = Table(title="cheats")
    for name in ("way", "caught", "stake lost", "tokens until", "off", "of them wrong", "p50", "p99", "max"):
        cheats.add_column(name, justify="left" if name == "way" else "right")
    for way, row in found["cheats"].items():
        far = [f"{one:.3f}" for one in (row["off_worst"] or {}).values()] or ["-"] * 3
        caught = f"{row['caught']} of {row['worlds']}"
        until = "-" if row["tokens_until"] is None else f"{row['tokens_until']:.0f}"
        lost = "-" if row["stake_lost"] is None else f"{row['stake_lost']} of {row['caught']}"
        cheats.add_row(way, caught, lost, until, str(row["off"]), str(row["off_called_wrong"]), *far)
    yield cheats


def main() -> int:
    """Measure and publish; whether an honest node was blamed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's, of Llama's family")
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48, help="of an answer at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", metavar="WORDS", default="", help="cheats whose names have these words in them")
    parser.add_argument("--proofs", action="store_true", help="look, too, which lies cost stake")
    options = parser.parse_args()
    found = asyncio.run(measured(options))
    for table in shown(found):
        Console(stderr=True, width=130).print(table)
    publish("false_answers", CLAIM, found)
    return 1 if any(row["called_wrong"] for row in found["honest"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
