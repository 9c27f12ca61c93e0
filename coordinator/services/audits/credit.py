"""What nodes have earned of trust: the credit of their verified work, by account, and how it is lost.

Everything on an open desk.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from coordinator.domain.audits import rate as rates
from coordinator.domain.audits.rate import NodeStanding
from coordinator.domain.audits.trust import Audit, AuditState
from coordinator.domain.job import Job
from coordinator.services.core.domain_events import StandingChanged
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, CreditRecord, NodeRecord, RoundRecord
from protocol.ids import NodeAddress

# States of an audit to which something may still happen.
OPEN: tuple[AuditState, ...] = ("drawn", "opening", "showing", "replaying")


async def standings_of(
    work: UnitOfWork, commits: Collection[CommitRecord], watched: Collection[str]
) -> dict[str, NodeStanding]:
    """What is known of a round's nodes when it is drawn, by their leases.

    What is still to be verified counts as if it were: a fault found in an earlier round makes all that is drawn later void. Of
    other cells' jobs it counts once it is verified: whoever has come from there is looked at a little more often.

    Args:
        commits: all of the round. ``watched``: leases whose part of it the operator's auditors look at.
    """
    nodes = tuple(sorted({commit.node for commit in commits}))
    records = {record.address: record for record in await work.tx.find(NodeRecord, col(NodeRecord.address).in_(nodes))}
    of_account = col(CreditRecord.account_id).equals(work.job.account_id)
    known = await work.tx.find(CreditRecord, col(CreditRecord.node).in_(nodes), of_account)
    pending = await work.tx.find(
        CommitRecord, col(CommitRecord.node).in_(nodes), col(CommitRecord.state).equals("pending")
    )
    of_account_too = {job for job in {other.job for other in pending} if await _is_of_account(work, job)}
    found: dict[str, NodeStanding] = {}
    for commit in commits:
        looked = commit.lease in watched
        due = [other for other in pending if other.node == commit.node and _place(other) != _place(commit)]
        due = [other for other in due if bool(other.look) == looked and other.job in of_account_too]
        earned = [credit for credit in known if credit.node == commit.node and credit.watched == looked]
        amount, share = sum(other.amount for other in due), max(1, commit.amount)
        amount += sum(one.amount for one in earned)
        if not looked and not any(credit.exact for credit in earned):
            amount = min(amount, rates.TRUST * share)  # Others have seen nothing but what is far off, if that.
        pot = sum(member.amount for member in commits if looked and member.replica == commit.replica)
        found[commit.lease] = NodeStanding(amount, share, records[commit.node].faults, pot)
    return found


async def of_nodes(work: UnitOfWork, nodes: Collection[NodeAddress]) -> dict[NodeAddress, int]:
    """Nodes' credit with the job's account, of work that the operator's auditors have watched."""
    of_account: tuple[Condition, ...] = (
        col(CreditRecord.account_id).equals(work.job.account_id),
        col(CreditRecord.watched).equals(True),
    )
    found = await work.tx.find(CreditRecord, col(CreditRecord.node).in_(tuple(sorted(nodes))), *of_account)
    return {record.node: record.amount for record in found}


async def have_credit(work: UnitOfWork, nodes: Collection[NodeAddress], watched: bool) -> bool:
    """Whether one of the nodes has credit with the job's account; ``watched``: of work that the operator's auditors look at."""
    of_account: tuple[Condition, ...] = (
        col(CreditRecord.account_id).equals(work.job.account_id),
        col(CreditRecord.watched).equals(watched),
    )
    found = await work.tx.find(CreditRecord, col(CreditRecord.node).in_(tuple(sorted(nodes))), *of_account)
    return any(record.amount > 0 for record in found)


async def earn(work: UnitOfWork, commits: Sequence[CommitRecord], audits: Collection[Audit]) -> None:
    """Commitments of nodes to a round were verified.

    Args:
        audits: of the round.
    """
    if not commits:
        return
    await work.hold_shared()
    nodes = tuple(sorted({commit.node for commit in commits}))
    of_account = col(CreditRecord.account_id).equals(work.job.account_id)
    found = await work.tx.find(CreditRecord, col(CreditRecord.node).in_(nodes), of_account)
    known = {(credit.node, credit.watched): credit for credit in found}
    now = dict(known)
    for commit in commits:
        place = commit.node, bool(commit.look)
        credit = now.get(place) or CreditRecord(commit.node, work.job.account_id, place[1])
        now[place] = _with(credit, commit, [audit for audit in audits if audit.lease == commit.lease])
    changed = [place for place in known if now[place] is not known[place]]
    await work.tx.update_all([now[place] for place in changed], [known[place] for place in changed])
    await work.tx.insert_all([credit for place, credit in now.items() if place not in known])
    before = await work.tx.find(NodeRecord, col(NodeRecord.address).in_(nodes))
    rounds = Counter(commit.node for commit in commits)
    after = [msgspec.structs.replace(record, rounds=record.rounds + rounds[record.address]) for record in before]
    for record in await work.tx.update_all(after, before):
        work.record(StandingChanged(record.address, record.rounds))


