"""A ledger that forks and an endpoint that fails, over the real embedded ledger: its machine, its programs, its RPC.

``ForkingChain`` is the ledger with levels of commitment: what was executed is final only some slots later, and until then the
newest transactions may be undone. ``FaultyRpc`` answers as one endpoint of a cluster does on a bad day, by one seed: it loses
questions and answers, refuses with 429, holds transactions back, is behind, and errs about heights.
"""

from __future__ import annotations

import base64
import random
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from solders.account import Account
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.transaction import VersionedTransaction

from ledger.local import nonces, tables
from ledger.local.chain import SLOT_S, LocalChain, TransactionRefusedError
from ledger.local.encoding import account_json
from ledger.local.genesis import open_chain
from ledger.local.rpc import Rpc, RpcError
from tests.ledger.world import World

FINAL_SLOTS = 12  # 32 on a cluster; what matters is that it is several questions long.
TOO_MANY, LOST = 429, 499


@dataclass
class Undoable:
    """A transaction that is not final yet, with every account that it wrote as that was before."""

    signature: str
    slot: int
    wire: bytes
    before: dict[Pubkey, Account | None]


class ForkingChain(LocalChain):
    """The embedded ledger, whose newest blocks may turn out to be on a fork that is left."""

    recent: deque[Undoable]

    def __init__(self, *arguments: Any) -> None:
        self.recent = deque()
        super().__init__(*arguments)

    def account(self, key: Pubkey) -> Account | None:
        found = super().account(key)
        return None if found is None or found.lamports == 0 else found

    def tick(self, at_least: int = 0) -> None:
        super().tick(at_least)
        while self.recent and self.recent[0].slot + FINAL_SLOTS <= self.slot:
            self.recent.popleft()

    @property
    def final_slot(self) -> int:
        return self.slot - FINAL_SLOTS

    def final_account(self, key: Pubkey) -> Account | None:
        """The account without what may still be undone."""
        for one in self.recent:
            if key in one.before:
                return one.before[key]
        return self.account(key)

    def is_final(self, signature: str) -> bool:
        return all(one.signature != signature for one in self.recent)

    def undo(self, count: int) -> list[bytes]:
        """Leave a fork: the newest ``count`` transactions have never happened. Returns their bytes, oldest first."""
        gone: list[bytes] = []
        for _ in range(min(count, len(self.recent))):
            last = self.recent.pop()
            for key, account in last.before.items():
                self._vm.set_account(key, account or Account(0, b"", SYSTEM_PROGRAM))
            self.store._db.execute("delete from entry where signature = ?", (last.signature,))
            gone.append(last.wire)
        return gone[::-1]

    def _execute(self, signature: str, transaction: VersionedTransaction, nonce: Pubkey | None) -> None:
        message = transaction.message
        written = [k for i, k in enumerate(message.account_keys) if nonces.is_writable(message, i)]  # type: ignore[arg-type]
        try:
            written += tables.load(message, self.account).writable  # type: ignore[arg-type]
        except tables.TableError as refusal:
            raise TransactionRefusedError(str(refusal)) from refusal
        before = {key: self.account(key) for key in written}
        super()._execute(signature, transaction, nonce)
        self.recent.append(Undoable(signature, self.slot, bytes(transaction), before))


class ForkingWorld(World):
    """A world on a ledger that forks."""

    chain: ForkingChain

    def __init__(self) -> None:
        super().__init__()
        plain = self.chain
        chain, self.genesis = open_chain(plain.store, self.clock, self.entropy, ForkingChain)
        assert isinstance(chain, ForkingChain)
        self.chain = chain


@dataclass(frozen=True)
class Weather:
    """How often each fault comes, in questions."""

    lost_question: float = 0.03
    lost_answer: float = 0.05
    too_many: float = 0.03
    garbage: float = 0.01
    held: float = 0.15
    wrong_height: float = 0.2
    behind: float = 0.05
    fork: float = 0.01


CALM = Weather(0, 0, 0, 0, 0, 0, 0, 0)


