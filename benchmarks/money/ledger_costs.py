"""What the market program costs: ``python -m benchmarks.money.ledger_costs [--providers N] [--docs]``.

Every instruction runs on the embedded virtual machine, deployed through the real loader, and its compute units, bytes on
the wire, fee and rent are read back from the ledger. Then one job pays N providers, fifty a transaction through lookup
tables, and once more after another period, which is what a settlement costs when everybody is known. Counts, not times:
they do not depend on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import set_compute_unit_limit
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from benchmarks.common import ROOT, publish
from ledger import merkle, tables
from ledger.local.chain import SLOT_S, LocalChain
from ledger.local.genesis import BOND, COOLDOWN_S, SLASH_WINDOW_S, VERDICT_S, Genesis, give, open_chain, send
from ledger.local.store import LocalStore
from ledger.program.codes import MAX_BATCH, MAX_GROWTH, MAX_PAYEES
from protocol.merkle import MerkleTree, merkle_root

FEE_LAMPORTS = 5000  # A signature; what a transaction costs however much it computes.
MAX_UNITS = 1_400_000
START = 1_900_000_000.0
JOB, AUDIT, REASON = b"\1" * 32, b"\2" * 32, b"\3" * 32
TABLE_SIZE = 250  # Addresses a lookup table, of the 256 that fit: five settlements whole.
DOCS = ROOT / "docs" / "reference" / "ledger.md"
BEGIN, END = "<!-- costs: begin -->", "<!-- costs: end -->"


@dataclass
class Clock:
    """Time that only the benchmark moves."""

    now: float = START

    def __call__(self) -> float:
        return self.now


@dataclass
class Bench:
    """A ledger with people, and the costs measured so far."""

    clock: Clock = field(default_factory=Clock)
    rows: list[dict[str, Any]] = field(default_factory=list)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self.chain: LocalChain
        self.genesis: Genesis
        self.chain, self.genesis = open_chain(LocalStore(":memory:"), self.clock, self._entropy)
        self.clock.now += 1.1
        self.market = self.genesis.market
        self.submitter, self.coordinator, self.node, self.challenger = map(
            self.person, ("submitter", "coordinator", "node", "challenger")
        )

    def _entropy(self, size: int) -> bytes:
        self._drawn += 1
        return hashlib.sha256(b"drawn %d" % self._drawn).digest()[:size]

    def person(self, name: str) -> Keypair:
        """Somebody with SOL and tokens."""
        pair = _key(name)
        give(self.chain, self.genesis, pair.pubkey(), 10**12, 10**12, self._entropy)
        return pair

    def wallet_of(self, owner: Pubkey) -> Instruction:
        """Create a token account; the root key pays."""
        return token.create_idempotent_associated_token_account(self.genesis.root.pubkey(), owner, self.market.mint)

    def prepare(self, *instructions: Instruction, signers: Sequence[Keypair] = ()) -> None:
        """Something that is not measured."""
        send(self.chain, list(instructions), [self.genesis.root, *signers])

    def measure(
        self, name: str, instructions: Instruction | Sequence[Instruction], signer: Keypair, state: Pubkey
    ) -> None:
        """Run one instruction alone in a transaction, or several in one, and take down what the market program's cost."""
        before = self.chain.account(state)
        together = [instructions] if isinstance(instructions, Instruction) else list(instructions)
        signature = send(self.chain, together, [signer])
        entry, after = self.chain.store.find(signature), self.chain.account(state)
        assert entry is not None
        rent = (after.lamports if after else 0) - (before.lamports if before else 0)
        row = {
            "instruction": name,
            "compute_units": _units(msgspec.json.decode(entry.meta)["logMessages"], self.market.program),
            "bytes": len(entry.wire),
            "fee_lamports": FEE_LAMPORTS,
            "rent_lamports": rent,
        }
        self.rows.append(row)


def _key(name: str) -> Keypair:
    return Keypair.from_seed(hashlib.sha256(b"costs:" + name.encode()).digest())


