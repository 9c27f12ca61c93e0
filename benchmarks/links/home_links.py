"""Two homes exchange tensors at the speed of the slower line, directly or relayed, without spoiling the household's use of it.

Every figure is of processes in network namespaces joined by the test-bed's emulator; the peers do the same work in the same run.

    rates    a transfer over rate x round trip x loss: ours, stock aiortc, libdatachannel, iroh, TCP (cubic)
    relayed  the same through relays; iroh and TCP cannot be relayed here, and the document says why
    manners  what others in the household notice: round trips beside a transfer, TCP beside us, ourselves beside us, politeness
    cold     the first megabyte and the first hundred over a fresh link
    control  how long a small message takes while bulk saturates the line

Rates are payload that arrived, in Mbit/s, after the first ``--warm`` seconds and 20 round trips; "of goal" divides by what the
headers of 1,500-byte packets leave of the line (1404 of 1500 bytes), less the lost share. The others run at 50 ms,
with --all-peers in every cell: before it starts the program says for how long at most. What is finished is kept, and --resume
goes on from there.
"""

import argparse
import asyncio
import functools
import json
import secrets
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.common import FOLDER, publish
from benchmarks.links._kept import Figures, Kept
from tests.testbed.homes import Homes, Link, Nat, RelayProgram, homes, missing

HERE = Path(__file__).resolve().parent
RATES = (20, 100, 1000)
ROUND_TRIPS = (10, 50, 150)
LOSSES = (0.0, 0.001, 0.01, 0.03)
FAST_BUT_FAR_MS = 100  # A round trip for which the fastest rate has a goal of its own.
SYSTEMS = ("cottage", "aiortc", "libdatachannel", "iroh", "tcp")
PAYLOAD_SHARE = 1404 / 1500  # IPv4 20, UDP 8, DTLS 37, SCTP 12 and 16 bytes; user data a multiple of four.
CANNOT_BE_RELAYED = {
    "iroh": "it knows no TURN: its relays speak a protocol of their own over HTTPS, and its Python package brings no such server",
    "tcp": "the kernel's TCP cannot be relayed: through these NATs neither home can be reached, and nothing would forward it",
}
CONNECT_LIMIT_S = 40.0
COLD_LIMIT_S = 30.0
AROUND_S = 4.0  # Two processes start and connect, and end.
ROUNDS = 20  # Round trips before measuring, and as many more of measuring.
CRAWL_S = 2.0  # What loses and is no match for it changes little in the third second.
MEASURE = ("warm", "seconds", "settle", "share_seconds", "control_seconds")  # What is kept is of the same.
SHARE_RUNS, COLD_RUNS, CONTROL_RUNS = 8, 14, 12


@dataclass(frozen=True)
class Cell:
    """One link: Mbit/s, round trip in ms, share of packets lost."""

    rate: int
    rtt: int
    loss: float

    @property
    def name(self) -> str:
        return f"{self.rate}:{self.rtt}:{self.loss:g}"

    @property
    def goal(self) -> float:
        """What the headers leave of the line, Mbit/s."""
        return self.rate * PAYLOAD_SHARE * (1 - self.loss)

    def link(self) -> Link:
        """Each home has half of the delay; packets are lost on the way out."""
        return Link(up=self.rate * 1e6, down=self.rate * 1e6, rtt_ms=self.rtt, loss=self.loss)


