"""Tokens from one wallet to another: what a provider does with earnings."""

from __future__ import annotations

from dataclasses import dataclass

from solders.pubkey import Pubkey
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account, transfer_checked

from ledger.addresses import keypair, parse_address
from ledger.door import Door, checked
from ledger.errors import InsufficientFundsError
from ledger.money import DECIMALS, Amount, show
from ledger.states import PreparedTransaction

SIGNATURE_LAMPORTS = 5000  # What a cluster takes for one signature.
_TOKEN_ACCOUNT = 165  # Bytes.


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
        return await self._prepare(signer, [
            create_idempotent_associated_token_account(key, to, self._market.mint),
            transfer_checked(self._parameters(key, to, amount)),
        ])  # fmt: skip

    def _parameters(self, key: Pubkey, to: Pubkey, amount: Amount) -> models.TransferCheckedParams:
        return models.TransferCheckedParams(
            program_id=TOKEN_PROGRAM_ID, source=self._market.wallet(key), dest=self._market.wallet(to),
            mint=self._market.mint, owner=key, amount=amount, decimals=DECIMALS, signers=[],
        )  # fmt: skip