def _units(logs: list[str], program: Pubkey) -> int:
    """Compute units of the market's outermost calls, those of the programs that it called included."""
    found = [re.fullmatch(rf"Program {program} consumed (\d+) of \d+ compute units", line) for line in logs]
    return sum(int(match[1]) for match in found if match)


def escrow_rows(bench: Bench) -> None:
    """An escrow from its opening to its close."""
    market, submitter, coordinator = bench.market, bench.submitter.pubkey(), bench.coordinator.pubkey()
    escrow, listed = market.escrow(submitter, JOB), [_key(f"payee {index}").pubkey() for index in range(40)]
    wallets = [bytes(market.wallet(payee)) for payee in listed]
    bench.prepare(bench.wallet_of(escrow))
    opening = market.escrow_open(
        submitter, JOB, coordinator, int(bench.clock.now) + 3600, 64, cap=10**9, count=40, peaks=merkle.peaks(wallets)
    )
    bench.measure("escrow open (64 payees, 40 listed)", opening, bench.submitter, escrow)
    bench.measure("escrow deposit", market.escrow_deposit(submitter, escrow, 10**9), bench.submitter, escrow)
    bench.measure("escrow extend", market.escrow_extend(submitter, JOB, 10**9, 2**40), bench.submitter, escrow)
    enrol = market.escrow_enrol(coordinator, escrow, listed[17], MerkleTree(wallets).proof(17))
    bench.measure("escrow enrol (proof of 1 in 40)", enrol, bench.coordinator, escrow)
    for count in (1, 20):
        new = [_key(f"new {count} {index}").pubkey() for index in range(count)]
        admit = market.escrow_admit(coordinator, escrow, new, enrol=True)
        bench.measure(f"escrow admit ({count})", admit, bench.coordinator, escrow)
        for payee in new:
            bench.prepare(bench.wallet_of(payee))
        payouts = [(payee, 1000) for payee in new]
        slots = range(1, 2) if count == 1 else range(2, 22)
        settle = market.escrow_settle(coordinator, escrow, payouts, slots)
        bench.measure(f"escrow settle ({count})", settle, bench.coordinator, escrow)
    bench.measure("escrow grow (64)", market.escrow_grow(coordinator, escrow, 64), bench.coordinator, escrow)
    earned = [merkle.earning(bytes(market.wallet(_key(f"new 20 {index}").pubkey())), 2000) for index in range(20)]
    commit = market.escrow_commit(coordinator, escrow, merkle_root(earned), 40_000, 1)
    bench.measure("escrow commit", commit, bench.coordinator, escrow)
    payee = _key("new 20 7").pubkey()
    claim = market.escrow_claim(submitter, escrow, payee, 2000, 9, MerkleTree(earned).proof(7))
    bench.measure("escrow claim (proof of 1 in 20)", claim, bench.submitter, escrow)
    settle_all = [(_key(f"new 20 {index}").pubkey(), 2000) for index in range(20)]
    bench.prepare(market.escrow_settle(coordinator, escrow, settle_all), signers=[bench.coordinator])
    bench.measure("escrow refund", market.escrow_refund(coordinator, submitter, JOB), bench.coordinator, escrow)
    closing = market.escrow_close(coordinator, submitter, JOB, coordinator)
    bench.measure("escrow close (64 entries lent)", closing, bench.coordinator, escrow)
    _acceptance(bench)


def _acceptance(bench: Bench) -> None:
    """A second escrow, as the service has one opened and takes it on."""
    market, submitter, coordinator, job = (
        bench.market,
        bench.submitter.pubkey(),
        bench.coordinator.pubkey(),
        b"\x06" * 32,
    )
    escrow, deadline = market.escrow(submitter, job), int(bench.clock.now) + 3600
    opening = market.escrow_open(submitter, job, coordinator, deadline, 64, cap=10**9)
    deposit = market.escrow_deposit(submitter, escrow, 10**9)
    bench.prepare(bench.wallet_of(escrow), opening, deposit, signers=[bench.submitter])
    accept = market.escrow_accept(coordinator, escrow, deadline=deadline, cap=10**9, amount=10**9, max_payees=64)
    bench.measure("escrow accept", accept, bench.coordinator, escrow)


