"""Reads both sides of a job: the ledger through its RPC, the coordinator through its REST interface."""

from collections.abc import Sequence

from coordinator.client.client import Client
from coordinator.proof.case import Case, OnLedger, Published
from ledger.addresses import job_bytes
from ledger.client import Ledger, LedgerConfig
from ledger.errors import AddressError, NoEscrowError
from protocol.disputes import DisputeEvidence

_EARLY = frozenset({"failed", "cancelled"})
_OVER = _EARLY | {"settled"}


async def gather(
    job: str, rpc: str | None, program: str | None, mint: str | None, server: str | None, token: str | None = None
) -> Case:
    """Everything about a job.

    Args:
        job: its id, 32 hexadecimal digits.
        rpc: the ledger's endpoint; None: the one that the coordinator names.
        program, mint: as the checker knows them; None: as the ledger, or else the coordinator, names them.
        server: the coordinator; None: only the ledger is asked.
        token: an API key for the coordinator, where it shows the job to those alone who are signed in.
    Raises:
        ClientError: the coordinator refuses or does not answer.
        LedgerError: the ledger does not answer, or has no escrow for the job.
        AddressError: neither a ledger nor a coordinator was named.
    """
    if server is None:
        if rpc is None:
            raise AddressError("name the ledger (--rpc), the coordinator (--coordinator), or both")
        return Case(await on_ledger(LedgerConfig(rpc, program, mint), job, None, ()), None)
    async with Client(server, token) as client:
        view, books = await client.get(job), await client.job_ledger(job)
        by_period = not view.spec.trains
        numbers = sorted(
            {one.round for one in await client.rounds(job) if one.state == "complete" and (one.tokens or by_period)}
        )
        disputes = await _disputes(client, job)
        rounds = [found for number in numbers for found in await client.evidence(job, number)]
    config = LedgerConfig(rpc or books.rpc, program or books.program, mint or books.mint)
    payees = {share.payout for one in rounds for share in one.shares}
    payees |= {payout.payee for restore in books.restores for payout in restore.payouts}
    async with await Ledger.connect(config) as ledger:
        wallets = {payee: ledger.wallet(payee) for payee in sorted(payees)}
    said = Published(
        url=server,
        job=job,
        submitter=view.submitter,
        price=view.quote.price,
        tokens_total=view.tokens_total,
        spec=view.spec,
        over=view.state in _OVER,
        early=view.state in _EARLY,
        rounds=rounds,
        disputes=disputes,
        wallets=wallets,
        rate=None if view.spec.trains else view.quote.rate,
        privacy=None if view.federation is None else view.federation.privacy,
        restores=books.restores,
    )
    slots = sorted({one.draw.after for one in rounds if one.draw is not None})
    return Case(await on_ledger(config, job, view.submitter, slots), said)


async def _disputes(client: Client, job: str) -> list[DisputeEvidence]:
    """Every dispute of a job that is over."""
    details = [await client.dispute(one.audit) for one in await client.disputes(job)]
    return [detail.evidence for detail in details if detail.evidence is not None]


async def on_ledger(config: LedgerConfig, job: str, submitter: str | None, slots: Sequence[int]) -> OnLedger:
    """A job as the ledger has it, with the first block after each slot.

    Raises:
        NoEscrowError: nobody, or not this submitter, opened an escrow for the job. LedgerError: the ledger does not answer.
    """
    async with await Ledger.connect(config) as ledger:
        found = await ledger.find_escrows(job_bytes(job))
        mine = [state for state in found if submitter in (None, state.submitter)]
        if not mine:
            raise NoEscrowError(f"the ledger at {config.url} has no escrow for job {job}: was it funded?")
        # Anybody may open an escrow for any job: without a coordinator's word the one that holds most is looked at.
        state = max(mine, key=lambda one: one.deposited)
        blocks = {slot: await ledger.block_after(slot) for slot in slots}
        return OnLedger(config.url, state, await ledger.history(state.submitter, job_bytes(job)), blocks)
