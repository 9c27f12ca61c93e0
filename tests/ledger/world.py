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
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger.failures import culprit
from ledger.local.chain import RefusedError
from ledger.local.genesis import give, open_chain, send
from ledger.local.store import Store
from ledger.program.interface import MarketError
from ledger.program.layout import (
    DisputeAccount,
    EscrowAccount,
    StakeAccount,
    read_dispute,
    read_escrow,
    read_stake,
)

LOOKUP_TABLES = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")
START = 1_900_000_000.0  # Unix seconds at which every test world begins.
TOKENS = 1_000_000_000
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
    """People with wallets around one market, and ways to send what they should not."""

    def __init__(self) -> None:
        self.clock, self._drawn, self._sent = HandClock(), 0, 0
        self.chain, self.genesis = open_chain(Store(":memory:"), self.clock, self.entropy)
        self.clock.advance(1.1)  # The first start ran a slot ahead of the clock; from here on slots follow it.
        self.market = self.genesis.market
        self.keys = {pair.pubkey(): pair for pair in (self.genesis.root, self.genesis.treasury)}
        self.submitter, self.coordinator = self.person("submitter"), self.person("coordinator")
        self.node, self.stranger = self.person("node"), self.person("stranger")
        self.treasury = self.genesis.treasury_account

    def entropy(self, size: int) -> bytes:
        """The same "random" bytes in every run."""
        self._drawn += 1
        return hashlib.sha256(b"drawn %d" % self._drawn).digest()[:size]

    def person(self, name: str) -> Pubkey:
        pair = key(name)
        self.keys[pair.pubkey()] = pair
        give(self.chain, self.genesis, pair.pubkey(), TOKENS, 10**10, self.entropy)
        return pair.pubkey()

    def new_key(self, name: str) -> Pubkey:
        pair = key(name)
        self.keys[pair.pubkey()] = pair
        return pair.pubkey()

    def send(self, *instructions: Instruction) -> str:
        """Execute, signed by everybody whom an instruction marks as signer; the root key pays the fee."""
        wanted = {meta.pubkey for one in instructions for meta in one.accounts if meta.is_signer}
        root = self.genesis.root
        signers = [root, *(self.keys[who] for who in sorted(wanted - {root.pubkey()}, key=str))]
        return send(self.chain, [self._unique(), *instructions], signers)

    def _unique(self) -> Instruction:
        """Makes equal transactions differ, so that the program and not the ledger judges a repetition."""
        self._sent += 1
        root = self.genesis.root.pubkey()
        return transfer(TransferParams(from_pubkey=root, to_pubkey=root, lamports=self._sent))

    def send_batch(self, instruction: Instruction, addresses: Sequence[Pubkey]) -> TransactionMetadata:
        """Execute one instruction of the coordinator whose accounts come from a lookup table, in the machine alone."""
        self._sent += 1
        table = self.forge(f"table {self._sent}", _table(addresses), LOOKUP_TABLES)
        lookup = AddressLookupTableAccount(key=table, addresses=list(addresses))
        self.chain.tick()
        signer = self.keys[self.coordinator]
        message = MessageV0.try_compile(signer.pubkey(), [instruction], [lookup], self.chain.blockhash())
        result = self.chain._vm.send_transaction(VersionedTransaction(message, [signer]))
        if isinstance(result, FailedTransactionMetadata):
            raise RefusedError(str(result.err()))
        return result

    def refusal(self, *instructions: Instruction) -> MarketError | str | None:
        """Why a transaction is refused: the market's error, else the runtime's or another program's; None if it is not."""
        try:
            self.send(*instructions)
        except RefusedError as refused:
            return _reason(refused, self.market.program)
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
        if admitted:
            instructions.append(self.admit(escrow, *admitted))
        if amount:
            instructions.append(self.market.escrow_deposit(self.submitter, escrow, amount))
        self.send(*instructions)
        return escrow

    def open_stake(self, amount: int, node: Pubkey | None = None) -> Pubkey:
        who = node or self.node
        stake = self.market.stake(who)
        self.send(
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

    def new_mint(self, name: str = "another token") -> Pubkey:
        """A second token, of which every person has some."""
        mint, root = self.new_key(name), self.genesis.root.pubkey()
        space = CreateAccountParams(
            from_pubkey=root, to_pubkey=mint, lamports=self.chain.rent_minimum(82), space=82, owner=TOKEN_PROGRAM_ID
        )
        rules = models.InitializeMint2Params(decimals=6, program_id=TOKEN_PROGRAM_ID, mint=mint, mint_authority=root)
        self.send(create_account(space), token.initialize_mint2(rules))
        for owner in (self.submitter, self.coordinator, self.node, self.stranger):
            wallet = token.get_associated_token_address(owner, mint)
            minted = models.MintToCheckedParams(
                amount=TOKENS, decimals=6, dest=wallet, mint=mint, mint_authority=root, program_id=TOKEN_PROGRAM_ID
            )
            self.send(self.create_wallet(owner, mint), token.mint_to_checked(minted))
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
        self.send(create_account(space), token.initialize_account3(start))
        return vault

    def forge(self, name: str, data: bytes, owner: Pubkey) -> Pubkey:
        """An account with any content, as only a hostile program could make one."""
        address = self.new_key(name)
        self.chain._vm.set_account(address, Account(10**9, data, owner))
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


def _reason(refused: RefusedError, market: Pubkey) -> MarketError | str:
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
