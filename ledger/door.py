"""What every part of the ledger's door shares: wallets, addresses, and sending transactions."""

from __future__ import annotations

from collections.abc import Sequence

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.memo.instructions import create_memo
from spl.memo.models import MemoParams

from ledger.addresses import check_job, keypair, parse_address
from ledger.connection import Connection
from ledger.errors import EventError
from ledger.events import MAX_MEMO_BYTES
from ledger.money import Amount, amount
from ledger.program.interface import MarketAddresses
from ledger.sender import CONFIRM_TIMEOUT_S, Outcome, Sender
from ledger.states import PreparedTransaction

MAX_TRANSACTION_BYTES = 1232  # One IPv6 packet: what a cluster accepts.


class Door:
    """A connection to one market on one ledger. ``ledger.client.Ledger`` is the whole of it."""

    def __init__(self, connection: Connection, market: MarketAddresses, treasury: Pubkey | None) -> None:
        self._connection, self._market, self._treasury = connection, market, treasury
        self._sender = Sender(connection, market.program)

    @property
    def program(self) -> str:
        """Address of the market program."""
        return str(self._market.program)

    @property
    def mint(self) -> str:
        """Address of the token."""
        return str(self._market.mint)

    @property
    def treasury(self) -> str | None:
        """Token account that receives slashed stake, where it is known."""
        return None if self._treasury is None else str(self._treasury)

    def escrow_address(self, submitter: str, job: bytes) -> str:
        """Address of a job's escrow, whether it was opened or not."""
        return str(self._market.escrow(parse_address(submitter), check_job(job)))

    def wallet(self, owner: str) -> str:
        """Address of an owner's token account, whether it exists or not."""
        return str(self._market.wallet(parse_address(owner)))

    # Wallets

    async def faucet(self, owner: str, amount: Amount, lamports: int = 10_000_000_000) -> None:
        """Give somebody test tokens and SOL. Only the embedded ledger does."""
        parse_address(owner)
        await self._connection.call("cottageFaucet", owner, checked(amount), lamports)

    async def balance(self, owner: str) -> Amount:
        """Tokens in an owner's wallet, 0 where there is none."""
        return Amount(await self._tokens(self._market.wallet(parse_address(owner))))

    async def has_wallet(self, owner: str) -> bool:
        """Whether an owner has a token account: what is due to others waits, and nobody pays its rent for them."""
        return (await self._connection.accounts([self._market.wallet(parse_address(owner))]))[0] is not None

    async def lamports(self, owner: str) -> int:
        """SOL of an owner, in lamports: what fees and rent are paid from."""
        account = (await self._connection.accounts([parse_address(owner)]))[0]
        return 0 if account is None else account.lamports

    # Transactions

    async def submit(self, prepared: PreparedTransaction) -> None:
        """Send. A transaction that was processed already is success, so sending twice is harmless.

        Raises:
            TransactionFailedError: it would fail, as the ledger found out by trying.
            TransactionExpiredError: its blockhash ran out and it never was processed.
        """
        await self._sender.submit(prepared)

    async def slot(self) -> int:
        """The newest slot: no block after it is known to anybody yet."""
        return await self._connection.slot()

    async def block_after(self, slot: int) -> tuple[int, str] | None:
        """Slot and hash (base 58) of the first final block after ``slot``; None while there is none yet."""
        return await self._connection.block_after(slot)

    async def slot_of(self, signature: str) -> int | None:
        """Slot of the block that holds a transaction; None while the endpoint knows of none. Of a final one it never changes."""
        return await self._connection.slot_of(Signature.from_string(signature))

    async def outcome(self, signature: str, last_valid_block_height: int) -> Outcome:
        """What became of a transaction that carries a blockhash.

        ``confirmed`` and ``failed`` are said of blocks that can never be undone; ``expired`` is final too: it never happened
        and never will.
        """
        return await self._sender.outcome(signature, last_valid_block_height)

    async def outcome_of(self, prepared: PreparedTransaction) -> Outcome:
        """The same of a whole transaction: one with a nonce is ``expired`` once another transaction has used that up."""
        return await self._sender.outcome_of(prepared)

    async def confirm(
        self, prepared: PreparedTransaction, timeout: float = CONFIRM_TIMEOUT_S, *, send: bool = True
    ) -> str:
        """Send and wait; returns the signature. ``send`` off: somebody else sends it.

        Raises:
            TransactionFailedError: it failed; carries the programs' logs.
            TransactionExpiredError: it was not processed while its blockhash was valid.
            LedgerUnavailableError: nothing was decided within ``timeout`` seconds.
        """
        return await self._sender.confirm(prepared, timeout, send=send)

    async def _prepare(
        self, signer: Keypair, instructions: Sequence[Instruction], nonce: str = ""
    ) -> PreparedTransaction:
        return await self._sender.prepare(signer, instructions, nonce)

    async def _prepare_together(
        self, seeds: Sequence[bytes], instructions: Sequence[Instruction]
    ) -> PreparedTransaction:
        """Signed by several; the first pays the fee."""
        signers = [keypair(seed) for seed in seeds]
        return (await self._sender.window()).sign(signers[0], instructions, signers[1:])

    async def _tokens(self, wallet: Pubkey) -> int:
        account = (await self._connection.accounts([wallet]))[0]
        return 0 if account is None else amount_in(account.data)


def memo_of(author: Pubkey, text: str, escrow: Pubkey) -> list[Instruction]:
    """What writes a lifecycle event that the escrow's history will show.

    Raises:
        EventError: longer than MAX_MEMO_BYTES.
    """
    memo = text.encode()
    if not 0 < len(memo) <= MAX_MEMO_BYTES:
        raise EventError(f"a memo of {len(memo)} bytes: between 1 and {MAX_MEMO_BYTES} fit")
    # The memo program refuses accounts that do not sign, so an empty transfer carries the reference.
    carrier = transfer(TransferParams(from_pubkey=author, to_pubkey=author, lamports=0))
    reference = Instruction(
        carrier.program_id, carrier.data, [*carrier.accounts, AccountMeta(escrow, is_signer=False, is_writable=False)]
    )
    note = MemoParams(program_id=MEMO_PROGRAM_ID, signer=author, message=memo)
    return [reference, create_memo(note)]


def checked(value: Amount) -> Amount:
    """The amount, once it is known to be one. Raises AmountError."""
    return amount(value)


def amount_in(token_account: bytes) -> int:
    """Units that a token account holds, from its data."""
    return int.from_bytes(token_account[64:72], "little")
