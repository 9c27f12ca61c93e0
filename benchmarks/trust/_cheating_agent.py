"""``cottage node`` on the machine of somebody who cheats: the usual agent, with ``_cheating_worker.py`` for the trainer."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cottage.demo import lying_node

if __name__ == "__main__":
    sys.exit(lying_node.main([str(Path(__file__).with_name("_cheating_worker.py"))]))
