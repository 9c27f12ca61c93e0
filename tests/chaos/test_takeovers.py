"""A run under coordinators that are killed, frozen and ended: every round is done once, and its money is exact."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

from coordinator.client import Client
from ledger.money import Amount
from tests.chaos.fronts import EveryDoor, Fronts
from tests.chaos.storm import Outcome, Weather
from tests.chaos.takeovers import Takeovers
from tests.support.databases import needs_postgres

pytestmark = [pytest.mark.long, needs_postgres]

CALM = Weather(spares=0, joiners=0, kills=0)


async def check(storm: Takeovers, outcome: Outcome) -> None:
    """Everything that a takeover must leave as it was."""
    said = [str(event.text) for event in outcome.events]
    assert outcome.job.state == "settled", said[-20:]
    complete = Counter(one.round for one in outcome.rounds if one.state == "complete" and one.tokens)
    assert set(complete) == set(range(storm.weather.rounds))
    assert set(complete.values()) == {1}, "no complete round was done again"
    assert not any("is banned" in text or "lost its stake" in text for text in said)
    assert storm._ledger is not None
    for provider in storm.providers:
        verified = [c.amount for c in outcome.commits if c.node == provider.key.address and c.state == "verified"]
        assert await storm._ledger.balance(provider.key.address) == Amount(sum(verified))
    async with Client(storm.web) as client:
        assert (await client.get(outcome.job.id)).paid == sum(
            c.amount for c in outcome.commits if c.state == "verified"
        )
    words = ["ledger", "check", outcome.job.id, "--coordinator", storm.web, "--rpc", storm.ledger_url]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cottage", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()


async def test_a_run_goes_on_whatever_befalls_its_coordinators(tmp_path: Path) -> None:
    async with Takeovers(tmp_path / "run", CALM) as storm:
        outcome = await storm.to_the_end()
        await check(storm, outcome)
    assert len(storm.made) >= 3, "the run was too short to be disturbed"
    assert {one.manner for one in storm.made} == {"killed", "frozen", "ended"}


async def test_a_run_goes_on_behind_coordinators_that_stand_by(tmp_path: Path) -> None:
    """Everybody comes in anywhere; whoever works, and whoever stands by, is killed and frozen in turn."""
    async with Fronts(tmp_path / "run", CALM) as storm:
        outcome = await storm.to_the_end()
        await check(storm, outcome)
    assert len(storm.made) >= 3, "the run was too short to be disturbed"
    assert {one.manner for one in storm.made} == {"killed", "frozen", "front killed"}
    assert isinstance(storm.door, EveryDoor)
    assert len(storm.door.led) == 3, "each has led somebody"
