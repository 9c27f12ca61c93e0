"""Cells: parts of a network's jobs, each of which one coordinator carries at a time; a job never spans two.

A job's cell follows from its name, so that whoever has the name knows whom to ask. A node belongs to the cell of the job that it
works for, and else to one that lacks nodes. Source: "Reducing the scope of impact with cell-based architecture", AWS (2023).
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

DIGITS: Final = 7  # Hexadecimal, of a job's name: 28 bits, which every database has as a whole number.
MAX_CELLS: Final = 16
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
    """

    wanted: int = 0
    idle: int = 0
    nodes: int = 0


def place(states: Mapping[int, CellState], cells: Collection[int]) -> int:
    """The one of ``cells`` that lacks nodes most, for a node that may work anywhere; of equals the one with the fewest."""

    def lacks(cell: int) -> tuple[int, int, int]:
        state = states.get(cell, CellState())
        return state.idle - state.wanted, state.nodes, cell

    return min(cells, key=lacks)


def room(states: Mapping[int, CellState], cells: Collection[int]) -> int:
    """The one of ``cells`` with the most nodes to spare, for a new job; of equals the one with the most."""

    def spares(cell: int) -> tuple[int, int, int]:
        state = states.get(cell, CellState())
        return state.idle - state.wanted, state.nodes, -cell

    return max(cells, key=spares)
