"""A lender has its stake back by a command, after the cool-down of the ledger, whatever the coordinator does meanwhile."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from desktop.agent.base.config import Home
from desktop.agent.cli.unstake import of_card, take_back
from desktop.agent.earnings.wallet import Purse, ensure_stake
from desktop.agent.errors import HomeBusyError
from ledger.client import Ledger, LedgerConfig
from ledger.errors import TransactionFailedError
from ledger.local.genesis import COOLDOWN_S, SLASH_WINDOW_S
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.node import LedgerInfo
from tests.desktop.app.test_agent_as_a_process import words_of
from tests.ledger.conftest import serving_world
from tests.ledger.served import served
from tests.ledger.world import World

CARD = "GPU-9f00aa12"
JUDGE = NodeKey(b"j" * 32)
HELD, STAKED = Amount(70), Amount(50)


async def staked(ledger: Ledger, key: NodeKey) -> None:
    await ledger.faucet(JUDGE.address, Amount(0))
    await ledger.faucet(key.address, HELD)
    await ledger.open_stake(key.seed, STAKED, JUDGE.address)


async def test_a_stake_is_asked_for_waits_comes_back_and_is_closed() -> None:
    world, key = World(), NodeKey(b"n" * 32)
    async with serving_world(world) as url, await Ledger.connect(LedgerConfig(url)) as ledger:
        await staked(ledger, key)
        asked = await take_back(ledger, key, world.clock.now)
        assert (asked.step, asked.amount, asked.at) == ("asked", STAKED, int(world.clock.now) + COOLDOWN_S)
        world.clock.advance(COOLDOWN_S - 60)
        waits = await take_back(ledger, key, world.clock.now)
        assert (waits.step, waits.at) == ("waits", asked.at)
        world.clock.advance(60)
        back = await take_back(ledger, key, world.clock.now)
        assert (back.step, back.amount) == ("back", STAKED)
        assert await ledger.balance(key.address) == HELD
        assert await ledger.stake(key.address) is None, "its rent has come back, too"
        assert (await take_back(ledger, key, world.clock.now)).step == "nothing"


async def test_what_a_slash_has_left_comes_back_before_the_account_can_be_closed() -> None:
    world, key = World(), NodeKey(b"n" * 32)
    async with serving_world(world) as url, await Ledger.connect(LedgerConfig(url)) as ledger:
        await staked(ledger, key)
        await take_back(ledger, key, world.clock.now)
        world.clock.advance(COOLDOWN_S)
        await ledger.confirm(await ledger.prepare_slash(JUDGE.seed, key.address, Amount(20), b"\7" * 32))
        with pytest.raises(TransactionFailedError):
            await ledger.confirm(await ledger.prepare_stake_close(key.seed))
        back = await take_back(ledger, key, world.clock.now)
        assert (back.step, back.amount) == ("back", STAKED - 20)
        assert await ledger.balance(key.address) == HELD - 20
        assert (await take_back(ledger, key, world.clock.now)).step == "nothing"
        assert await ledger.stake(key.address) is not None, "it remembers the slash"
        world.clock.advance(SLASH_WINDOW_S)
        assert (await take_back(ledger, key, world.clock.now)).step == "back"
        assert await ledger.stake(key.address) is None


async def test_the_command_asks_once_and_the_next_start_does_not_stake_again(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    key = home.key()
    with home.locked():
        home.remember(msgspec.structs.replace(home.settings(), stake=int(STAKED)))
    with served(tmp_path) as server:
        async with await Ledger.connect(LedgerConfig(url := server.start())) as ledger:
            await staked(ledger, key)
            words = ("unstake", "--home", str(home.path), "--rpc", url)
            with home.locked():
                code, text = await words_of(*words)
            assert (code, "stop it" in text) == (HomeBusyError.exit_code, True), "who works cannot have it back"
            code, text = await words_of("unstake", "--home", str(home.path))
            assert (code, "--rpc" in text) == (1, True)
            assert home.settings().stake == STAKED
            code, text = await words_of(*words, "--json")
            assert (code, json.loads(text)["step"]) == (0, "asked")
            assert home.settings().stake == 0
            code, text = await words_of(*words)
            assert code == 0
            assert "was asked for before" in text
            state = await ledger.stake(key.address)
            assert state is not None
            assert (state.balance, state.requested) == (STAKED, STAKED)


async def test_a_further_cards_stake_comes_out_of_the_computers_wallet_and_back_into_it() -> None:
    world, key = World(), NodeKey(b"n" * 32)
    card = key.card(CARD)
    async with serving_world(world) as url, await Ledger.connect(LedgerConfig(url)) as ledger:
        await staked(ledger, key)
        info = LedgerInfo(url, "", "", JUDGE.address)
        assert await ledger.balance(key.address) == HELD - STAKED
        purse = Purse(key)
        await asyncio.gather(*(ensure_stake(info, one, int(STAKED) - 35, purse) for one in (card, key.card("GPU-2"))))
        assert await ledger.balance(key.address) == 20 - 15, "the second one found too little, and a faucet helped"
        state = await ledger.stake(card.address)
        assert state is not None
        assert (state.balance, await ledger.balance(card.address)) == (15, 0)
        await ensure_stake(info, card, 15, purse)
        assert await ledger.balance(key.address) == 5, "nothing is paid twice"
        assert (await of_card(ledger, key, CARD, world.clock.now)).step == "asked"
        world.clock.advance(COOLDOWN_S)
        assert (await of_card(ledger, key, CARD, world.clock.now)).step == "back"
        assert (await ledger.balance(card.address), await ledger.balance(key.address)) == (0, 20)
