"""``cottage node unstake``: have the stake back. The agent must not run; the coordinator need not.

Asked for, it stays where it is for the cool-down of the ledger, and can be slashed so long. Asked for again after that, it comes.
Stakes of further cards go the same way, and end in the computer's wallet.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import time
from typing import Literal

import msgspec

from common.terminal import say, say_json
from common.untrusted_text import View
from desktop.agent.base.config import Home
from desktop.agent.cli.withdraw import fill
from desktop.agent.earnings.records import EarningRecords
from desktop.agent.errors import AgentError
from ledger.client import Ledger, LedgerConfig
from ledger.errors import LedgerError
from ledger.money import show
from protocol.identity import NodeKey


class StakeBack(View, frozen=True):
    """How far a stake is on its way back.

    Attributes:
        amount: of it, in millionths of the token.
        at: Unix seconds from when on it can be taken; 0 where that is over.
        signature: of what was sent; empty where nothing was.
        beside: the same of each further card that was ever lent.
    """

    step: Literal["asked", "waits", "back", "nothing"]
    amount: int = 0
    at: int = 0
    signature: str = ""
    beside: tuple["StakeBack", ...] = ()


def run(options: argparse.Namespace) -> int:
    """Go one step on, as the command says; the exit code."""
    home = Home.at(options.home)
    with home.locked():
        key = home.key()
        try:
            found = asyncio.run(_run(home, key, options.rpc))
        except LedgerError as error:
            raise AgentError(f"the stake stays where it is: {error}") from error
    if options.json:
        say_json(found)
    else:
        say(_said(found, key))
        for card, one in zip(_cards(home), found.beside, strict=True):
            say(f"{card}: {_said(one, key)}")
    return 0


def _cards(home: Home) -> list[str]:
    return sorted({file.name for file in home.cards.glob("GPU-*")})


async def _run(home: Home, key: NodeKey, rpc: str | None) -> StakeBack:
    settings = home.settings()
    with contextlib.closing(EarningRecords.at(home)) as books:
        info = books.ledger(settings.coordinator)
    if info is None and rpc is None:
        raise AgentError("no coordinator has named its ledger to this agent: say where it is with --rpc")
    config = LedgerConfig(rpc or "") if info is None else LedgerConfig(rpc or info.url, info.program, info.mint)
    async with await Ledger.connect(config) as ledger:
        await fill(ledger, key)
        found = await take_back(ledger, key, time.time())
        beside = [await of_card(ledger, key, card, time.time()) for card in _cards(home)]
        found = msgspec.structs.replace(found, beside=tuple(beside))
    home.remember(msgspec.structs.replace(settings, stake=0))  # Or the next start would put it down again.
    return found


async def of_card(ledger: Ledger, computer: NodeKey, card: str, now: float) -> StakeBack:
    """``take_back`` of a further card's stake; what its own wallet holds goes into the computer's."""
    own = computer.card(card)
    found = await take_back(ledger, own, now)
    if held := await ledger.balance(own.address):
        await ledger.confirm(await ledger.prepare_transfer(own.seed, computer.address, held))
    return found


async def take_back(ledger: Ledger, key: NodeKey, now: float) -> StakeBack:
    """Ask for the whole stake, or take what was asked for once its cool-down is over, and close what is empty.

    Raises:
        LedgerError: the ledger refuses it, or does not answer.
    """
    state = await ledger.stake(key.address)
    if state is None:
        return StakeBack("nothing")
    if state.balance and not state.requested:
        signature = await ledger.confirm(await ledger.prepare_stake_request(key.seed, None))
        state = await ledger.stake(key.address)
        assert state is not None, "nobody else can close it"
        return StakeBack("asked", state.requested, state.unlock_at, signature)
    if state.requested and now < state.unlock_at:
        return StakeBack("waits", state.requested, state.unlock_at)
    forgotten = state.window_start + state.window  # A slash is remembered so long, in the account.
    if now >= forgotten and state.requested == state.balance:
        taking = await ledger.prepare_stake_close(key.seed)
    elif state.requested:
        taking = await ledger.prepare_stake_withdrawal(key.seed)
    else:
        return StakeBack("nothing", at=forgotten)
    return StakeBack("back", state.requested, signature=await ledger.confirm(taking))


def _said(found: StakeBack, key: NodeKey) -> str:
    amount = show(found.amount)
    when = dt.datetime.fromtimestamp(found.at).astimezone().strftime("%Y-%m-%d %H:%M")
    match found.step:
        case "asked":
            return f"{amount} asked for: the same command takes it from {when} on; until then it can be slashed"
        case "waits":
            return f"{amount} was asked for before: the same command takes it from {when} on"
        case "back":
            return f"{amount} came back to {key.address}"
        case "nothing":
            return f"nothing is staked by {key.address}"
