"""A job's curve in a tracker of the submitter's own, MLflow or Weights & Biases: rounds go there as they come.

The tracker's library runs in a process of its own (``python -m coordinator.client.tracking``) with the submitter's environment.
What keeps it waiting keeps nobody else waiting, what it prints is not on the screen, and its keys never reach the coordinator.
"""

from coordinator.client.tracking.follow import track
from coordinator.client.tracking.target import TrackerError

__all__ = ["TrackerError", "track"]
