"""The ledger's door: escrows, and the payees, settlements and claims that belong to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from spl.token.instructions import create_idempotent_associated_token_account

from ledger import merkle
from ledger.addresses import check_job, keypair, parse_address
from ledger.door import amount_in, checked, memo_of
from ledger.errors import AmountError, EscrowExistsError, InsufficientFundsError, LedgerStateError, NoEscrowError
from ledger.money import Amount, show
from ledger.program.codes import MAX_PAYEES, REVISION, Consent
from ledger.program.layout import JOB_OFFSET, read_escrow
from ledger.promises import PromisedEarnings, earnings_of
from ledger.states import Asked, EscrowState, PreparedTransaction, escrow_state
from ledger.terms import TermsCalls
from protocol.merkle import MerkleProof

DEFAULT_PAYEES = 64  # Payees an escrow is opened for; each costs 40 bytes of rent, returned at the close.


class EscrowCalls(TermsCalls):
    """Escrows of jobs."""

    async def prepare_escrow(
        self,
        submitter: bytes,
        job: bytes,
        coordinator: str,
        amount: Amount,
        deadline_unix: int,
        max_payees: int = DEFAULT_PAYEES,
        *,
        cap: Amount | None = None,
        consent: Consent = Consent.ADMIT | Consent.END,
        payees: Sequence[str] = (),
    ) -> PreparedTransaction:
        """Open a job's escrow and deposit ``amount``; ``submitter`` is the seed of whoever pays.

        Args:
            cap: the most that is ever paid in sum; None for ``amount``.
            consent: what the coordinator may do alone: admit payees, return the rest before the deadline.
            payees: whom the submitter admits from the beginning, by address. The ledger keeps only the root over
                their token accounts, so keep the list: it makes the proofs by which they are enrolled.
        Raises:
            EscrowExistsError: this submitter opened this job before.
            InsufficientFundsError: the submitter's wallet holds less.
        """
        signer = keypair(submitter)
        key, market = signer.pubkey(), self._market
        if not 1 <= max_payees <= MAX_PAYEES:
            raise AmountError(f"{max_payees} payees: an escrow takes between 1 and {MAX_PAYEES}")
        if checked(amount) == 0:
            raise AmountError("0 is no deposit: the escrow of a job holds its budget")
        if await self.escrow(str(key), job) is not None:
            raise EscrowExistsError(f"{key} opened this job before: look at its escrow, or use another job id")
        held = await self.balance(str(key))
        if held < amount:
            raise InsufficientFundsError(f"{key} holds {show(held)}, {show(amount)} are needed: fund the wallet")
        escrow = market.escrow(key, job)
        instructions = [
            create_idempotent_associated_token_account(key, escrow, market.mint),
            market.escrow_open(
                key,
                job,
                parse_address(coordinator),
                deadline_unix,
                max_payees,
                cap=amount if cap is None else checked(cap),
                consent=consent,
                count=len(payees),
                peaks=merkle.peaks(self._leaves(payees)),
            ),
            market.escrow_deposit(key, escrow, amount),
        ]
        return await self._prepare(signer, instructions)

    async def open_escrow(
        self, submitter: bytes, job: bytes, coordinator: str, amount: Amount, deadline_unix: int
    ) -> str:
        """``prepare_escrow``, sent and confirmed; returns the signature."""
        prepared = await self.prepare_escrow(submitter, job, coordinator, amount, deadline_unix)
        return await self.confirm(prepared)

    async def prepare_acceptance(
        self, coordinator_seed: bytes, submitter: str, job: bytes, asked: Asked, note: str, nonce: str = ""
    ) -> PreparedTransaction:
        """Have the program compare an escrow with what its coordinator asked for; the transaction fails where it differs.

        A program from before there was such a comparison is told of the job by ``note`` alone.

        Args:
            note: a lifecycle event (``events.encode``) that goes with it.
        Raises:
            NoEscrowError: the job has no open escrow.
            LedgerAnswerError: the market has no terms.
        """
        signer = keypair(coordinator_seed)
        key, escrow = signer.pubkey(), parse_address((await self._open_escrow_state(submitter, job)).address)
        accept = self._market.escrow_accept(
            key,
            escrow,
            deadline=asked.deadline,
            cap=asked.cap,
            amount=asked.amount,
            max_payees=asked.max_payees,
            consent=asked.consent,
        )
        known = (await self.terms()).revision >= REVISION
        return await self._prepare(signer, [*([accept] if known else []), *memo_of(key, note, escrow)], nonce)

    async def prepare_deposit(self, submitter: bytes, job: bytes, total: Amount) -> PreparedTransaction | None:
        """Bring a job's escrow to ``total`` deposits in all, and its cap with it; None where it has as much already.

        Raises:
            NoEscrowError: the job has no open escrow.
            InsufficientFundsError: the submitter's wallet holds less.
        """
        signer = keypair(submitter)
        owner = str(signer.pubkey())
        state = await self._open_escrow_state(owner, job)
        missing = Amount(checked(total) - state.deposited)
        if missing <= 0:
            return None
        held = await self.balance(owner)
        if held < missing:
            raise InsufficientFundsError(f"{owner} holds {show(held)}, {show(missing)} are needed: fund the wallet")
        raising = self._market.escrow_extend(signer.pubkey(), job, max(state.cap, total), state.deadline)
        deposit = self._market.escrow_deposit(signer.pubkey(), parse_address(state.address), missing)
        return await self._prepare(signer, [raising, deposit])

    async def escrow(self, submitter: str, job: bytes, *, final: bool = False) -> EscrowState | None:
        """A job's escrow, or None where it was never opened in this token; ``final``: as it can never be undone."""
        address = self._market.escrow(parse_address(submitter), check_job(job))
        account, vault = await self._connection.accounts([address, self._market.wallet(address)], final=final)
        if account is None or account.owner != self._market.program:
            return None
        content = read_escrow(account.data)
        # Somebody may open an escrow in a worthless token: it is no escrow here.
        if content.mint != self._market.mint or content.vault != self._market.wallet(address):
            return None
        return escrow_state(address, content, amount_in(vault.data) if vault else 0)

    async def received(self, submitter: str, job: bytes, payees: Collection[str]) -> dict[str, Amount]:
        """What each payee has received from a job's escrow, in blocks that can never be undone; nobody where there is none."""
        state = await self.escrow(submitter, job, final=True)
        table = {} if state is None else state.paid_to
        wallets = {payee: str(self._market.wallet(parse_address(payee))) for payee in payees}
        return {payee: table[wallet] for payee, wallet in wallets.items() if table.get(wallet)}

    async def find_escrows(self, job: bytes) -> list[EscrowState]:
        """Escrows of a job, whoever submitted it. Anybody may open one for any job: compare the submitter."""
        market = self._market
        accounts = await self._connection.program_accounts(market.program, JOB_OFFSET, check_job(job))
        submitters = [str(read_escrow(account.data).submitter) for _, account in accounts if account.data[0] == 1]
        found = [await self.escrow(submitter, job) for submitter in sorted(submitters)]
        return [state for state in found if state is not None]

    # Promises and claims

    def earnings(self, cumulative: Mapping[str, Amount]) -> PromisedEarnings:
        """The tree over what each payee shall have received in total; payees in the order of the mapping."""
        return earnings_of(self._market, cumulative)

    async def prepare_claim(
        self, seed: bytes, submitter: str, job: bytes, payee: str, cumulative: Amount, proof: MerkleProof
    ) -> PreparedTransaction:
        """Pay a payee what was promised to it, without the coordinator; anyone may sign, who then pays the fee.

        Raises:
            StateError: the payee has no entry in the table.
        """
        signer, state = keypair(seed), await self._open_escrow_state(submitter, job)
        key, wallets = parse_address(payee), list(state.paid_to)
        if self.wallet(payee) not in wallets:
            raise LedgerStateError(f"{payee} has no entry in {state.address}: enrol it first, with a proof of the list")
        slot = wallets.index(self.wallet(payee))
        instructions = [
            create_idempotent_associated_token_account(signer.pubkey(), key, self._market.mint),
            self._market.escrow_claim(
                signer.pubkey(), parse_address(state.address), key, checked(cumulative), slot, proof
            ),
        ]
        return await self._prepare(signer, instructions)

    # The end

    async def prepare_refund(
        self, coordinator_seed: bytes, submitter: str, job: bytes, cosigner_seed: bytes | None = None, nonce: str = ""
    ) -> PreparedTransaction:
        """Return whatever is left, and not promised, to the submitter.

        After the deadline anybody's seed works; before it the coordinator's where the submitter consented to that
        at the opening, else the submitter's and the coordinator's together.

        Raises:
            NoEscrowError: the job has no open escrow.
            StateError: the submitter, who does not sign, has closed its token account: nobody else pays for another one.
        """
        signer, owner = keypair(coordinator_seed), parse_address(submitter)
        await self._open_escrow_state(submitter, job)
        second = None if cosigner_seed is None else keypair(cosigner_seed).pubkey()
        instructions = [self._market.escrow_refund(signer.pubkey(), owner, job, second)]
        if owner in (signer.pubkey(), second):
            account = create_idempotent_associated_token_account(owner, owner, self._market.mint)
            instructions.insert(0, account)
        elif not await self.has_wallet(submitter):
            raise LedgerStateError(
                f"{submitter} has no token account to take its money: its owner has to open one first"
            )
        if cosigner_seed is None:
            return await self._prepare(signer, instructions, nonce)
        return await self._prepare_together([coordinator_seed, cosigner_seed], instructions)

    async def prepare_close(self, seed: bytes, submitter: str, job: bytes) -> PreparedTransaction:
        """Give the rent of a refunded escrow back to who paid it; its totals stay readable.

        Raises:
            NoEscrowError: the job has no open escrow.
        """
        signer = keypair(seed)
        state = await self._open_escrow_state(submitter, job)
        lender = parse_address(state.coordinator) if state.lent else None
        close = self._market.escrow_close(signer.pubkey(), parse_address(submitter), job, lender)
        return await self._prepare(signer, [close])

    async def _open_escrow_state(self, submitter: str, job: bytes) -> EscrowState:
        state = await self.escrow(submitter, job)
        if state is None or state.closed:
            what = "was never opened" if state is None else "was closed"
            raise NoEscrowError(f"the escrow of {submitter} for job {job.hex()[:16]} {what}")
        return state

    def _leaves(self, payees: Sequence[str]) -> list[bytes]:
        return [bytes(self._market.wallet(parse_address(payee))) for payee in payees]
