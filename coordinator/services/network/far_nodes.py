"""Nodes of other cells, as these tell of them: for quotes, which count all nodes, and for jobs that could begin with some.

What is known is some seconds old, and a node may be somewhere else by now. So nothing is given to a node that is not here: jobs
wait for it (``claims``), and it comes (``cell_nodes``).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from coordinator.domain.placement import Candidate


class FarNode(msgspec.Struct, frozen=True):
    """A node of another cell.

    Attributes:
        lends: it may be given seats, once it is free.
        free: it could come: nobody has it, or who has it could go on without, and no other job waits for it.
        busy: it holds something.
        containers: it runs those.
    """

    candidate: Candidate
    lends: bool = True
    free: bool = False
    busy: bool = False
    containers: bool = False


class NodesBeside(Protocol):
    """What other cells say of their nodes. Whoever asks has it kept fresh for a while."""

    def known(self) -> Mapping[str, FarNode]:
        """All of them by their keys, as was told within a minute."""

    def free(self) -> frozenset[str]:
        """Those that could come, as was told within seconds."""

    async def look(self) -> None:
        """See that what is known is some seconds old at most, as far as others answer at once."""

    def came(self, nodes: Sequence[str]) -> None:
        """Tell the other cells that these are here now, and nowhere else."""


class NobodyBeside:
    """Implements ``NodesBeside`` where there is one cell."""

    def known(self) -> Mapping[str, FarNode]:
        """Nobody."""
        return {}

    def free(self) -> frozenset[str]:
        """Nobody."""
        return frozenset()

    async def look(self) -> None:
        """Nobody is to be asked."""

    def came(self, nodes: Sequence[str]) -> None:
        """Nobody is to be told."""


class Elsewhere:
    """What other cells say, without those nodes that have come here since."""

    def __init__(self, beside: NodesBeside, here: Collection[str]) -> None:
        """``here``: nodes of this cell, as they come and go."""
        self.beside, self._here = beside, here

    async def look(self) -> None:
        """See that what is known is some seconds old at most."""
        await self.beside.look()

    def get(self, node: str) -> FarNode | None:
        """A node of another cell."""
        return None if node in self._here else self.beside.known().get(node)

    def all(self) -> dict[str, FarNode]:
        """All of them, by their keys."""
        return {node: far for node, far in self.beside.known().items() if node not in self._here}

    def seatable(self) -> list[Candidate]:
        """Those that may be given seats, busy or not."""
        return [far.candidate for far in self.all().values() if far.lends]

    def names(self) -> frozenset[str]:
        """Those that could come."""
        return self.beside.free().difference(self._here)

    def free(self) -> list[Candidate]:
        """Likewise."""
        known = self.beside.known()
        return [known[node].candidate for node in sorted(self.names()) if node in known]
