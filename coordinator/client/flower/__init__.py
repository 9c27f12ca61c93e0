"""Flower's apps over array jobs: a ``Grid`` whose clients are elements, and the program that runs one in its container.

Flower is the user's own to install, and no part of Cottage: whoever imports this room needs it. What belongs to array jobs
themselves is in ``coordinator.client.arrays``.
"""

from coordinator.client.flower.grid import FLOWER, CottageGrid, Partition, run_app

__all__ = ["FLOWER", "CottageGrid", "Partition", "run_app"]
