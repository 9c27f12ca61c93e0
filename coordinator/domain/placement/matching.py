"""Rows and columns that go together, as bits: as many rows as can have a column of their own get one.

Source: Berge 1957 (a matching is largest when no chain of changes frees a column), chains found breadth first; a mask holds all
columns of a row, so that a step of the search is one operation on it.
"""

from collections.abc import Sequence

from coordinator.domain.placement.search import Chance


def largest_matching(allowed: Sequence[int], chance: Chance) -> list[int]:
    """Give as many rows as possible a column of their own, which one being left to ``chance``.

    Args:
        allowed: of each row its columns, column ``n`` as bit ``n``.
    Returns:
        the column of each row; -1 for those that get none.
    """
    found, owner = [-1] * len(allowed), dict[int, int]()
    free, width = 0, 1
    for mask in allowed:
        free |= mask
    width = max(1, free.bit_length())
    left = []
    for row in sorted(range(len(allowed)), key=lambda row: allowed[row].bit_count()):
        open_columns = allowed[row] & free
        if not open_columns:
            left.append(row)
            continue
        begin = chance.below(width)
        column = lowest(open_columns >> begin << begin or open_columns)
        free ^= 1 << column
        found[row], owner[column] = column, row
    for row in left:
        free = _augment(allowed, row, found, owner, free)
    return found


def lowest(mask: int) -> int:
    """The lowest bit of a mask that has any."""
    return (mask & -mask).bit_length() - 1


def bits(mask: int) -> list[int]:
    """All bits of a mask, in order."""
    found = []
    while mask:
        found.append(lowest(mask))
        mask &= mask - 1
    return found


def _augment(allowed: Sequence[int], row: int, found: list[int], owner: dict[int, int], free: int) -> int:
    """Find ``row`` a column, others moving on where they can; returns the columns that are then free."""
    reached_by, seen, queue = dict[int, int](), 0, [row]
    for at in queue:
        hit = allowed[at] & free
        if hit:
            column = lowest(hit)
            reached_by[column] = at
            free ^= 1 << column
            while True:
                mover = reached_by[column]
                before, found[mover], owner[column] = found[mover], column, mover
                if mover == row:
                    return free
                column = before
        for column in bits(allowed[at] & ~seen):
            reached_by[column] = at
            queue.append(owner[column])
        seen |= allowed[at]
    return free
