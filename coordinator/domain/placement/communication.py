"""The time that a synchronous step spends on links: the objective of decentralised training schedulers before periods and codecs.

``cost = slowest stage's exchange of gradients / period + 2 x sum over neighbouring stages of their slowest link``: every step
waits for all replicas at each hop, forward and back. With ``period`` 1 and bytes of full precision it is DT-FM's, to the digit;
a longer period and fewer bytes show what compression does to the best plan.

Source: Yuan et al., arXiv 2206.01288, sections 3.1 and 3.2 (data-parallel and pipeline cost).
"""

from collections.abc import Sequence

import msgspec

Matrix = Sequence[Sequence[float]]


class StepTraffic(msgspec.Struct, frozen=True):
    """What a step moves.

    Attributes:
        gradient_bytes: of one stage's parameters; each replica sends 1/replicas of them to every other, twice.
        activation_bytes: one way over a boundary for the whole batch of a replica.
        period: steps between two exchanges.
    """

    gradient_bytes: float
    activation_bytes: float
    period: float = 1.0


class Communication:
    """Seconds of a step on links, for nodes on ``stages x replicas`` seats; place ``stage * replicas + replica``.

    Implements ``search.Objective``. A swap costs O(replicas).
    """

    def __init__(
        self, latency: Matrix, rate: Matrix, traffic: StepTraffic, places: Sequence[int], replicas: int
    ) -> None:
        """Nodes by index; every place is a seat.

        Args:
            latency: seconds one way between two nodes.
            rate: bytes a second between two nodes.
            places: node of each place.
        """
        count = len(places)
        part = traffic.gradient_bytes / replicas
        self._link = [
            [_seconds(latency[a][b], rate[a][b], traffic.activation_bytes) if a != b else 0.0 for b in range(count)]
            for a in range(count)
        ]
        self._exchange = [
            [2 * _seconds(latency[a][b], rate[a][b], part) / traffic.period if a != b else 0.0 for b in range(count)]
            for a in range(count)
        ]
        self.places, self.seats, self._replicas = list(places), count, replicas
        self._stages = count // replicas
        self._group = [0.0] * self._stages
        self._hop = [0.0] * max(0, self._stages - 1)
        for stage in range(self._stages):
            self._measure(stage)
        for stage in range(self._stages - 1):
            self._measure_hop(stage)

    def cost(self) -> float:
        """Seconds a step."""
        return max(self._group) + 2 * sum(self._hop)

    def parts(self) -> tuple[float, float]:
        """Seconds a step of exchange and of pipelines."""
        return max(self._group), 2 * sum(self._hop)

    def swap(self, one: int, other: int) -> float:
        """Exchange two nodes; the cost after it."""
        self.places[one], self.places[other] = self.places[other], self.places[one]
        stages = {one // self._replicas, other // self._replicas}
        if len(stages) == 2:
            for stage in stages:
                self._measure(stage)
        for hop in {stage + side for stage in stages for side in (-1, 0)}:
            if 0 <= hop < self._stages - 1:
                self._measure_hop(hop)
        return self.cost()

    def weak(self) -> list[int]:
        """The slowest stage's members, and both ends of the slowest hop's slowest link."""
        slowest = max(range(self._stages), key=self._group.__getitem__)
        found = list(range(slowest * self._replicas, (slowest + 1) * self._replicas))
        if self._hop:
            hop = max(range(self._stages - 1), key=self._hop.__getitem__)
            replica = max(range(self._replicas), key=lambda r: self._link_at(hop, r))
            found += [hop * self._replicas + replica, (hop + 1) * self._replicas + replica]
        return found

    def idle(self, one: int, other: int) -> bool:
        """Only a swap of a place with itself changes nothing."""
        return one == other

    def _measure(self, stage: int) -> None:
        members = self.places[stage * self._replicas : (stage + 1) * self._replicas]
        rows = [self._exchange[node] for node in members]
        self._group[stage] = max(sum([row[other] for other in members]) for row in rows)

    def _measure_hop(self, stage: int) -> None:
        at = stage * self._replicas
        upper, lower = self.places[at : at + self._replicas], self.places[at + self._replicas : at + 2 * self._replicas]
        link = self._link
        self._hop[stage] = max([link[a][b] for a, b in zip(upper, lower, strict=True)])

    def _link_at(self, hop: int, replica: int) -> float:
        at = hop * self._replicas + replica
        return self._link[self.places[at]][self.places[at + self._replicas]]


def _seconds(latency: float, rate: float, size: float) -> float:
    return latency + size / rate