def stake_rows(bench: Bench) -> None:
    """A stake and a dispute over it."""
    market, node, coordinator = bench.market, bench.node.pubkey(), bench.coordinator.pubkey()
    challenger, stake = bench.challenger.pubkey(), market.stake(bench.node.pubkey())
    dispute = market.dispute(challenger, AUDIT)
    bench.prepare(bench.wallet_of(stake), bench.wallet_of(dispute))
    bench.measure("stake open", market.stake_open(node, coordinator), bench.node, stake)
    bench.measure("stake deposit", market.stake_deposit(node, node, 10**8), bench.node, stake)
    bond = token.transfer(_transfer(market.wallet(challenger), market.wallet(dispute), challenger, BOND))
    bench.prepare(bond, signers=[bench.challenger])
    bench.measure("dispute open", market.dispute_open(challenger, node, AUDIT), bench.challenger, dispute)
    verdict = market.dispute_verdict(coordinator, challenger, node, AUDIT, REASON, upheld=True)
    bench.measure("dispute verdict", verdict, bench.coordinator, dispute)
    close = market.dispute_close(coordinator, challenger, AUDIT)
    bench.measure("dispute close", close, bench.coordinator, dispute)
    _silence(bench)
    treasury = bench.genesis.treasury_account
    slash = market.stake_slash(coordinator, node, treasury, 10**6, REASON, challenger)
    bench.measure("stake slash (with a challenger)", slash, bench.coordinator, stake)
    _challenge(bench)
    bench.measure("stake request", market.stake_request(node, 98 * 10**6), bench.node, stake)
    bench.clock.now += max(COOLDOWN_S, SLASH_WINDOW_S)
    bench.measure("stake withdraw", market.stake_withdraw(node), bench.node, stake)
    bench.measure("stake move", market.stake_move(node, challenger), bench.node, stake)
    bench.measure("stake close", market.stake_close(node), bench.node, stake)


def _challenge(bench: Bench) -> None:
    """A challenge as it is sent: account, bond and dispute in one transaction; then verdict and slash in another."""
    market, challenger, node = bench.market, bench.challenger.pubkey(), bench.node.pubkey()
    step, coordinator = b"\x05" * 32, bench.coordinator.pubkey()
    dispute = market.dispute(challenger, step)
    opening = [
        token.create_idempotent_associated_token_account(challenger, dispute, market.mint),
        token.transfer(_transfer(market.wallet(challenger), market.wallet(dispute), challenger, BOND)),
        market.dispute_open(challenger, node, step),
    ]
    bench.measure("challenge: account, bond, dispute", opening, bench.challenger, dispute)
    slash = market.stake_slash(coordinator, node, bench.genesis.treasury_account, 10**6, step, challenger)
    verdict = market.dispute_verdict(coordinator, challenger, node, step, REASON, upheld=True)
    bench.measure("challenge upheld: verdict and slash", [verdict, slash], bench.coordinator, dispute)
    bench.prepare(market.dispute_close(coordinator, challenger, step), signers=[bench.coordinator])


def _silence(bench: Bench) -> None:
    """A second dispute, which nobody decides."""
    market, challenger, audit = bench.market, bench.challenger.pubkey(), b"\x04" * 32
    dispute = market.dispute(challenger, audit)
    bond = token.transfer(_transfer(market.wallet(challenger), market.wallet(dispute), challenger, BOND))
    opening = market.dispute_open(challenger, bench.node.pubkey(), audit)
    bench.prepare(bench.wallet_of(dispute), bond, opening, signers=[bench.challenger])
    bench.clock.now += VERDICT_S
    expire = market.dispute_expire(bench.node.pubkey(), challenger, bench.node.pubkey(), audit)
    bench.measure("dispute expire", expire, bench.node, dispute)


