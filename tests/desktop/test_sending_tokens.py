"""What a node has earned is sent to another wallet, on the embedded ledger, by the command and as the window asks."""

import json
import signal
from pathlib import Path

import pytest

from desktop.agent.app import status
from desktop.agent.app.status import Withdrawal, WithdrawOrder
from desktop.agent.errors import SettingsError
from ledger.client import Ledger, LedgerConfig
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.node import LedgerInfo
from tests.desktop.app.test_agent_as_a_process import agent_program, words_of
from tests.desktop.coordinator_double import Double
from tests.ledger.served import served


async def order(home: Path, what: WithdrawOrder) -> Withdrawal:
    return await status.ask_for(home / "agent.sock", "withdraw", Withdrawal, what, status.LONG_TIMEOUT_S)


async def test_tokens_are_sent_exactly_and_what_cannot_be_sent_moves_nothing(
    coordinator: Double, tmp_path: Path
) -> None:
    target, judge = NodeKey(b"t" * 32).address, NodeKey(b"j" * 32).address
    with served(tmp_path) as server:
        url = server.start()
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            coordinator.ledger = LedgerInfo(url, ledger.program, ledger.mint, judge)
            async with agent_program(tmp_path / "home", coordinator.url, "--sandbox", "process") as node:
                await coordinator.until(lambda: node.address in coordinator.nodes)
                await ledger.faucet(node.address, Amount(9_000_000))
                words = ("send", "--home", str(node.home), "--yes", "--json", "--to", target, "2.5")
                code, text = await words_of(*words)
                assert "{" in text, text
                done = json.loads(text[text.index("{") :])
                assert (code, done["amount"], done["held"]) == (0, 2_500_000, 6_500_000)
                assert await ledger.balance(target) == 2_500_000
                assert done["rent"] > 0, "the receiver's first tokens need an account"
                for to, amount in ((target, "7"), (node.address, "1")):
                    with pytest.raises(SettingsError, match=r"nothing was withdrawn|own wallet"):
                        await order(node.home, WithdrawOrder(to, amount, send=True))
                assert await ledger.balance(node.address) == 6_500_000
                assert (await order(node.home, WithdrawOrder(target, send=True))).rent == 0
                assert (await ledger.balance(target), await ledger.balance(node.address)) == (9_000_000, 0)
                await node.end(signal.SIGTERM)
