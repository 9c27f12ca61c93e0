"""``small_demo`` whose coordinator keeps its files in the bucket that ``COTTAGE_TEST_STORE`` names."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cottage.demo.network import DemoNetwork
from tests.e2e import small_demo

_as_it_is = DemoNetwork._coordinator_arguments


def _on_a_bucket(network: DemoNetwork, folder: Path, ready: Path, port: int) -> Sequence[str]:
    """In place of ``DemoNetwork._coordinator_arguments``."""
    return [*_as_it_is(network, folder, ready, port), "--store", os.environ["COTTAGE_TEST_STORE"]]


DemoNetwork._coordinator_arguments = _on_a_bucket  # type: ignore[method-assign]
if __name__ == "__main__":
    sys.exit(small_demo.main(["demo", *sys.argv[1:]]))
