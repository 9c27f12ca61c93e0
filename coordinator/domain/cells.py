"""Cells: parts of a network's jobs, each of which one coordinator carries at a time; a job never spans two.

A job's cell follows from its name, so that whoever has the name knows whom to ask. A node belongs to the cell of the job that it
works for, and else to one that lacks nodes. Source: "Reducing the scope of impact with cell-based architecture", AWS (2023).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

DIGITS: Final = 7  # Hexadecimal, of a job's name: 28 bits, which every database has as a whole number.
MAX_CELLS: Final = 16
MORE: Final = 8  # One node in so many that a cell has more to spare than another one makes no difference.
ABOUT: Final = 3  # A third fewer to spare are about as many: else one cell of thousands of idle nodes has all new jobs.
MAX_NAMED: Final = 256  # Nodes that a cell names to the others as claimed, and as wished for: 44 bytes each.
ARRIVE_S: Final = 2.0  # Who has just come is let go where a job elsewhere waits for it, and no sooner.
STAY_S: Final = 10.0  # For any other reason later, so that nobody wanders to and fro.
MANY: Final = 32  # Nodes that go at a time where arrays elsewhere can use them: each comes in anew, and is stored.
FEW: Final = 3  # And where there are more idle ones than elsewhere.
GAP, LEAST_GAP = 0.2, 2  # By so much more, in parts and at least.
_MARK: Final = "."


class Cell(msgspec.Struct, frozen=True):
    """Number ``number`` of ``of`` cells, counted from 0."""

    number: int = 0
    of: int = 1

    def has(self, job: str) -> bool:
        """Whether a job belongs here."""
        return cell_of(job, self.of) == self.number

    def token(self, secret: str) -> str:
        """A token that shows whose it is; where there is one cell, the secret alone."""
        return secret if self.of == 1 else f"{self.number}{_MARK}{secret}"


WHOLE: Final = Cell()
"""Where nothing is parted."""


def cell_of(job: str, cells: int) -> int:
    """The cell that a job belongs to. A name that is none, such as "", belongs to the first."""
    if cells == 1:
        return 0
    try:
        return int(job[:DIGITS], 16) % cells
    except ValueError:
        return 0


def cell_of_token(token: str, cells: int) -> int | None:
    """The cell whose token this is; None: it shows none."""
    number, mark, _ = token.partition(_MARK)
    known = mark and number.isascii() and number.isdigit() and len(number) <= 2 and int(number) < cells
    return int(number) if known else None


class CellState(msgspec.Struct, frozen=True):
    """How a cell does, as it tells the others.

    Attributes:
        wanted: nodes that its jobs lack and are free nowhere in it.
        idle: nodes here that hold nothing and may be given work.
        nodes: that are here.
        claims: nodes of other cells, by the job here that waits for them: with these it can begin, or go on.
        wishes: nodes of other cells that nobody has, and that arrays here could use.
        arrays: how many nodes each array here could use, and how many it has.
        auditors: of the operator's that are here. ``looks``: that wait for one of them.
        lets_in: by which rule and with which stake nodes are let in; empty: it is not said.
    """

    wanted: int = 0
    idle: int = 0
    nodes: int = 0
    claims: Mapping[str, tuple[str, ...]] = {}
    wishes: tuple[str, ...] = ()
    arrays: Mapping[str, tuple[int, int]] = {}
    auditors: int = 0
    looks: int = 0
    lets_in: str = ""


class IdleNode(NamedTuple):
    """A node that holds nothing and may be given work; ``seconds``: for so long it has been here."""

    node: str
    seconds: float


def named(claims: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """As many of these claims as a cell tells at a time, those of the jobs that come first whole."""
    found: dict[str, tuple[str, ...]] = {}
    room = MAX_NAMED
    for job in sorted(claims):
        found[job] = tuple(sorted(claims[job])[:room])
        room -= len(found[job])
    return {job: nodes for job, nodes in found.items() if nodes}


def awaits(states: Mapping[int, CellState], node: str) -> int | None:
    """The cell that waits for this very node, if one does: the one of the job that comes first, else the one that lacks most."""
    claims = [(job, number) for number, state in states.items() for job, nodes in state.claims.items() if node in nodes]
    if claims:
        return min(claims)[1]
    wishing = [(-state.wanted, number) for number, state in states.items() if node in state.wishes]
    return min(wishing)[1] if wishing else None


def leaving(
    idle: Sequence[IdleNode], called: Collection[str], own: CellState, others: Mapping[int, CellState]
) -> list[str]:
    """Idle nodes that a cell lets go now.

    Args:
        idle: those that no job here waits for.
        called: nodes that jobs elsewhere wait for.
    """
    go = [one.node for one in idle if one.node in called and one.seconds >= ARRIVE_S]
    settled = [one.node for one in idle if one.node not in called and one.seconds >= STAY_S]
    wished = {node for state in others.values() for node in state.wishes}
    go += [node for node in settled if node in wished][:MANY]
    return go + [node for node in settled if node not in wished][: to_let_go(own, others)]


def to_let_go(own: CellState, others: Mapping[int, CellState]) -> int:
    """How many idle nodes a cell lets go now so that all have about as many, beside those that each lacks.

    Nobody lets more go than it has beyond the mean of all: several rich ones together give what the poor ones lack.
    """
    levels = [state.idle - state.wanted for state in others.values()]
    level = own.idle - own.wanted
    if not levels or level <= 0 or level - min(levels) <= max(LEAST_GAP, GAP * level):
        return 0
    beyond = int(level - (level + sum(levels)) / (1 + len(levels)))
    return max(0, min(FEW, beyond))


def may_part(own: CellState, others: Mapping[int, CellState]) -> bool:
    """Whether a cell lets one of the operator's auditors go: another has none, and here is a second, or nothing to look at."""
    without = [state for state in others.values() if state.auditors == 0]
    if own.auditors > 1:
        return bool(without)
    return own.auditors == 1 and own.looks == 0 and any(state.looks for state in without)


