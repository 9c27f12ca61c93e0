"""The ledger's door: stakes of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from solders.account import Account
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from spl.token.instructions import create_idempotent_associated_token_account

from ledger.addresses import check_hash, keypair, parse_address
from ledger.door import amount_in, checked
from ledger.errors import InsufficientFundsError, LedgerAnswerError, NoStakeError
from ledger.money import Amount, show
from ledger.program.codes import EVERYTHING
from ledger.program.layout import read_stake
from ledger.states import PreparedTransaction, StakeState, stake_state
from ledger.terms import TermsCalls


class StakeCalls(TermsCalls):
    """Stakes of nodes."""

    async def prepare_stake(self, node_seed: bytes, amount: Amount, coordinator: str) -> PreparedTransaction:
        """Deposit stake; the first time this opens it and names the coordinator who may slash it.

        Raises:
            InsufficientFundsError: the node's wallet holds less.
            LedgerAnswerError: the stake names another coordinator.
        """
        signer = keypair(node_seed)
        node, market = signer.pubkey(), self._market
        held, state = await self.balance(str(node)), await self.stake(str(node))
        if held < checked(amount):
            raise InsufficientFundsError(f"{node} holds {show(held)}, {show(amount)} are needed: fund the wallet")
        instructions = [market.stake_deposit(node, node, amount)]
        if state is None:
            vault = create_idempotent_associated_token_account(node, market.stake(node), market.mint)
            instructions = [vault, market.stake_open(node, parse_address(coordinator)), *instructions]
        elif state.coordinator != coordinator:
            raise LedgerAnswerError(f"the stake of {node} names coordinator {state.coordinator}, not {coordinator}")
        return await self._prepare(signer, instructions)

    async def open_stake(self, node_seed: bytes, amount: Amount, coordinator: str) -> str:
        """``prepare_stake``, sent and confirmed; returns the signature."""
        return await self.confirm(await self.prepare_stake(node_seed, amount, coordinator))

    async def stake(self, node: str) -> StakeState | None:
        """A node's stake, or None where it has none in this token. Compare ``coordinator`` and ``treasury``."""
        address = self._market.stake(parse_address(node))
        account, vault = await self._connection.accounts([address, self._market.wallet(address)])
        return self._stake_of(address, account, vault)

    async def stakes(self, nodes: Sequence[str]) -> dict[str, StakeState | None]:
        """The stakes of many nodes, asked for fifty at a time; None where there is none, or one that cannot be read."""
        addresses = [self._market.stake(parse_address(node)) for node in nodes]
        keys = [key for address in addresses for key in (address, self._market.wallet(address))]
        accounts = await self._connection.accounts(keys)
        found: dict[str, StakeState | None] = {}
        for node, address, account, vault in zip(nodes, addresses, accounts[::2], accounts[1::2], strict=True):
            try:
                found[node] = self._stake_of(address, account, vault)
            except LedgerAnswerError:  # Of another version of the program: nothing of it can be slashed.
                found[node] = None
        return found

    def _stake_of(self, address: Pubkey, account: Account | None, vault: Account | None) -> StakeState | None:
        if account is None or account.owner != self._market.program:
            return None
        content = read_stake(account.data)
        if content.mint != self._market.mint or content.vault != self._market.wallet(address):
            return None
        return stake_state(address, content, amount_in(vault.data) if vault else 0)

    async def prepare_slash(
        self,
        coordinator_seed: bytes,
        node: str,
        amount: Amount,
        reason_hash: bytes,
        challenger: str | None = None,
        nonce: str = "",
    ) -> PreparedTransaction:
        """Move stake to the treasury, once for every ``reason_hash`` (32 bytes, not all zero).

        The ``challenger`` who brought the offence up gets the part that the stake's terms say, if it has a token account;
        it is never the coordinator and never the node.

        Raises:
            NoStakeError: the node has no stake.
            InsufficientFundsError: the stake is smaller; ``StakeState.slashable`` says what the cap allows.
        """
        signer = keypair(coordinator_seed)
        slash = await self._slash(signer.pubkey(), node, amount, reason_hash, challenger)
        return await self._prepare(signer, slash, nonce)

    async def _slash(
        self, coordinator: Pubkey, node: str, amount: Amount, reason: bytes, challenger: str | None
    ) -> list[Instruction]:
        key, state = parse_address(node), await self.stake(node)
        if state is None:
            raise NoStakeError(f"{node} has no stake: nothing can be slashed")
        if checked(amount) > state.balance:
            raise InsufficientFundsError(f"the stake of {node} is {show(state.balance)}, not {show(amount)}")
        who = None if challenger is None or not await self.has_wallet(challenger) else parse_address(challenger)
        treasury = parse_address(state.treasury)
        return [self._market.stake_slash(coordinator, key, treasury, amount, check_hash(reason), who)]

    async def prepare_stake_request(self, node_seed: bytes, amount: Amount | None) -> PreparedTransaction:
        """Start the cool-down for taking stake back; 0 withdraws the request, None asks for whatever will be there."""
        signer = keypair(node_seed)
        wanted = EVERYTHING if amount is None else checked(amount)
        return await self._prepare(signer, [self._market.stake_request(signer.pubkey(), wanted)])

    async def prepare_stake_withdrawal(self, node_seed: bytes) -> PreparedTransaction:
        """Take back what was requested, once the cool-down has passed."""
        signer = keypair(node_seed)
        return await self._prepare(signer, self._withdrawal(signer.pubkey()))

    def _withdrawal(self, node: Pubkey) -> list[Instruction]:
        wallet = create_idempotent_associated_token_account(node, node, self._market.mint)
        return [wallet, self._market.stake_withdraw(node)]

    async def prepare_stake_close(self, node_seed: bytes) -> PreparedTransaction:
        """Close a stake; its rent returns to the node, which may open a new one later.

        What was requested is taken out in the same transaction, so that nobody can add to the stake in between.

        Raises:
            NoStakeError: there is none.
        """
        signer = keypair(node_seed)
        node = signer.pubkey()
        state = await self.stake(str(node))
        if state is None:
            raise NoStakeError(f"{node} has no stake: there is nothing to close")
        first = self._withdrawal(node) if state.requested and state.balance else []
        return await self._prepare(signer, [*first, self._market.stake_close(node)])
