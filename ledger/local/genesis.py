"""The first start: creates the test token, deploys the market program through the real loader, sets terms.

Later starts upgrade a program that an older version has deployed.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NewType

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import VersionedTransaction
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.memo.instructions import create_memo
from spl.memo.models import MemoParams
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger.local.chain import Clock, LocalChain, compile_message
from ledger.local.encoding import MINT_SIZE
from ledger.local.store import LocalStore
from ledger.money import DECIMALS
from ledger.program import loader
from ledger.program.build import program_path
from ledger.program.codes import REVISION
from ledger.program.interface import MarketAddresses
from ledger.program.layout import read_terms

Lamports = NewType("Lamports", int)

Entropy = Callable[[int], bytes]
"""That many bytes which nobody can guess."""

ROOT_LAMPORTS = Lamports(500_000_000 * 10**9)  # Nearly all SOL that exists: the faucet never runs dry.
SLASH_BPS = 5000  # Half a stake a window: one wrong verdict never ruins a provider.
COOLDOWN_S = 3600  # Long enough for a round's audit to finish before the stake is gone.
SLASH_WINDOW_S = 3600
CHALLENGER_BPS = 5000  # Half a slash for who brought the offence up: worth an audit, and no profit to a pair of cheats.
BOND = 5 * 10**6  # 5 tokens: more than a node loses while an accusation against it is looked at.
VERDICT_S = 3600  # So long a dispute keeps the accused's stake where it is, at most.
# A program whose accounts have another layout gets another address: ledgers begun before keep the old one beside it.
_KEYS = ("root", "mint", "program-2", "treasury")


@dataclass(frozen=True)
class Genesis:
    """Who and what the embedded ledger began with. ``root`` is the faucet and the upgrade authority."""

    root: Keypair
    mint: Keypair
    program: Keypair
    treasury: Keypair

    @property
    def market(self) -> MarketAddresses:
        """The market's addresses."""
        return MarketAddresses(self.program.pubkey(), self.mint.pubkey())

    @property
    def treasury_account(self) -> Pubkey:
        """The token account that receives slashed stake."""
        return self.market.wallet(self.treasury.pubkey())


def open_chain(
    store: LocalStore, clock: Clock, entropy: Entropy = secrets.token_bytes, make: type[LocalChain] = LocalChain
) -> tuple[LocalChain, Genesis]:
    """Open the ledger in ``store``, creating whatever an interrupted first start has not created yet.

    ``make``: the kind of chain.
    """
    for name in _KEYS:
        _keep(store, f"key:{name}", entropy(32))
    secret = _keep(store, "blockhash-secret", entropy(32))
    started = struct.unpack("<d", _keep(store, "genesis-time", struct.pack("<d", clock())))[0]
    keys = [Keypair.from_seed(_keep(store, f"key:{name}", b"")) for name in _KEYS]
    genesis = Genesis(*keys)
    chain = make(store, clock, secret, started)
    if chain.account(genesis.root.pubkey()) is None:
        chain.endow(genesis.root.pubkey(), ROOT_LAMPORTS)
    if chain.account(genesis.mint.pubkey()) is None:
        create_token(chain, genesis)
    code = program_path(3).read_bytes()
    if chain.account(genesis.program.pubkey()) is None:
        deploy(chain, genesis.root, genesis.program, code, Keypair.from_seed(entropy(32)))
    else:
        renew(chain, genesis.root, genesis.program.pubkey(), code, lambda: Keypair.from_seed(entropy(32)))
    terms = chain.account(genesis.market.terms())
    if terms is None or read_terms(terms.data).revision < REVISION:
        set_terms(chain, genesis)
    return chain, genesis


def _keep(store: LocalStore, name: str, fresh: bytes) -> bytes:
    kept = store.setting(name)
    if kept is None:
        store.keep_setting(name, fresh)
        return fresh
    return kept


def send(chain: LocalChain, instructions: Sequence[Instruction], signers: Sequence[Keypair]) -> str:
    """Sign with the first signer as payer, execute, record; returns the signature."""
    chain.tick()
    message = compile_message(chain, signers[0].pubkey(), list(instructions))
    return chain.submit(VersionedTransaction(message, list(signers)), preflight=True)


