"""The order of a pipeline: which stage next to which, and who in it talks to whom, so that neighbours have the best links.

Only neighbouring stages of a replica exchange activations. How the members of one stage are paired with those of the next changes
nothing for any other pair of stages, so each pairing is a matching of its own, and the order of stages a shortest path over them.
"""

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

from protocol.ids import NodeAddress

# Of the matchings: a tenth of a second. 9 stages of 16 replicas; larger pipelines keep their order.
MAX_STEPS = 300_000
MAX_ORDERED = 9  # Stages: the exact path takes 2 to their number; beyond it a greedy path does.

Cost = Callable[[NodeAddress, NodeAddress], float | None]
"""Seconds of a link, the same in both directions; None: not measured."""
Groups = list[list[NodeAddress]]


def arrange(groups: Sequence[Sequence[NodeAddress]], cost: Cost) -> Groups:
    """Put stages in order and pair their members, for the lowest sum of the costs of all neighbours' links.

    Links that nobody has measured count as the mean of those that somebody has. Without any, where the search would take more
    than ``MAX_STEPS``, and where nothing is won, everything stays as it is.

    Args:
        groups: the nodes of each stage, equally many in each; those at one index form a replica.
    Returns:
        the same groups, perhaps in another order, each perhaps in another order.
    """
    unchanged = [list(group) for group in groups]
    if len(groups) < 2 or len(groups) ** 2 * len(groups[0]) ** 3 > MAX_STEPS:
        return unchanged
    costs = _filled(groups, cost)
    if costs is None:
        return unchanged
    matchings = _matchings(groups, costs)
    length = {
        (i, j): sum(costs[groups[i][k], groups[j][partner]] for k, partner in enumerate(matching))
        for (i, j), matching in matchings.items()
    }
    path = _shortest(len(groups), length) if len(groups) <= MAX_ORDERED else _greedy(len(groups), length)
    path = min(path, path[::-1])  # As long either way: the quicker stage goes first, as it was.
    straight = sum(costs[a, b] for one, two in pairwise(groups) for a, b in zip(one, two, strict=True))
    if straight <= sum(length[step] for step in pairwise(path)) * (1 + 1e-9):
        return unchanged
    members = list(range(len(groups[0])))
    arranged = [[groups[path[0]][k] for k in members]]
    for i, j in pairwise(path):
        members = [matchings[i, j][k] for k in members]
        arranged.append([groups[j][k] for k in members])
    return arranged


def _matchings(
    groups: Sequence[Sequence[NodeAddress]], costs: dict[tuple[NodeAddress, NodeAddress], float]
) -> dict[tuple[int, int], list[int]]:
    """For every two stages, either way: which member of the second each member of the first talks to."""
    found: dict[tuple[int, int], list[int]] = {}
    for i, j in combinations(range(len(groups)), 2):
        forward = match([[costs[a, b] for b in groups[j]] for a in groups[i]])
        found[i, j] = forward
        found[j, i] = [forward.index(k) for k in range(len(forward))]
    return found


def match(costs: Sequence[Sequence[float]]) -> list[int]:
    """Give each row a column of its own for the lowest sum; returns the column of each row.

    Source: Kuhn 1955, the Hungarian method with potentials, one row at a time, O(n^3).
    """
    n = len(costs)
    rows, columns = [0.0] * (n + 1), [0.0] * (n + 1)
    owner = [0] * (n + 1)  # Column -> its row, both from 1; column 0 holds the row that looks for a place.
    for row in range(1, n + 1):
        owner[0] = row
        for column, before in _augment(costs, rows, columns, owner):
            owner[column] = owner[before]
    found = [0] * n
    for column in range(1, n + 1):
        found[owner[column] - 1] = column - 1
    return found


def _augment(
    costs: Sequence[Sequence[float]], rows: list[float], columns: list[float], owner: list[int]
) -> list[tuple[int, int]]:
    """The cheapest chain of moves that gives the row in ``owner[0]`` a column, as (column, the column whose row moves there)."""
    n = len(costs)
    slack, before, used = [float("inf")] * (n + 1), [0] * (n + 1), [False] * (n + 1)
    column = 0
    while owner[column]:
        used[column] = True
        held, nearest, step = owner[column], 0, float("inf")
        for j in range(1, n + 1):
            if used[j]:
                continue
            reduced = costs[held - 1][j - 1] - rows[held] - columns[j]
            if reduced < slack[j]:
                slack[j], before[j] = reduced, column
            if slack[j] < step:
                step, nearest = slack[j], j
        for j in range(n + 1):
            if used[j]:
                rows[owner[j]] += step
                columns[j] -= step
            else:
                slack[j] -= step
        column = nearest
    chain = []
    while column:
        chain.append((column, before[column]))
        column = before[column]
    return chain


def _filled(groups: Sequence[Sequence[NodeAddress]], cost: Cost) -> dict[tuple[NodeAddress, NodeAddress], float] | None:
    """The cost of every link between two stages, both ways; None where not one is known."""
    told: dict[tuple[NodeAddress, NodeAddress], float | None] = {
        (a, b): cost(a, b) for one, two in combinations(groups, 2) for a in one for b in two
    }
    known = [value for value in told.values() if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    found = {pair: mean if value is None else value for pair, value in told.items()}
    return found | {(b, a): value for (a, b), value in found.items()}


def _shortest(count: int, length: dict[tuple[int, int], float]) -> list[int]:
    """The shortest path through all of ``range(count)``. Source: Held and Karp 1962."""
    best: dict[tuple[int, int], tuple[float, list[int]]] = {(1 << i, i): (0.0, [i]) for i in range(count)}
    for size in range(2, count + 1):
        for members in combinations(range(count), size):
            mask = sum(1 << i for i in members)
            for last in members:
                rest = mask ^ (1 << last)
                best[mask, last] = min(
                    (best[rest, i][0] + length[i, last], [*best[rest, i][1], last]) for i in members if i != last
                )
    return min(best[(1 << count) - 1, last] for last in range(count))[1]


def _greedy(count: int, length: dict[tuple[int, int], float]) -> list[int]:
    """A short path through all of ``range(count)``: from each start always to the nearest, and the shortest of those."""
    paths = []
    for start in range(count):
        path, left = [start], set(range(count)) - {start}
        while left:
            path.append(min(left, key=lambda i: (length[path[-1], i], i)))
            left.remove(path[-1])
        paths.append((sum(length[step] for step in pairwise(path)), path))
    return min(paths)[1]
