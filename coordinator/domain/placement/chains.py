"""Pipelines in which nothing takes longer than a beat: the least one, where ways between nodes differ as much as their lines.

Swaps of two nodes are lost here: what bounds a plan is one way of some hundred, nearly every swap that mends it breaks another,
and the largest of all terms does not tell which of two bad plans is nearer to a good one. So the question is turned round. For a
beat that is asked for, everything is either allowed or not: a node on a stage (its layers, its line), a node after another (the
way). Then a step of the search seats very many nodes at once, and as well as they can be seated:

- of every replica every second stage gives up its node. Whatever stays are the neighbours of what is free, so who may take which
  free seat is known, and a largest matching fills as many as can be filled. Who has no seat takes part.
- between two stages, the front and the back parts of all replicas are joined anew, by a largest matching too.

Each leaves the number of seats that break the beat no higher among those it moved; which of the many largest matchings it takes
is left to chance, and that is how the search gets about. The least beat is found by halving.

Source: Ahuja, Ergun, Orlin and Punnen 2002 (assignment neighbourhoods, section 4.2 of "A survey of very large-scale neighborhood
search techniques"); the threshold method for bottlenecks is Edmonds and Fulkerson's, 1970.
"""

from collections.abc import Sequence

import msgspec

from coordinator.domain.placement.cost import Load, pace
from coordinator.domain.placement.fleet import Fleet
from coordinator.domain.placement.layers import share_layers
from coordinator.domain.placement.matching import bits, largest_matching
from coordinator.domain.placement.search import Chance
from coordinator.domain.placement.tiers import Seating, least_beat, line_times, paired, seatings

Caps = Sequence[Sequence[int]]

PRECISION = 1.002  # Between the beat that was found and the one that was not, where halving ends.
RUN = 20  # Steps of the search in its shortest run.


class Crew(msgspec.Struct, frozen=True):
    """Who is to be seated.

    Attributes:
        caps: layers that a node can hold, by stage and node.
        ways: seconds of a micro-batch from one node to another, the slower of its two directions.
        lines: seconds of a micro-batch on the node's line, by node; first, between and last.
    """

    fleet: Fleet
    load: Load
    caps: Caps
    replicas: int
    ways: list[list[float]]
    lines: list[tuple[float, float, float]]

    @property
    def stages(self) -> int:
        return len(self.caps)


class _Allowed:
    """What a beat allows: nodes as bits."""

    def __init__(self, crew: Crew, beat: float) -> None:
        self._crew, self._beat = crew, beat * (1 + 1e-9)
        nodes = range(len(crew.lines))
        fits = [[way <= self._beat for way in row] for row in crew.ways]
        self.after = [_mask([b for b in nodes if fits[a][b]]) for a in nodes]
        self.before = [_mask([a for a in nodes if fits[a][b]]) for b in nodes]

    def seats(self, counts: Sequence[int]) -> list[int]:
        """By stage, who may stand on it with so many layers."""
        crew, load, last = self._crew, self._crew.load, self._crew.stages - 1
        found = []
        for stage, count in enumerate(counts):
            kind = 0 if stage == 0 else 2 if stage == last else 1
            work = count * load.layer_operations + load.head_operations * (stage == last)
            quick = [work <= self._beat * speed for speed in crew.fleet.speed]
            able = [line[kind] <= self._beat for line in crew.lines]
            holds = [count <= cap for cap in crew.caps[stage]]
            found.append(_mask([n for n in range(len(able)) if quick[n] and able[n] and holds[n]]))
        return found