def create_token(chain: LocalChain, genesis: Genesis) -> None:
    """Create the test token, and the treasury's account of it."""
    root, mint = genesis.root.pubkey(), genesis.mint.pubkey()
    space = CreateAccountParams(
        from_pubkey=root,
        to_pubkey=mint,
        lamports=chain.rent_minimum(MINT_SIZE),
        space=MINT_SIZE,
        owner=TOKEN_PROGRAM_ID,
    )
    rules = models.InitializeMint2Params(
        decimals=DECIMALS, program_id=TOKEN_PROGRAM_ID, mint=mint, mint_authority=root, freeze_authority=None
    )
    treasury = token.create_idempotent_associated_token_account(root, genesis.treasury.pubkey(), mint)
    send(chain, [create_account(space), token.initialize_mint2(rules), treasury], [genesis.root, genesis.mint])


def set_terms(chain: LocalChain, genesis: Genesis) -> None:
    """Set the market's terms."""
    terms = genesis.market.configure(
        genesis.root.pubkey(),
        genesis.treasury_account,
        slash_bps=SLASH_BPS,
        cooldown=COOLDOWN_S,
        window=SLASH_WINDOW_S,
        challenger_bps=CHALLENGER_BPS,
        bond=BOND,
        verdict_time=VERDICT_S,
    )
    send(chain, [terms], [genesis.root])


def deploy(chain: LocalChain, payer: Keypair, program: Keypair, code: bytes, buffer: Keypair) -> None:
    """Deploy a program through the upgradeable loader, as on a cluster: buffer, chunks, deploy.

    ``buffer`` is a fresh key; ``payer`` becomes the upgrade authority.
    """
    owner, size = payer.pubkey(), len(code)
    _write(chain, payer, code, buffer)
    rent = chain.rent_minimum(loader.PROGRAM_SIZE)
    send(chain, loader.deploy_buffer(owner, program.pubkey(), buffer.pubkey(), size, rent), [payer, program])
    chain.tick(at_least=chain.slot + 1)  # A program can be called from the next slot on.


def renew(chain: LocalChain, payer: Keypair, program: Pubkey, code: bytes, buffer: Callable[[], Keypair]) -> None:
    """Upgrade a program to this code, unless it has it already; its accounts stay, with the layouts that both know.

    ``payer`` is the upgrade authority, ``buffer`` makes a fresh key.
    """
    data = chain.account(loader.data_address(program))
    assert data is not None
    if data.data[loader.DATA_HEADER :].rstrip(b"\0") == code.rstrip(b"\0"):
        return
    owner, place = payer.pubkey(), buffer()
    _write(chain, payer, code, place)
    more = len(code) - (len(data.data) - loader.DATA_HEADER)
    for step in [
        *([loader.extend(owner, program, more)] if more > 0 else []),
        loader.upgrade(owner, program, place.pubkey()),
    ]:
        chain.tick(at_least=chain.slot + 1)  # One change of a program in a slot.
        send(chain, [step], [payer])
    chain.tick(at_least=chain.slot + 1)


def _write(chain: LocalChain, payer: Keypair, code: bytes, buffer: Keypair) -> None:
    owner, size = payer.pubkey(), len(code)
    rent = chain.rent_minimum(loader.BUFFER_HEADER + size)
    send(chain, loader.create_buffer(owner, buffer.pubkey(), size, rent), [payer, buffer])
    for offset in range(0, size, loader.WRITE_CHUNK):
        send(chain, [loader.write_chunk(owner, buffer.pubkey(), code, offset)], [payer])


def give(
    chain: LocalChain,
    genesis: Genesis,
    owner: Pubkey,
    tokens: int,
    lamports: int,
    entropy: Entropy = secrets.token_bytes,
) -> str:
    """The faucet: SOL and test tokens for anybody; returns the signature."""
    root, market = genesis.root.pubkey(), genesis.market
    instructions: list[Instruction] = []
    if lamports:
        instructions.append(transfer(TransferParams(from_pubkey=root, to_pubkey=owner, lamports=lamports)))
    if tokens:
        instructions.append(token.create_idempotent_associated_token_account(root, owner, market.mint))
        minted = models.MintToCheckedParams(
            amount=tokens,
            decimals=DECIMALS,
            dest=market.wallet(owner),
            mint=market.mint,
            mint_authority=root,
            program_id=TOKEN_PROGRAM_ID,
        )
        instructions.append(token.mint_to_checked(minted))
    # Two equal gifts within one slot would be one and the same transaction; a random memo sets them apart.
    note = MemoParams(program_id=MEMO_PROGRAM_ID, signer=root, message=b"faucet " + entropy(8).hex().encode())
    instructions.append(create_memo(note))
    return send(chain, instructions, [genesis.root])
