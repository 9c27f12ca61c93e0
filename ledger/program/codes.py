"""Numbers that the market program and Python share: instructions, errors, limits. ``market.h`` holds the same ones."""

from __future__ import annotations

from enum import IntEnum, IntFlag

BASIS_POINTS = 10_000
MAX_PAYEES = 236  # What an escrow can be opened for: one instruction may allocate 10,240 bytes. ``grow`` adds more.
MAX_GROWTH = 255  # Payees that one growth adds, for the same reason.
MAX_TABLE = 65_535  # Payees that an escrow can hold at all: slots are counted in 16 bits.
MAX_BATCH = 50  # Payouts in one settlement: what fits the program's stack and 64 account locks.
FRONTIER = 16  # Peaks that an escrow keeps of its list of payees: lists of up to 65,535 leaves.
EVERYTHING = 2**64 - 1  # Asked for as a withdrawal of stake: whatever is there when it is paid.
ACCEPTED = 0x8000  # Beside the consents of an escrow: its coordinator has found the terms that it asked for.
REVISION = 1  # Of what the program does; the terms name the one that wrote them.


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
    ESCROW_ADMIT = 11
    ESCROW_ENROL = 12
    ESCROW_GROW = 13
    ESCROW_COMMIT = 14
    ESCROW_CLAIM = 15
    ESCROW_EXTEND = 16
    STAKE_MOVE = 17
    STAKE_CLOSE = 18
    DISPUTE_OPEN = 19
    DISPUTE_VERDICT = 20
    DISPUTE_EXPIRE = 21
    DISPUTE_CLOSE = 22
    ESCROW_ACCEPT = 23


class Consent(IntFlag):
    """What a submitter allows the coordinator to do alone when it opens an escrow.

    ``ADMIT``: append payees to the list. Without it only the submitter does.
    ``END``: return what is left to the submitter before the deadline. Without it both must sign.
    """

    ADMIT = 1
    END = 2


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
    NOT_A_PAYEE = 22
    BAD_PROOF = 23
    PAY_CAP = 24
    STALE = 25
    BOND = 26
    DECIDED = 27
    SELF = 28
    DISPUTED = 29
    USED = 30


ERROR_TEXTS: dict[MarketError, str] = {
    MarketError.NOT_OURS: "the escrow, stake or dispute does not exist: open it first",
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
    MarketError.PAYEES_FULL: "more payees than the escrow has room for: grow its table",
    MarketError.OVERFLOW: "a total would not fit 64 bits",
    MarketError.ZERO_AMOUNT: "the amount is zero",
    MarketError.SLASH_CAP: "above the share of the stake that may be slashed in one window",
    MarketError.NOT_EMPTY: "it still holds money: refund or withdraw everything before closing",
    MarketError.NO_REQUEST: "request the withdrawal first",
    MarketError.BAD_TERMS: "a term is out of its bounds",
    MarketError.RENT: "the cluster's rent parameters are of an unknown kind",
    MarketError.NOT_A_PAYEE: "the account is not in the escrow's table: admit it, or enrol it with a proof",
    MarketError.BAD_PROOF: "the Merkle proof does not lead to the escrow's root: build it from the current list",
    MarketError.PAY_CAP: "more than the submitter allows to be paid in sum: ask it to raise the cap",
    MarketError.STALE: "a later period was committed already",
    MarketError.BOND: "the bond is smaller than the market's terms ask for",
    MarketError.DECIDED: "the dispute was decided already",
    MarketError.SELF: "nobody disputes with itself",
    MarketError.DISPUTED: "a dispute over the stake waits for its verdict or its deadline",
    MarketError.USED: "the escrow lists payees or has moved money before its coordinator took it on: open another one",
}
