"""``cottage serve``, except that it draws nobody's commitments: for tests in which somebody else has to look."""

import sys

from coordinator.domain.audits import rate
from cottage.cli import main


def never(standing: rate.NodeStanding, exposure: rate.Exposure | None, floor: int = rate.FLOOR) -> int:
    """In place of ``rate.rate``."""
    return 0


rate.rate = never
sys.exit(main(["serve", *sys.argv[1:]]))
