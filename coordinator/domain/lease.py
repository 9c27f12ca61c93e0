"""Leases: a seat of a job held by a node for as long as it renews ``(lease, fence)``.

A heartbeat renews a pair, never a node: a machine that crashed and came back keeps nothing alive that it no longer runs.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from common.untrusted_text import Told, Untrusted
from protocol.ids import NodeAddress
from protocol.node import HeldLease
from protocol.task import Traffic

LeaseEnd = Literal["stopped", "expired", "failed", "inputs", "numbers", "stalled", "replaced", "rejected", "left"]

FAULTS: frozenset[LeaseEnd] = frozenset({"failed", "inputs", "numbers", "stalled"})
"""Ends that speak against the node: after several it is left in peace for a while. One of "inputs" blames the job's files,
one of "numbers" its numbers, which grew beyond what a float holds."""


TAKES_ANY = -1
"""In place of a lease's ``seq``: which reports were stored was forgotten with a disk, so the next one is taken as it comes."""


class Lease(Told, frozen=True):
    """Who holds a seat. ``stage`` None: a spare, which audits and waits. ``seq``: the last report that is stored."""

    id: str
    job: str
    node: NodeAddress
    payout: NodeAddress
    fence: int
    stage: int | None
    replica: int | None
    granted: float
    state: Literal["starting", "ready", "ended"] = "starting"
    end: LeaseEnd | None = None
    reason: Untrusted = Untrusted("")
    env_class: str = ""
    seq: int = 0
    ended: float | None = None
    traffic: Traffic | None = None
    version: int = 0

    @property
    def seat(self) -> tuple[int, int] | None:
        """Stage and replica, or None for a spare."""
        return None if self.stage is None or self.replica is None else (self.stage, self.replica)


def end(lease: Lease, how: LeaseEnd, now: float, reason: str = "") -> Lease:
    """Return ``lease`` ended; one that has ended stays as it is."""
    if lease.state == "ended":
        return lease
    return msgspec.structs.replace(lease, state="ended", end=how, reason=reason, ended=now)


class Term(msgspec.Struct, frozen=True):
    """The time a live lease has left, in memory only: after a restart everyone gets a full term again."""

    node: NodeAddress
    fence: int
    expires: float


def renew(
    terms: Mapping[str, Term], node: str, held: Iterable[HeldLease], now: float, seconds: float
) -> tuple[dict[str, Term], tuple[str, ...]]:
    """Renew what ``node`` names.

    Returns:
        the renewed terms by lease, and the leases that are not the node's (any more).
    """
    renewed: dict[str, Term] = {}
    gone: list[str] = []
    for pair in held:
        term = terms.get(pair.lease)
        if term is None or (term.node, term.fence) != (node, pair.fence) or term.expires <= now:
            gone.append(pair.lease)
        else:
            renewed[pair.lease] = msgspec.structs.replace(term, expires=now + seconds)
    return renewed, tuple(gone)


def expired(terms: Mapping[str, Term], now: float, dead: Collection[str] = ()) -> tuple[str, ...]:
    """Leases whose time is over, and those of ``dead`` nodes, in the order of their ids."""
    return tuple(sorted(lease for lease, term in terms.items() if term.expires <= now or term.node in dead))


def not_back(
    cut: Mapping[str, float], holders: Collection[str], since: float, now: float, seconds: float
) -> frozenset[str]:
    """Nodes whose connection broke off, and that did not come back within ``seconds``.

    A process that dies closes its connections at once, so this is known sooner than from silence. But where most holders are cut
    off together, what failed is not theirs: nobody counts as dead for it, nor before the same time since then has passed.

    Args:
        cut: node -> when its connection broke off. holders: of leases.
        since: when most were last cut off together.
    """
    return frozenset(node for node in holders if node in cut and now - max(cut[node], since) >= seconds)


def mostly(cut: Collection[str], holders: Collection[str]) -> bool:
    """Whether more than half of the holders are cut off."""
    return 2 * sum(node in cut for node in holders) > len(holders)
