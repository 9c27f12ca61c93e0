"""What can go wrong with money.

LedgerError
├── AmountError                 a number that is no amount of money
├── AddressError                a text that is no address, a seed or hash of the wrong length
├── EventError                  a lifecycle event that is too long or malformed
├── LedgerUnavailableError      the ledger cannot be reached, or does not answer in time
├── LedgerAnswerError           the ledger answered something that cannot be right
├── StateError                  the accounts on the ledger do not allow what was asked
│   ├── NoEscrowError
│   ├── EscrowExistsError
│   ├── NoStakeError
│   ├── NoDisputeError
│   └── InsufficientFundsError
├── TransactionFailedError      the ledger executed a transaction and refused it; carries the program's logs
├── TransactionExpiredError     a transaction's blockhash ran out before it was processed
├── AlteredTransactionError     a transaction that somebody has sent is not the one that was agreed on
├── DeployError                 the program cannot be brought to a cluster this way
├── program.errors.ProgramLinkError, BuildError                        building the on-chain program
└── local.chain.TransactionRefusedError, StoreFailedError, local.rpc.RpcError      inside the embedded ledger
"""

from __future__ import annotations

from collections.abc import Sequence


class LedgerError(Exception):
    """Root of everything that this package raises on purpose."""


class AmountError(LedgerError, ValueError):
    """A number is no amount of money: says which number and the bounds."""


class AddressError(LedgerError, ValueError):
    """A text is no address, or bytes have the wrong length."""


class EventError(LedgerError, ValueError):
    """A lifecycle event is too long or malformed."""


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be reached or did not answer in time; trying again later is safe."""


class LedgerAnswerError(LedgerError):
    """The ledger's answer cannot be right: wrong program, wrong mint, or no Solana ledger at all."""


class LedgerStateError(LedgerError):
    """The accounts on the ledger do not allow what was asked."""


class NoEscrowError(LedgerStateError):
    """There is no open escrow for this job."""


class EscrowExistsError(LedgerStateError):
    """This job was opened before; an escrow is never opened twice."""


class NoStakeError(LedgerStateError):
    """This node has no stake."""


class NoDisputeError(LedgerStateError):
    """There is no dispute of this challenger over this audit."""


class InsufficientFundsError(LedgerStateError):
    """An account holds less than what should leave it."""


class TransactionFailedError(LedgerError):
    """The ledger executed a transaction and refused it.

    Attributes:
        signature: the transaction's signature, or an empty text when it was refused before it had one.
        reason: the program's error in words.
        code: the market program's own error number, where it was the one that refused.
        logs: the lines that the programs logged.
    """

    def __init__(self, signature: str, reason: str, code: int | None = None, logs: Sequence[str] = ()) -> None:
        self.signature, self.reason, self.code, self.logs = signature, reason, code, tuple(logs)
        super().__init__(f"transaction {signature or '(unsent)'} failed: {reason}")


class TransactionExpiredError(LedgerError):
    """A transaction was not processed while its blockhash was valid: prepare and send a new one."""


class AlteredTransactionError(LedgerError):
    """A transaction that somebody has sent is not the one that was agreed on, or lacks a signature: it must not be signed."""


class DeployError(LedgerError):
    """The program cannot be brought to a cluster this way; says what is missing."""
