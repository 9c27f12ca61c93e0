"""The agent's executable: ``cottage node`` without the first word, and ``cottage ledger check``, which the window runs."""

import sys
from collections.abc import Sequence

from common.output import guarded
from desktop.agent.cli.cli import main as node


def main(words: Sequence[str]) -> int:
    """Run what the words say; the exit code."""
    if list(words[:2]) == ["ledger", "check"]:
        from coordinator.proof.cli import main as check  # The agent itself needs nothing of it.

        return check(words[2:])
    return node(words)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
