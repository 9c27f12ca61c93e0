"""Who is free, who looks, who may come back: each job asks, so what it takes must not grow with all who are here."""

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from coordinator.domain.lease import Lease, LeaseEnd
from coordinator.services.core.leases import Leases
from coordinator.services.network import nodes as nodes_module
from coordinator.services.network.nodes import candidate_of
from protocol.identity import NodeKey
from protocol.node import HeldLease
from tests.coordinator.bench import CONFIG, Bench

JOBS = tuple(f"{number:032x}" for number in range(3))


def address(number: int) -> str:
    return NodeKey(number.to_bytes(32, "big")).address


def lease(number: int, node: str, job: str = JOBS[0], end: LeaseEnd | None = None) -> Lease:
    held = Lease(f"{number:032x}", job, node, node, number + 1, 0, 0, 0.0, state="ready")
    return held if end is None else msgspec.structs.replace(held, state="ended", end=end, ended=1.0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nodes of which a candidate was made."""
    found: list[str] = []

    def counted(node: str, *more: Any) -> Any:
        found.append(node)
        return candidate_of(node, *more)

    monkeypatch.setattr(nodes_module, "candidate_of", counted)
    return found


async def test_only_those_who_are_free_are_worked_out_and_looked_up_where_somebody_came_or_went(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    for number in range(1, 61):
        await bench.enter(number)
        if number > 2:
            bench.parts.leases.remember(lease(number, address(number)))
    asked = 0
    is_busy = Leases.is_busy

    def counted(self: Leases, node: str) -> bool:
        nonlocal asked
        asked += 1
        return is_busy(self, node)

    monkeypatch.setattr(Leases, "is_busy", counted)
    nodes = bench.parts.nodes
    for _ in range(100):
        assert [one.node for one in nodes.candidates()] == [address(1), address(2)]
    assert (len(made), asked) == (200, 60)
    assert [one.node for one in nodes.candidates((address(1), address(5)))] == [address(1), address(2), address(5)]
    assert list(nodes.known([address(7), "nobody"])) == [address(7)]
    assert asked == 60


async def test_free_are_all_who_hold_nothing_however_they_come_and_go() -> None:
    """As everybody without those who hold something, have no room for more, or drain."""
    bench, chance, held = Bench(), Random(3), dict[str, Lease]()
    nodes, leases = bench.parts.nodes, bench.parts.leases
    for step in range(400):
        number = chance.randrange(1, 9)
        node, session = address(number), nodes.session(address(number))
        match chance.randrange(7):
            case 0 | 1 if session is None and node not in held:
                await bench.enter(number)
            case 2 if session is not None:
                nodes.leave(session)
            case 3 if node not in held:
                held[node] = lease(1_000 + step, node)
                leases.remember(held[node])
            case 4 if node in held:
                gone = held.pop(node)
                how: LeaseEnd = chance.choice(("left", "expired"))
                leases.remember(msgspec.structs.replace(gone, state="ended", end=how, ended=1.0))
            case 5 if session is not None:
                session.accepting = not session.accepting
            case 6:
                (nodes.drain if chance.random() < 0.5 else nodes.undrain)(node)
                leases.forget_all(address(chance.randrange(1, 9)))
        also = (address(chance.randrange(1, 9)),)
        busy = leases.busy() | {one.node for one in nodes.sessions() if not one.accepting}
        wanted = [c for c in nodes.everybody() if not nodes.is_draining(c.node) and c.node not in busy - set(also)]
        assert nodes.candidates(also) == wanted
        assert leases.busy() == {lost.lease.node for lost in leases._lost.values()} | set(held)


async def test_the_operators_auditors_are_found_without_a_look_at_everybody() -> None:
    bench = Bench(config=replace(CONFIG, auditors=frozenset({address(3), address(9)})))
    for number in range(1, 6):
        await bench.enter(number)
    nodes = bench.parts.nodes

    class Unread(dict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("everybody is looked at")

    nodes._sessions = Unread(nodes._sessions)
    assert [one.node for one in nodes.auditors()] == [address(3)]
    assert [one.node for one in nodes.known_auditors()] == [address(3)]


def test_leases_that_ran_out_are_found_by_job_and_by_node_as_by_a_look_at_all() -> None:
    bench, chance = Bench(), Random(5)
    leases, clock, numbers = bench.parts.leases, bench.clock, iter(range(10_000))
    for _ in range(600):
        node, job = address(chance.randrange(1, 6)), chance.choice(JOBS)
        clock.t += chance.uniform(0.0, 2.0)
        match chance.randrange(5):
            case 0 | 1:
                gone = lease(next(numbers), node, job)
                leases.remember(gone)
                leases.remember(
                    msgspec.structs.replace(gone, state="ended", end=chance.choice(("expired", "expired", "left")))
                )
            case 2:
                named = [lost.lease for lost in leases._lost.values() if lost.lease.node == node]
                some = [one for one in named if chance.random() < 0.7]
                leases.renew(node, [HeldLease(one.id, one.fence, "lives") for one in some])
            case 3:
                leases.expired()
            case 4 if leases._lost:
                leases.forget(chance.choice(list(leases._lost)))
        every = [lost.lease for lost in leases._lost.values()]
        now = leases._now()
        back = [lost.lease for lost in leases._lost.values() if lost.until > now]
        assert sorted(leases.lost(job), key=_id) == sorted((one for one in every if one.job == job), key=_id)
        assert leases.back_with() == tuple(back)
        assert sorted(leases.back_with(node), key=_id) == sorted((one for one in back if one.node == node), key=_id)
        assert sorted(leases.back_in(job), key=_id) == sorted((one for one in back if one.job == job), key=_id)
        assert leases.busy() == {one.node for one in every}
        assert all(leases.is_busy(one.node) for one in every)


def _id(held: Lease) -> str:
    return held.id
