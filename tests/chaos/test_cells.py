"""Jobs in cells while coordinators and the database are killed, frozen, cut off, ended: nothing is lost or paid twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.cells import ALL, CellStorm, planned
from tests.chaos.checks import check
from tests.chaos.storm import Weather
from tests.support.databases import needs_postgres

pytestmark = [pytest.mark.long, needs_postgres]

SMALL = Weather(stages=1, replicas=2, spares=4, joiners=0, kills=0, rounds=12, inner_steps=10)


@pytest.mark.timeout(1800)
async def test_jobs_of_all_cells_go_on_whatever_befalls_coordinators_and_database(tmp_path: Path) -> None:
    plan = planned(3, kills=6, crashes=1)
    async with CellStorm(tmp_path / "run", replace(SMALL, seed=3), plan=plan) as storm:
        await check(storm, *await storm.jobs_to_the_end())
    assert {one.manner for one in storm.struck} == set(ALL)
    assert storm.cells_of_jobs().keys() == {0, 1, 2}, "every cell has had a job"
