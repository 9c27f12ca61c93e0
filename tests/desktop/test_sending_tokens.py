"""What a node has earned is sent to another wallet by the command, on the embedded ledger; the node has no SOL."""

import json
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.services.core.context import Context
from coordinator.services.payments.withdrawals import LedgerSponsor, WithdrawalService
from coordinator.store.memory import MemoryStore
from coordinator.store.records import NodeRecord
from ledger.client import Ledger, LedgerConfig
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.node import LedgerInfo
from tests.coordinator.bench import CONFIG
from tests.coordinator.fakes import profile
from tests.desktop.app.test_agent_as_a_process import Program, agent_program, words_of
from tests.desktop.coordinator_double import Double
from tests.ledger.served import served
from tests.sim.world import SimClock
from tests.support.withdrawals import add_withdrawals

HELD, FEE, ACCOUNT = 9_000_000, 1_500, 305_892
TARGET, SPONSOR = NodeKey(b"t" * 32).address, NodeKey(b"j" * 32)


@dataclass
class Place:
    """An agent as a process, which holds tokens and no SOL, before a coordinator that pays for withdrawals."""

    node: Program
    double: Double
    ledger: Ledger
    store: MemoryStore

    async def send(self, *words: str) -> tuple[int, dict[str, Any]]:
        code, text = await words_of("send", "--home", str(self.node.home), "--yes", "--json", *words)
        assert "{" in text, text
        found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
        return code, found

    async def earned(self) -> None:
        """The books of the coordinator know of its work."""
        async with self.store.transaction() as tx:
            who = self.node.address
            await tx.insert(NodeRecord(who, who, profile("node"), 0.0, 0.0, earned=10_000_000))


@asynccontextmanager
async def place_in(folder: Path) -> AsyncIterator[Place]:
    with served(folder) as server:
        url, store = server.start(), MemoryStore()
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            await ledger.faucet(SPONSOR.address, Amount(0))
            config = replace(CONFIG, sol_price=150_000_000, ledger_program="named")
            sponsor = LedgerSponsor(ledger, url, SPONSOR.seed, SPONSOR.address)
            desk = WithdrawalService(Context(config, SimClock(), store, secrets.token_bytes), sponsor)
            double = Double(add_routes=partial(add_withdrawals, withdrawals=desk))
            double.ledger = LedgerInfo(url, ledger.program, ledger.mint, SPONSOR.address)
            await double.start()
            try:
                async with agent_program(folder / "home", double.url, "--sandbox", "process") as node:
                    await double.until(lambda: node.address in double.nodes)
                    await ledger.faucet(node.address, Amount(HELD), 0)
                    yield Place(node, double, ledger, store)
                    await node.end(signal.SIGTERM)
            finally:
                await double.stop()


async def test_tokens_are_sent_exactly_and_what_cannot_be_sent_moves_nothing(tmp_path: Path) -> None:
    async with place_in(tmp_path) as place:
        ledger, node = place.ledger, place.node
        code, denied = await place.send("--to", TARGET, "2.5")
        assert (code, denied["denied"]["reason"], denied["signature"]) == (1, "stranger", "")
        await place.earned()
        code, done = await place.send("--to", TARGET, "2.5")
        assert (code, done["denied"], done["amount"], done["held"]) == (0, None, 2_500_000, HELD - 2_500_000)
        assert (done["fee"], done["opens"]) == (FEE + ACCOUNT, True), "the receiver's first tokens need an account"
        assert await ledger.balance(TARGET) == done["arrives"] == 2_500_000 - FEE - ACCOUNT
        for to, amount, why in (
            (TARGET, "7", "holds less"),
            (node.address, "1", "own wallet"),
            ("me", "1", "no address"),
        ):
            code, denied = await place.send("--to", to, amount)
            assert (code, denied["denied"]["reason"]) == (1, why)
        assert await ledger.balance(node.address) == HELD - 2_500_000


@pytest.mark.long
async def test_all_is_sent_while_nothing_is_lent_and_no_coordinator_is_connected(tmp_path: Path) -> None:
    async with place_in(tmp_path) as place:
        await place.earned()
        before = await place.ledger.balance(SPONSOR.address)
        code, text = await words_of("pause", "--home", str(place.node.home), "1h")
        assert code == 0, text
        await place.double.until(lambda: place.node.address not in place.double.nodes or place.double.goodbyes != [])
        code, done = await place.send("--to", TARGET)
        assert (code, done["denied"], done["held"], done["amount"]) == (0, None, 0, HELD)
        assert await place.ledger.balance(TARGET) == HELD - FEE - ACCOUNT
        assert await place.ledger.balance(place.node.address) == 0
        assert await place.ledger.lamports(place.node.address) == 0
        assert await place.ledger.balance(SPONSOR.address) - before == FEE + ACCOUNT


@pytest.mark.long
async def test_with_sol_of_its_own_the_command_asks_no_coordinator(tmp_path: Path) -> None:
    async with place_in(tmp_path) as place:
        code, denied = await place.send("--own-sol", "--to", TARGET, "1")
        assert (code, denied["denied"]["reason"]) == (1, "own sol")
        await place.ledger.faucet(place.node.address, Amount(0), 10_000_000)
        await place.double.stop()
        code, done = await place.send("--own-sol", "--to", TARGET, "1")
        assert (code, done["fee"], done["arrives"], done["lamports"]) == (0, 0, 1_000_000, 5_000 + 2_039_280)
        assert await place.ledger.balance(TARGET) == 1_000_000
