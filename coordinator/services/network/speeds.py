"""How quick nodes are: by their benchmarks, by rounds that they have done since this process began, and by what others show."""

from collections import defaultdict
from collections.abc import Mapping

from coordinator.domain.placement import COMPUTE_SHARE
from coordinator.domain.rounds.speed import Shown, observed

_NOTHING = Shown({})


class NodeSpeeds:
    """Of all nodes that have done rounds; what those that are known and here have shown is summed up where somebody asks."""

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}
        self._newest: dict[str, float] = {}  # Of the last round alone, in operations a second.
        self._showing: dict[str, str] = {}  # Nodes that are here and known, and their environment classes.
        self._shown: Shown | None = _NOTHING

    def timed(self, node: str, benchmark: float, operations: float, busy: float) -> None:
        """Learn from a round of so many ``operations``, which took ``busy`` seconds."""
        self._newest[node] = operations / busy
        self._speeds[node] = observed(self._speeds.get(node), benchmark, operations, busy, COMPUTE_SHARE)
        if node in self._showing:
            self._shown = None

    def shows(self, node: str, env_class: str, *, known: bool) -> None:
        """A node is here, and ``known`` now, or not: what it does says something of its class, or nothing."""
        if not known:
            self.left(node)
        elif self._showing.get(node) != env_class:
            self._showing[node] = env_class
            self._shown = None

    def left(self, node: str) -> None:
        """A node is not here."""
        if self._showing.pop(node, None) is not None:
            self._shown = None

    def sure(self, node: str, benchmark: float) -> float:
        """Operations a second that a node surely does: those of its last round, or of its benchmark."""
        surely = COMPUTE_SHARE * benchmark
        return min(surely, self._newest.get(node, surely))

    def planned(self, node: str, benchmark: float, env_class: str, *, known: bool) -> float:
        """What a node is planned with, in the unit of its benchmark; who is not ``known`` is believed as much as others show."""
        speed = self._speeds.get(node, benchmark)
        if known:
            return speed
        if self._shown is None:
            self._shown = Shown(self._of_classes())
        return self._shown.believed(speed, env_class)

    def _of_classes(self) -> Mapping[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for node, env_class in self._showing.items():
            if node in self._speeds:
                found[env_class].append(self._speeds[node])
        return found
