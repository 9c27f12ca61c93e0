"""What an operator sees and orders, as Python calls; they need a key with the scope ``operate``."""

from collections.abc import Sequence
from urllib.parse import urlencode

from coordinator.client.line import HttpLine, place
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


class OperatorCalls:
    """Calls of the client for whoever runs the coordinator."""

    _line: HttpLine

    async def admin_nodes(
        self, search: str = "", state: AdminNodeState | None = None, limit: int | None = None
    ) -> Sequence[AdminNode]:
        """Nodes that ever were here, longest known first.

        Args:
            search: how an address or a payout begins, or a part of the name.
            state: only these.
            limit: at most so many; None: all.
        """
        return await self._line.list(_asked("admin/nodes", search=search, state=state), AdminNode, limit)

    async def admin_node(self, node: str) -> AdminNode:
        """One node, with what it holds."""
        return await self._line.get(place("admin/node", node), AdminNode)

    async def order_node(self, node: str, order: NodeOrder, reason: str = "") -> AdminNode:
        """Drain or ban a node, or take that back; a ban and its end need a reason."""
        there = f"{place('admin/node', node)}/{order}"
        return await self._line.change("POST", there, AdminNode, {"reason": reason})

    async def admin_jobs(self, state: AdminJobState | None = None, limit: int | None = None) -> Sequence[AdminJob]:
        """Jobs of all accounts, newest first; ``live``: those that have not ended."""
        return await self._line.list(_asked("admin/jobs", state=state), AdminJob, limit)

    async def cancel_any(self, job: str, reason: str) -> AdminJob:
        """End a job of any account: verified work is paid, the rest refunded. Its owner reads the reason."""
        there = f"{place('admin/job', job)}/cancel"
        return await self._line.change("POST", there, AdminJob, {"reason": reason})

    async def admin_outbox(self, state: AdminRowState | None = None, limit: int | None = None) -> Sequence[AdminRow]:
        """What the ledger has not confirmed, newest first."""
        return await self._line.list(_asked("admin/outbox", state=state), AdminRow, limit)

    async def admin_storage(self, job_files_days: int | None = None, uploads_days: int | None = None) -> AdminStorage:
        """What lies there, and what the next sweep would remove, or would if files stayed for so many days."""
        asked = {"job_files_days": job_files_days, "uploads_days": uploads_days}
        named = {name: str(days) for name, days in asked.items() if days is not None}
        return await self._line.get(_asked("admin/storage", **named), AdminStorage)

    async def lenders(self) -> LendersView:
        """Who may lend, and what the list says."""
        return await self._line.get("admin/lenders", LendersView)

    async def invitations(self, limit: int | None = None) -> Sequence[InvitationView]:
        """Invitations to lend that were made with the account; an operator's are all."""
        return await self._line.list("invitations", InvitationView, limit)

    async def invite(self, note: str = "", days: int = 7) -> InvitationView:
        """Make an invitation for one machine; ``link`` and ``page`` in the answer are never shown again.

        Args:
            note: whom it is for.
            days: until it ends, if nobody has used it.
        """
        return await self._line.change("POST", "invitations", InvitationView, {"note": note, "days": days})

    async def withdraw_invitation(self, invitation: str) -> InvitationView:
        """Take an invitation back: nobody can use it, and the machine that has may lend no more."""
        return await self._line.change("DELETE", place("invitation", invitation), InvitationView)


def _asked(path: str, **wanted: str | None) -> str:
    query = urlencode({name: value for name, value in wanted.items() if value})
    return f"{path}?{query}" if query else path
