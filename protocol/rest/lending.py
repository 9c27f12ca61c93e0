"""Who may lend to a network, and invitations to it. Times are Unix seconds, amounts millionths of the token."""

from typing import Annotated, Literal

from msgspec import Meta

from common.untrusted_text import Told, Untrusted, View
from protocol.ids import NodeAddress

LendingRule = Literal["everybody", "invited", "listed", "verified"]
InvitationState = Literal["open", "used", "ended", "withdrawn"]


class LendersView(View, frozen=True):
    """Who may lend.

    Attributes:
        min_stake: that each must have, beside the rule.
        nodes: how many the list names by their keys.
        owners: accounts that may invite their machines: on the list, or vouched for and with machines here.
        unknown: names on the list of which there is no account, or one that is disabled.
        problem: why the list's file cannot be used now, so that the list of before counts; empty: it can.
    """

    rule: LendingRule
    min_stake: int
    nodes: int
    owners: tuple[Untrusted, ...]
    unknown: tuple[Untrusted, ...]
    problem: Untrusted


class NewInvitation(Told, frozen=True, forbid_unknown_fields=True):
    """``note``: whom it is for; ``days``: until it ends, if nobody has used it."""

    note: Annotated[Untrusted, Meta(max_length=100, pattern=r"^[^\x00]*$")] = Untrusted("")
    days: Annotated[int, Meta(ge=1, le=365)] = 7


class InvitationView(View, frozen=True):
    """An invitation. ``link`` and ``page`` are there in the answer that makes it, and never again.

    Attributes:
        by: who made it, as the account is called. ``owned``: it counts while that account is on the network's
            list, or vouched for.
        node: that has used it.
        link: opens the app; ``page``: shows it on any device.
    """

    id: str
    by: Untrusted
    owned: bool
    note: Untrusted
    state: InvitationState
    created: float
    expires: float
    node: NodeAddress | None
    used: float | None
    link: str = ""
    page: str = ""
