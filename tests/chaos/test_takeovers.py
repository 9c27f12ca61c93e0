"""A run under coordinators that are killed, frozen and ended: every round is done once, and its money is exact."""

from pathlib import Path

import pytest

from tests.chaos.checks import check
from tests.chaos.fronts import EveryDoor, Fronts
from tests.chaos.storm import Weather
from tests.chaos.takeovers import Takeovers
from tests.support.databases import needs_postgres

pytestmark = [pytest.mark.long, needs_postgres]

CALM = Weather(spares=0, joiners=0, kills=0)


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
