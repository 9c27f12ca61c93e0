"""An independent Solana implementation for tests: the npm package ``surfpool-sdk-linux-x64-gnu``.

Inside is Agave's runtime, which takes sBPF version 0 only. It is not installed by anything here: put it under
``build/surfpool`` (``npm pack surfpool-sdk-linux-x64-gnu@1.2.0`` and unpack, as ``.ci/run`` does), or name its ``.node``
file in COTTAGE_SURFPOOL.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from solders.account import Account
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.sysvar import CLOCK
from solders.token.state import Mint, TokenAccount, TokenAccountState
from solders.transaction import VersionedTransaction
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger.local import nonces
from ledger.local.chain import LocalChain, TransactionRefusedError
from ledger.local.genesis import Genesis, create_token, deploy, set_terms
from ledger.money import DECIMALS
from ledger.program.build import program_path
from tests.ledger.world import LAMPORTS, NAMES, TOKENS, HandClock, World, key

ROOT = Path(__file__).parents[2]
HASH_USES = 100  # A blockhash lives for 150 blocks, and every transaction makes one.
PROCESSED = {"commitment": "processed"}
END_TIMEOUT_S = 20
RPC_TIMEOUT_S = 30
_TIME_AT = 32  # Of the Clock sysvar: slot, start of the epoch, epoch, next epoch, and then the Unix time, 8 bytes each.
_worlds = itertools.count()


@dataclass(frozen=True)
class Server:
    """A running Surfpool: its JSON-RPC address and a key with SOL."""

    url: str
    payer: Keypair


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A Surfpool of its own, which ends afterwards; skips the test where the package or Node.js is missing."""
    named = os.environ.get("COTTAGE_SURFPOOL")
    found = [Path(named)] if named else sorted((ROOT / "build" / "surfpool").rglob("*.node"))
    if not found or not found[0].exists():
        pytest.skip("surfpool-sdk-linux-x64-gnu is not under build/surfpool: see tests/ledger/surfpool.py")
    if shutil.which("node") is None:
        pytest.skip("Node.js, which runs surfpool-sdk-linux-x64-gnu, is not installed")
    command = ["node", str(Path(__file__).with_name("surfpool.js")), str(found[0])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = next((line for line in process.stdout if line.startswith("{")), None)
            assert line is not None, "Surfpool ended before it served"
            said = json.loads(line)
            yield Server(said["url"], Keypair.from_bytes(bytes(said["secret"])))
        finally:
            process.stdin.close()
            process.wait(END_TIMEOUT_S)


class SurfpoolChain:
    """As much of ``ledger.local.chain.LocalChain`` as a World uses, over JSON-RPC. Its clock stands still unless it is moved."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=RPC_TIMEOUT_S)
        self._rents: dict[int, int] = {}
        self._hash, self._uses = Hash.default(), HASH_USES
        self.call("surfnet_pauseClock")

    def close(self) -> None:
        self._connection.close()

    def call(self, method: str, *parameters: Any) -> Any:
        """The result of a call.

        Raises:
            RefusedError: the answer is an error.
        """
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters})
        self._connection.request("POST", "/", body, {"Content-Type": "application/json"})
        answer = json.loads(self._connection.getresponse().read())
        if "error" in answer:
            told = answer["error"].get("data")
            if isinstance(told, dict):
                raise TransactionRefusedError(told["err"], told["logs"])
            raise TransactionRefusedError(f"{method}: {answer['error']['message']} {told}")
        return answer["result"]

    @property
    def slot(self) -> int:
        slot: int = self.call("getSlot", PROCESSED)
        return slot

    def tick(self, at_least: int = 0) -> None:
        """Slots do not follow the clock of a test; they move where somebody waits for one."""
        if at_least:
            self.call("surfnet_timeTravel", {"absoluteSlot": at_least})
            self._uses = HASH_USES

    def blockhash(self) -> Hash:
        if self._uses >= HASH_USES:
            self._hash, self._uses = Hash.from_string(self.call("getLatestBlockhash")["value"]["blockhash"]), 0
        self._uses += 1
        return self._hash

    def rent_minimum(self, size: int) -> int:
        if size not in self._rents:
            self._rents[size] = self.call("getMinimumBalanceForRentExemption", size)
        return self._rents[size]

    def account(self, address: Pubkey) -> Account | None:
        found = self.call("getAccountInfo", str(address), {"encoding": "base64", **PROCESSED})["value"]
        return None if found is None else _account(found)

    def put(self, address: Pubkey, account: Account) -> None:
        """Write an account, whoever owns it."""
        content = {"lamports": account.lamports, "data": account.data.hex(), "owner": str(account.owner)}
        self.call("surfnet_setAccount", str(address), content)

    def submit(self, transaction: VersionedTransaction, *, preflight: bool) -> str:
        """Execute; returns the signature.

        Raises:
            RefusedError: the trial before it failed.
        """
        if preflight:  # Asked for by itself: Surfpool's own, within sendTransaction, takes ten times as long.
            self._try(transaction)
        sent = base64.b64encode(bytes(transaction)).decode()
        options = {"encoding": "base64", "preflightCommitment": "processed"}
        signature: str = self.call("sendTransaction", sent, options)
        return signature

    def settle(self, transaction: VersionedTransaction) -> None:
        """Execute for the result alone: tried out, and what it leaves is written. A tenth of the work of ``submit``."""
        message = transaction.message
        assert isinstance(message, MessageV0)
        written = [key for index, key in enumerate(message.account_keys) if nonces.is_writable(message, index)]
        wanted = {"encoding": "base64", "addresses": list(map(str, written))}
        for address, after in zip(written, self._try(transaction, accounts=wanted)["accounts"], strict=True):
            self.put(address, _account(after))

    def _try(self, transaction: VersionedTransaction, **options: Any) -> Any:
        sent = base64.b64encode(bytes(transaction)).decode()
        options = {"encoding": "base64", "sigVerify": True, **PROCESSED, **options}
        trial = self.call("simulateTransaction", sent, options)["value"]
        if trial["err"] is not None:
            raise TransactionRefusedError(trial["err"], trial["logs"])
        return trial

    def logs(self, signature: str) -> list[str]:
        found = self.call("getTransaction", signature, {"encoding": "base64", **PROCESSED})
        lines: list[str] = found["meta"]["logMessages"]
        return lines


def _account(found: Any) -> Account:
    data, owner = base64.b64decode(found["data"][0]), Pubkey.from_string(found["owner"])
    return Account(found["lamports"], data, owner, found["executable"])


class SurfpoolClock(HandClock):
    """The clock that Surfpool shows to programs, moved by a test."""

    def __init__(self, chain: SurfpoolChain) -> None:
        super().__init__()
        self._chain = chain
        self.show()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.show()

    def show(self) -> None:
        """Write the time where programs look for it."""
        sysvar = self._chain.account(CLOCK)
        assert sysvar is not None
        now = int(self.now).to_bytes(8, "little", signed=True)
        data = sysvar.data[:_TIME_AT] + now + sysvar.data[_TIME_AT + 8 :]
        self._chain.put(CLOCK, Account(sysvar.lamports, data, sysvar.owner))


@dataclass(frozen=True)
class Deployment:
    """The market program on a Surfpool, who may upgrade it, and what a token and its terms look like there."""

    chain: SurfpoolChain
    genesis: Genesis
    mint: Account
    terms: Account


def deployed(server: Server) -> Deployment:
    """Deploy the program through the cluster's own loader, once for many worlds."""
    chain = SurfpoolChain(server.url)
    genesis = Genesis(server.payer, key("first mint"), key("market program"), key("first treasury"))
    as_chain = cast(LocalChain, chain)
    deploy(as_chain, genesis.root, genesis.program, SurfpoolWorld.code.read_bytes(), key("buffer"))
    create_token(as_chain, genesis)
    set_terms(as_chain, genesis)
    mint, terms = chain.account(genesis.mint.pubkey()), chain.account(genesis.market.terms())
    assert mint is not None
    assert terms is not None
    return Deployment(chain, genesis, mint, terms)


class SurfpoolWorld(World):
    """The same people around the same market on Surfpool: new keys and a new token, and so new terms, each time.

    What is there before a test begins is written into the ledger. A transaction takes Surfpool 15 ms of processor time,
    and again for each instruction after the first, since it profiles them all; writing an account takes 1 ms.
    """

    code = program_path(0)
    clock: SurfpoolClock

    def __init__(self, deployment: Deployment) -> None:
        first, self._surfpool, self._seen = deployment.genesis, deployment.chain, set[tuple[bytes, ...]]()
        self.chain, self.clock = cast(LocalChain, deployment.chain), SurfpoolClock(deployment.chain)
        self.salt = f"world {next(_worlds)}: "
        self.genesis = Genesis(first.root, self.key("mint"), first.program, self.key("treasury"))
        market = self.genesis.market
        rules = Mint(first.root.pubkey(), len(NAMES) * TOKENS, DECIMALS, True)
        self.put(market.mint, Account(deployment.mint.lamports, bytes(rules), TOKEN_PROGRAM_ID))
        terms = deployment.terms.data
        for old, new in ((first.market.mint, market.mint), (first.treasury_account, self.genesis.treasury_account)):
            assert bytes(old) in terms
            terms = terms.replace(bytes(old), bytes(new))
        _, bump = Pubkey.find_program_address([b"market", bytes(market.mint)], market.program)
        terms = terms[:1] + bytes([bump]) + terms[2:]
        self.put(market.terms(), Account(deployment.terms.lamports, terms, market.program))
        self._give(self.genesis.treasury.pubkey(), 0)
        self._meet()

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._surfpool.url

    def person(self, name: str) -> Pubkey:
        who = self.new_key(name)
        self.put(who, Account(LAMPORTS, b"", SYSTEM_PROGRAM))
        self._give(who, TOKENS)
        return who

    def _give(self, who: Pubkey, amount: int) -> None:
        content = TokenAccount(self.genesis.mint.pubkey(), who, amount, None, TokenAccountState.Initialized, None, 0)
        data = bytes(content)
        wallet = self.genesis.market.wallet(who)
        self.put(wallet, Account(self.chain.rent_minimum(len(data)), data, TOKEN_PROGRAM_ID))

    def prepare(self, *instructions: Instruction) -> None:
        self._surfpool.settle(self.signed(instructions))

    def _marked(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """Only a repetition needs a mark, which would be one more instruction to profile."""
        content = tuple(map(bytes, instructions))
        marks = super()._marked(instructions) if content in self._seen else []
        self._seen.add(content)
        return marks

    def deploy(self, name: str, owner: Keypair) -> Pubkey:
        program = super().deploy(name, owner)
        self.clock.show()  # The slot that a program waits for came with a time of its own.
        return program

    def put(self, address: Pubkey, account: Account) -> None:
        self._surfpool.put(address, account)

    def set_rent(self, rent: Rent) -> None:
        pytest.skip("Surfpool's rent is not for a test to set")

    def logs(self, signature: str) -> list[str]:
        return self._surfpool.logs(signature)
