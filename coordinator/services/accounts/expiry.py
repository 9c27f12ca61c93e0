"""Records of those who never did anything here: keys of nodes that never held a lease, accounts that nobody uses.

Both cost nothing to make. What is forgotten can be made again; whoever has done something stays.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from coordinator.domain.account import Account, Role
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.services.accounts.budgets import UNUSED_S
from coordinator.services.core.context import Context
from coordinator.services.network.machine_days import day_of
from coordinator.store.ports import Condition, Place, Transaction, col
from coordinator.store.records import (
    CredentialRecord,
    FileRecord,
    InvitationRecord,
    KeyRecord,
    MachineDay,
    NodeRecord,
    NoticeRecord,
    NoticeSettings,
    ReplayRecord,
    SessionRecord,
    TrailRecord,
)

NODE_S = 7 * 86_400.0  # Since a key was last here; its next Hello makes it known again.
LOOK_S = 3600.0
PAGE = 200
MAX_ACCOUNTS_A_LOOK = 2_000  # Looked at; the next look goes on behind them.
_OWNERS = (
    col(SessionRecord.account_id),
    col(KeyRecord.account_id),
    col(CredentialRecord.account_id),
    col(TrailRecord.account_id),
    col(NoticeSettings.account_id),
    col(NoticeRecord.account_id),
    col(ReplayRecord.account_id),
)

LOG = logging.getLogger(__name__)


class Forgetting:
    """``here`` says whether a node is connected now."""

    def __init__(self, context: Context, here: Callable[[str], bool]) -> None:
        self._context = context
        self._here = here
        self._after: Place | None = None

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._context.clock.sleep(LOOK_S)
            nodes, accounts = await self.look()
            if nodes or accounts:
                LOG.info("%d keys of nodes and %d accounts that were never used are forgotten", nodes, accounts)

    async def look(self) -> tuple[int, int]:
        """Forget whom nobody knows; how many nodes and accounts that were."""
        return await self._nodes(), await self._accounts()

    async def _nodes(self) -> int:
        since, forgotten, after = self._context.clock.time() - NODE_S, 0, None
        idle: tuple[Condition, ...] = (
            col(NodeRecord.seen) < since,
            col(NodeRecord.rounds).equals(0),
            col(NodeRecord.earned).equals(0),
            col(NodeRecord.faults).equals(0),
            col(NodeRecord.banned).equals(False),
            col(NodeRecord.draining).equals(False),
        )
        while True:
            async with self._context.store.transaction() as tx:
                await tx.hold_shared()
                page = await tx.find(NodeRecord, *idle, limit=PAGE, after=after)
                names = tuple(record.address for record in page)
                worked = await tx.everywhere.find(Lease, col(Lease.node).in_(names))
                kept = {lease.node for lease in worked} | self._context.config.auditors
                kept |= await self._elsewhere(tx, names)
                for record in page:
                    if record.address not in kept and not self._here(record.address):
                        await tx.delete(record)
                        forgotten += 1
            if len(page) < PAGE:
                return forgotten
            after = (page[-1].since, page[-1].address)
            await asyncio.sleep(0)

    async def _elsewhere(self, tx: Transaction, nodes: Sequence[str]) -> set[str]:
        """Those that were in some cell within that time, by their days: whom another one has ``here`` does not know."""
        if self._context.cell.of == 1:
            return set()
        since = day_of(self._context.clock.time() - NODE_S)
        days = await tx.find(MachineDay, col(MachineDay.node).in_(nodes), col(MachineDay.day) > since)
        return {day.node for day in days}

    async def _accounts(self) -> int:
        since, forgotten = self._context.clock.time() - UNUSED_S, 0
        old: tuple[Condition, ...] = (col(Account.created) < since, col(Account.role).equals(Role.SUBMITTER))
        for _ in range(MAX_ACCOUNTS_A_LOOK // PAGE):
            async with self._context.store.transaction() as tx:
                page = await tx.find(Account, *old, limit=PAGE, after=self._after)
                for account in page:
                    if not await self._is_used(tx, account.id, since):
                        for owner in _OWNERS:
                            await tx.forget(owner.of, owner.equals(account.id))
                        await tx.delete(account)
                        forgotten += 1
            self._after = (page[-1].created, page[-1].id) if len(page) == PAGE else None
            if self._after is None:
                break
        return forgotten

    async def _is_used(self, tx: Transaction, account_id: str, since: float) -> bool:
        return bool(
            await tx.everywhere.find(Job, col(Job.account_id).equals(account_id), limit=1)
            or await tx.find(InvitationRecord, col(InvitationRecord.account_id).equals(account_id), limit=1)
            or await tx.find(FileRecord, col(FileRecord.account_id).equals(account_id), limit=1)
            or await tx.find(
                SessionRecord,
                col(SessionRecord.account_id).equals(account_id),
                col(SessionRecord.seen) > since,
                limit=1,
            )
            or await tx.find(
                KeyRecord, col(KeyRecord.account_id).equals(account_id), col(KeyRecord.used) > since, limit=1
            )
        )
