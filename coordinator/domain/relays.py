"""Which relay a pair of nodes uses: of those that live, the one whose two legs are shortest, and another one stands by."""

from collections.abc import Callable, Iterable

import msgspec

from protocol.ids import NodeAddress

CHOSEN = 2  # One to use and one that stands by.
FAR_S = 0.3  # A leg that nobody has measured: half around the world, so that what is known to be near comes first.
MAX_FAILED_PROBES = 3  # A relay that misses three in a row is gone; one lost datagram is nothing.
MISSED_REPORTS = 3  # As many may be missed before a relay's silence counts as its end.
TOLERANCE = 0.2  # Round trips vary as much from one measurement to the next; for less, nobody is told of another order.
TOLERANCE_S = 0.005

Legs = Callable[[NodeAddress, str], float | None]
"""Round trip in seconds between a node and a relay (its name); None: not measured."""


class RelayCandidate(msgspec.Struct, frozen=True):
    """A relay as the choice sees it.

    Attributes:
        name: the first of its URLs; what nodes call it when they measure.
        probed: at least one probe has been answered.
        failed: probes in a row that were not.
        expires: when its silence is its end, seconds of the clock that ``live`` is asked with; None: it does not report.
        rtt: the coordinator's own round trip to it, a guess for nodes that have not measured.
        full: it has as many allocations as it takes.
    """

    name: str
    probed: bool = False
    failed: int = 0
    expires: float | None = None
    rtt: float | None = None
    full: bool = False


def live(relay: RelayCandidate, now: float) -> bool:
    """Whether a relay may be handed out: it answers, and has reported lately if it reports at all."""
    reporting = relay.expires is None or now < relay.expires
    return relay.probed and relay.failed < MAX_FAILED_PROBES and reporting


def probed(relay: RelayCandidate, rtt: float | None) -> RelayCandidate:
    """The relay after a probe that took ``rtt`` seconds; None: nothing came back."""
    if rtt is None:
        return msgspec.structs.replace(relay, failed=min(relay.failed + 1, MAX_FAILED_PROBES))
    return msgspec.structs.replace(relay, probed=True, failed=0, rtt=rtt)


def order(
    nodes: Iterable[NodeAddress], relays: Iterable[RelayCandidate], legs: Legs, now: float, before: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Names of the relays for traffic between ``nodes``, best first, ``CHOSEN`` at most.

    The same whichever node is named first, and whatever order the relays come in. A full relay comes after all others.

    Args:
        nodes: the two ends of a pair, or one node whose peers are not known.
        relays: all there are; those that do not live are left out.
        legs: what has been measured.
        now: for ``live``.
        before: what was chosen last: it stays while nothing is better by more than measurements vary.
    """
    ends = tuple(nodes)

    def rank(relay: RelayCandidate) -> tuple[bool, float, str]:
        guess = FAR_S if relay.rtt is None else relay.rtt
        measured = (legs(node, relay.name) for node in ends)
        return relay.full, sum(guess if leg is None else leg for leg in measured), relay.name

    ranked = sorted(rank(relay) for relay in relays if live(relay, now))
    best = ranked[:CHOSEN]
    by_name = {entry[2]: entry for entry in ranked}
    if len(before) == len(best) and all(name in by_name for name in before):
        held = [by_name[name] for name in before]
        if all(_as_good(old, new) for old, new in zip(held, best, strict=True)):
            return before
    return tuple(name for _, _, name in best)


def _as_good(old: tuple[bool, float, str], new: tuple[bool, float, str]) -> bool:
    return old[0] == new[0] and old[1] <= new[1] * (1 + TOLERANCE) + TOLERANCE_S
