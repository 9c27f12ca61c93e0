"""Bonds that nobody can decide: over nothing, or past their deadline. They keep no other from its verdict."""

from dataclasses import replace

import pytest

from coordinator.services.drivers import bonded_disputes as bonds_module
from protocol.identity import NodeKey
from tests.coordinator.bench import Bench


async def test_bonds_over_nothing_come_last_and_expired_ones_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bonds_module, "MAX_VERDICTS", 2)
    bench = Bench()
    now = int(bench.clock.time())
    node = NodeKey(b"n" * 32).address
    for number, deadline in enumerate((now - 5, now - 4, now + 10, now + 20, now + 30, now + 40)):
        challenger, audit = NodeKey(bytes([number + 1]) * 32).address, f"{number + 1:x}" * 32
        bench.fake.bond(challenger, node, audit, deadline)
        key = (challenger, audit)
        bench.fake.disputes[key] = replace(bench.fake.disputes[key], address=f"bond {number}")
    bonds = bench.parts.bonds
    looked = []
    for _ in range(3):
        await bonds.poll()
        looked.append(set(bonds._said))
    assert looked[0] == {"bond 2", "bond 3"}, "those whose deadlines come first"
    assert looked[1] == looked[2] == {f"bond {number}" for number in range(2, 6)}, "then the others, before those again"
