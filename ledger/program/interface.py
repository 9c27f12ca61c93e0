"""The market program as Python sees it: addresses, instructions, error numbers.

``layout.py`` reads the accounts and events. ``market.h`` is the other side of every number here; tests compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import get_associated_token_address

LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
BASIS_POINTS = 10_000
MAX_PAYEES = 250  # What an escrow can be opened for: one instruction may allocate 10,240 bytes.


class Operation(IntEnum):
    """First byte of an instruction."""

    CONFIGURE = 0
    ESCROW_OPEN = 1
    ESCROW_DEPOSIT = 2
    ESCROW_SETTLE = 3
    ESCROW_REFUND = 4
    ESCROW_CLOSE = 5
    STAKE_OPEN = 6
    STAKE_DEPOSIT = 7
    STAKE_SLASH = 8
    STAKE_REQUEST = 9
    STAKE_WITHDRAW = 10


class MarketError(IntEnum):
    """The program's own error numbers."""

    NOT_OURS = 1
    WRONG_AUTHORITY = 2
    WRONG_ADDRESS = 3
    WRONG_VAULT = 4
    WRONG_MINT = 5
    WRONG_PROGRAM = 6
    WRONG_DESTINATION = 7
    ALREADY_OPEN = 8
    CLOSED = 9
    ENDED = 10
    TOO_EARLY = 11
    DEADLINE_PASSED = 12
    INSUFFICIENT = 13
    PAYEES_FULL = 14
    OVERFLOW = 15
    ZERO_AMOUNT = 16
    SLASH_CAP = 17
    NOT_EMPTY = 18
    NO_REQUEST = 19
    BAD_TERMS = 20
    RENT = 21


ERROR_TEXTS: dict[MarketError, str] = {
    MarketError.NOT_OURS: "the escrow or stake does not exist: open it first",
    MarketError.WRONG_AUTHORITY: "the signer is not the one whom this account names: sign with its key",
    MarketError.WRONG_ADDRESS: "an account is not at its canonical address: derive it anew",
    MarketError.WRONG_VAULT: "not this account's vault, or a vault with a delegate or close authority",
    MarketError.WRONG_MINT: "another token than the one this account was opened for",
    MarketError.WRONG_PROGRAM: "a passed program is not the token or system program",
    MarketError.WRONG_DESTINATION: "the money would go to somebody who must not receive it",
    MarketError.ALREADY_OPEN: "it was opened before: use another job id",
    MarketError.CLOSED: "the escrow was closed",
    MarketError.ENDED: "the escrow was refunded and takes no deposits any more",
    MarketError.TOO_EARLY: "the deadline or the cool-down has not passed yet",
    MarketError.DEADLINE_PASSED: "the deadline lies in the past: choose a later one",
    MarketError.INSUFFICIENT: "the vault holds less than that",
    MarketError.PAYEES_FULL: "more payees than the escrow was opened for",
    MarketError.OVERFLOW: "a total would not fit 64 bits",
    MarketError.ZERO_AMOUNT: "the amount is zero",
    MarketError.SLASH_CAP: "above the share of the stake that may be slashed in one window",
    MarketError.NOT_EMPTY: "refund everything before closing",
    MarketError.NO_REQUEST: "request the withdrawal first",
    MarketError.BAD_TERMS: "a term is out of its bounds",
    MarketError.RENT: "the cluster's rent parameters are of an unknown kind",
}