class End:
    """One process of ``_endpoints.py``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.other: End | None = None
        self.ready = asyncio.Event()
        self._marks: asyncio.Queue[Figures] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    def tell(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(message) + "\n").encode())

    async def mark(self) -> Figures:
        self.tell(mark=True)
        return await asyncio.wait_for(self._marks.get(), 20)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "signal" in message and self.other is not None:
                self.other.tell(signal=message["signal"])
            elif "ready" in message:
                self.ready.set()
            elif "mark" in message:
                self._marks.put_nowait(message["mark"])

    async def end(self) -> None:
        if self._process.returncode is None:
            self.tell(end=True)
            try:
                await asyncio.wait_for(self._process.wait(), 3)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._reading.cancel()


@asynccontextmanager
async def transfer(
    bed: Homes, system: str, *, homes: tuple[int, int] = (1, 2), **options: Any
) -> AsyncIterator[tuple[End, End]]:
    """A connected sender in one home and receiver in another."""
    options["seeds"] = [secrets.token_hex(32), secrets.token_hex(32)]
    options["addresses"] = [bed.home(home).address for home in homes]
    ends = []
    try:
        for home, role in ((homes[1], "receive"), (homes[0], "send")):
            command = [sys.executable, str(HERE / "_endpoints.py"), system, role, json.dumps(options)]
            ends.append(End(await bed.home(home).start(command, limit=1 << 26)))
        receiver, sender = ends
        receiver.other, sender.other = sender, receiver
        await asyncio.wait_for(sender.ready.wait(), CONNECT_LIMIT_S)
        yield sender, receiver
    finally:
        for end in reversed(ends):
            await end.end()


def between(before: tuple[Figures, Figures], after: tuple[Figures, Figures]) -> Figures:
    """Rate and CPU of a stretch; the pairs are (sender, receiver)."""
    moved = after[1]["bytes"] - before[1]["bytes"]
    seconds = after[1]["time"] - before[1]["time"]
    figures: Figures = {"mbit_s": round(moved * 8e-6 / seconds, 2)}
    for side, name in ((0, "cpu_send"), (1, "cpu_receive")):
        cpu = after[side]["cpu"] - before[side]["cpu"]
        figures[name] = round(1e9 * cpu / moved, 2) if moved else None
    return figures


async def both(pair: tuple[End, End]) -> tuple[Figures, Figures]:
    sender, receiver = await asyncio.gather(*(end.mark() for end in pair))
    return sender, receiver


def spread(latencies: Iterable[float]) -> Figures:
    """Median and 99th percentile in ms."""
    ordered = sorted(1000 * value for value in latencies)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "median_ms": round(statistics.median(ordered), 2),
        "mean_ms": round(statistics.fmean(ordered), 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 2),
    }


class Bench:
    """The runs; each method is one part of the document."""

    def __init__(self, options: argparse.Namespace, kept: Kept, progress: Progress, console: Console) -> None:
        self._options = options
        self._kept = kept
        self._progress = progress
        self._console = console

    async def rate(self, bed: Homes, cell: Cell, system: str, **options: Any) -> Figures:
        """One transfer with round trips measured beside it."""
        warm, seconds = warm_of(self._options, cell), seconds_of(self._options, cell, system)
        try:
            async with AsyncExitStack() as stack:
                probe = None
                if not options.get("servers"):
                    probe, _ = await stack.enter_async_context(transfer(bed, "echo"))
                    await asyncio.sleep(0.6)
                    quiet = spread((await probe.mark())["latency"])
                pair = await stack.enter_async_context(transfer(bed, system, **options))
                start = await both(pair)
                pair[0].tell(go={"total": 0})
                await asyncio.sleep(warm)
                before = await both(pair)
                if probe is not None:
                    await probe.mark()
                await asyncio.sleep(seconds)
                after = await both(pair)
                figures = between(before, after)
                figures["from_start_mbit_s"] = between(start, after)["mbit_s"]
                figures["of_goal"] = round(figures["mbit_s"] / cell.goal, 3)
                if probe is not None:
                    loaded = spread((await probe.mark())["latency"])
                    if quiet["count"] and loaded["count"]:
                        figures["rtt_quiet_ms"], figures["rtt_loaded_ms"] = quiet["median_ms"], loaded["median_ms"]
                        figures["rtt_rise"] = round(loaded["median_ms"] / quiet["median_ms"] - 1, 3)
                        figures["rtt_rise_mean"] = round(loaded["mean_ms"] / quiet["mean_ms"] - 1, 3)
                if system == "cottage":
                    figures["stats"] = after[0].get("stats", {})
                return figures
        except (TimeoutError, ConnectionError) as error:
            return {"mbit_s": 0.0, "of_goal": 0.0, "failed": f"{type(error).__name__}: {error}"}

    async def rates(self, cells: list[Cell]) -> Figures:
        """Direct transfers."""
        rows: Figures = {}
        job = self._progress.add_task("rates", total=len(runs(self._options, cells)))
        async with homes(2, nat=Nat.NONE, link=cells[0].link(), relays=0) as bed:
            for cell, system in runs(self._options, cells):
                for home in (1, 2):
                    bed.set_link(home, cell.link())
                measure = functools.partial(self.rate, bed, cell, system)
                rows.setdefault(cell.name, {})[system] = await self._keep("rates", f"{cell.name} {system}", measure)
                self._progress.advance(job)
        return rows

    async def relayed(self, cells: list[Cell]) -> Figures:
        """Through a relay that both sides must use: neither NAT lets a stranger in."""
        rows: Figures = {
            "cannot": {name: why for name, why in CANNOT_BE_RELAYED.items() if name in self._options.systems}
        }
        cells = [cell for cell in cells if str(cell.rate) in self._options.relayed_rates.split(",")]
        job = self._progress.add_task("relayed", total=len(relayed_runs(self._options, cells)))
        async with homes(2, nat=Nat.SYMMETRIC, link=cells[0].link(), program=RelayProgram.COTTAGE) as bed:
            for cell, system in relayed_runs(self._options, cells):
                for home in (1, 2):
                    bed.set_link(home, cell.link())
                server = bed.relay.servers("udp")[-1]
                servers = [(server.url, server.username, server.credential)]
                measure = functools.partial(self.rate, bed, cell, system, servers=servers)
                rows.setdefault(cell.name, {})[system] = await self._keep("relayed", f"{cell.name} {system}", measure)
                self._progress.advance(job)
        return rows

    async def _keep(self, part: str, name: str, measure: Callable[[], Awaitable[Figures]]) -> Figures:
        """Measure, or take what an earlier run measured, and tell."""
        figures, taken = await self._kept.get(part, name, measure)
        shown = {name: value for name, value in figures.items() if name != "stats"}
        self._console.print(f"{part} {name}{' (kept)' if taken else ''}: {shown}")
        return figures

    async def manners(self) -> Figures:
        """Beside TCP, beside ourselves, and politely."""
        rows: Figures = {}
        cell = Cell(100, 50, 0.0)
        job = self._progress.add_task("manners", total=SHARE_RUNS)

        async def share(name: str, *systems: str, **options: Any) -> None:
            measure = functools.partial(self._share, bed, list(systems), **options)
            rows[name] = await self._keep("manners", name, measure)
            self._progress.advance(job)

        async with homes(2, nat=Nat.NONE, link=cell.link(), relays=0) as bed:
            for rtt in (20, 50):
                for home in (1, 2):
                    bed.set_link(home, Cell(100, rtt, 0.0).link())
                await share(f"beside_tcp_{rtt}ms", "cottage", "tcp")
                await share(f"polite_beside_tcp_{rtt}ms", "cottage", "tcp", polite=True)
            for flows in (2, 4, 8):
                await share(f"itself_{flows}", *["cottage"] * flows)
            alone = functools.partial(self.rate, bed, cell, "cottage", polite=True)
            rows["polite_alone"] = await self._keep("manners", "polite_alone", alone)
            self._progress.advance(job)
        return rows

    async def _share(self, bed: Homes, systems: list[str], **options: Any) -> Figures:
        """Several transfers at once; each one's share of what they move together, and Jain's index."""
        async with AsyncExitStack() as stack:
            pairs = [await stack.enter_async_context(transfer(bed, system, **options)) for system in systems]
            for pair in pairs:
                pair[0].tell(go={"total": 0})
                await asyncio.sleep(1.0)
            await asyncio.sleep(self._options.settle)
            before = [await both(pair) for pair in pairs]
            await asyncio.sleep(self._options.share_seconds)
            after = [await both(pair) for pair in pairs]
        rates = [between(*marks)["mbit_s"] for marks in zip(before, after, strict=True)]
        total = sum(rates)
        return {
            "mbit_s": rates,
            "share": [round(rate / total, 3) for rate in rates],
            "total": round(total, 2),
            "jain": round(total**2 / (len(rates) * sum(rate**2 for rate in rates)), 4),
        }

    async def cold(self) -> Figures:
        """From the connected link's first byte until the last has arrived."""
        rows: Figures = {}
        cells = [Cell(20, 50, 0.0), Cell(100, 50, 0.0), Cell(100, 50, 0.01), Cell(1000, 50, 0.0)]
        async with homes(2, nat=Nat.NONE, link=cells[0].link(), relays=0) as bed:
            for cell in cells:
                for home in (1, 2):
                    bed.set_link(home, cell.link())
                for megabytes in (1, 100):
                    if megabytes * 8 > 20 * cell.rate:
                        continue
                    for system in ("cottage", "tcp"):
                        name = f"{cell.name} {megabytes} MB {system}"
                        measure = functools.partial(self._cold, bed, cell, system, megabytes)
                        rows[name] = await self._keep("cold", name, measure)
        return rows

    async def _cold(self, bed: Homes, cell: Cell, system: str, megabytes: int) -> Figures:
        total = megabytes << 20
        async with transfer(bed, system) as (sender, receiver):
            await asyncio.sleep(0.5)
            began = (await receiver.mark())["time"]
            sender.tell(go={"total": total})
            mark = await receiver.mark()
            while mark["bytes"] < total:
                if mark["time"] - began > COLD_LIMIT_S:
                    return {"failed": f"{mark['bytes'] >> 20} MB in {COLD_LIMIT_S:.0f} s"}
                await asyncio.sleep(0.002)
                mark = await receiver.mark()
        seconds = mark["time"] - began
        least = total * 8e-6 / (cell.rate * PAYLOAD_SHARE) + cell.rtt / 2000
        return {"seconds": round(seconds, 3), "least": round(least, 3), "times_least": round(seconds / least, 2)}

    async def control(self) -> Figures:
        """Small messages while bulk saturates the line: until they are confirmed, and how long they took to arrive.

        Beside them the same over a line of two others that is idle. What those take above a round trip is this machine's: both
        ends, the emulator and the scheduler.
        """
        rows: Figures = {}
        cells = [Cell(rate, rtt, loss) for rate in (20, 100, 1000) for rtt in (10, 50) for loss in (0.0, 0.01)]
        job = self._progress.add_task("control", total=len(cells))
        async with homes(4, nat=Nat.NONE, link=cells[0].link(), relays=0) as bed:
            for cell in cells:
                for home in (1, 2, 3, 4):
                    bed.set_link(home, cell.link())
                measure = functools.partial(self._control, bed, cell)
                rows[cell.name] = await self._keep("control", cell.name, measure)
                self._progress.advance(job)
        return rows

    async def _control(self, bed: Homes, cell: Cell) -> Figures:
        async with (
            transfer(bed, "cottage", control=True) as pair,
            transfer(bed, "cottage", homes=(3, 4), control=True) as idle,
        ):
            pair[0].tell(go={"total": 0})
            idle[0].tell(go={"total": 1})
            await asyncio.sleep(warm_of(self._options, cell))
            await both(pair)
            await both(idle)
            await asyncio.sleep(self._options.control_seconds)
            loaded, quiet = await both(pair), await both(idle)
        figures = _small_messages(loaded, cell)
        figures["idle"] = _small_messages(quiet, cell)
        return figures


