"""The five networks of DT-FM: 64 machines, 8 stages x 8 replicas, latency and bandwidth as published, and what it minimises.

``cost = slowest stage's exchange of gradients / period + 2 x sum over neighbouring stages of their slowest link``: every step
waits for all replicas at each hop, forward and back. With ``period`` 1 and bytes of full precision it is DT-FM's, to the digit;
a longer period and fewer bytes show what compression does to the best plan. The product's own cost is that of rounds.

Source: Yuan et al., arXiv 2206.01288, sections 3.1, 3.2 and 5, and its repository (DS3Lab/DT-FM, MIT).
"""

from collections.abc import Sequence
from itertools import combinations

import msgspec

from coordinator.domain.placement.search import anneal
from coordinator.domain.placement.start import gather, pipelines_inside

NODES, STAGES, REPLICAS = 64, 8, 8
GIGABYTE = 1e9  # The published evaluator divides gigabytes by gigabits without a word on 1024: so do we.
GRADIENTS = 1.3 * 4 * 3 / 24  # GB: 1.3 billion parameters in 24 layers, 3 a stage, 4 bytes.
ACTIVATIONS = 2024 * 2048 * 2 * (1.25e5 / 2048) / 2**30  # GB of a batch over one boundary.
PUBLISHED = (3.440, 49.504, 16.087, 34.802, 49.219)
"""Seconds of communication a step that DT-FM's own search (18 to 24 CPU seconds) finds."""
NAMES = ("data centre", "spot", "two universities", "regions of one country", "worldwide")

_REGIONAL = {
    ("Virginia", "Oregon"): (67, 1.15),
    ("Virginia", "California"): (59, 1.05),
    ("Virginia", "Ohio"): (11, 1.12),
    ("Oregon", "California"): (12, 1.25),
    ("Oregon", "Ohio"): (49, 1.10),
    ("California", "Ohio"): (52, 1.02),
}
WORLD = {
    ("Oregon", "Virginia"): (67, 0.79),
    ("Oregon", "Ohio"): (49, 1.10),
    ("Oregon", "Tokyo"): (96, 0.523),
    ("Oregon", "Seoul"): (124, 0.46),
    ("Oregon", "London"): (136, 0.42),
    ("Oregon", "Frankfurt"): (143, 0.404),
    ("Oregon", "Ireland"): (124, 0.482),
    ("Virginia", "Ohio"): (11, 1.12),
    ("Virginia", "Tokyo"): (143, 0.524),
    ("Virginia", "Seoul"): (172, 0.500),
    ("Virginia", "London"): (76, 1.16),
    ("Virginia", "Frankfurt"): (90, 1.02),
    ("Virginia", "Ireland"): (67, 1.05),
    ("Ohio", "Tokyo"): (130, 0.694),
    ("Ohio", "Seoul"): (159, 0.529),
    ("Ohio", "London"): (86, 1.05),
    ("Ohio", "Frankfurt"): (99, 0.799),
    ("Ohio", "Ireland"): (77, 1.14),
    ("Tokyo", "Seoul"): (34, 1.10),
    ("Tokyo", "London"): (210, 0.366),
    ("Tokyo", "Frankfurt"): (223, 0.36),
    ("Tokyo", "Ireland"): (199, 0.465),
    ("Seoul", "London"): (238, 0.342),
    ("Seoul", "Frankfurt"): (235, 0.358),
    ("Seoul", "Ireland"): (228, 0.335),
    ("London", "Frankfurt"): (14, 1.14),
    ("London", "Ireland"): (12, 1.09),
    ("Frankfurt", "Ireland"): (24, 1.08),
}
"""Milliseconds one way and gigabits a second between cities."""
CITIES = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")

Matrix = list[list[float]]


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

    An objective as ``search.Objective`` says. A swap costs O(replicas).
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


def scenario(number: int) -> tuple[Matrix, Matrix]:
    """Latency in seconds one way and bytes a second between the 64 machines of scenario 0 to 4."""
    if number == 0:
        return _blocks(8, NODES, 3.125)
    if number == 1:
        return _blocks(4, 32, 1.25)
    if number == 2:
        return _regions(["Ohio"] * 32 + ["Virginia"] * 32, {("Ohio", "Virginia"): (11, 1.12)}, (1, 5.0))
    if number == 3:
        cities = ["Virginia", "Oregon", "California", "Ohio"]
        return _regions([city for city in cities for _ in range(16)], _REGIONAL, (5, 2.0))
    return _regions([city for city in CITIES for _ in range(8)], WORLD, (5, 2.0))


def traffic(gradient_ratio: float = 1.0, activation_ratio: float = 1.0, period: float = 1.0) -> StepTraffic:
    """What a step moves; ratios are full precision over what is sent."""
    return StepTraffic(GRADIENTS * GIGABYTE / gradient_ratio, ACTIVATIONS * GIGABYTE / activation_ratio, period)


def plan(latency: Matrix, rate: Matrix, moved: StepTraffic, swaps: int, seed: int) -> Communication:
    """The planner's layout: the better start by region, then a search."""
    count = range(NODES)
    far = [[latency[a][b] + moved.activation_bytes / rate[a][b] if a != b else 0.0 for b in count] for a in count]
    starts = (start(far, count, STAGES, REPLICAS) for start in (pipelines_inside, replicas_inside))
    found = min((Communication(latency, rate, moved, places, REPLICAS) for places in starts), key=Communication.cost)
    anneal(found, swaps, seed)
    return found


def replicas_inside(far: Matrix, nodes: Sequence[int], stages: int, replicas: int) -> list[int]:
    """The replicas of a stage within a region, pipelines across: best where every step exchanges gradients over slow links."""
    return [node for column in gather(far, nodes, replicas, stages) for node in column]


def objective(number: int, moved: StepTraffic, places: list[int]) -> Communication:
    """The cost of ``places`` on a scenario."""
    latency, rate = scenario(number)
    return Communication(latency, rate, moved, places, REPLICAS)


def _blocks(size: int, blocked: int, between: float) -> tuple[Matrix, Matrix]:
    """No latency, 100 Gbit/s within blocks of ``size`` of the first ``blocked`` machines, ``between`` elsewhere."""
    rate = [
        [_bytes(100.0 if a // size == b // size and max(a, b) < blocked else between) for b in range(NODES)]
        for a in range(NODES)
    ]
    return [[0.0] * NODES for _ in range(NODES)], rate


def _regions(
    places: list[str], between: dict[tuple[str, str], tuple[float, float]], inside: tuple[float, float]
) -> tuple[Matrix, Matrix]:
    latency = [[inside[0] / 1000] * NODES for _ in range(NODES)]
    rate = [[_bytes(inside[1])] * NODES for _ in range(NODES)]
    for a, b in combinations(range(NODES), 2):
        if places[a] != places[b]:
            pair = (places[a], places[b])
            delay, gigabits = between[pair] if pair in between else between[pair[::-1]]
            latency[a][b] = latency[b][a] = delay / 1000
            rate[a][b] = rate[b][a] = _bytes(gigabits)
    return latency, rate


def _bytes(gigabits: float) -> float:
    return gigabits * GIGABYTE / 8