def place(states: Mapping[int, CellState], cells: Collection[int], here: Collection[int] = ()) -> int:
    """The one of ``cells`` that lacks nodes most, for a node that may work anywhere; of equals the one with the fewest.

    Where none lacks any, one that is ``here`` is taken before those that have a few less to spare.
    """

    def lacks(cell: int) -> tuple[int, int, int]:
        state = states.get(cell, CellState())
        return state.idle - state.wanted, state.nodes, cell

    first = min(cells, key=lacks)
    least = max(0, lacks(first)[0])
    near = [cell for cell in cells if cell in here and lacks(cell)[0] <= least + least // MORE]
    return min(near, key=lacks, default=first) if lacks(first)[0] >= 0 else first


def room(states: Mapping[int, CellState], cells: Collection[int]) -> int:
    """The one of ``cells`` for a new job: of those that have about the most nodes to spare the one with the fewest at work.

    Where none has any, the one that lacks fewest; of equals the one with the most nodes.
    """

    def spares(cell: int) -> tuple[int, int, int]:
        state = states.get(cell, CellState())
        return state.idle - state.wanted, state.nodes, -cell

    def works(cell: int) -> tuple[int, int]:
        spare, nodes, _ = spares(cell)
        return nodes - spare, cell

    first = max(cells, key=spares)
    most = spares(first)[0]
    return first if most <= 0 else min((one for one in cells if spares(one)[0] >= most - most // ABOUT), key=works)


def watch(states: Mapping[int, CellState], cells: Collection[int]) -> int:
    """The one of ``cells`` with the fewest of the operator's auditors, for one more; of equals the one with the most looks."""

    def watched(cell: int) -> tuple[int, int, int]:
        state = states.get(cell, CellState())
        return state.auditors, -state.looks, cell

    return min(cells, key=watched)
