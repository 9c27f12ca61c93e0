"""Memory that computing has freed goes back to the system."""

import subprocess
import sys

import pytest

from trainer import malloc_trim

HELD = """
import torch
from trainer.malloc_trim import trim

def held():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

kept = []
blocks = []
for _ in range(2000):  # Small enough to lie in the heap, with something between them that stays.
    blocks.append(torch.ones(25_000))
    kept.append(torch.ones(10))
full = held()
blocks.clear()
freed = held()
trim()
print(full, freed, held())
"""


@pytest.mark.skipif(malloc_trim._TRIM is None, reason="the C library has no malloc_trim")
def test_what_was_freed_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True).stdout
    full, freed, after = map(int, said.split())
    assert freed > full - 50_000_000, "the C library gives it back by itself: nothing to do here any more"
    assert after < freed - 150_000_000


def test_where_the_library_cannot_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malloc_trim, "_TRIM", None)
    malloc_trim.trim()
