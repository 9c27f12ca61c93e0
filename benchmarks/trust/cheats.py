"""What becomes of every kind of cheat, over many worlds of each; and how often honest nodes are harmed, which must be never.

    python -m benchmarks.trust.cheats [--worlds 20] [--honest-audits 10000] [--only WORDS] [--workers 2]

Real services on a virtual clock (``tests.cheats``); figures are counts, so the machine's load does not matter. The first table
gives, for each cheat, the rounds that it lived as measured beside the formula of docs/explanation/trust.md; the second what
each plot is paid for work that it has not done, beside what honest nodes in as many seats are paid, where the operator looks.
"""

import argparse
import asyncio
import logging
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from typing import Any

from benchmarks.common import publish
from tests.cheats.catalogue import BREAKING, CATALOGUE, HONEST, Cheat, Fate, fate
from tests.cheats.gains import PLOTS, Gain, gain

CHEATS = {cheat.name: cheat for cheat in (*CATALOGUE, HONEST, BREAKING)}
PLANS = {plot.name: plot for plot in PLOTS}
AT_ONCE = 8  # Worlds without a cheat, before their audits are counted.
FIRST_HONEST = 1_000  # Seed of the first world without a cheat.
Spread = Callable[[Callable[[str, int], Any], str, Sequence[int]], Iterator[Any]]


def main() -> int:
    """Run everything, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=20, help="of each cheat")
    parser.add_argument("--honest-audits", type=int, default=10_000)
    parser.add_argument("--only", metavar="WORDS", default="", help="cheats whose names have these words in them")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args()
    seeds = range(options.worlds)
    with ProcessPoolExecutor(options.workers, initializer=logging.disable) as pool:

        def spread(play: Callable[[str, int], Any], name: str, seeds: Sequence[int]) -> Iterator[Any]:
            return pool.map(play, [name] * len(seeds), seeds)

        rows = [
            _row(cheat, list(spread(_fate, cheat.name, seeds))) for cheat in CATALOGUE if options.only in cheat.name
        ]
        print(_table(rows), flush=True)
        print(f"\n{GAINS_HEAD}", flush=True)
        plots = []
        for name in [name for name in PLANS if options.only in name]:
            plots.append(_gains(name, list(spread(_gain, name, seeds))))
            print(_gains_line(plots[-1]), flush=True)
        honest = {world.name: _honest(world, options.honest_audits, spread) for world in (HONEST, BREAKING)}
    for name, all_of_them in honest.items():
        audits, told = all_of_them["audits"], all_of_them["evaded"]
        lost = f"{all_of_them['slashed']} slashed, {all_of_them['banned']} sent away"
        print(f"{name}: {audits:,} audits, {told} of them not answered by machines that hung, {lost}")
    figures = {"cheats": rows, "plots": plots, "honest": honest}
    publish("cheats", "every cheat is caught, no plot pays, and no honest node is harmed", figures)
    harmed = sum(row["honest_slashed"] + row["honest_banned"] for row in (*rows, *plots))
    harmed += sum(world["slashed"] + world["banned"] for world in honest.values())
    return 1 if harmed else 0


GAINS_HEAD = """| strategy | unearned, of an honest node's pay | formula | cheats slashed | honest slashed | honest work paid |
|---|---|---|---|---|---|"""


def _fate(name: str, seed: int) -> Fate:
    return asyncio.run(fate(CHEATS[name], seed))


def _gain(name: str, seed: int) -> Gain:
    return asyncio.run(gain(PLANS[name], seed))


def _gains(name: str, worlds: Sequence[Gain]) -> dict[str, Any]:
    worked = sum(world.honest_worked for world in worlds)
    return {
        "plot": name,
        "worlds": len(worlds),
        "tried": sum(world.forged > 0 for world in worlds),
        "part": sum(world.unearned for world in worlds) / sum(world.place for world in worlds),
        "formula": PLANS[name].formula,
        "slashed": sum(world.slashed for world in worlds),
        "honest_slashed": sum(world.honest_slashed for world in worlds),
        "honest_banned": sum(world.honest_banned for world in worlds),
        "honest_paid": sum(world.honest_paid for world in worlds) / worked if worked else None,
        "looks": sum(world.looks for world in worlds),
    }


def _gains_line(row: dict[str, Any]) -> str:
    paid = "-" if row["honest_paid"] is None else f"{row['honest_paid']:.1%}"
    part, formula = f"{row['part']:.1%}", f"{row['formula']:.1%}"
    return f"| {row['plot']} | {part} | {formula} | {row['slashed']} | {row['honest_slashed']} | {paid} |"


def _row(cheat: Cheat, fates: Sequence[Fate]) -> dict[str, Any]:
    worlds = len(fates)
    caught = [world for world in fates if world.rounds is not None]
    rate = statistics.mean(world.rate for world in fates)
    return {
        "cheat": cheat.name,
        "worlds": worlds,
        "caught": len(caught),
        "rounds_measured": _lived(fates),
        "rounds_formula": cheat.rounds(round(rate)) if rate else None,
        "rate": rate / 1e6,
        "paid": statistics.mean(world.paid for world in fates),
        "paid_forged": sum(world.paid_forged for world in fates),
        "slashed": sum(world.slashed > 0 for world in caught),
        "sent_away": sum(world.banned for world in caught),
        "settled": sum(world.settled for world in fates),
        "audits_of_honest": sum(world.audits for world in fates),
        "honest_slashed": sum(world.honest_slashed > 0 for world in fates),
        "honest_banned": sum(world.honest_banned for world in fates),
    }


def _lived(fates: Sequence[Fate]) -> float | None:
    """Mean rounds until caught; whoever was not, lived all that there were: rounds per catch, which is what 1 / p estimates."""
    caught = sum(world.rounds is not None for world in fates)
    return sum(world.rounds or world.took_part for world in fates) / caught if caught else None


def _honest(nobody: Cheat, audits: int, spread: Spread) -> dict[str, int]:
    """Worlds without a cheat until so many audits are over."""
    found = {"audits": 0, "evaded": 0, "slashed": 0, "banned": 0, "worlds": 0}
    for first in count(FIRST_HONEST, AT_ONCE):
        for world in spread(_fate, nobody.name, range(first, first + AT_ONCE)):
            found["evaded"] += world.honest_evaded
            found["audits"] += world.all_audits
            found["slashed"] += world.slashed + world.honest_slashed
            found["banned"] += world.banned + world.honest_banned
            found["worlds"] += 1
        if found["audits"] >= audits:
            break
    return found


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = "| cheat | caught | rounds: measured | by the formula | paid for found rounds | stake lost | sent away |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row in rows:
        measured, formula = (_number(row[name]) for name in ("rounds_measured", "rounds_formula"))
        share = f"{row['caught']} of {row['worlds']}"
        lost = f"{row['slashed']} of {row['caught']}"
        away = f"{row['sent_away']} of {row['caught']}"
        lines.append(f"| {row['cheat']} | {share} | {measured} | {formula} | {row['paid_forged']} | {lost} | {away} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
