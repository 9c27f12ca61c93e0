"""Deploying to a cluster over JSON-RPC: whole, cut anywhere and resumed, and with nobody left who may change it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from ledger.client import Ledger, LedgerConfig
from ledger.connection import Connection
from ledger.deploy import Deployer, DeployTerms, keep_secret, main, read_keypair
from ledger.errors import AddressError, DeployError
from ledger.program import loader
from ledger.program.build import program_path
from ledger.program.interface import LOADER, MarketAddresses
from tests.ledger.world import World, key

SECRET = b"\x11" * 32


def _rich(world: World, name: str = "stranger") -> Keypair:
    return world.keys[getattr(world, name)]


def _terms(world: World) -> DeployTerms:
    return DeployTerms(world.market.mint, world.treasury, cooldown=60)


class Cut(Exception):
    """The process dies here."""


class CutConnection(Connection):
    """A connection whose process dies at the ``nth`` sending, before it or after it."""

    def __init__(self, url: str, nth: int, *, after: bool) -> None:
        super().__init__(url)
        self._left, self._after = nth, after

    async def send(self, wire: bytes, program: Pubkey):  # type: ignore[no-untyped-def]
        self._left -= 1
        dies = self._left == 0
        if dies and not self._after:
            raise Cut
        result = await super().send(wire, program)
        if dies:
            raise Cut
        return result


async def _deploy(world: World, connection: Connection, authority: Pubkey | None) -> str:
    try:
        deployer = Deployer(connection, _rich(world), SECRET)
        return (await deployer.run(authority, _terms(world))).program
    finally:
        await connection.aclose()


async def test_a_deployed_market_works_and_nobody_may_change_it(world: World, url: str) -> None:
    program = Pubkey.from_string(await _deploy(world, Connection(url), None))
    data = world.chain.account(loader.data_address(program))
    assert data is not None
    assert data.data[12] == 0  # no authority
    assert data.data[45:] == program_path(3).read_bytes()
    async with await Ledger.connect(LedgerConfig(url, str(program), str(world.market.mint))) as ledger:
        assert (await ledger.terms()).cooldown == 60
    world.market = MarketAddresses(program, world.market.mint)
    escrow = world.open_escrow(100)
    world.send(world.settle(escrow, (world.node, 7)))
    assert world.escrow(escrow).paid == 7


@pytest.mark.one_in(4)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", [1, 20, 37, 38, 39])
async def test_a_deployment_cut_anywhere_goes_on_where_it_stopped(
    world: World, url: str, nth: int, after: bool
) -> None:
    cut = CutConnection(url, nth, after=after)
    with pytest.raises(Cut):
        await _deploy(world, cut, world.submitter)
    payer = world.chain.account(world.stranger)
    program = Pubkey.from_string(await _deploy(world, Connection(url), world.submitter))
    again = await _deploy(world, Connection(url), world.submitter)
    assert again == str(program)
    data = world.chain.account(loader.data_address(program))
    assert data is not None
    assert payer is not None
    assert Pubkey.from_bytes(data.data[13:45]) == world.submitter
    assert data.data[45:] == program_path(3).read_bytes()


async def test_another_program_at_the_address_and_an_empty_purse_are_told(world: World, url: str) -> None:
    poor = Deployer(Connection(url), key("nobody ever paid this"), SECRET)
    with pytest.raises(DeployError, match="holds 0 lamports"):
        await poor._deploy(3)
    await poor._connection.aclose()
    program = Deployer(Connection(url), _rich(world), SECRET)
    original = world.chain.account(world.market.program)
    assert original is not None
    entry = Account(original.lamports, original.data, LOADER, executable=True)
    world.chain._vm.set_account(loader.data_address(program.program), Account(10**9, bytes(99), LOADER))
    world.chain._vm.set_account(program.program, entry)
    with pytest.raises(DeployError, match="another program"):
        await program.run(None, _terms(world))
    await program._connection.aclose()


async def test_an_authority_of_somebody_else_is_not_taken(world: World, url: str) -> None:
    await _deploy(world, Connection(url), world.submitter)
    with pytest.raises(DeployError, match=f"{world.submitter} may upgrade"):
        await _deploy(world, Connection(url), None)


def test_keys_are_read_in_both_notations_and_secrets_kept(tmp_path: Path) -> None:
    pair = key("somebody")
    (tmp_path / "list").write_text(json.dumps(list(bytes(pair))))
    (tmp_path / "hex").write_text(bytes(pair)[:32].hex() + "\n")
    assert read_keypair(tmp_path / "list") == read_keypair(tmp_path / "hex") == pair
    (tmp_path / "odd").write_text("[1, 2]")
    with pytest.raises(AddressError, match="odd holds no key"):
        read_keypair(tmp_path / "odd")
    made = keep_secret(tmp_path / "secret")
    assert keep_secret(tmp_path / "secret") == made
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


async def test_the_command_deploys_and_says_what_it_did(
    world: World, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payer = tmp_path / "payer"
    payer.write_text(bytes(_rich(world))[:32].hex())
    words = ["--cluster", url, "--payer", str(payer), "--keys", str(tmp_path / "keys"), "--authority", "none"]
    assert await asyncio.to_thread(main, words) == 1
    assert "give --mint and --treasury" in capsys.readouterr().err
    words += ["--mint", str(world.market.mint), "--treasury", str(world.treasury)]
    assert await asyncio.to_thread(main, words) == 0
    said = capsys.readouterr().out
    assert "upgrade authority none" in said
    assert "sBPF version 3" in said