def _transfer(source: Pubkey, target: Pubkey, owner: Pubkey, amount: int) -> models.TransferParams:
    return models.TransferParams(program_id=TOKEN_PROGRAM_ID, source=source, dest=target, owner=owner, amount=amount)


@dataclass
class Payments:
    """Transactions of the coordinator: how many, how large, how much computed."""

    bench: Bench
    transactions: int = 0
    units: int = 0
    most_units: int = 0
    most_bytes: int = 0
    total_bytes: int = 0

    def run(
        self,
        instructions: Sequence[Instruction],
        lookups: Sequence[AddressLookupTableAccount] = (),
        units: int = MAX_UNITS,
    ) -> None:
        """Execute, signed by the coordinator."""
        chain, signer = self.bench.chain, self.bench.coordinator
        chain.tick()
        # Equal transactions are one and the same; the limit, which differs, tells them apart.
        every = [set_compute_unit_limit(MAX_UNITS - self.transactions), *instructions]
        message = MessageV0.try_compile(signer.pubkey(), every, list(lookups), chain.blockhash())
        transaction = VersionedTransaction(message, [signer])
        entry = chain.store.find(chain.submit(transaction, preflight=False))
        if entry is None or entry.error is not None:
            raise SystemExit(f"a transaction failed: {entry and entry.error}")
        computed, size = msgspec.json.decode(entry.meta)["computeUnitsConsumed"], len(entry.wire)
        self.transactions += 1
        self.units += computed
        self.total_bytes += size
        self.most_units, self.most_bytes = max(self.most_units, computed), max(self.most_bytes, size)

    def report(self, providers: int) -> dict[str, Any]:
        """The sums, and what they are for one provider."""
        return {
            "transactions": self.transactions,
            "compute_units": self.units,
            "bytes": self.total_bytes,
            "fee_lamports": self.transactions * FEE_LAMPORTS,
            "most_units": self.most_units,
            "most_bytes": self.most_bytes,
            "lamports_a_provider": round(self.transactions * FEE_LAMPORTS / providers, 1),
            "units_a_provider": round(self.units / providers, 1),
        }