def _small_messages(marks: tuple[Figures, Figures], cell: Cell) -> Figures:
    """Until confirmed, as the sender saw it, and until arrived: both ends are processes of one machine and read one clock."""
    confirmed, arrived = (spread(mark["latency"]) for mark in marks)
    for each in (confirmed, arrived):
        each["p99_rtts"] = round(each.get("p99_ms", 0) / cell.rtt, 2)
    return {**confirmed, "arrived": arrived}


def runs(options: argparse.Namespace, cells: list[Cell]) -> list[tuple[Cell, str]]:
    """Which system is measured on which link: ours on all, the others where they are wanted."""
    beside = [cell for cell in cells if options.peers_at in ("all", str(cell.rtt))]
    return [(cell, system) for cell in cells for system in options.systems if system == "cottage" or cell in beside]


def relayed_runs(options: argparse.Namespace, cells: list[Cell]) -> list[tuple[Cell, str]]:
    """The same through relays."""
    return [(cell, system) for cell, system in runs(options, cells) if system not in CANNOT_BE_RELAYED]


def seconds_of(options: argparse.Namespace, cell: Cell, system: str) -> float:
    """How long a transfer is measured: where losses make the others crawl, not as long."""
    crawls = system != "cottage" and cell.loss > 0
    return min(CRAWL_S, options.seconds) if crawls else float(options.seconds) + ROUNDS * cell.rtt / 1000


