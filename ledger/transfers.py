"""Tokens from one wallet to another: what a provider does with earnings.

The owner pays fee and rent itself (``prepare_transfer``), or a sponsor does (``ledger.sponsored``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from solders.account import Account
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.transaction import VersionedTransaction
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account, transfer_checked

from ledger.addresses import keypair, parse_address
from ledger.door import Door, checked
from ledger.errors import InsufficientFundsError, TransactionExpiredError
from ledger.money import DECIMALS, Amount, show
from ledger.sponsored import SPONSORED_SIGNATURES, SponsoredTransfer
from ledger.states import PreparedTransaction

SIGNATURE_LAMPORTS = 5000  # What a cluster takes for one signature.
_TOKEN_ACCOUNT = 165  # Bytes.
_OWNER = slice(32, 64)  # Of a token account's bytes.

Receiver = Literal["account", "none", "no wallet"]
"""Whether a wallet has an account for the token; ``no wallet``: tokens that go there might be lost."""


@dataclass(frozen=True)
class TransferCost:
    """In lamports: ``fee`` for the signature, ``rent`` of the receiver's token account where there is none yet."""

    fee: int
    rent: int

    @property
    def total(self) -> int:
        """What the sender needs in SOL."""
        return self.fee + self.rent


class TransferCalls(Door):
    """Sending tokens."""

    async def transfer_cost(self, target: str) -> TransferCost:
        """What sending to the owner ``target`` costs now."""
        wallet = self._market.wallet(parse_address(target))
        if (await self._connection.accounts([wallet]))[0] is not None:
            return TransferCost(SIGNATURE_LAMPORTS, 0)
        return TransferCost(SIGNATURE_LAMPORTS, await self._connection.rent(_TOKEN_ACCOUNT))

    async def prepare_transfer(self, seed: bytes, target: str, amount: Amount) -> PreparedTransaction:
        """Send ``amount`` from the wallet of ``seed`` to the owner ``target``, whose token account is made where it lacks.

        Raises:
            InsufficientFundsError: the wallet holds less, or not enough SOL for the fee.
        """
        signer, to = keypair(seed), parse_address(target)
        key, cost = signer.pubkey(), await self.transfer_cost(target)
        held, sol = await self._tokens(self._market.wallet(key)), await self.lamports(str(key))
        if held < checked(amount):
            raise InsufficientFundsError(f"{key} holds {show(held)}, less than {show(amount)}")
        if sol < cost.total:
            raise InsufficientFundsError(
                f"{key} holds {sol:,} lamports of SOL, and sending takes {cost.total:,}: send it some"
            )
        return await self._prepare(
            signer,
            [
                create_idempotent_associated_token_account(key, to, self._market.mint),
                transfer_checked(self._parameters(key, to, amount)),
            ],
        )

    async def receiver(self, target: str) -> Receiver:
        """What sending tokens to the owner ``target`` meets: a program, a token account or a name of nobody is no wallet."""
        owner = parse_address(target)
        whose, account = await self._connection.accounts([owner, self._market.wallet(owner)])
        if whose is None and not owner.is_on_curve():
            return "no wallet"
        if whose is not None and (whose.owner != SYSTEM_PROGRAM or whose.executable):
            return "no wallet"
        if account is None or account.owner != TOKEN_PROGRAM_ID:
            return "none"
        return "account" if _is_owned(account, owner) else "no wallet"

    async def sponsored_cost(self) -> TransferCost:
        """What a sponsored transfer costs its sponsor: ``rent`` only where the receiver has no account yet."""
        rent = await self._connection.rent(_TOKEN_ACCOUNT)
        return TransferCost(SPONSORED_SIGNATURES * SIGNATURE_LAMPORTS, rent)

    async def draft_sponsored(self, transfer: SponsoredTransfer) -> bytes:
        """The transaction for the owner to sign, good for about a minute."""
        return transfer.draft(self._market, (await self._connection.blockhash())[0])

    def check_sponsored(self, transfer: SponsoredTransfer, draft: bytes) -> None:
        """Raises AlteredTransactionError where the draft is not this transfer."""
        transfer.agreed(self._market, draft)

    async def sign_sponsored(self, seed: bytes, transfer: SponsoredTransfer, draft: bytes) -> tuple[bytes, int]:
        """The owner's signature under a draft, and the block height until which it may be executed, at the latest.

        Raises:
            AlteredTransactionError: the draft is not this transfer.
        """
        signed = transfer.signed_by_owner(self._market, draft, seed)
        return signed, (await self._connection.blockhash())[1]

    def check_owner(self, transfer: SponsoredTransfer, signed: bytes) -> None:
        """Raises AlteredTransactionError where it is not this transfer, or not signed by its owner."""
        transfer.checked(self._market, signed)

    async def complete_sponsored(self, seed: bytes, transfer: SponsoredTransfer, signed: bytes) -> PreparedTransaction:
        """The sponsor's signature under what the owner has signed: from here on it can be executed.

        Raises:
            AlteredTransactionError: it is not this transfer, or not signed by the owner.
            TransactionExpiredError: it was signed too long ago.
        """
        whole = transfer.signed_by_both(self._market, signed, seed)
        last = (await self._connection.blockhash())[1]
        if not await self._connection.is_recent(VersionedTransaction.from_bytes(whole).message.recent_blockhash):
            raise TransactionExpiredError("the transaction was drawn up more than a minute ago: ask for a new one")
        return PreparedTransaction(transfer.signature(self._market, whole), whole, last)

    def sponsored(self, transfer: SponsoredTransfer, wire: bytes, last_height: int) -> PreparedTransaction:
        """A transaction that came back with both signatures, to be sent and followed.

        Raises:
            AlteredTransactionError: it is not this transfer, or a signature is false.
        """
        return PreparedTransaction(transfer.signature(self._market, wire), wire, last_height)

    async def is_over(self, last_height: int) -> bool:
        """Whether a block height has passed for good: what was signed for it can no longer be executed."""
        return await self._connection.block_height() > last_height

    async def open_account(self, seed: bytes) -> None:
        """Give the wallet of ``seed`` an account for the token, where it has none."""
        signer = keypair(seed)
        if not await self.has_wallet(str(signer.pubkey())):
            key = signer.pubkey()
            made = create_idempotent_associated_token_account(key, key, self._market.mint)
            await self.confirm(await self._prepare(signer, [made]))

    def _parameters(self, key: Pubkey, to: Pubkey, amount: Amount) -> models.TransferCheckedParams:
        return models.TransferCheckedParams(
            program_id=TOKEN_PROGRAM_ID,
            source=self._market.wallet(key),
            dest=self._market.wallet(to),
            mint=self._market.mint,
            owner=key,
            amount=amount,
            decimals=DECIMALS,
            signers=[],
        )


def _is_owned(account: Account, owner: Pubkey) -> bool:
    """Whether a token account is still its wallet's own: whoever has it may give it away."""
    return account.data[_OWNER] == bytes(owner)