def many(bench: Bench, providers: int) -> dict[str, Any]:
    """One job with so many providers: room, admission, and two settlements of everybody."""
    market, submitter, coordinator = bench.market, bench.submitter.pubkey(), bench.coordinator.pubkey()
    job = b"\x09" * 32
    escrow = market.escrow(submitter, job)
    people = [_key(f"provider {index}").pubkey() for index in range(providers)]
    for part in _parts(people, 12):
        bench.prepare(*(bench.wallet_of(payee) for payee in part))
    opening = market.escrow_open(
        submitter, job, coordinator, int(bench.clock.now) + 10**6, min(MAX_PAYEES, providers), cap=2**63
    )
    bench.prepare(bench.wallet_of(escrow), opening, signers=[bench.submitter])
    bench.prepare(market.escrow_deposit(submitter, escrow, providers * 3000), signers=[bench.submitter])
    room, admission, listing, first, second = (Payments(bench) for _ in range(5))
    for start in range(MAX_PAYEES, providers, MAX_GROWTH):
        room.run([market.escrow_grow(coordinator, escrow, min(MAX_GROWTH, providers - start))])
    for part in _parts(people, 12):
        admission.run([market.escrow_admit(coordinator, escrow, part, enrol=True)])
    lookups = _tables(bench, [market.wallet(payee) for payee in people], listing)
    began = time.process_time()
    for payments, total in ((first, 1000), (second, 2500)):
        for start in range(0, providers, MAX_BATCH):
            part = people[start : start + MAX_BATCH]
            slots = range(start, start + len(part))
            settle = market.escrow_settle(coordinator, escrow, [(payee, total) for payee in part], slots)
            payments.run([settle], [lookups[start // TABLE_SIZE]])
    seconds = time.process_time() - began
    wrong = sum(_tokens(bench, payee) != 2500 for payee in people)
    account = bench.chain.account(escrow)
    assert account is not None
    return {
        "providers": providers,
        "paid_wrongly": wrong,
        "escrow_rent_lamports": account.lamports,
        "room": room.report(providers),
        "admission": admission.report(providers),
        "first_settlement": first.report(providers),
        "later_settlement": second.report(providers),
        "lookup_tables": listing.report(providers),
        "tables": len(lookups),
        "table_rent_lamports": sum(bench.chain.rent_minimum(56 + 32 * len(one.addresses)) for one in lookups),
        "payouts_a_cpu_second": round(2 * providers / seconds),
    }


def _parts(people: Sequence[Pubkey], size: int) -> Iterator[Sequence[Pubkey]]:
    for start in range(0, len(people), size):
        yield people[start : start + size]


def _tokens(bench: Bench, owner: Pubkey) -> int:
    account = bench.chain.account(bench.market.wallet(owner))
    return 0 if account is None else int.from_bytes(account.data[64:72], "little")


def _tables(bench: Bench, wallets: Sequence[Pubkey], payments: Payments) -> list[AddressLookupTableAccount]:
    """Lookup tables of everybody's token account."""
    owner, made = bench.coordinator.pubkey(), list[AddressLookupTableAccount]()
    for start in range(0, len(wallets), TABLE_SIZE):
        bench.clock.now += SLOT_S  # One owner makes one table a slot.
        bench.chain.tick()
        part, slot = wallets[start : start + TABLE_SIZE], bench.chain.slot - 1
        address = tables.table_address(owner, slot)
        payments.run([tables.create_table(owner, slot)])
        for piece in _parts(part, tables.MAX_ADDRESSES_A_TRANSACTION):
            payments.run([tables.extend_table(owner, address, piece)])
        made.append(AddressLookupTableAccount(address, list(part)))
    bench.clock.now += SLOT_S  # New addresses count from the next slot on.
    return made


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = ["| instruction | compute units | bytes | fee, lamports | rent, lamports |", "|---|---:|---:|---:|---:|"]
    for row in result["instructions"]:
        cells = (row["instruction"], row["compute_units"], row["bytes"], row["fee_lamports"], row["rent_lamports"])
        lines.append("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells) + " |")
    found = result["many"]
    lines += [
        "",
        f"One job, {found['providers']:,} providers, {MAX_BATCH} a transaction; paid wrongly: {found['paid_wrongly']}.",
        "",
        "| step | transactions | compute units | units, largest | bytes, largest | lamports a provider |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in ("room", "admission", "lookup_tables", "first_settlement", "later_settlement"):
        step = found[name]
        counts = [step[one] for one in ("transactions", "compute_units", "most_units", "most_bytes")]
        numbers = " | ".join(f"{count:,}" for count in counts)
        lines.append(f"| {name.replace('_', ' ')} | {numbers} | {step['lamports_a_provider']} |")
    rents = f"Rent, returned at the end: escrow {found['escrow_rent_lamports']:,} lamports, "
    lines += ["", rents + f"{found['tables']} lookup tables {found['table_rent_lamports']:,} lamports."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 where somebody was paid wrongly."""
    parser = argparse.ArgumentParser(description="What the market program costs.")
    parser.add_argument("--providers", type=int, default=10_000, help="payees of the large job")
    parser.add_argument("--docs", action="store_true", help=f"replace the table in {DOCS.name}")
    arguments = parser.parse_args(argv)
    bench = Bench()
    escrow_rows(bench)
    stake_rows(bench)
    found = many(bench, arguments.providers)
    result = {"instructions": bench.rows, "many": found}
    if arguments.docs:
        page = DOCS.read_text()
        before, rest = page.split(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n{table(result)}\n{END}{rest.split(END)[1]}")
    publish(
        "ledger_costs", "What every instruction of the market program costs, and paying N providers of one job.", result
    )
    return 1 if found["paid_wrongly"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
