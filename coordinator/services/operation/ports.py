"""What the web layer may ask for in an operator's name. ``OperatorService`` implements it; tests may bring their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.domain.account import Principal
from coordinator.services.jobs.ports import ListWindow
from protocol.rest.admin import (
    AdminJob,
    AdminJobState,
    AdminNode,
    AdminNodeState,
    AdminRow,
    AdminRowState,
    AdminStorage,
    NodeOrder,
)
from protocol.rest.lending import InvitationView, LendersView


@dataclass(frozen=True)
class OrderedBy:
    """Who orders something, for the trail. ``via``: the session or the API key; ``address``: where the request comes from."""

    who: Principal
    via: str
    address: str


@dataclass(frozen=True)
class NodeQuery:
    """Which nodes are meant. ``text``: how an address or a payout begins, or what is in the name; empty: all."""

    text: str = ""
    state: AdminNodeState | None = None


@dataclass(frozen=True)
class NodeSlice:
    """A part of a list of nodes. ``beyond``: where it was given up looking; the next part begins there."""

    found: Sequence[AdminNode]
    beyond: tuple[Any, ...] | None = None


class OperatorPort(Protocol):
    """What an operator sees and orders. Raises ``coordinator.errors``. Each order that changes something is in the trail."""

    async def nodes(self, asked: NodeQuery, window: ListWindow) -> NodeSlice:
        """Nodes that ever were here, longest known first."""

    async def node(self, node: str) -> AdminNode:
        """One node."""

    async def order(self, node: str, order: NodeOrder, reason: str, by: OrderedBy) -> AdminNode:
        """Drain or ban a node, or take that back; ordering what is so already changes nothing."""

    async def jobs(self, state: AdminJobState | None, window: ListWindow) -> Sequence[AdminJob]:
        """Jobs of all accounts, newest first."""

    async def job(self, job: str) -> AdminJob:
        """One job."""

    async def cancel(self, job: str, reason: str, by: OrderedBy) -> AdminJob:
        """End a job: what is verified is paid, the rest refunded. Cancelling twice is the same as once."""

    async def outbox(self, state: AdminRowState | None, before: int | None, limit: int) -> Sequence[AdminRow]:
        """Rows that are open or were given up, newest first; ``before``: only those with a smaller id."""

    async def storage(self, job_files: int | None = None, uploads: int | None = None) -> AdminStorage:
        """What lies here, and what a sweep would remove now: as it is, or if files stayed for so many days."""


class LendersPort(Protocol):
    """Who may lend, and invitations. Raises ``coordinator.errors``. What changes something is in the trail."""

    def view(self) -> LendersView:
        """The rule, and what the list says."""

    async def may_invite(self, who: Principal) -> bool:
        """Whether it is the operator where invitations count, or an owner: on the list, or vouched for."""

    async def invite(self, note: str, days: int, by: OrderedBy) -> tuple[InvitationView, str]:
        """Make an invitation for one machine; with its code, which is kept nowhere. ``days``: until it ends unused."""

    async def invitations(self, who: Principal) -> Sequence[InvitationView]:
        """Those of an account, oldest first; an operator sees all."""

    async def withdraw(self, invitation: str, by: OrderedBy) -> InvitationView:
        """Take an invitation back: nobody can use it, and whoever has may lend no more. Twice is the same as once."""
