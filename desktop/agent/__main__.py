"""``python -m desktop.agent``: the same as ``cottage node``."""

import sys

from desktop.agent.cli.cli import main

if __name__ == "__main__":
    sys.exit(main())
