"""The limit on open files is raised as far as the system lets a process, and never lowered."""

import subprocess
import sys

ASKED = """
import resource
from common.open_files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
for wanted in (32, 100, 4096, 100):
    print(raise_limit(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_it_is_raised_up_to_the_hard_one_and_never_lowered() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout == "64 64\n100 100\n512 512\n512 512\n"
