"""Records of those who never did anything here: keys of nodes that never held a lease, accounts that nobody uses.

Both cost nothing to make. What is forgotten can be made again; whoever has done something stays.
"""

import asyncio
import logging
from collections.abc import Callable

from coordinator.domain.account import Account, Role
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.services.accounts.budgets import UNUSED_SECONDS
from coordinator.services.core.context import Context
from coordinator.store.ports import Place, Transaction, Where
from coordinator.store.records import (
    CredentialRecord,
    FileRecord,
    KeyRecord,
    NodeRecord,
    NoticeRecord,
    NoticeSettings,
    ReplayRecord,
    SessionRecord,
    TrailRecord,
)

NODE_SECONDS = 7 * 86_400.0  # Since a key was last here; its next Hello makes it known again.
LOOK_SECONDS = 3600.0
PAGE = 200
MAX_ACCOUNTS_A_LOOK = 2_000  # Looked at; the next look goes on behind them.
_OF_ACCOUNT = (
    SessionRecord,
    KeyRecord,
    CredentialRecord,
    TrailRecord,
    NoticeSettings,
    NoticeRecord,
    ReplayRecord,
)

log = logging.getLogger(__name__)


class Forgetting:
    """``here`` says whether a node is connected now."""

    def __init__(self, context: Context, here: Callable[[str], bool]) -> None:
        self._context = context
        self._here = here
        self._after: Place | None = None

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._context.clock.sleep(LOOK_SECONDS)
            nodes, accounts = await self.look()
            if nodes or accounts:
                log.info("%d keys of nodes and %d accounts that were never used are forgotten", nodes, accounts)

    async def look(self) -> tuple[int, int]:
        """Forget whom nobody knows; how many nodes and accounts that were."""
        return await self._nodes(), await self._accounts()

    async def _nodes(self) -> int:
        since, forgotten, after = self._context.clock.time() - NODE_SECONDS, 0, None
        idle: tuple[Where, ...] = (
            ("seen", "<", since),
            ("rounds", "=", 0),
            ("earned", "=", 0),
            ("faults", "=", 0),
            ("banned", "=", False),
        )
        while True:
            async with self._context.store.transaction() as tx:
                page = await tx.find(NodeRecord, *idle, limit=PAGE, after=after)
                worked = await tx.find(Lease, ("node", "in", tuple(record.address for record in page)))
                kept = {lease.node for lease in worked} | self._context.config.auditors
                for record in page:
                    if record.address not in kept and not self._here(record.address):
                        await tx.delete(record)
                        forgotten += 1
            if len(page) < PAGE:
                return forgotten
            after = (page[-1].since, page[-1].address)
            await asyncio.sleep(0)

    async def _accounts(self) -> int:
        since, forgotten = self._context.clock.time() - UNUSED_SECONDS, 0
        old: tuple[Where, ...] = (("created", "<", since), ("role", "=", Role.SUBMITTER))
        for _ in range(MAX_ACCOUNTS_A_LOOK // PAGE):
            async with self._context.store.transaction() as tx:
                page = await tx.find(Account, *old, limit=PAGE, after=self._after)
                for account in page:
                    if not await self._is_used(tx, account.id, since):
                        for kind in _OF_ACCOUNT:
                            await tx.forget(kind, ("account_id", "=", account.id))
                        await tx.delete(account)
                        forgotten += 1
            self._after = (page[-1].created, page[-1].id) if len(page) == PAGE else None
            if self._after is None:
                break
        return forgotten

    async def _is_used(self, tx: Transaction, account_id: str, since: float) -> bool:
        own: Where = ("account_id", "=", account_id)
        return bool(
            await tx.find(Job, own, limit=1)
            or await tx.find(FileRecord, own, limit=1)
            or await tx.find(SessionRecord, own, ("seen", ">", since), limit=1)
            or await tx.find(KeyRecord, own, ("used", ">", since), limit=1)
        )
