"""When tasks that fail are the job's own doing: who says so, and whose word counts.

The coordinator has read a job's files at the door, made what it made of them, and names all by digest: what can be seen of them
without a machine was seen before anybody paid. So whoever says afterwards that they cannot be used is not believed for saying so,
nor are two: payout addresses are free, and a rival's job would be ended by it. Until a round is complete, these are believed:

    one of the operator's auditors, which is sent for as soon as anybody says so (``services.audits.operator_audits``)
    three owners, one of whom has standing: verified work for the job's account since its last fault
    everybody, where nobody is left who could still try; that ends the job too, and is not held against its account

Anybody else's word is a failure of the machine that said it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import FAULTS, Lease
from coordinator.domain.placement import Candidate
from coordinator.services.accounts.budgets import FAULTY_S, MAX_FAULTY_JOBS
from coordinator.services.audits.credit import have_credit
from coordinator.services.core.display_names import listed
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import Condition, Transaction, col

OWN_FAULT = "the job's own files cannot be used"  # So begins the reason of a job that failed by them.
NOBODY = "nobody who is here can use the job's files"  # So, that of one that nobody else is left to try.
DIVERGED = "training diverges on every machine"
TRYING = (JobState.PLANNED, JobState.RUNNING)
MIN_OWNERS = 3  # Of whom one has standing.
MAX_FAULTS_PER_JOB = 12  # So many failures on several machines are the job's, not theirs.
MAX_FAULTS_PER_OWNER = 2  # That count of those, as long as somebody is here whom the job has not failed.
MAX_FAULTS_PER_NODE = 2  # A machine that failed a job twice in a short time is likely to fail it again,
FORGIVEN_S = 600.0  # but a stalled round blames whole replicas, so after a while it is asked again.


async def faulty_jobs(tx: Transaction, account_id: str, now: float) -> list[Job]:
    """Jobs of an account that failed by their own files within a day."""
    of_account: tuple[Condition, ...] = (col(Job.account_id).equals(account_id), col(Job.state).equals(JobState.FAILED))
    failed = await tx.find(Job, *of_account, col(Job.ended) > now - FAULTY_S)
    return [job for job in failed if job.reason.startswith(OWN_FAULT)]


async def too_many_at_once(work: UnitOfWork) -> str:
    """Why a funded job is given to no machine yet, or an empty text.

    So many of an account may try machines before one of them has completed a round, less those that failed by their own files
    within a day. Accounts that are known, and of which none failed so, have no such bound.
    """
    account_id = work.job.account_id
    if account_id == LOCAL_ACCOUNT:
        return ""
    of_account: Condition = col(Job.account_id).equals(account_id)
    tx = work.tx.everywhere
    failed = len(await faulty_jobs(tx, account_id, work.now))
    if not failed and await tx.find(Job, of_account, col(Job.paid) > 0, limit=1):
        return ""
    begun = await tx.find(
        Job, of_account, col(Job.state).in_(TRYING), col(Job.tokens_done).equals(0), limit=MAX_FAULTY_JOBS
    )
    if failed + len(begun) < MAX_FAULTY_JOBS:
        return ""
    return (
        f"{len(begun)} jobs of its account have not completed a round yet, and {failed} failed within a day by their own files: "
        f"{MAX_FAULTY_JOBS} together at the most"
    )


async def too_many_faults(work: UnitOfWork, able: Sequence[Candidate], auditors: Collection[str]) -> str:
    """Why the job must be given up, or an empty text: tasks kept failing since the last complete round.

    Args:
        able: nodes that are here, busy or not, and could take a seat.
        auditors: of the operator, whose failures are not the job's.
    """
    fresh = [lease for lease in work.ended if lease.end in FAULTS and lease.node not in auditors]
    if not fresh:
        return ""
    earlier = await work.tx.find(
        Lease,
        col(Lease.job).equals(work.job.id),
        col(Lease.end).in_(tuple(sorted(FAULTS))),
        col(Lease.ended) > (work.run.advanced if work.run else 0.0),
    )
    owners = Counter(lease.payout for lease in _once(earlier, fresh) if lease.node not in auditors)
    most = MAX_FAULTS_PER_OWNER if _others(work, able, owners, auditors) else MAX_FAULTS_PER_JOB
    if sum(min(count, most) for count in owners.values()) < MAX_FAULTS_PER_JOB:
        return ""
    return f"{owners.total()} tasks failed since a round was last completed, at last on node {fresh[-1].node}: {fresh[-1].reason}"


async def blamed_files(work: UnitOfWork, able: Sequence[Candidate], auditors: Collection[str]) -> str:
    """Why the job must be given up, or an empty text: before any round was complete, nodes found its own files of no use.

    Nobody is believed where another node holds the same stage and was ready with it, as the files are the same.

    Args:
        able: nodes that are here, busy or not, and could take a seat.
        auditors: of the operator.
    """
    fresh = [lease for lease in work.ended if lease.end == "inputs"]
    if not fresh or (work.run is not None and work.run.done):
        return ""
    earlier = await work.tx.find(Lease, col(Lease.job).equals(work.job.id), col(Lease.end).equals("inputs"))
    told = _once(earlier, fresh)
    if any(lease.node in auditors for lease in told):
        return _sentence(OWN_FAULT, told, fresh)
    blames = [lease for lease in told if lease.env_class or "ready" not in _beside(work, lease)]
    owners = {lease.payout for lease in blames}
    if len(owners) >= MIN_OWNERS and await have_credit(work, {lease.node for lease in blames}, bool(auditors)):
        return _sentence(OWN_FAULT, blames, fresh)
    alone = not _others(work, able, owners, auditors) and not any(_beside(work, lease) for lease in blames)
    return _sentence(NOBODY, blames, fresh) if owners and alone else ""


async def diverged(work: UnitOfWork, able: Sequence[Candidate], auditors: Collection[str]) -> str:
    """Why the job must be given up, or an empty text: its numbers grow beyond what a float holds, wherever it is tried.

    The next node would come to the same, so three owners, of whom one has standing, or all who are here are enough; each twice,
    since a machine may fail once.

    Args:
        able: nodes that are here, busy or not, and could take a seat.
        auditors: of the operator, whose word here is about looks.
    """
    fresh = [lease for lease in work.ended if lease.end == "numbers" and lease.node not in auditors]
    if not fresh:
        return ""
    since: Condition = col(Lease.ended) > (work.run.advanced if work.run else 0.0)
    earlier = await work.tx.find(Lease, col(Lease.job).equals(work.job.id), col(Lease.end).equals("numbers"), since)
    told = [lease for lease in _once(earlier, fresh) if lease.node not in auditors]
    owners = {
        owner for owner, count in Counter(lease.payout for lease in told).items() if count >= MAX_FAULTS_PER_OWNER
    }
    enough = len(owners) >= MIN_OWNERS and await have_credit(work, {lease.node for lease in told}, bool(auditors))
    if owners and (enough or not _others(work, able, owners, auditors)):
        return _sentence(DIVERGED, told, fresh)
    return ""


def _once(earlier: Iterable[Lease], fresh: Iterable[Lease]) -> list[Lease]:
    return list({lease.id: lease for lease in (*earlier, *fresh)}.values())


def _others(
    work: UnitOfWork, able: Sequence[Candidate], owners: Collection[str], auditors: Collection[str]
) -> set[str]:
    """Owners beside these whom the job could still be given to, or who have it."""
    here = {candidate.owner for candidate in able}
    return (here | {lease.payout for lease in work.leases.values() if lease.node not in auditors}) - set(owners)


def _sentence(what: str, blames: Sequence[Lease], fresh: Sequence[Lease]) -> str:
    nodes = sorted({lease.node for lease in blames})
    return f"{what}, as {listed(nodes)} found: {fresh[-1].reason}"


def _beside(work: UnitOfWork, blame: Lease) -> set[str]:
    """How the leases of other nodes stand that read the same files as this one."""
    return {x.state for x in work.leases.values() if x.stage == blame.stage and x.node != blame.node}