class _Seats:
    """Places that are to keep a beat, and the steps of the search on them."""

    def __init__(self, crew: Crew, allowed: _Allowed, counts: Sequence[int], places: Sequence[int]) -> None:
        self.places, self._stages, self._replicas = list(places), crew.stages, crew.replicas
        self._seats, self._after, self._before = allowed.seats(counts), allowed.after, allowed.before

    def keep(self) -> bool:
        """Whether every seat keeps the beat."""
        count, step = self._stages * self._replicas, self._replicas
        upper, lower = self.places[: count - step], self.places[step:count]
        return all(self._seats[at // step] >> self.places[at] & 1 for at in range(count)) and all(
            self._after[a] >> b & 1 for a, b in zip(upper, lower, strict=True)
        )

    def reseat(self, chance: Chance) -> None:
        """Seat anew every second node of each replica, and whoever has no seat."""
        step, end = self._replicas, self._stages * self._replicas
        freed = [at for row in range(step) for at in range(row + step * chance.below(2), end, 2 * step)]
        pool = _mask([self.places[at] for at in freed] + self.places[end:])
        found = largest_matching([self._candidates(at, end) & pool for at in freed], chance)
        rest = bits(pool & ~_mask([node for node in found if node >= 0]))
        for at, node in zip(freed, found, strict=True):
            self.places[at] = node if node >= 0 else rest.pop(chance.below(len(rest)))
        self.places[end:] = rest

    def rejoin(self, chance: Chance) -> None:
        """Join anew the fronts and the backs of all replicas between two stages."""
        step, end = self._replicas, self._stages * self._replicas
        cut = step * (1 + chance.below(self._stages - 1))
        heads = self.places[cut : cut + step]
        members, row_of = _mask(heads), {node: row for row, node in enumerate(heads)}
        found = largest_matching([self._after[node] & members for node in self.places[cut - step : cut]], chance)
        rest = bits(members & ~_mask([node for node in found if node >= 0]))
        rows = [row_of[node if node >= 0 else rest.pop(chance.below(len(rest)))] for node in found]
        self.places[cut:end] = [self.places[at + row] for at in range(cut, end, step) for row in rows]

    def _candidates(self, at: int, end: int) -> int:
        """Who may take a seat between the neighbours that it has."""
        step = self._replicas
        mask = self._seats[at // step]
        if at >= step:
            mask &= self._after[self.places[at - step]]
        if at + step < end:
            mask &= self._before[self.places[at + step]]
        return mask


def tighten(
    fleet: Fleet, load: Load, caps: Caps, places: Sequence[int], replicas: int, effort: int, seed: int
) -> list[int]:
    """Places of the least beat that the search finds; its start, where that is not above.

    Round trips, owners and the exchange are not looked at: whoever takes the places weighs them. Where memory holds neither
    the start nor the tiers, the start is left as it is.

    Args:
        caps: layers that a node can hold, by stage and node.
        places: the node of each place, ``stage * replicas + replica``; the bench behind.
        effort: seats that are filled anew for each beat that is tried; the caller's budget, since the domain has no clock.
    """
    low, tiers = least_beat(fleet, load, len(caps), replicas)
    if len(caps) < 2 or tiers is None:
        return list(places)
    crew, chance = _crew(fleet, load, caps, replicas), Chance(seed)
    bench = list(range(len(tiers.places), len(fleet.nodes)))
    pairs = paired(fleet, load, tiers.places + bench, crew.stages, replicas)
    best = min([list(places), pairs], key=lambda found: _beat(crew, found))
    high = _beat(crew, best)
    if high == float("inf"):
        return list(places)
    beat = low * PRECISION
    while high > low * PRECISION:
        kept = _keeping(crew, best, beat, effort, chance)
        if kept is None:
            low = beat
        else:
            best, high = kept, min(beat, _beat(crew, kept))
        beat = (low + high) / 2
    return best


def _keeping(crew: Crew, best: Sequence[int], beat: float, effort: int, chance: Chance) -> list[int] | None:
    """Places that keep ``beat``; None where none were found."""
    allowed = _Allowed(crew, beat)
    known = list(seatings(crew.fleet, crew.load, crew.stages, crew.replicas, beat))
    counts: Sequence[int] | None
    counts, places = _cut(crew, best), best
    turn, left = 1, 2 * effort // (crew.stages * crew.replicas)
    while left > 0:
        if turn > 1 or counts is None:
            if not known:
                return None
            counts, places = _drawn(crew, known[chance.below(len(known))], chance)
        seats, steps = _Seats(crew, allowed, counts, places), min(left, RUN * _luby(turn))
        for step in range(steps):
            if seats.keep():
                return seats.places
            (seats.rejoin if step % 2 else seats.reseat)(chance)
        turn, left = turn + 1, left - steps
    return None


def _luby(turn: int) -> int:
    """How much longer than the shortest the run number ``turn``, from 1, is: 1, 1, 2, 1, 1, 2, 4, ...

    Nobody knows how long a run should be before another beginning is tried; this loses little against whoever does.
    Source: Luby, Sinclair and Zuckerman 1993.
    """
    top = 1 << turn.bit_length() - 1
    return top if turn == 2 * top - 1 else _luby(turn - top + 1)


def _drawn(crew: Crew, seating: Seating, chance: Chance) -> tuple[list[int], list[int]]:
    """A cut and places: the stages between in any order, layers taken from any stage until none is too many."""
    step, between = crew.replicas, list(range(1, crew.stages - 1))
    order = [0, *(between.pop(chance.below(len(between))) for _ in range(crew.stages - 2)), crew.stages - 1]
    counts = [seating.rooms[stage] for stage in order]
    while sum(counts) > crew.load.layers:
        stage = chance.below(crew.stages)
        counts[stage] -= counts[stage] > 1
    bench = range(len(seating.places), len(crew.lines))
    return counts, [*(n for stage in order for n in seating.places[stage * step : (stage + 1) * step]), *bench]


def _crew(fleet: Fleet, load: Load, caps: Caps, replicas: int) -> Crew:
    nodes, there, back = range(len(fleet.nodes)), load.forward_bytes, load.backward_bytes
    ways = [[max(there * fleet.byte[a][b], back * fleet.byte[b][a]) for b in nodes] for a in nodes]
    return Crew(fleet, load, caps, replicas, ways, [line_times(fleet, load, node) for node in nodes])


def _cut(crew: Crew, places: Sequence[int]) -> tuple[int, ...] | None:
    load, step = crew.load, crew.replicas
    members = [places[stage * step : (stage + 1) * step] for stage in range(crew.stages)]
    speeds = [min(crew.fleet.speed[node] for node in nodes) for nodes in members]
    rooms = [min(caps[node] for node in nodes) for caps, nodes in zip(crew.caps, members, strict=True)]
    return share_layers(load.layers, load.layer_operations, load.head_operations, speeds, rooms)


def _beat(crew: Crew, places: Sequence[int]) -> float:
    """The slowest replica's beat, loops left out; without end where memory does not hold the layers."""
    counts, end = _cut(crew, places), crew.stages * crew.replicas
    if counts is None:
        return float("inf")
    paces = [pace(crew.fleet, crew.load, counts, places[row : end : crew.replicas]) for row in range(crew.replicas)]
    return max(max(*p.compute, *p.up, *p.down, *p.forward, *p.backward) for p in paces)


def _mask(nodes: Sequence[int]) -> int:
    found = 0
    for node in nodes:
        found |= 1 << node
    return found
