"""Any sequence of all instructions, by anybody, at any time: no money appears, vanishes, or passes a bound.

The machine below knows no rules. It sends whatever hypothesis thinks of, lets the program refuse or not, and checks after
every step what must always hold.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import ClassVar

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from ledger import merkle
from ledger.local.genesis import BOND, COOLDOWN_S, VERDICT_S
from ledger.program.codes import EVERYTHING, Consent, Operation
from ledger.program.layout import EscrowStatus, Ruling
from protocol.merkle import MerkleTree, merkle_root
from tests.ledger.world import World

GRACE_S = 7 * 86_400  # CLAIM_GRACE of market.h
people = st.integers(0, 5)
judges = st.sampled_from([1, 1, 1, 1, 0, 2, 3])  # Mostly the coordinator, lest hardly anything happens.
payees = st.sampled_from([2, 2, 2, 3, 3, 0, 1])
units = st.integers(0, 2500)
MOST_CROWDS = 60  # Six are enough as a rule; what hypothesis draws depends on the modules that are loaded.
seconds = st.sampled_from([1, 60, COOLDOWN_S, GRACE_S + 1])


UNTRIED = {"CONFIGURE", "ESCROW_OPEN", "STAKE_OPEN", "STAKE_DEPOSIT", "STAKE_CLOSE"}  # Done once, or by other tests.


class Crowd(World):
    """One world for all lives: making one deploys a program."""

    shared: ClassVar[Crowd | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.everybody = [self.submitter, self.coordinator, self.node, self.stranger]
        self.everybody += [self.person("payee"), self.person("judge's friend")]

    @classmethod
    def get(cls) -> Crowd:
        cls.shared = cls.shared or cls()
        return cls.shared


class Lives(RuleBasedStateMachine):
    """An escrow, a stake and a dispute, and six people who try everything."""

    happened: ClassVar[Counter[str]] = Counter()

    @initialize(cap=st.integers(500, 5000), consent=st.integers(0, 3), room=st.integers(1, 3), taken=st.booleans())
    def open(self, cap: int, consent: int, room: int, taken: bool) -> None:
        self.world = Crowd.get()
        world, self.market = self.world, self.world.market
        self.job, self.audit = world.entropy(32), hashlib.sha256(world.entropy(32)).digest()
        self.node = world.person(f"node {self.job.hex()}")
        self.escrow = world.open_escrow(
            0, self.job, seconds=100, max_payees=room, payees=(), cap=cap, consent=Consent(consent)
        )
        self.stake = world.open_stake(1000, self.node)
        self.dispute = self.market.dispute(world.stranger, self.audit)
        self.committed: list[dict[Pubkey, int]] = []
        self.listed: list[Pubkey] = []
        self.refunded = 0
        self.held = self._sum()
        self.deposit(0, 2000)
        if taken:
            self.accept(1, 0, cap, 2000, room, consent)
        admits = 1 if taken and Consent.ADMIT in Consent(consent) else 0
        self.admit(admits, 2, enrol=True)
        self.admit(admits, 3, enrol=False)

    def _who(self, index: int) -> Pubkey:
        return self.world.everybody[index]

    def _try(self, *instructions: Instruction) -> bool:
        done = self.world.refusal(*instructions) is None
        self.happened[Operation(instructions[-1].data[0]).name] += (
            done and instructions[-1].program_id == self.market.program
        )
        return done

    def _sum(self) -> int:
        places = [*self.world.everybody, self.node, self.escrow, self.stake, self.dispute]
        return sum(map(self.world.tokens, places)) + self.world.units(self.world.treasury)

    @rule(who=people, amount=units)
    def deposit(self, who: int, amount: int) -> None:
        self._try(self.market.escrow_deposit(self._who(who), self.escrow, amount))

    @rule(
        who=judges,
        later=st.integers(-60, 5),
        cap=st.integers(0, 5000),
        amount=units,
        room=st.integers(0, 4),
        consent=st.integers(0, 3),
    )
    def accept(self, who: int, later: int, cap: int, amount: int, room: int, consent: int) -> None:
        before = self.world.escrow(self.escrow)
        call = self.market.escrow_accept(
            self._who(who),
            self.escrow,
            deadline=before.deadline + later,
            cap=cap,
            amount=amount,
            max_payees=room,
            consent=Consent(consent),
        )
        if self._try(call):
            assert later <= 0
            assert cap <= before.cap
            assert amount <= before.paid + before.refunded + self.world.tokens(self.escrow)
            assert (room <= before.capacity, consent) == (True, before.consent)
            assert before.accepted or not (before.count or before.payees or before.paid or before.committed)

    @rule(amount=st.integers(1, 300))
    def gift(self, amount: int) -> None:
        if self.world.chain.account(self.world.wallet(self.escrow)) is not None:
            self._try(self.world.move_tokens(self.world.stranger, self.world.wallet(self.escrow), amount))

    @rule(who=judges, payee=payees, enrol=st.booleans())
    def admit(self, who: int, payee: int, enrol: bool) -> None:
        before = self.world.escrow(self.escrow)
        if self._try(self.market.escrow_admit(self._who(who), self.escrow, [self._who(payee)], enrol=enrol)):
            self.listed += [self._who(payee)] * (self._count() - before.count)
            assert not (before.accepted and Consent.ADMIT in before.consent and who == 0)

    def _count(self) -> int:
        return self.world.escrow(self.escrow).count

    @rule(who=people, place=st.integers(0, 5))
    def enrol(self, who: int, place: int) -> None:
        leaves = [bytes(self.world.wallet(payee)) for payee in self.listed]
        index = place % len(leaves)
        proof = MerkleTree(leaves).proof(index)
        self._try(self.market.escrow_enrol(self._who(who), self.escrow, self.listed[index], proof))

    @rule(who=people, more=st.integers(0, 3))
    def grow(self, who: int, more: int) -> None:
        self._try(self.market.escrow_grow(self._who(who), self.escrow, more))

    @rule(
        who=judges, orders=st.lists(st.tuples(payees, st.integers(0, 900), st.integers(0, 3)), min_size=1, max_size=2)
    )
    def settle(self, who: int, orders: list[tuple[int, int, int]]) -> None:
        payouts = [(self._who(payee), total) for payee, total, _ in orders]
        slots = [slot for _, _, slot in orders]
        self._try(self.market.escrow_settle(self._who(who), self.escrow, payouts, slots))

    @rule(earned=st.dictionaries(payees, st.integers(0, 900), min_size=1, max_size=3), period=st.integers(0, 5))
    def commit(self, earned: dict[int, int], period: int) -> None:
        totals = {self._who(payee): total for payee, total in earned.items()}
        root, total = merkle_root(self._leaves(totals)), sum(totals.values())
        if self._try(self.market.escrow_commit(self.world.coordinator, self.escrow, root, total, period)):
            self.committed.append(totals)

    def _leaves(self, totals: dict[Pubkey, int]) -> list[bytes]:
        return [merkle.earning(bytes(self.world.wallet(payee)), total) for payee, total in totals.items()]

    @rule(who=people, which=st.integers(0, 3), place=st.integers(0, 2))
    def claim(self, who: int, which: int, place: int) -> None:
        if self.committed:
            totals = self.committed[-1 - which % len(self.committed)]
            payee = list(totals)[place % len(totals)]
            proof = MerkleTree(self._leaves(totals)).proof(place % len(totals))
            self._try(self.market.escrow_claim(self._who(who), self.escrow, payee, totals[payee], place, proof))

    @rule(who=judges, cap=st.integers(0, 6000), later=st.integers(-50, 50))
    def extend(self, who: int, cap: int, later: int) -> None:
        deadline = self.world.escrow(self.escrow).deadline + later
        call = self.market.escrow_extend(self.world.submitter, self.job, cap, deadline)
        accounts = [type(call.accounts[0])(self._who(who), True, False), call.accounts[1]]
        self._try(Instruction(call.program_id, call.data, accounts))

    @rule(who=judges, second=st.one_of(st.none(), people))
    def refund(self, who: int, second: int | None) -> None:
        state, now = self.world.escrow(self.escrow), int(self.world.clock.now)
        cosigner = None if second is None else self._who(second)
        if not self._try(self.market.escrow_refund(self._who(who), self.world.submitter, self.job, cosigner)):
            return
        after = self.world.escrow(self.escrow)
        signers = {self._who(who), cosigner}
        both = signers == {self.world.submitter, self.world.coordinator}
        alone = self._who(who) == self.world.coordinator and Consent.END in state.consent
        assert now >= state.deadline or both or alone
        if now < state.deadline + GRACE_S:
            assert self.world.tokens(self.escrow) == max(0, after.committed - after.paid)

    @rule(who=people)
    def close(self, who: int) -> None:
        self._try(self.market.escrow_close(self._who(who), self.world.submitter, self.job))

    @rule(who=judges, amount=units, reason=st.integers(1, 4), challenger=st.one_of(st.none(), people))
    def slash(self, who: int, amount: int, reason: int, challenger: int | None) -> None:
        judge = self.world.tokens(self.world.coordinator)
        third = None if challenger is None else self._who(challenger)
        self._try(
            self.market.stake_slash(self._who(who), self.node, self.world.treasury, amount, bytes([reason]) * 32, third)
        )
        assert self.world.tokens(self.world.coordinator) == judge

    @rule(amount=st.integers(0, 900))
    def request(self, amount: int) -> None:
        self._try(self.market.stake_request(self.node, EVERYTHING if amount == 900 else amount))

    @rule()
    def withdraw(self) -> None:
        state, now = self.world.stake(self.stake), int(self.world.clock.now)
        if self._try(self.market.stake_withdraw(self.node)):
            assert now >= state.unlock_at + (state.hold if state.disputes else 0)

    @rule(who=people)
    def move(self, who: int) -> None:
        self._try(self.market.stake_move(self.node, self._who(who)))

    @rule(extra=st.sampled_from([-1, 0, 7]))
    def accuse(self, extra: int) -> None:
        challenger, world = self.world.stranger, self.world
        self._try(
            world.create_wallet(self.dispute),
            world.move_tokens(challenger, world.wallet(self.dispute), BOND + extra),
            self.market.dispute_open(challenger, self.node, self.audit),
        )

    @rule(who=judges, upheld=st.booleans())
    def judge(self, who: int, upheld: bool) -> None:
        self._try(
            self.market.dispute_verdict(
                self._who(who), self.world.stranger, self.node, self.audit, b"\1" * 32, upheld=upheld
            )
        )

    @rule(who=people, end=st.booleans())
    def end_dispute(self, who: int, end: bool) -> None:
        anyone, challenger = self._who(who), self.world.stranger
        if end:
            self._try(self.market.dispute_close(anyone, challenger, self.audit))
        else:
            self._try(self.market.dispute_expire(anyone, challenger, self.node, self.audit))

    @rule(step=seconds)
    def wait(self, step: int) -> None:
        self.world.clock.advance(step)

    @invariant()
    def the_escrow_adds_up(self) -> None:
        state, vault = self.world.escrow(self.escrow), self.world.tokens(self.escrow)
        gifts = state.paid + state.refunded + vault - state.deposited
        assert gifts >= 0  # Counted as deposited by the next instruction that touches the vault.
        if state.status != EscrowStatus.CLOSED:
            assert sum(state.payees.values()) == state.paid <= state.cap
            assert list(state.peaks) == merkle.peaks([bytes(self.world.wallet(payee)) for payee in self.listed])
            raw = self.world.chain.account(self.escrow)
            assert raw is not None
            entries = int.from_bytes(raw.data[6:8], "little")  # One an account, never two.
            assert entries == len(state.payees) <= state.capacity

    @invariant()
    def the_stake_adds_up(self) -> None:
        state, vault = self.world.stake(self.stake), self.world.tokens(self.stake)
        assert state.deposited == state.slashed + state.withdrawn + vault
        assert state.window_slashed <= state.window_base * state.slash_bps // 10_000

    @invariant()
    def a_dispute_holds_its_bond_until_it_is_decided(self) -> None:
        found = self.world.chain.account(self.dispute)
        if found is not None and found.data:
            state = self.world.dispute(self.dispute)
            assert (state.ruling == Ruling.OPEN) == (self.world.tokens(self.dispute) >= state.bond)
            assert state.deadline <= int(self.world.clock.now) + VERDICT_S
            assert self.world.stake(self.stake).disputes == (state.ruling == Ruling.OPEN)
            assert self.world.stake(self.stake).hold == (VERDICT_S if state.ruling == Ruling.OPEN else 0)

    @invariant()
    def nothing_appears_and_nothing_vanishes(self) -> None:
        assert self._sum() == self.held


def test_no_sequence_of_instructions_makes_money_appear_or_vanish() -> None:
    """Lives are tried, forty at a time, until each instruction has succeeded in one: before that they prove nothing about it."""
    Lives.happened.clear()
    never = {one.name for one in Operation} - UNTRIED
    for number in range(MOST_CROWDS):
        lives = seed(number)(type(f"Lives{number}", (Lives,), {}))
        run_state_machine_as_test(
            lives,
            settings=settings(
                max_examples=40,
                stateful_step_count=40,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        never -= set(+Lives.happened)
        if not never:
            return
    raise AssertionError(f"no life ever saw {never} succeed: the machine proves nothing about them")
