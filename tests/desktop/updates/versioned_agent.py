"""A version of the agent in a folder of versions: ``versioned_agent.py VERSION PROGRAM URL KEY run --home ...``.

The program believes that it is a bundle; everything else is the real thing, but the worker.
"""

import sys

from desktop.agent.app import service
from desktop.agent.cli import cli
from desktop.agent.updates.release import Release


def main() -> int:
    version, program, url, key = sys.argv[1:5]
    sys.frozen, sys.executable = True, program  # type: ignore[attr-defined]
    sys.argv[1:5] = []
    release = Release(version, key, url)
    service.this_release, service.version = lambda: release, lambda: version  # type: ignore[attr-defined]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
