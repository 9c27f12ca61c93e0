"""The market program as Python sees it: addresses and instructions.

``codes.py`` has the numbers, ``layout.py`` reads the accounts and events. ``market.h`` is the other side of every number
here; tests compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import get_associated_token_address

from ledger.program.codes import (
    BASIS_POINTS,
    ERROR_TEXTS,
    EVERYTHING,
    MAX_BATCH,
    MAX_GROWTH,
    MAX_PAYEES,
    MAX_TABLE,
    Consent,
    MarketError,
    Operation,
)
from protocol.merkle import MerkleProof

__all__ = [
    "BASIS_POINTS",
    "ERROR_TEXTS",
    "EVERYTHING",
    "LOADER",
    "MAX_BATCH",
    "MAX_GROWTH",
    "MAX_PAYEES",
    "MAX_TABLE",
    "Consent",
    "MarketAddresses",
    "MarketError",
    "Operation",
]

LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
ALL = Consent.ADMIT | Consent.END


@dataclass(frozen=True)
class MarketAddresses:
    """Addresses that everything else is derived from.

    Jobs and audits are 32 bytes; amounts are smallest units, at most 2^64 - 1; times are Unix seconds.
    """

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

    def dispute(self, challenger: Pubkey, audit: bytes) -> Pubkey:
        """Account of one challenger's dispute over one audit."""
        return self._derive(b"dispute", audit, bytes(challenger))

    def wallet(self, owner: Pubkey) -> Pubkey:
        """Associated token account of an owner; also the vault of an escrow, stake or dispute account."""
        return get_associated_token_address(owner, self.mint)

    def program_data(self) -> Pubkey:
        """The loader's account with the program's code and upgrade authority."""
        return Pubkey.find_program_address([bytes(self.program)], LOADER)[0]

    def _derive(self, *seeds: bytes) -> Pubkey:
        return Pubkey.find_program_address(list(seeds), self.program)[0]

    def _call(self, operation: Operation, data: bytes, accounts: Sequence[AccountMeta]) -> Instruction:
        return Instruction(self.program, bytes([operation]) + data, list(accounts))

    def configure(
        self,
        authority: Pubkey,
        treasury: Pubkey,
        *,
        slash_bps: int,
        cooldown: int,
        window: int,
        challenger_bps: int = 0,
        bond: int = 0,
        verdict_time: int = 86_400,
    ) -> Instruction:
        """Write the market's terms; ``authority`` is the program's upgrade authority.

        ``challenger_bps`` is the challenger's part of a slash, ``bond`` the least that a dispute costs to open, and
        ``verdict_time`` how long the coordinator has to decide it.
        """
        accounts = [
            _signer(authority, writable=True),
            _writable(self.terms()),
            _readonly(treasury),
            _readonly(self.mint),
            _readonly(SYSTEM_PROGRAM),
            _readonly(self.program_data()),
        ]
        data = struct.pack("<HHqqqQ", slash_bps, challenger_bps, cooldown, window, verdict_time, bond)
        return self._call(Operation.CONFIGURE, data, accounts)

    # Escrow

    def escrow_open(
        self,
        submitter: Pubkey,
        job: bytes,
        coordinator: Pubkey,
        deadline: int,
        max_payees: int,
        *,
        cap: int = 2**64 - 1,
        consent: Consent = ALL,
        count: int = 0,
        peaks: Sequence[bytes] = (),
    ) -> Instruction:
        """Open an escrow whose vault exists already and is still empty.

        ``count`` and ``peaks`` (``ledger.merkle.peaks``) say whom the submitter admits from the beginning.
        """
        state = self.escrow(submitter, job)
        accounts = [
            _signer(submitter, writable=True),
            _writable(state),
            _readonly(self.wallet(state)),
            _readonly(self.mint),
            _readonly(SYSTEM_PROGRAM),
        ]
        terms = struct.pack("<qQHHI", deadline, cap, max_payees, consent, count)
        return self._call(Operation.ESCROW_OPEN, job + bytes(coordinator) + terms + b"".join(peaks), accounts)

    def escrow_accept(
        self,
        coordinator: Pubkey,
        escrow: Pubkey,
        *,
        deadline: int,
        cap: int,
        amount: int,
        max_payees: int,
        consent: Consent = ALL,
    ) -> Instruction:
        """Take a job on, if its escrow is what was asked for.

        At least this deadline, cap, amount and room for payees, just these consents, and nobody listed yet; else the
        program refuses. Afterwards only the coordinator admits payees, where it may at all.
        """
        data = struct.pack("<qQQHH", deadline, cap, amount, max_payees, consent)
        return self._call(Operation.ESCROW_ACCEPT, data, self._common(coordinator, escrow))

    def escrow_extend(self, submitter: Pubkey, job: bytes, cap: int, deadline: int) -> Instruction:
        """Raise the cap and postpone the deadline; neither ever goes the other way."""
        accounts = [_signer(submitter), _writable(self.escrow(submitter, job))]
        return self._call(Operation.ESCROW_EXTEND, struct.pack("<Qq", cap, deadline), accounts)

    def escrow_deposit(self, depositor: Pubkey, escrow: Pubkey, amount: int) -> Instruction:
        """Move tokens from the depositor's wallet into an escrow."""
        accounts = [*self._common(depositor, escrow), _writable(self.wallet(depositor))]
        return self._call(Operation.ESCROW_DEPOSIT, struct.pack("<Q", amount), accounts)

    def escrow_admit(self, authority: Pubkey, escrow: Pubkey, payees: Sequence[Pubkey], *, enrol: bool) -> Instruction:
        """Append payees (by address) to the list of those whom the escrow may pay.

        With ``enrol`` each gets its entry of the table at once, and one that has an entry is left out, so that a
        repetition changes nothing. Without it, each needs ``escrow_enrol`` with a proof before it is paid.
        """
        wallets = b"".join(bytes(self.wallet(payee)) for payee in payees)
        return self._call(Operation.ESCROW_ADMIT, bytes([enrol]) + wallets, [_signer(authority), _writable(escrow)])

    def escrow_enrol(self, anyone: Pubkey, escrow: Pubkey, payee: Pubkey, proof: MerkleProof) -> Instruction:
        """Make the table's entry of a payee whom ``proof`` shows in the escrow's list; anyone may."""
        data = bytes(self.wallet(payee)) + _proof(proof)
        return self._call(Operation.ESCROW_ENROL, data, [_signer(anyone), _writable(escrow)])

    def escrow_grow(self, payer: Pubkey, escrow: Pubkey, more: int) -> Instruction:
        """Make room for ``more`` payees, at most MAX_GROWTH a call; the coordinator lends the rent, others give it."""
        accounts = [_signer(payer, writable=True), _writable(escrow), _readonly(SYSTEM_PROGRAM)]
        return self._call(Operation.ESCROW_GROW, struct.pack("<H", more), accounts)

    def escrow_settle(
        self, coordinator: Pubkey, escrow: Pubkey, payouts: Sequence[tuple[Pubkey, int]], slots: Sequence[int] = ()
    ) -> Instruction:
        """Raise every payee (by address, not by token account) to its cumulative amount; at most MAX_BATCH.

        ``slots`` says where in the table each stands. A wrong or missing one costs compute units, nothing else. A payee
        whose token account is closed or frozen is left out.
        """
        accounts = self._common(coordinator, escrow) + [_writable(self.wallet(payee)) for payee, _ in payouts]
        places = [*slots, *range(len(slots), len(payouts))]
        data = b"".join(struct.pack("<HQ", slot, total) for slot, (_, total) in zip(places, payouts, strict=True))
        return self._call(Operation.ESCROW_SETTLE, data, accounts)

    def escrow_commit(self, coordinator: Pubkey, escrow: Pubkey, root: bytes, total: int, period: int) -> Instruction:
        """Promise cumulative earnings: the root over ``merkle.earning`` leaves, their sum, and a rising number.

        What was promised and not paid stays in the escrow for CLAIM_GRACE seconds after the deadline.
        """
        accounts = self._common(coordinator, escrow)
        return self._call(Operation.ESCROW_COMMIT, root + struct.pack("<QQ", total, period), accounts)

    def escrow_claim(
        self, anyone: Pubkey, escrow: Pubkey, payee: Pubkey, cumulative: int, slot: int, proof: MerkleProof
    ) -> Instruction:
        """Pay a payee what the coordinator has promised it; anyone may, the payee first of all."""
        accounts = [*self._common(anyone, escrow), _writable(self.wallet(payee))]
        return self._call(Operation.ESCROW_CLAIM, struct.pack("<HQ", slot, cumulative) + _proof(proof), accounts)

    def escrow_refund(
        self, authority: Pubkey, submitter: Pubkey, job: bytes, cosigner: Pubkey | None = None
    ) -> Instruction:
        """Return what the vault holds to the submitter's wallet.

        After the deadline anyone may; before it submitter and coordinator together, or the coordinator alone where
        the submitter consented to that at the opening.
        """
        accounts = [*self._common(authority, self.escrow(submitter, job)), _writable(self.wallet(submitter))]
        if cosigner is not None:
            accounts.append(_signer(cosigner))
        return self._call(Operation.ESCROW_REFUND, b"", accounts)

    def escrow_close(
        self, authority: Pubkey, submitter: Pubkey, job: bytes, lender: Pubkey | None = None
    ) -> Instruction:
        """Close a refunded escrow; its rent returns to the submitter, a tombstone stays.

        ``lender``: the coordinator, where it lent for entries of the table; it gets back what it paid.
        """
        accounts = [*self._common(authority, self.escrow(submitter, job)), _writable(submitter)]
        if lender is not None:
            accounts.append(_writable(lender))
        return self._call(Operation.ESCROW_CLOSE, b"", accounts)

    # Stake

    def stake_open(self, node: Pubkey, coordinator: Pubkey) -> Instruction:
        """Open a node's stake whose vault exists already."""
        state = self.stake(node)
        accounts = [
            _signer(node, writable=True),
            _writable(state),
            _readonly(self.wallet(state)),
            _readonly(self.mint),
            _readonly(SYSTEM_PROGRAM),
            _readonly(self.terms()),
        ]
        return self._call(Operation.STAKE_OPEN, bytes(coordinator), accounts)

    def stake_deposit(self, depositor: Pubkey, node: Pubkey, amount: int) -> Instruction:
        """Move tokens from the depositor's wallet into a node's stake."""
        accounts = [*self._common(depositor, self.stake(node)), _writable(self.wallet(depositor))]
        return self._call(Operation.STAKE_DEPOSIT, struct.pack("<Q", amount), accounts)

    def stake_slash(
        self,
        coordinator: Pubkey,
        node: Pubkey,
        treasury: Pubkey,
        amount: int,
        reason: bytes,
        challenger: Pubkey | None = None,
    ) -> Instruction:
        """Move a share of a node's stake to the treasury and its part of that to the challenger, once a reason."""
        accounts = [*self._common(coordinator, self.stake(node)), _writable(treasury)]
        if challenger is not None:
            accounts.append(_writable(self.wallet(challenger)))
        return self._call(Operation.STAKE_SLASH, struct.pack("<Q", amount) + reason, accounts)

    def stake_request(self, node: Pubkey, amount: int) -> Instruction:
        """Start the cool-down for an amount; zero takes the request back, EVERYTHING is what will be there."""
        return self._call(Operation.STAKE_REQUEST, struct.pack("<Q", amount), self._common(node, self.stake(node)))

    def stake_withdraw(self, node: Pubkey) -> Instruction:
        """Pay what was requested to the node's wallet once the cool-down has passed."""
        accounts = [*self._common(node, self.stake(node)), _writable(self.wallet(node))]
        return self._call(Operation.STAKE_WITHDRAW, b"", accounts)

    def stake_move(self, node: Pubkey, coordinator: Pubkey) -> Instruction:
        """Name another coordinator: at once while the stake is empty, else asked for now and again after the cool-down."""
        return self._call(Operation.STAKE_MOVE, bytes(coordinator), self._common(node, self.stake(node)))

    def stake_close(self, node: Pubkey) -> Instruction:
        """Close an empty stake; its rent returns to the node, which may open it anew."""
        accounts = self._common(node, self.stake(node))
        accounts[0] = _signer(node, writable=True)
        return self._call(Operation.STAKE_CLOSE, b"", accounts)

    # Dispute

    def dispute_open(self, challenger: Pubkey, node: Pubkey, audit: bytes) -> Instruction:
        """Open a dispute over a node's audit; what its vault holds is the bond, so the bond is moved there first.

        Until it is decided the node neither withdraws its stake nor changes its coordinator; but what a cool-down has
        released stays no longer than a verdict may take, however many are opened.
        """
        state, stake = self.dispute(challenger, audit), self.stake(node)
        accounts = [
            _signer(challenger, writable=True),
            _writable(state),
            _readonly(self.wallet(state)),
            _readonly(self.mint),
            _readonly(SYSTEM_PROGRAM),
            _readonly(self.terms()),
            _writable(stake),
            _readonly(self.wallet(stake)),
        ]
        return self._call(Operation.DISPUTE_OPEN, audit, accounts)

    def dispute_verdict(
        self, coordinator: Pubkey, challenger: Pubkey, node: Pubkey, audit: bytes, evidence: bytes, *, upheld: bool
    ) -> Instruction:
        """Decide a dispute: the bond returns to the challenger, or goes to the accused node.

        Where the winner has no token account the bond waits for ``dispute_close``.
        """
        state = self.dispute(challenger, audit)
        winner = self.wallet(challenger if upheld else node)
        accounts = [*self._common(coordinator, state), _writable(winner), _writable(self.stake(node))]
        return self._call(Operation.DISPUTE_VERDICT, bytes([upheld]) + evidence, accounts)

    def dispute_expire(self, anyone: Pubkey, challenger: Pubkey, node: Pubkey, audit: bytes) -> Instruction:
        """Return the bond of a dispute that nobody decided in time."""
        accounts = [
            *self._common(anyone, self.dispute(challenger, audit)),
            _writable(self.wallet(challenger)),
            _writable(self.stake(node)),
        ]
        return self._call(Operation.DISPUTE_EXPIRE, b"", accounts)

    def dispute_close(
        self, anyone: Pubkey, challenger: Pubkey, audit: bytes, winner: Pubkey | None = None
    ) -> Instruction:
        """Close a decided dispute; its rent goes to the challenger.

        ``winner``: who gets what the vault still holds: the accused node where the dispute was rejected, else the
        challenger (None).
        """
        accounts = [*self._common(anyone, self.dispute(challenger, audit)), _writable(challenger)]
        return self._call(Operation.DISPUTE_CLOSE, b"", [*accounts, _writable(self.wallet(winner or challenger))])

    def _common(self, authority: Pubkey, state: Pubkey) -> list[AccountMeta]:
        return [
            _signer(authority),
            _writable(state),
            _writable(self.wallet(state)),
            _readonly(self.mint),
            _readonly(TOKEN_PROGRAM_ID),
        ]


def _proof(proof: MerkleProof) -> bytes:
    return struct.pack("<II", proof.index, proof.count) + b"".join(proof.path)


def _signer(key: Pubkey, *, writable: bool = False) -> AccountMeta:
    return AccountMeta(key, is_signer=True, is_writable=writable)


def _writable(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=True)


def _readonly(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=False)
