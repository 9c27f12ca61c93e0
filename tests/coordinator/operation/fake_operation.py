"""What an operator sees of the network in memory (``fake``), and orders there."""

from collections.abc import Sequence

import msgspec

from common.untrusted_text import Untrusted
from coordinator.errors import InvalidError, NotFoundError
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.jobs.ports import ListWindow
from coordinator.services.operation.ports import NodeQuery, NodeSlice, OrderedBy
from protocol.rest import api
from protocol.rest.admin import (
    AdminJob,
    AdminJobState,
    AdminLease,
    AdminNode,
    AdminRow,
    AdminRowState,
    AdminStorage,
    NodeOrder,
    RemovableFile,
)
from tests.coordinator.web.fake import START, Cluster, signature

_OVER = ("settled", "failed", "cancelled")


class Operation:
    """``OperatorPort`` over a cluster: its nodes, all its jobs, three rows that wait or were given up."""

    def __init__(self, cluster: Cluster, accounts: AccountService) -> None:
        self._cluster = cluster
        self._accounts = accounts
        self._known: dict[str, AdminNode] = {}

    async def nodes(self, asked: NodeQuery, window: ListWindow) -> NodeSlice:
        fitting = [
            one
            for one in sorted(await self._all(), key=lambda one: (one.since, one.node))
            if (one.node.startswith(asked.text) or one.payout.startswith(asked.text) or asked.text in one.name)
            and (asked.state is None or getattr(one, asked.state))
            and (window.after is None or (one.since, one.node) > window.after)
        ]
        return NodeSlice(fitting[: window.limit])

    async def node(self, node: str) -> AdminNode:
        found = next((one for one in await self._all() if one.node == node), None)
        if found is None:
            raise NotFoundError(f"no node {node[:60]} has ever been here", "node")
        return found

    async def order(self, node: str, order: NodeOrder, reason: str, by: OrderedBy) -> AdminNode:
        found = await self.node(node)
        if order in ("ban", "unban") and not reason.strip():
            raise InvalidError(f"to {order} a node needs a reason", "reason")
        if order in ("drain", "undrain"):
            found = msgspec.structs.replace(found, draining=order == "drain")
        else:
            why = Untrusted(f"by this network's operator: {reason}" if order == "ban" else "")
            found = msgspec.structs.replace(found, banned=order == "ban", reason=why, online=order == "unban")
        self._known[node] = found
        await self._accounts.note(by.who, by.via, f"node.{order}", f"{node}: {reason}", by.address)
        return found

    async def jobs(self, state: AdminJobState | None, window: ListWindow) -> Sequence[AdminJob]:
        made = [_job(job.view, job.account_id) for job in self._cluster._jobs.values()]
        made.sort(key=lambda one: (one.created, one.id), reverse=True)
        if state == "live":
            made = [one for one in made if one.state not in _OVER]
        elif state is not None:
            made = [one for one in made if one.state == state]
        after = window.after
        return [one for one in made if after is None or (one.created, one.id) < after][: window.limit]

    async def job(self, job: str) -> AdminJob:
        return _job(await self._cluster.get(job), self._cluster._find(job).account_id)

    async def cancel(self, job: str, reason: str, by: OrderedBy) -> AdminJob:
        if not reason.strip():
            raise InvalidError("to cancel a job needs a reason", "reason")
        if (await self.job(job)).state != "cancelled":
            await self._cluster.cancel(job)
            await self._accounts.note(by.who, by.via, "job.cancelled", f"{job}: {reason}", by.address)
        return await self.job(job)

    async def outbox(self, state: AdminRowState | None, before: int | None, limit: int) -> Sequence[AdminRow]:
        job, why = f"{1:032x}", Untrusted("round 3 to 4 nodes: the ledger refused it each time")
        rows = [
            AdminRow(
                9, job, "settle", "sent", 1_234_567, Untrusted("round 4 to 4 nodes"), START, 3.5, 1, signature("9")
            ),
            AdminRow(7, job, "event", "queued", 0, Untrusted("assigned"), START - 60, 63.5, 0, ""),
            AdminRow(4, job, "settle", "failed", 7_654_321, why, START - 90_000, 90_003.5, 5, signature("4")),
        ]
        wanted = {None: ("queued", "sent", "failed"), "open": ("queued", "sent"), "failed": ("failed",)}[state]
        return [row for row in rows if row.state in wanted and (before is None or row.id < before)][:limit]

    async def storage(self, job_files: int | None = None, uploads: int | None = None) -> AdminStorage:
        stock = AdminStorage(
            "disk", START, 1_204, 17, 81_234_567_890, 1_234_567_890, 500 * 10**9, 212 * 10**9, 5 << 30, 45_678_592
        )
        largest = (RemovableFile("ab" * 32, 1_000_000_000), RemovableFile("cd" * 32, 234_000_000))
        return msgspec.structs.replace(
            stock, job_files_days=job_files or 30, uploads_days=uploads or 30, largest=largest
        )

    async def _all(self) -> list[AdminNode]:
        nodes = [_node(one) for one in await self._cluster.network_nodes()]
        return [self._known.get(one.node, one) for one in nodes]


def _node(one: api.NodeView) -> AdminNode:
    serves = one.name != "attic-4090"
    held = (AdminLease(f"{1 + serves:032x}", 0, 1, "ready", START, serves),) if one.busy else ()
    return AdminNode(
        node=one.node,
        payout=one.payout,
        name=one.name,
        device=one.device,
        online=one.online,
        busy=one.busy,
        draining=False,
        banned=one.banned,
        reason=Untrusted(""),
        stake=one.stake,
        earned=one.earned,
        rounds=12,
        faults=0,
        since=one.since,
        seen=START,
        address="203.0.113.7" if one.online else "",
        leases=held,
    )


def _job(view: api.JobView, account: str) -> AdminJob:
    waits = Untrusted("Waiting for enough free nodes: 1st in the queue.")
    return AdminJob(
        id=view.id,
        name=view.name,
        account=account,
        owner=Untrusted("Ada"),
        state=view.state,
        sentence=view.sentence or waits,
        created=view.created,
        ended=view.ended,
        rounds_done=view.rounds_done,
        rounds_total=view.rounds_total,
        nodes=4 if view.state == "running" else 0,
        escrow=view.escrow,
        paid=view.paid,
        refunded=view.refunded,
    )
