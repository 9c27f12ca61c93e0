"""Everything arrives, bit by bit and once, however long it goes on; ``COTTAGE_SOAK_S=600`` for the ten minutes."""

import os
from collections.abc import Callable

import pytest

from tests.testbed.homes import missing
from tests.transport.soak import problems, soak

WHY_NOT = missing()
SECONDS = float(os.environ.get("COTTAGE_SOAK_S", "10"))
# What is on its way varies by some of the greatest messages; a leak of 1 % of the traffic is more.
MOST_GROWTH = 48 << 20


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "the test-bed can be built")
async def test_every_message_arrives_once_and_identical_and_memory_stays_flat(
    record_property: Callable[[str, object], None],
) -> None:
    one, two = await soak(SECONDS)
    for name, side in (("left", one), ("right", two)):
        record_property(name, side.figures(SECONDS))
    assert list(problems(one, two, MOST_GROWTH)) == []
    for side in (one, two):
        assert side.end["bytes"] > SECONDS * 1e6  # It was at work: 8 of 100 Mbit/s is what a very busy machine does.
