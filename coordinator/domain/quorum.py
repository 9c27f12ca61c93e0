"""Work that leaves no trace to audit (a container task): the same task on several owners, and what most of them agree on.

::

    assigned --(results)--> agreed      a quorum of different owners returned the same bytes
       |                      split     everybody answered, and no result can reach the quorum: more copies are needed
       +--(a copy is lost)--> assigned  its place is free for another owner

With a share ``c`` of all owners colluding, drawn without their doing, ``k`` copies and a quorum of ``q`` accept a forged result
with probability ``forged(c, k, q)``. Source: Sarmenta, "Sabotage-tolerance mechanisms for volunteer computing systems" (2002).
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from transport.wire.ids import Digest, NodeAddress

MAX_COPIES = 7  # More cost more than what an audit by a trusted machine would.

QuorumState = Literal["assigned", "agreed", "split"]


class Worker(msgspec.Struct, frozen=True):
    """A node that could do a copy. ``network``: where it is, as far as is known; copies avoid sharing one."""

    node: NodeAddress
    payout: NodeAddress
    network: str = ""


class Copy(msgspec.Struct, frozen=True):
    """The task at one node. ``result``: SHA-256 of what it returned; None while it is at work."""

    node: NodeAddress
    payout: NodeAddress
    result: Digest | None = None


class Redundant(msgspec.Struct, frozen=True):
    """A task that several do.

    Attributes:
        copies: that are done or under way; ``quorum``: equal results that are needed.
        tried: nodes that had a copy and lost it.
    """

    task: str
    quorum: int
    copies: tuple[Copy, ...] = ()
    tried: tuple[NodeAddress, ...] = ()

    @property
    def state(self) -> QuorumState:
        """Where it stands: once a result has the quorum, later ones change nothing."""
        if self.result is not None:
            return "agreed"
        votes, open_copies = self._votes(), sum(copy.result is None for copy in self.copies)
        best = max(votes.values(), default=0)
        return "split" if self.copies and best + open_copies < self.quorum else "assigned"

    @property
    def result(self) -> Digest | None:
        """What the quorum agrees on."""
        return next((result for result, votes in self._votes().items() if votes >= self.quorum), None)

    def _votes(self) -> Counter[Digest]:
        """Owners, not nodes, have a voice: the first of each."""
        by_owner: dict[NodeAddress, Digest] = {}
        for copy in self.copies:
            if copy.result is not None:
                by_owner.setdefault(copy.payout, copy.result)
        return Counter(by_owner.values())


def allocate(task: Redundant, willing: Sequence[Worker], seed: bytes, copies: int) -> Redundant:
    """Give free copies to nodes of different owners, by lot; networks that have a copy already come last.

    Args:
        seed: chance that no worker knows before; the same seed gives the same allocation.
        copies: that there should be; fewer where there are not as many owners.
    """
    if not task.quorum <= copies <= MAX_COPIES:
        raise ValueError(f"{copies} copies for a quorum of {task.quorum}: between that and {MAX_COPIES} are made")
    lot = {w.node: hashlib.sha256(seed + task.task.encode() + w.node.encode()).digest() for w in willing}
    chosen, networks = list(task.copies), {w.network for w in willing if w.node in {c.node for c in task.copies}}
    owners = {copy.payout for copy in chosen}
    while len(chosen) < copies:
        left = [w for w in willing if w.payout not in owners and w.node not in task.tried]
        if not left:
            break
        best = min(left, key=lambda w: (bool(w.network) and w.network in networks, lot[w.node]))
        chosen.append(Copy(best.node, best.payout))
        owners.add(best.payout)
        networks.add(best.network)
    return msgspec.structs.replace(task, copies=tuple(chosen))


def returned(task: Redundant, node: NodeAddress, result: Digest) -> Redundant:
    """A node returned its result; a second one of the same node changes nothing."""
    copies = tuple(
        msgspec.structs.replace(copy, result=result) if copy.node == node and copy.result is None else copy
        for copy in task.copies
    )
    return msgspec.structs.replace(task, copies=copies)


def lost(task: Redundant, node: NodeAddress) -> Redundant:
    """A node left, or took too long: its copy is free again, unless it has answered."""
    kept = tuple(copy for copy in task.copies if copy.node != node or copy.result is not None)
    tried = task.tried if len(kept) == len(task.copies) else (*task.tried, node)
    return msgspec.structs.replace(task, copies=kept, tried=tried)


def shares(task: Redundant, pot: int) -> dict[NodeAddress, int]:
    """What each node is due once it is agreed: equal parts for those who returned the result; the remainder to the first.

    Who returned something else gets nothing and counts as faulty; it is no proof of a lie, so no stake is lost.
    """
    right = [copy.node for copy in task.copies if copy.result is not None and copy.result == task.result]
    if not right:
        return {}
    part, rest = divmod(pot, len(right))
    return {node: part + (rest if place == 0 else 0) for place, node in enumerate(right)}


def forged(colluding: float, copies: int, quorum: int) -> float:
    """Probability that at least ``quorum`` of ``copies`` owners are colluders, each with probability ``colluding``."""
    return sum(
        math.comb(copies, bad) * colluding**bad * (1 - colluding) ** (copies - bad) for bad in range(quorum, copies + 1)
    )
