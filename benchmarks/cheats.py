"""What becomes of every kind of cheat, over many worlds of each; and how often honest nodes are harmed, which must be never.

    python benchmarks/cheats.py [--worlds 20] [--honest-audits 10000] [--only WORDS]

Real services on a virtual clock (``tests.cheats.catalogue``); figures are counts, so the machine's load does not matter. The
table gives, for each cheat, the rounds that it lived as measured beside what the formula of docs/TRUST.md says.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from _common import ROOT, publish

sys.path.insert(0, str(ROOT))  # Run as a program, only this folder is looked in.

from tests.cheats.catalogue import BREAKING, CATALOGUE, HONEST, Cheat, Fate, fate


def main() -> int:
    """Run everything, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=20, help="of each cheat")
    parser.add_argument("--honest-audits", type=int, default=10_000)
    parser.add_argument("--only", metavar="WORDS", default="", help="cheats whose names have these words in them")
    options = parser.parse_args()
    chosen = [cheat for cheat in CATALOGUE if options.only in cheat.name]
    rows = [asyncio.run(_row(cheat, options.worlds)) for cheat in chosen]
    honest = {world.name: asyncio.run(_honest(world, options.honest_audits)) for world in (HONEST, BREAKING)}
    print(_table(rows))
    for name, all_of_them in honest.items():
        audits, told = all_of_them["audits"], all_of_them["evaded"]
        lost = f"{all_of_them['slashed']} slashed, {all_of_them['banned']} sent away"
        print(f"{name}: {audits:,} audits, {told} of them not answered by machines that hung, {lost}")
    publish("cheats", "every cheat is caught, and no honest node is harmed", {"cheats": rows, "honest": honest})
    harmed = sum(row["honest_slashed"] + row["honest_banned"] for row in rows)
    harmed += sum(world["slashed"] + world["banned"] for world in honest.values())
    return 1 if harmed else 0


async def _row(cheat: Cheat, worlds: int) -> dict[str, Any]:
    fates = [await fate(cheat, seed) for seed in range(worlds)]
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


async def _honest(nobody: Cheat, audits: int) -> dict[str, int]:
    """Worlds without a cheat until so many audits are over."""
    seed, found = 1000, {"audits": 0, "evaded": 0, "slashed": 0, "banned": 0, "worlds": 0}
    while found["audits"] < audits:
        world = await fate(nobody, seed)
        found["evaded"] += world.honest_evaded
        found["audits"] += world.all_audits
        found["slashed"] += world.slashed + world.honest_slashed
        found["banned"] += world.banned + world.honest_banned
        found["worlds"] += 1
        seed += 1
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
