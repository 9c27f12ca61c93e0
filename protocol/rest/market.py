"""Resources about the market as a whole: where its machines are, what work costs, who earns, and how the coordinator does.

Amounts are integers, in millionths of the token; times are Unix seconds.
"""

from typing import Literal

import msgspec

from common.token_worth import TokenWorth
from common.untrusted_text import View
from protocol.ids import NodeAddress
from protocol.rest.api import NodeView


class Region(View, frozen=True):
    """Machines by the relay that they reach soonest: nobody is asked where they are.

    Attributes:
        name: what the relay's operator calls the region; empty where it is not told, or no relay was measured.
        relays: of this name that are up.
        flops: of the nodes that are online.
    """

    name: str
    relays: int
    nodes: int
    busy: int
    flops: float


class Link(msgspec.Struct, frozen=True):
    """A link between two nodes that lives now, as the worse of its ends told it."""

    one: NodeAddress
    other: NodeAddress
    rtt_ms: float
    loss: float
    kind: Literal["direct", "relay"]


class PricePoint(msgspec.Struct, frozen=True):
    """What 10^15 operations cost when a job was quoted."""

    time: float
    rate: int


class Market(View, frozen=True):
    """Price and demand.

    Attributes:
        rate: of 10^15 operations now; ``least``: the operator's own, below which it never is.
        reason: where the rate comes from, in words.
        offered: operations a second of all nodes online; ``willing``: of those that work for the rate.
        queued: operations of paid jobs that are still to be done.
        history: oldest first.
        paid_week: to providers, today and on the six days before.
        capacity_week: operations that all nodes could have done in that time, as long as they were here.
        pay_low, pay_high: nine of ten weeks of machines that were paid brought between these, in millionths for 10^15
            operations that they were here for, with and without work; None: too few are known.
        worth: of a token, as the operator says; None: nothing is said.
    """

    rate: int
    least: int
    reason: str
    offered: float
    willing: float
    queued: int
    queued_jobs: int
    history: tuple[PricePoint, ...]
    paid_week: int
    capacity_week: float
    pay_low: int | None = None
    pay_high: int | None = None
    worth: TokenWorth | None = None


class Earned(msgspec.Struct, frozen=True):
    """What a wallet got within one day (UTC), which began at ``day``."""

    day: int
    amount: int


class Payout(View, frozen=True):
    """A wallet's part of one ledger transaction."""

    job: str
    time: float
    amount: int
    state: Literal["queued", "sent", "confirmed", "failed"]
    signature: str


class Earnings(msgspec.Struct, frozen=True):
    """All that was earned for a wallet.

    Attributes:
        machines: that pay to it, or are it.
        paid: by confirmed transactions; ``waiting``: verified and not paid yet; ``unverified``: audits are under way;
            ``rejected``: what would have been paid if audits had not failed.
        days: the last 30, oldest first, days without money too.
        payouts: the newest, newest first.
    """

    address: NodeAddress
    machines: tuple[NodeView, ...]
    paid: int
    waiting: int
    unverified: int
    rejected: int
    days: tuple[Earned, ...]
    payouts: tuple[Payout, ...]


class HealthCheck(View, frozen=True):
    """One part of the service: ``bad`` stops work, ``warn`` does not."""

    name: str
    state: Literal["good", "warn", "bad"]
    text: str


class Day(View, frozen=True):
    """What went wrong within one day (UTC), which began at ``day``: kind of event -> how often."""

    day: int
    counts: dict[str, int]


class Health(View, frozen=True):
    """How the coordinator does.

    Attributes:
        started: when this process began.
        versions: component -> version.
        days: the last 14, newest first.
    """

    started: float
    checks: tuple[HealthCheck, ...]
    versions: dict[str, str]
    days: tuple[Day, ...]