@dataclass(frozen=True)
class Market:
    """Addresses that everything else is derived from."""

    program: Pubkey
    mint: Pubkey

    def terms(self) -> Pubkey:
        """Account of the market's terms."""
        return self._derive(b"market", bytes(self.mint))

    def escrow(self, submitter: Pubkey, job: bytes) -> Pubkey:
        """Account of one job's escrow."""
        return self._derive(b"escrow", bytes(submitter), job)

    def stake(self, node: Pubkey) -> Pubkey:
        """Account of one node's stake."""
        return self._derive(b"stake", bytes(node))

    def wallet(self, owner: Pubkey) -> Pubkey:
        """Associated token account of an owner; also the vault of an escrow or stake account."""
        return get_associated_token_address(owner, self.mint)

    def program_data(self) -> Pubkey:
        """The loader's account with the program's code and upgrade authority."""
        return Pubkey.find_program_address([bytes(self.program)], LOADER)[0]

    def _derive(self, *seeds: bytes) -> Pubkey:
        return Pubkey.find_program_address(list(seeds), self.program)[0]

    def _call(self, operation: Operation, data: bytes, accounts: Sequence[AccountMeta]) -> Instruction:
        return Instruction(self.program, bytes([operation]) + data, list(accounts))

    def configure(
        self, authority: Pubkey, treasury: Pubkey, *, slash_bps: int, cooldown: int, window: int
    ) -> Instruction:
        """Write the market's terms; ``authority`` is the program's upgrade authority. Times in seconds."""
        accounts = [
            _signer(authority, writable=True), _writable(self.terms()), _readonly(treasury), _readonly(self.mint),
            _readonly(SYSTEM_PROGRAM), _readonly(self.program_data()),
        ]  # fmt: skip
        return self._call(Operation.CONFIGURE, struct.pack("<Hqq", slash_bps, cooldown, window), accounts)

    def escrow_open(
        self, submitter: Pubkey, job: bytes, coordinator: Pubkey, deadline: int, max_payees: int
    ) -> Instruction:
        """Open an escrow whose vault exists already and is still empty."""
        state = self.escrow(submitter, job)
        accounts = [
            _signer(submitter, writable=True), _writable(state), _readonly(self.wallet(state)),
            _readonly(self.mint), _readonly(SYSTEM_PROGRAM),
        ]  # fmt: skip
        data = job + bytes(coordinator) + struct.pack("<qH", deadline, max_payees)
        return self._call(Operation.ESCROW_OPEN, data, accounts)

    def escrow_deposit(self, depositor: Pubkey, escrow: Pubkey, amount: int) -> Instruction:
        """Move tokens from the depositor's wallet into an escrow."""
        accounts = [*self._common(depositor, escrow), _writable(self.wallet(depositor))]
        return self._call(Operation.ESCROW_DEPOSIT, struct.pack("<Q", amount), accounts)

    def escrow_settle(self, coordinator: Pubkey, escrow: Pubkey, payouts: Sequence[tuple[Pubkey, int]]) -> Instruction:
        """Raise every payee (by address, not by token account) to its cumulative amount."""
        accounts = self._common(coordinator, escrow) + [_writable(self.wallet(payee)) for payee, _ in payouts]
        data = b"".join(struct.pack("<Q", amount) for _, amount in payouts)
        return self._call(Operation.ESCROW_SETTLE, data, accounts)

    def escrow_refund(
        self, authority: Pubkey, submitter: Pubkey, job: bytes, cosigner: Pubkey | None = None
    ) -> Instruction:
        """Return what the vault holds to the submitter's wallet."""
        accounts = [*self._common(authority, self.escrow(submitter, job)), _writable(self.wallet(submitter))]
        if cosigner is not None:
            accounts.append(_signer(cosigner))
        return self._call(Operation.ESCROW_REFUND, b"", accounts)

    def escrow_close(self, authority: Pubkey, submitter: Pubkey, job: bytes) -> Instruction:
        """Close a refunded escrow; its rent returns to the submitter, a tombstone stays."""
        accounts = [*self._common(authority, self.escrow(submitter, job)), _writable(submitter)]
        return self._call(Operation.ESCROW_CLOSE, b"", accounts)

    def stake_open(self, node: Pubkey, coordinator: Pubkey) -> Instruction:
        """Open a node's stake whose vault exists already."""
        state = self.stake(node)
        accounts = [
            _signer(node, writable=True), _writable(state), _readonly(self.wallet(state)), _readonly(self.mint),
            _readonly(SYSTEM_PROGRAM), _readonly(self.terms()),
        ]  # fmt: skip
        return self._call(Operation.STAKE_OPEN, bytes(coordinator), accounts)

    def stake_deposit(self, depositor: Pubkey, node: Pubkey, amount: int) -> Instruction:
        """Move tokens from the depositor's wallet into a node's stake."""
        accounts = [*self._common(depositor, self.stake(node)), _writable(self.wallet(depositor))]
        return self._call(Operation.STAKE_DEPOSIT, struct.pack("<Q", amount), accounts)

    def stake_slash(
        self, coordinator: Pubkey, node: Pubkey, treasury: Pubkey, amount: int, reason: bytes
    ) -> Instruction:
        """Move a share of a node's stake to the treasury, once a reason."""
        accounts = [*self._common(coordinator, self.stake(node)), _writable(treasury)]
        return self._call(Operation.STAKE_SLASH, struct.pack("<Q", amount) + reason, accounts)

    def stake_request(self, node: Pubkey, amount: int) -> Instruction:
        """Start the cool-down for an amount; zero takes the request back."""
        return self._call(Operation.STAKE_REQUEST, struct.pack("<Q", amount), self._common(node, self.stake(node)))

    def stake_withdraw(self, node: Pubkey) -> Instruction:
        """Pay what was requested to the node's wallet once the cool-down has passed."""
        accounts = [*self._common(node, self.stake(node)), _writable(self.wallet(node))]
        return self._call(Operation.STAKE_WITHDRAW, b"", accounts)

    def _common(self, authority: Pubkey, state: Pubkey) -> list[AccountMeta]:
        return [
            _signer(authority), _writable(state), _writable(self.wallet(state)), _readonly(self.mint),
            _readonly(TOKEN_PROGRAM_ID),
        ]  # fmt: skip


def _signer(key: Pubkey, *, writable: bool = False) -> AccountMeta:
    return AccountMeta(key, is_signer=True, is_writable=writable)


def _writable(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=True)


def _readonly(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=False)
