"""All lanes at full rate over a line with jitter, reordering, loss and duplicates: ``COTTAGE_SOAK_S`` says how long."""

import asyncio
import os
import sys
from dataclasses import asdict

from benchmarks.common import publish
from tests.testbed.homes import missing
from tests.transport.soak import LINE, problems, soak

SECONDS = float(os.environ.get("COTTAGE_SOAK_S", "60"))
MOST_GROWTH = 48 << 20
CLAIM = "every message arrives once and bit-identical; memory stays flat; control messages get through throughout"


def main() -> int:
    """Run it; returns the exit status."""
    if why_not := missing():
        print(f"no soak: {why_not}")
        return 0
    one, two = asyncio.run(soak(SECONDS))
    wrong = list(problems(one, two, MOST_GROWTH))
    figures = {"left": one.figures(SECONDS), "right": two.figures(SECONDS)}
    publish("soak", CLAIM, {"seconds": SECONDS, "line": asdict(LINE), "problems": wrong, **figures})
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
