"""Tokens sent by an owner who has no SOL: a sponsor pays fee and rent and has its costs back in tokens, all in one transaction.

    signed by sponsor (who pays the fee) and owner
    1. the receiver's token account is made, at the sponsor's expense      only where it has none
    2. tokens: owner -> receiver                                           what arrives
    3. tokens: owner -> sponsor                                            the costs; only where there are some

Both sides build the transaction from what was agreed on and compare it byte for byte with what the other one has sent: the
blockhash alone is taken over. So neither can add, leave out or change anything, and nobody pays unless all of it happens.
"""

from __future__ import annotations

from dataclasses import dataclass

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account, transfer_checked

from ledger.addresses import keypair, parse_address
from ledger.errors import AlteredTransactionError
from ledger.money import DECIMALS, Amount, amount
from ledger.program.interface import MarketAddresses

SPONSORED_SIGNATURES = 2  # The sponsor's and the owner's.


@dataclass(frozen=True)
class SponsoredTransfer:
    """What was agreed on. ``sponsor``, ``owner`` and ``target`` are wallets, not token accounts.

    Attributes:
        arrives: what the target gets; ``costs``: what the sponsor gets. The owner gives both.
        opens: the target has no token account yet, and the sponsor pays for one.
    """

    sponsor: str
    owner: str
    target: str
    arrives: Amount
    costs: Amount
    opens: bool

    def message(self, market: MarketAddresses, blockhash: Hash) -> MessageV0:
        """The one message that is this transfer.

        Raises:
            AddressError, AmountError: a part of it is none.
            AlteredTransactionError: nothing would arrive, or the owner would pay itself.
        """
        sponsor, owner, target = (parse_address(who) for who in (self.sponsor, self.owner, self.target))
        if self.arrives <= 0 or owner in (sponsor, target):
            raise AlteredTransactionError(f"{self} is no transfer: it needs an amount and two other wallets")
        made = [create_idempotent_associated_token_account(sponsor, target, market.mint)] if self.opens else []
        made.append(_tokens(market, owner, target, self.arrives))
        if self.costs:
            made.append(_tokens(market, owner, sponsor, self.costs))
        return MessageV0.try_compile(sponsor, made, [], blockhash)

    def agreed(self, market: MarketAddresses, wire: bytes) -> MessageV0:
        """The message of a transaction that somebody has sent, once it is known to be this transfer and nothing else.

        Raises:
            AlteredTransactionError: it is not.
        """
        sent = _transaction(wire)
        own = self.message(market, sent.message.recent_blockhash)
        if to_bytes_versioned(sent.message) != to_bytes_versioned(own):
            raise AlteredTransactionError("the transaction is not the one that was agreed on: it was not signed")
        return own

    def draft(self, market: MarketAddresses, blockhash: Hash) -> bytes:
        """The transaction without any signature."""
        return _wire(self.message(market, blockhash), Signature.default(), Signature.default())

    def signed_by_owner(self, market: MarketAddresses, wire: bytes, seed: bytes) -> bytes:
        """The transaction with the owner's signature; it cannot be executed without the sponsor's.

        Raises:
            AlteredTransactionError: ``wire`` is something else.
        """
        message = self.agreed(market, wire)
        return _wire(message, Signature.default(), keypair(seed).sign_message(to_bytes_versioned(message)))

    def signed_by_both(self, market: MarketAddresses, wire: bytes, seed: bytes) -> bytes:
        """What the owner has signed, with the sponsor's signature, too.

        Raises:
            AlteredTransactionError: ``wire`` is something else, or the owner has not signed it.
        """
        message = self.checked(market, wire)
        own = to_bytes_versioned(message)
        return _wire(message, keypair(seed).sign_message(own), _transaction(wire).signatures[-1])

    def checked(self, market: MarketAddresses, wire: bytes) -> MessageV0:
        """The message of a transaction that is this transfer, and that its owner has signed.

        Raises:
            AddressError, AmountError, AlteredTransactionError: it is not.
        """
        message = self.agreed(market, wire)
        if not _transaction(wire).signatures[-1].verify(parse_address(self.owner), to_bytes_versioned(message)):
            raise AlteredTransactionError(f"the transaction is not signed by {self.owner}: sign it with that key")
        return message

    def signature(self, market: MarketAddresses, wire: bytes) -> str:
        """The name of the transaction on the ledger, once both are known to have signed it.

        Raises:
            AlteredTransactionError: it is another one, or a signature is false.
        """
        own = to_bytes_versioned(self.agreed(market, wire))
        first, last = _transaction(wire).signatures
        if not (first.verify(parse_address(self.sponsor), own) and last.verify(parse_address(self.owner), own)):
            raise AlteredTransactionError("the transaction is not signed by both sides: it cannot be executed")
        return str(first)


def _tokens(market: MarketAddresses, owner: Pubkey, to: Pubkey, units: Amount) -> Instruction:
    return transfer_checked(
        models.TransferCheckedParams(
            program_id=TOKEN_PROGRAM_ID,
            source=market.wallet(owner),
            dest=market.wallet(to),
            mint=market.mint,
            owner=owner,
            amount=amount(units),
            decimals=DECIMALS,
            signers=[],
        )
    )


def _transaction(wire: bytes) -> VersionedTransaction:
    try:
        sent = VersionedTransaction.from_bytes(wire)
    except ValueError as error:
        raise AlteredTransactionError(f"{len(wire):,} bytes are no transaction: {error}") from error
    if len(sent.signatures) != SPONSORED_SIGNATURES:
        raise AlteredTransactionError(f"the transaction has {len(sent.signatures)} signatures: two belong to it")
    return sent


def _wire(message: MessageV0, sponsor: Signature, owner: Signature) -> bytes:
    return bytes(VersionedTransaction.populate(message, [sponsor, owner]))
