"""Strangers by the hundred against a real coordinator whose limits are small: all of them are met, and it goes on answering.

``benchmarks/hostile/strangers.py`` does it for minutes, with the limits as they are.
"""

from pathlib import Path

from tests.coordinator.strangers import storm

SECONDS, SCALE, ACTORS, REFUSALS = 5.0, 0.005, 4, 25
MEMORY = 256 << 20


async def test_a_storm_of_strangers_costs_what_the_limits_say_and_others_go_on(tmp_path: Path) -> None:
    figures, most = await storm(tmp_path, SECONDS, SCALE, ACTORS, refusals=REFUSALS)
    rows = figures.rows
    assert figures.failed == [], "the operator is answered, and the node that was there stays"
    assert figures.beats > 0
    assert figures.wait(0.5) < 5.0
    assert rows["accounts"] <= most.accounts + 1
    assert rows["nodes"] <= most.nodes + 1
    assert rows["challenges"] <= most.challenges
    assert rows["unpaid jobs"] <= most.unpaid
    assert rows["trail"] <= most.trail
    assert figures.disk <= most.disk
    assert figures.memory <= MEMORY
    assert figures.most_files <= 12 * ACTORS + 128
    assert figures.lamports <= most.lamports
    assert figures.answers["429"] >= REFUSALS, "limits were met"
    kinds = ("node", "sign-in", "POST /sign-in/passkey/challenge", "POST /quote", "POST /uploads", "slow body", "bond")
    assert min(figures.asked[kind] for kind in kinds) > 1
