"""The home model as an objective of the search: what a swap of two nodes does to the cut, the replicas and the exchange."""

from collections.abc import Iterable, Sequence

from coordinator.domain.placement.cost import Load, ReplicaPace, exchange_of, joined, pace, stepping_of
from coordinator.domain.placement.fleet import Fleet
from coordinator.domain.placement.layers import share_layers

INFEASIBLE = 1e15  # Above every plan that fits; a search then looks for memory first.
REPEATED_OWNER = 100.0  # One owner twice on a stage can agree with himself: dearer than any slowness, where avoidable.
LEVEL = 0.01  # Of the mean beside the maximum: without it most swaps look alike, and the search is blind.
MAX_KEPT = 20_000  # Times of replicas that are remembered; half of all swaps are undone at once.


class RoundFlow:
    """Seconds of a round divided by the steps that all replicas together make in it; place ``stage * replicas + replica``.

    Implements ``search.Objective``.
    """

    def __init__(
        self,
        fleet: Fleet,
        load: Load,
        caps: Sequence[Sequence[int]],
        replicas: int,
        places: Sequence[int],
        counts: tuple[int, ...] | None = None,
    ) -> None:
        """Seat ``places``, nodes by index in ``fleet``; those beyond the seats are the bench.

        Args:
            caps: layers that a node can hold, by stage and node.
            counts: layers by stage, where they are fixed; None: cut anew for the nodes of each plan.
        """
        self._fleet, self._load, self._caps = fleet, load, caps
        self.stages, self.replicas = len(caps), replicas
        self.places, self.seats = list(places), len(caps) * replicas
        self._fixed = counts
        self._owner = [candidate.owner for candidate in fleet.nodes]
        self._speeds, self._room = [0.0] * self.stages, [0] * self.stages
        self._repeats, self._exchange = [0] * self.stages, [0.0] * self.stages
        self._steps, self._lines = [0.0] * replicas, [0.0] * replicas
        self._kept: dict[tuple[int, ...], tuple[float, float]] = {}
        self.counts: tuple[int, ...] | None = None
        for stage in range(self.stages):
            self._survey(stage)
        self._cut(range(replicas), range(self.stages))

    @property
    def rows(self) -> list[list[int]]:
        """Nodes of each replica."""
        return [self.places[r : self.seats : self.replicas] for r in range(self.replicas)]

    def cost(self) -> float:
        """Seconds; above ``INFEASIBLE`` where memory does not hold the model."""
        if self.counts is None:
            lacking = self._load.layers - sum(self._room) if self._fixed is None else 0
            return INFEASIBLE * (1 + max(0, lacking) + self._load.layers * sum(room < 1 for room in self._room))
        mean = sum(self._steps) / self.replicas
        return (self._round() + LEVEL * mean / self.replicas) * (1 + REPEATED_OWNER * sum(self._repeats))

    def swap(self, one: int, other: int) -> float:
        """Exchange two nodes; the cost after it."""
        self.places[one], self.places[other] = self.places[other], self.places[one]
        touched = [place for place in (one, other) if place < self.seats]
        stages = {place // self.replicas for place in touched}
        if len(stages) == 2 or len(touched) == 1:
            for stage in stages:
                self._survey(stage)
        else:
            stages = set()
        self._cut({place % self.replicas for place in touched}, stages)
        return self.cost()

    def weak(self) -> list[int]:
        """Both ends of what bounds the slowest replica; the node with the longest exchange."""
        if self.counts is None:
            short = min(range(self.stages), key=lambda stage: self._room[stage])
            return list(range(short * self.replicas, (short + 1) * self.replicas))
        row, found = self._slowest(self.counts)
        figures = (found.compute, found.up, found.down, found.forward, found.backward)
        worst = max(figures, key=lambda values: max(values, default=0.0))
        stage = max(range(len(worst)), key=worst.__getitem__)
        ends = [stage] if len(worst) == self.stages else [stage, stage + 1]
        seats = [end * self.replicas + row for end in ends]
        longest = max(range(self.stages), key=self._exchange.__getitem__)
        if self._exchange[longest] > 0:
            members = range(longest * self.replicas, (longest + 1) * self.replicas)
            seats.append(max(members, key=lambda seat: -min(self._line(seat))))
        return seats

    def held_by_a_loop(self) -> bool:
        """Whether a loop, and so latency, makes the slowest replica's beat: neither a machine nor a line nor a way."""
        if self.counts is None:
            return False
        _, found = self._slowest(self.counts)
        return found.beat > max(*found.compute, *found.up, *found.down, *found.forward, *found.backward) * (1 + 1e-9)

    def idle(self, one: int, other: int) -> bool:
        """A place with itself, or two of the bench."""
        return one == other or min(one, other) >= self.seats

    def _slowest(self, counts: tuple[int, ...]) -> tuple[int, ReplicaPace]:
        """The slowest replica and its times."""
        row = max(range(self.replicas), key=self._steps.__getitem__)
        return row, pace(self._fleet, self._load, counts, self.places[row : self.seats : self.replicas])

    def _line(self, seat: int) -> tuple[float, float]:
        node = self.places[seat]
        return self._fleet.up[node], self._fleet.down[node]

    def _survey(self, stage: int) -> None:
        members = self.places[stage * self.replicas : (stage + 1) * self.replicas]
        speed, caps, owner = self._fleet.speed, self._caps[stage], self._owner
        speeds = [speed[node] for node in members]
        self._speeds[stage] = sum(speeds) if self._load.fixed_time else min(speeds)
        self._room[stage] = min([caps[node] for node in members])
        self._repeats[stage] = self.replicas - len({owner[node] for node in members})

    def _cut(self, rows: Iterable[int], stages: Iterable[int]) -> None:
        """Cut anew; then time again the replicas and stages that are touched, or all where the cut has changed."""
        before = self.counts
        self.counts = self._counts()
        if self.counts is None:
            return
        if self.counts != before:
            self._kept.clear()
            rows, stages = range(self.replicas), range(self.stages)
        for row in rows:
            self._steps[row], self._lines[row] = self._time(row)
        if self.replicas > 1:
            for stage in stages:
                self._exchange[stage] = self._longest_exchange(stage, self.counts)

    def _counts(self) -> tuple[int, ...] | None:
        if self._fixed is None:
            load = self._load
            return share_layers(load.layers, load.layer_operations, load.head_operations, self._speeds, self._room)
        fits = all(room >= count for room, count in zip(self._room, self._fixed, strict=True))
        return self._fixed if fits else None

    def _time(self, row: int) -> tuple[float, float]:
        assert self.counts is not None
        nodes = self.places[row : self.seats : self.replicas]
        key = tuple(nodes)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            timed = pace(self._fleet, self._load, self.counts, nodes)
            line = max(*timed.up, *timed.down) / timed.beat if self._load.overlap else 0.0
            found = timed.step, line
            self._kept[key] = found
        return found

    def _longest_exchange(self, stage: int, counts: tuple[int, ...]) -> float:
        members = self.places[stage * self.replicas : (stage + 1) * self.replicas]
        slowest = min(members, key=lambda node: min(self._fleet.up[node], self._fleet.down[node]))
        return exchange_of(self._fleet, self._load, counts, stage, slowest, self.replicas)

    def _round(self) -> float:
        stepping, made = stepping_of(self._load, self._steps)
        return joined(self._load, stepping, max(self._exchange), max(self._lines)) / sum(made)