def _with(credit: CreditRecord, commit: CommitRecord, audits: Collection[Audit]) -> CreditRecord:
    """Credit and what a verified commitment adds to it. ``audits``: of it."""
    seen = [one for one in audits if one.over and one.verdicts and one.state == "passed" and one.outer is None]
    exact = any(not audit.across for audit in seen)
    across = bool(seen) and not exact and not commit.look
    amount = credit.amount + (commit.amount // rates.AFAR if across else commit.amount)
    return msgspec.structs.replace(credit, amount=amount, exact=credit.exact or exact)


async def stand_surety(work: UnitOfWork, commit: CommitRecord) -> bool:
    """Whether a node is paid for work beside somebody whose part of the round turned out false, or was never seen.

    It may have been spared its work by that. The operator's machine has come to the same bits, or the node's standing answers
    for it and is less by that: an honest node is looked at more often, and who is in it with the other gains nothing.
    """
    record = await work.tx.get(RoundRecord, commit.job, commit.epoch, commit.round)
    own = [audit for audit in await audits_of(work, record) if audit.lease == commit.lease and audit.outer is None]
    if any(v.own and not v.afar and v.verdict == "match" for audit in own if audit.over for v in audit.verdicts):
        return True
    needed = rates.surety(commit.amount)
    await work.hold_shared()
    for known in await _find(work, commit.node, watched=True):
        if known.amount >= needed:
            await work.tx.update(msgspec.structs.replace(known, amount=known.amount - needed))
            return True
    return False


async def lose(work: UnitOfWork, node: NodeAddress, everywhere: bool) -> None:
    """A node's standing is gone with the job's account, or with all."""
    of_account: tuple[Condition, ...] = (
        () if everywhere else (col(CreditRecord.account_id).equals(work.job.account_id),)
    )
    await work.hold_shared()
    for credit in await work.tx.find(CreditRecord, col(CreditRecord.node).equals(node), *of_account):
        await work.tx.update(msgspec.structs.replace(credit, amount=0, exact=False))
    for record in await work.tx.find(NodeRecord, col(NodeRecord.address).equals(node)):
        await work.tx.update(msgspec.structs.replace(record, rounds=0))
        work.record(StandingChanged(node, 0))


async def unsure(work: UnitOfWork, audit: Audit) -> list[CommitRecord]:
    """Shares that wait and were drawn with a standing that the audited round has undone: of its node's later rounds.

    Not those of which a look has found nothing, or still has to. The node may have gone on in another job of the account.
    """
    record = await work.tx.get(RoundRecord, audit.job, audit.epoch, audit.round)
    found = []
    for commit in await work.tx.find(
        CommitRecord, col(CommitRecord.node).equals(audit.node), col(CommitRecord.state).equals("pending")
    ):
        if not commit.look or not await _is_of_account(work, commit.job):
            continue
        its = await work.tx.get(RoundRecord, commit.job, commit.epoch, commit.round)
        later = commit.job != audit.job or (its.ended or 0.0) > (record.ended or 0.0)
        if later and not await has_look(work, commit, its):
            found.append(commit)
    return found


async def has_look(work: UnitOfWork, commit: CommitRecord, record: RoundRecord) -> bool:
    """Whether a look has found nothing in a share of a round, or still has to."""
    return any(other.lease == commit.lease and _counts(other) for other in await audits_of(work, record))


async def looked_at_elsewhere(work: UnitOfWork, nodes: Collection[NodeAddress]) -> set[NodeAddress]:
    """Nodes of whose work in other jobs of the account an audit is still open."""
    return {audit.node for audit in await open_elsewhere(work, nodes)}


async def open_elsewhere(work: UnitOfWork, nodes: Collection[NodeAddress]) -> list[Audit]:
    """Audits of nodes' work in other jobs of the account that are still open, also of those of other cells."""
    if not nodes:
        return []
    audits = await work.tx.everywhere.find(
        Audit, col(Audit.node).in_(tuple(sorted(nodes))), col(Audit.state).in_(OPEN), col(Audit.canary).equals(False)
    )
    return await of_account(work, [audit for audit in audits if audit.watched and audit.job != work.job.id])


async def of_account(work: UnitOfWork, audits: Collection[Audit]) -> list[Audit]:
    """Those of them that are of jobs of the account."""
    jobs = {job for job in {audit.job for audit in audits} if await _is_of_account(work, job)}
    return [audit for audit in audits if audit.job in jobs]


async def audits_of(work: UnitOfWork, record: RoundRecord) -> list[Audit]:
    """Audits of a round as they are now."""
    key = record.job, record.epoch, record.number
    where: tuple[Condition, ...] = (
        col(Audit.job).equals(key[0]),
        col(Audit.epoch).equals(key[1]),
        col(Audit.round).equals(key[2]),
    )
    stored = await work.tx.find(Audit, *where, col(Audit.canary).equals(False))
    newer = [*work.audits.values(), *work.concluded]
    own = [audit for audit in newer if (audit.job, audit.epoch, audit.round) == key and not audit.canary]
    return list({audit.id: audit for audit in [*stored, *own]}.values())


def _counts(audit: Audit) -> bool:
    """Whether a look has found nothing in a step, or still has to. Of an outer step it says nothing of the work."""
    if audit.outer is not None:
        return False
    if audit.over:
        return audit.state == "passed" and any(verdict.own for verdict in audit.verdicts)
    return audit.look or audit.looking


def _place(commit: CommitRecord) -> tuple[str, int, int, str]:
    return commit.job, commit.epoch, commit.round, commit.lease


async def _is_of_account(work: UnitOfWork, job: str) -> bool:
    return job == work.job.id or (await work.tx.everywhere.get(Job, job)).account_id == work.job.account_id


async def _find(work: UnitOfWork, node: NodeAddress, watched: bool) -> list[CreditRecord]:
    key: tuple[Condition, ...] = (
        col(CreditRecord.account_id).equals(work.job.account_id),
        col(CreditRecord.watched).equals(watched),
    )
    return await work.tx.find(CreditRecord, col(CreditRecord.node).equals(node), *key)
