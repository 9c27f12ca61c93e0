"""A broken connection is known before a lease has run out, and a proxy's restart costs nobody a seat."""

from coordinator.domain.lease import Lease
from coordinator.services.network.nodes import NodeSession
from protocol.identity import NodeKey
from protocol.node import HeldLease
from tests.coordinator.bench import CONFIG, Bench


def address(number: int) -> str:
    return NodeKey(number.to_bytes(32, "big")).address


async def held_by(bench: Bench, *numbers: int) -> dict[int, NodeSession]:
    """Nodes that are here, each with a lease."""
    job, sessions = await bench.job(), {}
    for number in numbers:
        session = sessions[number] = await bench.enter(number)
        lease = Lease(f"of {number}", job, session.node, session.payout, 1, 0, 0, bench.clock.t, "ready", seq=1)
        async with bench.parts.desk.open(job) as work:
            work.leases[lease.id] = lease
    return sessions


def passed(bench: Bench, seconds: float, *beating: int) -> tuple[str, ...]:
    """What runs out while time passes and these nodes send heartbeats."""
    for _ in range(int(seconds / 0.5)):
        bench.clock.t += 0.5
        for number in beating:
            bench.parts.leases.renew(address(number), [HeldLease(f"of {number}", 1)])
        if gone := bench.parts.leases.expired():
            return gone
    return ()


async def test_a_process_that_died_is_known_before_its_term_is_over_and_one_that_came_back_lives() -> None:
    bench = Bench()
    sessions = await held_by(bench, 1, 2, 3)
    bench.parts.nodes.leave(sessions[1])
    assert passed(bench, 0.4 * CONFIG.lease_seconds - 0.5, 2, 3) == ()
    assert passed(bench, 0.5, 2, 3) == ("of 1",)

    bench = Bench()
    sessions = await held_by(bench, 1, 2, 3)
    bench.parts.nodes.leave(sessions[1])
    assert passed(bench, 0.3 * CONFIG.lease_seconds, 2, 3) == ()
    await bench.enter(1, (HeldLease("of 1", 1),))
    assert passed(bench, 3 * CONFIG.lease_seconds, 1, 2, 3) == ()


async def test_when_a_proxy_starts_again_nobody_loses_its_seat() -> None:
    bench = Bench()
    sessions = await held_by(bench, 1, 2, 3)
    for session in sessions.values():
        bench.parts.nodes.leave(session)
    assert passed(bench, 0.8 * CONFIG.lease_seconds) == ()
    await bench.enter(1, (HeldLease("of 1", 1),))
    await bench.enter(2, (HeldLease("of 2", 1),))
    assert passed(bench, 0.1 * CONFIG.lease_seconds, 1, 2) == (), "the third one is on its way, too"
    await bench.enter(3, (HeldLease("of 3", 1),))
    assert passed(bench, 3 * CONFIG.lease_seconds, 1, 2, 3) == ()
