"""The short storm: a dozen nodes die at random instants, one joins, and the run learns what it would have learnt."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.storm import Outcome, Storm, Weather

pytestmark = pytest.mark.long

SHORT = Weather(power_cuts=0.25)
LEAN = replace(SHORT, stages=1, replicas=5, lean=True)
# A node that starts again misses a third of these 24 short rounds, so fewer tokens are read. The long run is held to 1 %.
LOSS_GAP = 0.06


async def run(folder: Path, weather: Weather) -> Outcome:
    async with Storm(folder, weather) as storm:
        return await storm.to_the_end()


@pytest.mark.parametrize("weather", [SHORT, LEAN], ids=["float32", "lean, by shards"])
async def test_a_run_under_kills_ends_learns_and_stays_verifiable(weather: Weather, tmp_path: Path) -> None:
    stormy = await run(tmp_path / "storm", weather)
    assert stormy.job.state == "settled", stormy.job.reason
    assert len(stormy.kills) >= weather.kills // 2, "the run was too short to be disturbed"
    lost = [event.text for event in stormy.events if event.kind == "lost"]
    assert any("lost its connection" in text for text in lost), "a process that dies is known before its term is over"
    assert {record.round for record in stormy.complete()} == set(range(weather.rounds)) | {weather.rounds}
    states = {audit.state for audit in stormy.audits}
    assert states <= {"passed", "void", "failed"}
    wrong = [audit for audit in stormy.audits if audit.state == "failed" and "is not what" in audit.detail]
    assert not wrong, "a step of an honest member did not replay"
    assert any(audit.state == "passed" for audit in stormy.audits)
    calm = await run(tmp_path / "calm", replace(weather, kills=0, spares=0, joiners=0))
    assert calm.job.validation_loss is not None
    assert stormy.job.validation_loss is not None
    assert stormy.job.validation_loss == pytest.approx(calm.job.validation_loss, rel=LOSS_GAP)
