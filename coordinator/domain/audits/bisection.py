"""Finding the first of ``n`` places where two differ, by asking both about one place after another.

Whatever binds a place binds all before it (a chain of hashes), so places before the first difference are equal and all from
there on differ. The last place is known, or taken, to differ. Each question halves what is left: at most ceil(log2 n) of them.
"""

import msgspec


class Search(msgspec.Struct, frozen=True):
    """The first difference lies in ``low .. high``, both included.

    Attributes:
        asked: questions so far.
    """

    low: int
    high: int
    asked: int = 0

    @property
    def found(self) -> bool:
        """Whether one place is left."""
        return self.low >= self.high

    @property
    def middle(self) -> int:
        """The place to ask about next; never ``high``, which is known to differ."""
        return (self.low + self.high) // 2


def halved(search: Search, equal: bool) -> Search:
    """The search once both have answered about ``middle``; unchanged where one place is left."""
    if search.found:
        return search
    if equal:
        return Search(search.middle + 1, search.high, search.asked + 1)
    return Search(search.low, search.middle, search.asked + 1)
