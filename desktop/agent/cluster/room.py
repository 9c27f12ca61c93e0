"""Whether the cluster has room for this agent's workers: what other workloads leave, and give back again."""

import math
import time
from collections.abc import Iterable

from desktop.agent.lending.facts import Facts


class ClusterRoom:
    """What is known of it. ``why``: there is none, in words; empty: there is."""

    def __init__(self) -> None:
        self.why = ""

    def read(self, at: float, busy: bool, jobs: Iterable[int] = ()) -> Facts:
        """As sensors say what an owner's computer does: nobody sits at a cluster, and it steps aside for what comes before it."""
        return Facts(at, time.localtime(at).tm_gmtoff, idle_s=math.inf, busy=busy, no_room=self.why)
