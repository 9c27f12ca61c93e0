"""``python -m trainer`` on a machine that cheats: an environment class of its own, a claimed speed, and no audit done.

What it sends is up to ``--lie``. Whoever owns a machine can change what runs there, so this changes it where it runs.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cottage.demo import lying_worker
from protocol.task import AuditReport
from trainer.audit import environment, replay
from trainer.worker import worker

CLASS = "invented"
BOAST = 4.0  # Times its speed: quick nodes are seated first.
_measured = environment.bench


def bench(threads: int, device: str) -> dict[str, Any]:
    """Say more than was measured."""
    found = _measured(threads, device)
    return {**found, "flops": BOAST * found["flops"], "env_class": CLASS}


def approve(_auditor: replay.OpeningReplayer, command: Any, _opening: bytes) -> AuditReport:
    """Find right whatever is to be run again: it may be a friend's."""
    return AuditReport(getattr(command, "replay", command).audit, "match")


if __name__ == "__main__":
    environment.bench = bench
    worker.env_class = lambda _threads, _device: CLASS  # type: ignore[attr-defined]
    for way in ("judge", "judge_across", "judge_outer"):
        setattr(replay.OpeningReplayer, way, approve)
    sys.exit(lying_worker.main(sys.argv[1:]))
