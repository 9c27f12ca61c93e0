"""A million hostile messages at the parsers that read strangers' bytes, within a bound of memory.

    python -m benchmarks.hostile.hostile_wire                # 1,000,000 cases, two minutes of one processor
    python -m benchmarks.hostile.hostile_wire --cases 20000

Control messages (MessagePack), documents (JSON), frames, STUN answers and descriptions of links. Each case must end with the one
error that its parser promises, or with a message that its own encoding gives back. Writes build/bench/hostile_wire.json.
"""

import argparse
import sys
import time

from benchmarks.common import publish
from tests.protocol.storm import WireStorm, peak_mb

FIRST = 20_000  # Cases after which the memory is what it should remain.
MAX_GROWTH_MB = 16.0  # The largest message has 1 MB; a parser may hold some of them at once.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began, storm = time.process_time(), WireStorm(options.seed)
    storm.run(min(FIRST, options.cases))
    before = peak_mb()
    storm.run(options.cases - min(FIRST, options.cases))
    grown = peak_mb() - before
    publish(
        "hostile_wire",
        "hostile messages: one typed error each, memory bounded",
        {
            "cases": sum(storm.ends.values()),
            "ends": dict(storm.ends.most_common()),
            "peak_mb": round(peak_mb(), 1),
            "grown_mb": round(grown, 1),
            "max_growth_mb": MAX_GROWTH_MB,
            "seed": options.seed,
            "cpu_seconds": round(time.process_time() - began, 1),
        },
    )
    if grown > MAX_GROWTH_MB:
        sys.exit(f"memory grew by {grown:.1f} MB: at most {MAX_GROWTH_MB:.0f} are due")


if __name__ == "__main__":
    main()
