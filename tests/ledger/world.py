"""A whole ledger inside a test: the embedded virtual machine with the real program and a clock held by hand."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import set_compute_unit_limit
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import VersionedTransaction
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger.failures import culprit
from ledger.local.chain import TransactionRefusedError, compile_message
from ledger.local.genesis import deploy, give, open_chain
from ledger.local.rpc import MAX_TRANSACTION_BYTES
from ledger.local.store import LocalStore
from ledger.program.build import program_path
from ledger.program.interface import MarketError
from ledger.program.layout import DisputeAccount, EscrowAccount, StakeAccount, read_dispute, read_escrow, read_stake

LOOKUP_TABLES = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")
START = 1_900_000_000.0  # Unix seconds at which every test world begins.
TOKENS, LAMPORTS = 1_000_000_000, 10**10  # What each person has.
MOST_ADMITTED = 8  # In one instruction: a transaction has 1,232 bytes.
BATCH_UNITS = 600_000  # Fifty transfers by the token program that was before p-token: 6,200 each.
NAMES = ("submitter", "coordinator", "node", "stranger")
JOB = bytes(range(32))


def key(name: str) -> Keypair:
    """The same key pair for the same name, in every run."""
    return Keypair.from_seed(hashlib.sha256(name.encode()).digest())


@dataclass
class HandClock:
    """A clock that only a test moves."""

    now: float = START

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class World:
    """People with wallets around one market, and ways to send what they should not.

    Attributes:
        code: the program as this ledger takes it.
        salt: sets the keys of this world apart from those of others on the same ledger.
    """

    code, salt = program_path(3), ""
    _drawn = _sent = 0

    def __init__(self) -> None:
        self.clock = HandClock()
        self.chain, self.genesis = open_chain(LocalStore(":memory:"), self.clock, self.entropy)
        self.clock.advance(1.1)  # The first start ran a slot ahead of the clock; from here on slots follow it.
        self._meet()

    def _meet(self) -> None:
        self.market, self.treasury = self.genesis.market, self.genesis.treasury_account
        self.keys = {pair.pubkey(): pair for pair in (self.genesis.root, self.genesis.treasury)}
        self.submitter, self.coordinator, self.node, self.stranger = self.people(*NAMES)

    def entropy(self, size: int) -> bytes:
        """The same "random" bytes in every run."""
        self._drawn += 1
        return hashlib.sha256(b"drawn %d" % self._drawn).digest()[:size]

    def people(self, *names: str) -> list[Pubkey]:
        """New people with SOL and tokens."""
        return [self.person(name) for name in names]

    def person(self, name: str) -> Pubkey:
        who = self.new_key(name)
        give(self.chain, self.genesis, who, TOKENS, LAMPORTS, self.entropy)
        return who

    def new_key(self, name: str) -> Pubkey:
        pair = self.key(name)
        self.keys[pair.pubkey()] = pair
        return pair.pubkey()

    def key(self, name: str) -> Keypair:
        """The pair that this world has for a name."""
        return key(self.salt + name)

    def deploy(self, name: str, owner: Keypair) -> Pubkey:
        """Another copy of the program, which ``owner`` may upgrade."""
        deploy(self.chain, owner, self.key(name), self.code.read_bytes(), self.key(f"buffer of {name}"))
        return self.key(name).pubkey()

    def put(self, address: Pubkey, account: Account) -> None:
        """Write an account, whoever owns it."""
        self.chain._vm.set_account(address, account)

    def set_rent(self, rent: Rent) -> None:
        """Change what accounts must hold."""
        self.chain._vm.set_rent(rent)

    def send(self, *instructions: Instruction) -> str:
        """Execute, signed by everybody whom an instruction marks as signer; the root key pays the fee."""
        self.chain.tick()
        return self.chain.submit(self.signed([*self._marked(instructions), *instructions]), preflight=True)

    def signed(self, instructions: Sequence[Instruction]) -> VersionedTransaction:
        """A transaction with every signature that its instructions ask for, and root's, who pays."""
        wanted = {meta.pubkey for one in instructions for meta in one.accounts if meta.is_signer}
        root = self.genesis.root
        signers = [root, *(self.keys[who] for who in sorted(wanted - {root.pubkey()}, key=str))]
        transaction = VersionedTransaction(compile_message(self.chain, root.pubkey(), list(instructions)), signers)
        assert len(bytes(transaction)) <= MAX_TRANSACTION_BYTES, "no cluster takes that"
        return transaction

    def prepare(self, *instructions: Instruction) -> None:
        """Execute what a test only begins with; not necessarily together."""
        self.send(*instructions)

    def _marked(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """What makes equal transactions differ, so that the program and not the ledger judges a repetition."""
        self._sent += 1
        root = self.genesis.root.pubkey()
        return [transfer(TransferParams(from_pubkey=root, to_pubkey=root, lamports=self._sent))]

    def send_batch(self, instruction: Instruction, addresses: Sequence[Pubkey]) -> str:
        """Execute one instruction of the coordinator whose accounts come from a lookup table."""
        self._sent += 1
        table = self.forge(f"table {self._sent}", _table(addresses), LOOKUP_TABLES)
        lookup = AddressLookupTableAccount(key=table, addresses=list(addresses))
        self.chain.tick()
        signer = self.keys[self.coordinator]
        calls = [set_compute_unit_limit(BATCH_UNITS), instruction]
        message = MessageV0.try_compile(signer.pubkey(), calls, [lookup], self.chain.blockhash())
        return self.chain.submit(VersionedTransaction(message, [signer]), preflight=True)

    def refusal(self, *instructions: Instruction, program: Pubkey | None = None) -> MarketError | str | None:
        """Why a transaction is refused: the market's error, else the runtime's or another program's; None if it is not.

        ``program``: a copy of the market that is called instead of it.
        """
        try:
            self.send(*instructions)
        except TransactionRefusedError as refused:
            return _reason(refused, program or self.market.program)
        return None

    # Shorthands

    def wallet(self, owner: Pubkey) -> Pubkey:
        return self.market.wallet(owner)

    def tokens(self, owner: Pubkey) -> int:
        return self.units(self.wallet(owner))

    def units(self, account: Pubkey) -> int:
        found = self.chain.account(account)
        return 0 if found is None else int.from_bytes(found.data[64:72], "little")

    def open_escrow(
        self,
        amount: int,
        job: bytes = JOB,
        *,
        seconds: int = 3600,
        max_payees: int = 8,
        payees: Sequence[Pubkey] | None = None,
        **terms: Any,
    ) -> Pubkey:
        """An escrow that may pay ``payees``: the node and the stranger, as far as there is room, unless told."""
        escrow = self.market.escrow(self.submitter, job)
        deadline = int(self.clock.now) + seconds
        instructions = [
            self.create_wallet(escrow),
            self.market.escrow_open(self.submitter, job, self.coordinator, deadline, max_payees, **terms),
        ]
        admitted = (self.node, self.stranger)[:max_payees] if payees is None else payees
        if amount:
            instructions.append(self.market.escrow_deposit(self.submitter, escrow, amount))
        if admitted:
            instructions.append(self.admit(escrow, *admitted[:MOST_ADMITTED]))
        self.prepare(*instructions)
        for start in range(MOST_ADMITTED, len(admitted), MOST_ADMITTED):
            self.prepare(self.admit(escrow, *admitted[start : start + MOST_ADMITTED]))
        return escrow

    def open_stake(self, amount: int, node: Pubkey | None = None) -> Pubkey:
        who = node or self.node
        stake = self.market.stake(who)
        self.prepare(
            self.create_wallet(stake),
            self.market.stake_open(who, self.coordinator),
            self.market.stake_deposit(who, who, amount),
        )
        return stake

    def create_wallet(self, owner: Pubkey, mint: Pubkey | None = None) -> Instruction:
        return token.create_idempotent_associated_token_account(
            self.genesis.root.pubkey(), owner, mint or self.market.mint
        )

    def admit(self, escrow: Pubkey, *payees: Pubkey, enrol: bool = True) -> Instruction:
        return self.market.escrow_admit(self.submitter, escrow, payees, enrol=enrol)

    def settle(self, escrow: Pubkey, *payouts: tuple[Pubkey, int]) -> Instruction:
        return self.market.escrow_settle(self.coordinator, escrow, payouts)

    def move_tokens(self, source: Pubkey, target: Pubkey, amount: int) -> Instruction:
        """A plain transfer from somebody's wallet to a token account."""
        parameters = models.TransferParams(
            program_id=TOKEN_PROGRAM_ID, source=self.wallet(source), dest=target, owner=source, amount=amount
        )
        return token.transfer(parameters)

    def close_wallet(self, owner: Pubkey) -> list[Instruction]:
        """What somebody does who wants the rent of its token account: whatever is in it is burnt."""
        wallet, mint = self.wallet(owner), self.market.mint
        burn = models.BurnParams(
            program_id=TOKEN_PROGRAM_ID, account=wallet, mint=mint, owner=owner, amount=self.units(wallet)
        )
        end = models.CloseAccountParams(program_id=TOKEN_PROGRAM_ID, account=wallet, dest=owner, owner=owner)
        return [token.burn(burn), token.close_account(end)]

    def new_mint(self, name: str = "another token") -> Pubkey:
        """A second token, of which every person has some."""
        mint, root = self.new_key(name), self.genesis.root.pubkey()
        space = CreateAccountParams(
            from_pubkey=root, to_pubkey=mint, lamports=self.chain.rent_minimum(82), space=82, owner=TOKEN_PROGRAM_ID
        )
        rules = models.InitializeMint2Params(decimals=6, program_id=TOKEN_PROGRAM_ID, mint=mint, mint_authority=root)
        self.prepare(create_account(space), token.initialize_mint2(rules))
        for owner in (self.submitter, self.coordinator, self.node, self.stranger):
            wallet = token.get_associated_token_address(owner, mint)
            minted = models.MintToCheckedParams(
                amount=TOKENS, decimals=6, dest=wallet, mint=mint, mint_authority=root, program_id=TOKEN_PROGRAM_ID
            )
            self.prepare(self.create_wallet(owner, mint), token.mint_to_checked(minted))
        return mint

    def second_vault(self, owner: Pubkey, name: str) -> Pubkey:
        """Another token account of the market's token that belongs to ``owner``, which need not sign."""
        vault, root = self.new_key(name), self.genesis.root.pubkey()
        space = CreateAccountParams(
            from_pubkey=root, to_pubkey=vault, lamports=self.chain.rent_minimum(165), space=165, owner=TOKEN_PROGRAM_ID
        )
        start = models.InitializeAccount3Params(
            program_id=TOKEN_PROGRAM_ID, account=vault, mint=self.market.mint, owner=owner
        )
        self.prepare(create_account(space), token.initialize_account3(start))
        return vault

    def forge(self, name: str, data: bytes, owner: Pubkey) -> Pubkey:
        """An account with any content, as only a hostile program could make one."""
        address = self.new_key(name)
        self.put(address, Account(10**9, data, owner))
        return address

    def logs(self, signature: str) -> list[str]:
        entry = self.chain.store.find(signature)
        assert entry is not None
        lines: list[str] = msgspec.json.decode(entry.meta)["logMessages"]
        return lines

    def escrow(self, address: Pubkey) -> EscrowAccount:
        found = self.chain.account(address)
        assert found is not None
        return read_escrow(found.data)

    def stake(self, address: Pubkey) -> StakeAccount:
        found = self.chain.account(address)
        assert found is not None
        return read_stake(found.data)

    def dispute(self, address: Pubkey) -> DisputeAccount:
        found = self.chain.account(address)
        assert found is not None
        return read_dispute(found.data)


def _table(addresses: Sequence[Pubkey]) -> bytes:
    """A lookup table as its program writes one: never deactivated, extended long ago, no authority."""
    return struct.pack("<IQQBB34x", 1, 2**64 - 1, 0, 0, 0) + b"".join(map(bytes, addresses))


def swap(instruction: Instruction, index: int, account: Pubkey) -> Instruction:
    """The instruction with another account in one place."""
    accounts = list(instruction.accounts)
    old = accounts[index]
    accounts[index] = AccountMeta(account, old.is_signer, old.is_writable)
    return Instruction(instruction.program_id, instruction.data, accounts)


def unsigned(instruction: Instruction, index: int = 0) -> Instruction:
    """The instruction with one signature missing."""
    accounts = list(instruction.accounts)
    accounts[index] = AccountMeta(accounts[index].pubkey, False, accounts[index].is_writable)
    return Instruction(instruction.program_id, instruction.data, accounts)


def with_data(instruction: Instruction, data: bytes) -> Instruction:
    """The instruction with other data."""
    return Instruction(instruction.program_id, data, list(instruction.accounts))


def _reason(refused: TransactionRefusedError, market: Pubkey) -> MarketError | str:
    error: Any = refused.error
    if not isinstance(error, dict) or "InstructionError" not in error:
        return str(error)
    detail = error["InstructionError"][1]
    if not isinstance(detail, dict) or "Custom" not in detail:
        return str(detail)
    who = culprit(refused.logs) or ""
    return MarketError(detail["Custom"]) if who == str(market) else f"{who[:5]} {detail['Custom']}"


def transaction(world: World, instructions: Sequence[Instruction], signer: Keypair) -> VersionedTransaction:
    """A signed transaction that was not sent."""
    world.chain.tick()
    message = MessageV0.try_compile(signer.pubkey(), list(instructions), [], world.chain.blockhash())
    return VersionedTransaction(message, [signer])
