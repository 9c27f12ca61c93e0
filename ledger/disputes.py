"""The ledger's door: disputes over audits."""

from __future__ import annotations

from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account, transfer_checked
from spl.token.models import TransferCheckedParams

from ledger.addresses import check_hash, keypair, parse_address
from ledger.door import amount_in, checked
from ledger.errors import InsufficientFundsError, NoDisputeError, NoStakeError
from ledger.money import DECIMALS, ZERO, Amount, show
from ledger.program.layout import JUDGE_OFFSET, TAG_DISPUTE, Ruling, read_dispute
from ledger.stakes import StakeCalls
from ledger.states import DisputeState, PreparedTransaction, dispute_state


class DisputeCalls(StakeCalls):
    """Disputes: somebody puts a bond against a node's audit, the node's coordinator decides."""

    async def prepare_dispute(
        self, challenger_seed: bytes, node: str, audit: bytes, bond: Amount | None = None
    ) -> PreparedTransaction:
        """Open a dispute over an audit (32 bytes) of a node.

        Args:
            bond: what the challenger stands to lose; None for the least that the terms ask.
        Raises:
            NoStakeError: the node has no stake, so nobody judges it and nothing could be taken.
            InsufficientFundsError: the challenger's wallet holds less than the bond.
        """
        signer, market = keypair(challenger_seed), self._market
        key, accused = signer.pubkey(), parse_address(node)
        pledge = checked(Amount((await self.terms()).bond) if bond is None else bond)
        stake = await self.stake(node)
        if stake is None or not stake.balance:
            raise NoStakeError(f"{node} has no stake: there is nothing to dispute about")
        held = await self.balance(str(key))
        if held < pledge:
            raise InsufficientFundsError(f"{key} holds {show(held)}, the bond is {show(pledge)}: fund the wallet")
        dispute = market.dispute(key, check_hash(audit))
        payment = TransferCheckedParams(
            amount=pledge,
            decimals=DECIMALS,
            source=market.wallet(key),
            dest=market.wallet(dispute),
            mint=market.mint,
            owner=key,
            program_id=TOKEN_PROGRAM_ID,
        )
        instructions = [
            create_idempotent_associated_token_account(key, dispute, market.mint),
            transfer_checked(payment),
            market.dispute_open(key, accused, audit),
        ]
        return await self._prepare(signer, instructions)

    async def dispute(self, challenger: str, audit: bytes) -> DisputeState | None:
        """A challenger's dispute over an audit, or None where there is none (any more)."""
        address = self._market.dispute(parse_address(challenger), check_hash(audit))
        account, vault = await self._connection.accounts([address, self._market.wallet(address)])
        if account is None or account.owner != self._market.program:
            return None
        content = read_dispute(account.data)
        if content.mint != self._market.mint:
            return None
        return dispute_state(address, content, amount_in(vault.data) if vault else 0)

    async def waiting_disputes(self, coordinator: str) -> list[DisputeState]:
        """Disputes that wait for this coordinator's verdict, in the order of their deadlines."""
        judge = bytes(parse_address(coordinator))
        accounts = await self._connection.program_accounts(self._market.program, JUDGE_OFFSET, judge)
        named = [(key, read_dispute(account.data)) for key, account in accounts if account.data[0] == TAG_DISPUTE]
        found = [dispute_state(key, one, one.bond) for key, one in named if one.mint == self._market.mint]
        return sorted((one for one in found if one.ruling is Ruling.OPEN), key=lambda one: (one.deadline, one.address))

    async def prepare_verdict(
        self,
        coordinator_seed: bytes,
        challenger: str,
        audit: bytes,
        evidence: bytes,
        *,
        upheld: bool,
        slash: Amount = ZERO,
        nonce: str = "",
    ) -> PreparedTransaction:
        """Decide a dispute, with the digest of what the verdict rests on.

        Upheld: the bond returns to the challenger, and ``slash`` units of the node's stake are taken in the same
        transaction (with ``audit`` as the reason), of which the challenger gets its part. Rejected: the bond goes to
        the accused. Who has no token account finds its bond in the dispute's vault, until somebody closes the dispute.

        Raises:
            NoDisputeError: there is no such dispute.
        """
        signer, state = keypair(coordinator_seed), await self._known_dispute(challenger, audit)
        coordinator, node, who = signer.pubkey(), parse_address(state.node), parse_address(challenger)
        instructions = [
            self._market.dispute_verdict(coordinator, who, node, audit, check_hash(evidence), upheld=upheld)
        ]
        if upheld and checked(slash):
            instructions += await self._slash(coordinator, state.node, slash, audit, challenger)
        return await self._prepare(signer, instructions, nonce)

    async def prepare_dispute_expiry(self, seed: bytes, challenger: str, audit: bytes) -> PreparedTransaction:
        """Return the bond of a dispute that nobody decided by its deadline; anyone may, who pays for the account it goes to.

        Raises:
            NoDisputeError: there is no such dispute.
        """
        signer, who = keypair(seed), parse_address(challenger)
        node = parse_address((await self._known_dispute(challenger, audit)).node)
        instructions = [
            create_idempotent_associated_token_account(signer.pubkey(), who, self._market.mint),
            self._market.dispute_expire(signer.pubkey(), who, node, audit),
        ]
        return await self._prepare(signer, instructions)

    async def prepare_dispute_close(self, seed: bytes, challenger: str, audit: bytes) -> PreparedTransaction:
        """Give the rent of a decided dispute back to its challenger, and what its vault still holds to who won; anyone may.

        Raises:
            NoDisputeError: there is no such dispute.
        """
        signer, who = keypair(seed), parse_address(challenger)
        state = await self._known_dispute(challenger, audit)
        winner = parse_address(state.node) if state.ruling is Ruling.REJECTED else who
        instructions = [self._market.dispute_close(signer.pubkey(), who, audit, winner)]
        if state.balance:
            instructions.insert(
                0, create_idempotent_associated_token_account(signer.pubkey(), winner, self._market.mint)
            )
        return await self._prepare(signer, instructions)

    async def _known_dispute(self, challenger: str, audit: bytes) -> DisputeState:
        state = await self.dispute(challenger, audit)
        if state is None:
            raise NoDisputeError(f"{challenger} has no dispute over audit {audit.hex()[:16]}: open it first")
        return state
