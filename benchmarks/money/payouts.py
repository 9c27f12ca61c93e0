"""100,000 payouts through a ledger that forks and an endpoint that fails, with crashes of the service at any wait.

Every storm is one seed: jobs that are paid round by round by the real service, over its real store, on the real embedded ledger.
After every step it is checked on the ledger itself that nothing has appeared or vanished and nobody has more than was earned,
and at the end that everybody has exactly that. The first untruth ends it.

    python -m benchmarks.money.payouts                      # 100,000 payouts, minutes of one processor; build/bench/payouts.json
    python -m benchmarks.money.payouts --payouts 2000 --seed 7
    python -m benchmarks.money.payouts --every-wait         # kill -9 at each of the waits of one settlement, one by one
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import publish
from tests.money.faulty import Weather
from tests.money.killed import kill_at_waits
from tests.money.storm import Size, Tally, storm

SIZE = Size(jobs=2, payees=50, rounds=40)  # About 4,000 payouts a storm, so that steps before the first are few.
ROUGH = Weather(
    lost_question=0.05,
    lost_answer=0.08,
    too_many=0.05,
    garbage=0.02,
    held=0.25,
    wrong_height=0.3,
    behind=0.1,
    fork=0.03,
)
CLAIM = "100,000 payouts in bad weather: nothing is paid twice, nothing is lost, and it sums to zero after every step"
COUNTS = ("payouts", "transactions", "crashes", "checks", "questions")
CRASHES = 0.2  # Of the turns of the service end at one of its waits.


def main(argv: Sequence[str] | None = None) -> int:
    """Storm after storm until there were as many payouts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.money.payouts", description=__doc__)
    parser.add_argument("--payouts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first storm")
    parser.add_argument(
        "--every-wait", action="store_true", help="instead: kill -9 at each wait of one settlement, one by one"
    )
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # Connections that break off are what is measured here.
    if options.every_wait:
        with tempfile.TemporaryDirectory() as folder:
            found = kill_at_waits(Path(folder), every=1)
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    total, faults, seed = Tally(), Counter[str](), options.seed
    began, worked = time.monotonic(), time.process_time()
    while total.payouts < options.payouts:
        one = asyncio.run(storm(seed, SIZE, ROUGH, CRASHES))
        seed += 1
        for name in COUNTS:
            setattr(total, name, getattr(total, name) + getattr(one, name))
        faults.update(one.faults)
    publish("payouts", CLAIM, figures(total, faults, began, worked))
    return 0


def figures(total: Tally, faults: Counter[str], began: float, worked: float) -> dict[str, object]:
    """What came of all storms; a payment made twice or lost would have ended them."""
    counted = {name: getattr(total, name) for name in COUNTS}
    seconds = {
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(time.process_time() - worked, 1),
    }
    return {**counted, "faults": dict(faults), **seconds}


if __name__ == "__main__":
    raise SystemExit(main())
