"""``python -m desktop.agent``: the same as ``cottage node``."""

import sys

from common.output import guarded
from desktop.agent.cli.cli import main

if __name__ == "__main__":
    sys.exit(guarded(main))