def warm_of(options: argparse.Namespace, cell: Cell) -> float:
    """How long a transfer runs before it is measured: start-ups take round trips, and "cold" measures them."""
    return float(options.warm) + ROUNDS * cell.rtt / 1000


def longest(options: argparse.Namespace) -> float:
    """Seconds that the whole run takes at most, but for connections that fail (each up to ``CONNECT_LIMIT_S``)."""
    transfers = sum(
        AROUND_S + warm_of(options, cell) + seconds_of(options, cell, system)
        for part, chosen in (("rates", runs), ("relayed", relayed_runs))
        if part in options.only
        for cell, system in chosen(options, options.cells)
    )
    rest = {
        "manners": SHARE_RUNS * (AROUND_S + 8 + options.settle + options.share_seconds),
        "cold": COLD_RUNS * COLD_LIMIT_S,
        "control": CONTROL_RUNS * (2 * AROUND_S + options.warm + 1 + options.control_seconds),
    }
    return float(transfers + sum(seconds for part, seconds in rest.items() if part in options.only))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", default="rates,relayed,manners,cold,control", help="parts, separated by commas")
    parser.add_argument("--cells", default="all", help="all, quick, or RATE:RTT:LOSS,...")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--peers-at", default="50", help="round trip in ms at which the others run, too, or all")
    parser.add_argument("--all-peers", action="store_true", help="the others in every cell, directly and relayed")
    parser.add_argument("--resume", action="store_true", help="keep what a run that was broken off has finished")
    parser.add_argument("--relayed-rates", default="20,100,1000", help="Mbit/s at which relays are measured")
    parser.add_argument("--warm", type=float, default=2.0, help="seconds before measuring")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds measured")
    parser.add_argument("--control-seconds", type=float, default=10.0, help="seconds of small messages beside bulk")
    parser.add_argument("--settle", type=float, default=6.0, help="seconds before shares are measured")
    parser.add_argument("--share-seconds", type=float, default=15.0)
    options = parser.parse_args()
    options.only = options.only.split(",")
    options.systems = options.systems.split(",")
    if options.all_peers:
        options.peers_at = "all"
    if options.cells == "all":
        options.cells = [Cell(rate, rtt, loss) for rate in RATES for rtt in ROUND_TRIPS for loss in LOSSES]
        options.cells += [Cell(RATES[-1], FAST_BUT_FAR_MS, loss) for loss in LOSSES]
    elif options.cells == "quick":
        options.cells = [Cell(rate, 50, loss) for rate in (20, 100) for loss in (0.0, 0.01)]
    else:
        options.cells = [
            Cell(int(rate), int(rtt), float(loss))
            for rate, rtt, loss in (cell.split(":") for cell in options.cells.split(","))
        ]
    return options


async def main(options: argparse.Namespace) -> None:
    """Run the parts and write the document."""
    console = Console(stderr=True)
    settings = {name: getattr(options, name) for name in MEASURE}
    kept = Kept(FOLDER / "home_links.partial.json", settings, resume=options.resume)
    console.print(f"This takes at most {longest(options) / 60:.0f} minutes.")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        bench = Bench(options, kept, progress, console)
        parts = {
            "rates": lambda: bench.rates(options.cells),
            "relayed": lambda: bench.relayed(options.cells),
            "manners": bench.manners,
            "cold": bench.cold,
            "control": bench.control,
        }
        document: Figures = {}
        for name in options.only:
            document[name] = await parts[name]()
    document["kept_from_a_run_before"] = kept.taken
    publish("home_links", str(__doc__).splitlines()[0], document)
    kept.forget()


if __name__ == "__main__":
    if why := missing():
        sys.exit(f"This benchmark needs the test-bed: {why}")
    asyncio.run(main(parse()))
