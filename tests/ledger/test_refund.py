"""``cottage ledger refund``: a submitter needs nobody to have back what a job has left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledger.addresses import keypair
from ledger.client import Ledger, address_of, job_bytes
from ledger.errors import NoEscrowError, TransactionFailedError
from ledger.money import Amount, parse
from ledger.refund import main, refund
from tests.ledger.by_hand import promise
from tests.ledger.world import World

SUBMITTER, COORDINATOR, STRANGER, NODE = (bytes([number]) * 32 for number in (1, 2, 3, 4))
WHO, JOB_ID = address_of(SUBMITTER), "ab" * 16
JOB = job_bytes(JOB_ID)
HOUR_S, WEEK_S = 3600, 7 * 24 * 3600


@pytest.fixture
async def opened(ledger: Ledger, world: World) -> Ledger:
    """An escrow of 100 whose deadline is in an hour, after the coordinator has promised 30 of it."""
    for seed in (SUBMITTER, COORDINATOR, STRANGER):
        await ledger.faucet(address_of(seed), parse("100"))
    deadline = int(world.clock.now) + HOUR_S
    await ledger.open_escrow(SUBMITTER, JOB, address_of(COORDINATOR), parse("100"), deadline)
    await promise(ledger, COORDINATOR, WHO, JOB, {address_of(NODE): parse("30")})
    return ledger


async def test_what_is_left_comes_back_after_the_deadline_and_what_nobody_claims_a_week_later(
    opened: Ledger, world: World
) -> None:
    with pytest.raises(TransactionFailedError, match="has not passed yet"):
        await refund(opened, keypair(SUBMITTER), WHO, JOB)
    world.clock.advance(HOUR_S)
    told = await refund(opened, keypair(STRANGER), WHO, JOB)
    assert ("70 came back" in told, "30 is promised" in told) == (True, True)
    assert await opened.balance(WHO) == parse("70")
    world.clock.advance(WEEK_S)
    assert await refund(opened, keypair(STRANGER), WHO, JOB) == f"30 came back to {WHO}"
    before = await opened.lamports(WHO)
    assert "the escrow's rent" in await refund(opened, keypair(SUBMITTER), WHO, JOB)
    assert await opened.lamports(WHO) > before
    assert await opened.balance(WHO) == parse("100")
    with pytest.raises(NoEscrowError, match="has closed its escrow"):
        await refund(opened, keypair(SUBMITTER), WHO, JOB)
    with pytest.raises(NoEscrowError, match="has no escrow"):
        await refund(opened, keypair(STRANGER), address_of(STRANGER), JOB)


async def test_the_command_says_what_came_back_or_why_not(
    opened: Ledger, world: World, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "wallet"
    key.write_text(SUBMITTER.hex())
    words = [JOB_ID, "--url", url, "--key", str(key)]
    assert await asyncio.to_thread(main, words) == 1
    assert "has not passed yet" in capsys.readouterr().err
    world.clock.advance(HOUR_S + WEEK_S)
    assert await asyncio.to_thread(main, words) == 0
    assert capsys.readouterr().out == f"100 came back to {WHO}, and the escrow's rent to who had paid it\n"
    assert await opened.balance(WHO) == parse("100") == Amount(100_000_000)
