"""Jobs in cells under coordinators and a PostgreSQL that are killed: is anything lost, or paid twice, and who waits how long?

    python -m benchmarks.upkeep.cell_storm [--kills 100] [--crashes 15]

Three coordinators of one PostgreSQL carry three cells. Three jobs run at a time on real nodes, with real money of the embedded
ledger, and another one begins whenever one ends. Coordinators are killed with -9; for each two of these one is frozen, or cut
off from the database, until others carry its cells, or ended. PostgreSQL is killed with -9 and started again. Instants and order
are by lot; some strikes come together. Afterwards it is looked at every job, wallet and escrow. Writes
``build/bench/cell_storm.json``; the exit code is 1 where something is wrong. Fewer strikes take less time: some 12 s each, and as
much as a job takes at the end.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.common import publish
from tests.chaos.cells import CellStorm, planned, seconds_by_manner
from tests.chaos.checks import Losses, losses
from tests.chaos.storm import Outcome
from tests.chaos.test_cells import SMALL


async def storm(options: argparse.Namespace, folder: Path, progress: Progress) -> dict[str, Any]:
    """The figures of one storm."""
    plan = planned(options.seed, options.kills, options.crashes)
    weather = replace(SMALL, seed=options.seed, rounds=options.rounds)
    strikes = progress.add_task("strikes", total=len(plan), more="the network starts")

    def told(storm: CellStorm) -> None:
        more = f"{storm.over} of {len(storm.handed_in)} jobs have ended"
        progress.update(strikes, completed=len(storm.struck), more=more)

    async with CellStorm(folder, weather, plan=plan, told=told) as run:
        began, load = time.monotonic(), os.getloadavg()[0]
        outcomes = await run.jobs_to_the_end()
        seconds = time.monotonic() - began
        loads = [round(one, 1) for one in (load, os.getloadavg()[2])]
        progress.update(strikes, more="the books are looked at")
        return figures(run, outcomes, await losses(run, outcomes)) | {"seconds": round(seconds), "load": loads}


def figures(run: CellStorm, outcomes: Sequence[Outcome], found: Losses) -> dict[str, Any]:
    """What there was, and what is wrong."""
    alone = [one.seconds for one in run.struck if not one.together and one.cells]
    done = [one for outcome in outcomes for one in outcome.complete() if one.tokens]
    return {
        "strikes": len(run.struck),
        "by_manner": seconds_by_manner(run.struck),
        "all_cells_served_median_s": round(statistics.median(alone), 2) if alone else None,
        "all_cells_served_longest_s": round(max(one.seconds for one in run.struck), 2),
        "jobs": len(outcomes),
        "jobs_of_cells": dict(sorted(run.cells_of_jobs().items())),
        "rounds": len(done),
        "audits": dict(Counter(audit.state for outcome in outcomes for audit in outcome.audits)),
        "payments": sum(commit.state == "verified" for outcome in outcomes for commit in outcome.commits),
        "jobs_lost": len(found.jobs),
        "rounds_lost_or_done_again": len(found.rounds),
        "nodes_punished": len(found.punished),
        "paid_twice": len(found.twice),
        "paid_too_little": len(found.short),
        "sums_that_are_wrong": len(found.sums),
        "wrong": found.every(),
    }


def main(arguments: list[str]) -> int:
    """Run, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of coordinators, with -9 (%(default)s)")
    parser.add_argument("--crashes", type=int, default=15, help="of PostgreSQL (%(default)s)")
    parser.add_argument("--rounds", type=int, default=SMALL.rounds, help="of each job (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of instants and order (%(default)s)")
    parser.add_argument("--folder", type=Path, help="a new one, for what all say (a temporary one)")
    options = parser.parse_args(arguments)
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory() as place,
        Progress(*shown, TextColumn("{task.fields[more]}"), console=Console(stderr=True)) as bar,
    ):
        found = asyncio.run(storm(options, options.folder or Path(place) / "network", bar))
    publish("cell_storm", "jobs in cells survive their coordinators and their database", found)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