class FaultyRpc(Rpc):
    """One endpoint, with its errors. ``seen`` counts what happened."""

    def __init__(self, world: ForkingWorld, weather: Weather, seed: int) -> None:
        super().__init__(world.chain, world.genesis)
        self.weather, self.world, self.seen = weather, world, Counter[str]()
        self._forking = world.chain
        self._random = random.Random(seed)
        self._held: list[tuple[int, bytes]] = []
        self._asked = 0
        faulty = {
            "getSignatureStatuses": self._statuses_by_level,
            "getAccountInfo": self._account_by_level,
            "getMultipleAccounts": self._accounts_by_level,
            "getBlockHeight": lambda _: self._height(),
            "getEpochInfo": self._epoch,
        }
        self._methods = {**self._methods, **faulty}

    def answer(self, method: str, params: list[Any]) -> Any:
        """One question, in this weather.

        Raises:
            RpcError: what the ledger says; or LOST and TOO_MANY, which are no answers.
        """
        self._asked += 1
        self.world.clock.advance(self._random.uniform(0, SLOT_S))
        self._forking.tick()
        self._pass_on()
        if self._now("fork"):
            for wire in self._forking.undo(self._random.randint(1, 4)):
                if self._random.random() < 0.5:  # Another leader may still have them.
                    self._hold(wire)
        if self._now("too_many"):
            raise RpcError(TOO_MANY, "Too many requests")
        if self._now("lost_question"):
            raise RpcError(LOST, "nothing came")
        if method == "sendTransaction" and self._now("held"):
            transaction = _wire(params)
            self._hold(transaction)
            return str(VersionedTransaction.from_bytes(transaction).signatures[0])
        result = self.call(method, params)
        if self._now("lost_answer"):
            raise RpcError(LOST, "nothing came back")
        return {"garbage": True} if self._now("garbage") else result

    def _now(self, fault: str) -> bool:
        happens: bool = self._random.random() < getattr(self.weather, fault)
        self.seen[fault] += happens
        return happens

    def _hold(self, wire: bytes) -> None:
        self._held.append((self._asked + self._random.randint(1, 60), wire))

    def _pass_on(self) -> None:
        """Execute what was held back, where it still can be."""
        due = [wire for at, wire in self._held if at <= self._asked]
        self._held = [(at, wire) for at, wire in self._held if at > self._asked]
        for wire in due:
            try:
                self._forking.submit(VersionedTransaction.from_bytes(wire), preflight=False)
            except TransactionRefusedError:
                self.seen["held in vain"] += 1

    def _final(self, params: list[Any]) -> bool:
        return len(params) > 1 and isinstance(params[1], dict) and params[1].get("commitment") == "finalized"

    def _height(self) -> int:
        """The final height, or nonsense, in both directions."""
        true = self._forking.final_slot
        return max(0, true + self._random.randint(-400, 400)) if self._now("wrong_height") else true

    def _epoch(self, params: list[Any]) -> Any:
        height = self._height()
        return {**self._epoch_info(params), "absoluteSlot": height, "blockHeight": height}

    def _at(self, final: bool) -> dict[str, Any]:
        return {"slot": self._forking.final_slot if final else self._forking.slot, "apiVersion": "4.1.2"}

    def _read(self, key: Pubkey, final: bool) -> Account | None:
        return self._forking.final_account(key) if final else self._forking.account(key)

    def _account_by_level(self, params: list[Any]) -> Any:
        final = self._final(params)
        account = self._read(Pubkey.from_string(params[0]), final)
        return {"context": self._at(final), "value": None if account is None else account_json(account)}

    def _accounts_by_level(self, params: list[Any]) -> Any:
        final = self._final(params) or self._now("behind")
        found = [self._read(Pubkey.from_string(key), final) for key in params[0]]
        return {"context": self._at(final), "value": [None if one is None else account_json(one) for one in found]}

    def _statuses_by_level(self, params: list[Any]) -> Any:
        answer = self._statuses(params)
        for signature, status in zip(params[0], answer["value"], strict=True):
            if status is not None and not self._forking.is_final(signature):
                status["confirmationStatus"], status["confirmations"] = "confirmed", 1
        return answer


def _wire(params: list[Any]) -> bytes:
    return base64.b64decode(params[0])


def build_proxy(rpc: FaultyRpc) -> web.Application:
    """HTTP in front of the endpoint, with connections that break off."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        try:
            result = rpc.answer(body["method"], body.get("params") or [])
        except RpcError as error:
            if error.code == LOST:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=500)
            if error.code == TOO_MANY:
                return web.Response(status=429, headers={"Retry-After": "1"}, text="slow down")
            failure = {"code": error.code, "message": str(error)} | ({"data": error.data} if error.data else {})
            return _json({"jsonrpc": "2.0", "id": body["id"], "error": failure})
        return _json({"jsonrpc": "2.0", "id": body["id"], "result": result})

    app = web.Application()
    app.router.add_post("/", answer)
    return app


def _json(document: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
