"""Transfers with the coordinator give way to links, keep the owner's limits, and arrive in time all the same."""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.clock import SystemClock
from desktop.agent.base.payloads import SmallPayload
from desktop.agent.coordinator import artifacts as transfers
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.coordinator.transfer_pacing import DUE_S, FIRST_RATE, LEAST_RATE, PIECE, TransferPacing
from protocol.artifacts import audit_answer, state_answer
from protocol.task import (
    ApplyRound,
    AuditReport,
    OpeningMade,
    OpenStep,
    ReplayStep,
    RoundApplied,
    StepOpened,
    TaskFailed,
)
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.clock import VirtualClock
from transport.ice.stats import LinkStats
from transport.sctp.allowance import Allowance

BASE_S = 0.05


async def leaves(
    clock: VirtualClock, pacing: TransferPacing, size: int, seconds: float, urgent: bool = False
) -> list[float]:
    """When each piece of a payload of ``size`` bytes leaves, within so many seconds from now."""
    began, times = clock.now(), []

    async def send() -> None:
        async for _ in pacing.pieces(SmallPayload(bytes(size)), urgent):
            times.append(clock.now() - began)  # noqa: PERF401 - What has left until it is cancelled counts.

    sending = asyncio.create_task(send())
    await clock.advance(seconds)
    if sending.done():
        await sending
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    return times


def busy(queue_s: float) -> dict[str, LinkStats]:
    return {"peer": LinkStats(min_rtt_s=BASE_S, queue_s=queue_s, send_rate=500e3)}


async def test_nobody_waits_for_links_that_carry_nothing() -> None:
    clock = VirtualClock()
    pacing = TransferPacing(clock, Allowance(), lambda: {"peer": LinkStats(min_rtt_s=BASE_S, queue_s=9.0)})
    times = await leaves(clock, pacing, 50 << 20, 1.0)
    assert len(times) == (50 << 20) // PIECE
    assert times[-1] == 0.0


async def test_a_transfer_begins_slowly_beside_links_and_takes_what_they_leave() -> None:
    clock = VirtualClock()
    times = await leaves(clock, TransferPacing(clock, Allowance(), lambda: busy(0.0)), 5 << 20, 10.0)
    assert sum(time < 1.0 for time in times) * PIECE <= 3 * FIRST_RATE
    assert len(times) == (5 << 20) // PIECE


async def test_a_queue_that_links_see_slows_it_down_to_what_its_time_asks_for() -> None:
    clock = VirtualClock()
    size = 30 << 20
    times = await leaves(clock, TransferPacing(clock, Allowance(), lambda: busy(0.2)), size, 2 * DUE_S)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps[50:]) == pytest.approx(PIECE / (size / DUE_S))
    assert times[-1] <= DUE_S


async def test_transfers_that_are_due_at_once_are_all_there_in_time() -> None:
    clock, size = VirtualClock(), 30 << 20
    pacing = TransferPacing(clock, Allowance(), lambda: busy(0.2))
    began, ends = clock.now(), list[float]()

    async def send() -> None:
        async for _ in pacing.pieces(SmallPayload(bytes(size))):
            pass
        ends.append(clock.now() - began)

    sending = [asyncio.create_task(send()) for _ in range(3)]
    await clock.advance(1.01 * DUE_S)
    assert len(ends) == 3
    await asyncio.gather(*sending)
    alone = await leaves(clock, pacing, size, 2.0)
    assert len(alone) == pytest.approx(2.0 * size / DUE_S / PIECE, abs=2), "they are over"


async def test_what_a_rounds_end_waits_for_does_not_give_way_and_the_others_wait_for_it() -> None:
    clock, size = VirtualClock(), 30 << 20
    pacing = TransferPacing(clock, Allowance(), lambda: busy(0.2))
    assert (await leaves(clock, pacing, size, 1.0, urgent=True))[-1] == 0.0
    pacing = TransferPacing(clock, Allowance(), dict)  # No link is busy, so nothing else would hold the opening back.
    state = pacing.pieces(SmallPayload(bytes(3 * PIECE)), urgent=True)
    await anext(state)
    assert len(await leaves(clock, pacing, size, 2.0)) == pytest.approx(2.0 * size / DUE_S / PIECE, abs=2)
    await state.aclose()
    assert len(await leaves(clock, pacing, size, 2.0)) == size // PIECE


async def test_an_urgent_transfer_keeps_the_owners_limit() -> None:
    clock = VirtualClock()
    times = await leaves(
        clock, TransferPacing(clock, Allowance(upload=1e6), lambda: busy(0.2)), 8_000_000, 20.0, urgent=True
    )
    assert times[-1] == pytest.approx(8.0, rel=0.02)


async def test_small_transfers_never_stand_still() -> None:
    clock = VirtualClock()
    times = await leaves(clock, TransferPacing(clock, Allowance(), lambda: busy(0.2)), 10 * PIECE, 60.0)
    assert len(times) == 10
    assert times[-1] <= 10 * PIECE / LEAST_RATE


@pytest.mark.parametrize("line", [1.25e6, 2.5e6, 12.5e6])
async def test_it_fills_a_line_beside_links_with_little_of_a_queue(line: float) -> None:
    """A link uses a fifth of the line; whatever is too much waits in the router."""
    clock, link_rate, queue = VirtualClock(), line / 5, [0.0]
    state = {"at": clock.now(), "gone": 0}
    seen: list[float] = []

    def links() -> dict[str, LinkStats]:
        passed = clock.now() - state["at"]
        arrived = link_rate * passed + (pacing._allowance.usage.used - state["gone"])
        queue[0] = max(0.0, queue[0] + arrived - line * passed)
        state.update(at=clock.now(), gone=pacing._allowance.usage.used)
        seen.append(queue[0] / line)
        return {"peer": LinkStats(min_rtt_s=BASE_S, queue_s=queue[0] / line, send_rate=link_rate)}

    pacing = TransferPacing(clock, Allowance(), links)
    times = await leaves(clock, pacing, int(line * 40), 50.0)
    later = sum(10 < time < 40 for time in times) * PIECE / 30
    assert later > 0.6 * (line - link_rate)
    settled = sorted(seen[100:400])
    assert settled[len(settled) // 2] < BASE_S / 2
    assert settled[int(0.99 * len(settled))] < 3 * BASE_S


async def test_the_owners_limit_holds() -> None:
    clock = VirtualClock()
    allowance = Allowance(upload=1e6)
    pacing = TransferPacing(clock, allowance, dict)
    times = await leaves(clock, pacing, 8_000_000, 20.0)
    assert times[-1] == pytest.approx(8.0, rel=0.02)
    assert allowance.usage.used == 8_000_000


async def test_under_a_low_limit_nobody_of_several_waits_for_long() -> None:
    """What waits for a minute counts as dead and begins anew."""
    clock = VirtualClock()
    pacing = TransferPacing(clock, Allowance(upload=500.0), dict)
    times: list[list[float]] = [[] for _ in range(4)]

    async def send(left: list[float]) -> None:
        async for _ in pacing.pieces(SmallPayload(bytes(25_000))):
            left.append(clock.now())  # noqa: PERF401 - As it happens.

    sending = [asyncio.create_task(send(left)) for left in times]
    await clock.advance(300.0)
    await asyncio.gather(*sending)
    assert max(later - sooner for left in times for sooner, later in itertools.pairwise(left)) <= 5.0


async def test_links_wait_for_what_had_to_leave_beyond_the_owners_limit() -> None:
    clock = VirtualClock()
    allowance = Allowance(upload=1e6)
    assert allowance.take_upload("link", 1500, clock.now()) == 0
    sent = len(await leaves(clock, TransferPacing(clock, allowance, dict), 120_000_000, 10.0)) * PIECE
    assert sent == pytest.approx(20e6, rel=0.01)
    assert allowance.take_upload("link", 1500, clock.now() + 9.0) > 0
    assert allowance.take_upload("link", 1500, clock.now() + 11.0) == 0


async def test_the_owners_limit_holds_for_what_comes() -> None:
    clock = VirtualClock()
    pacing = TransferPacing(clock, Allowance(download=1e6), dict)
    began = clock.now()
    ended: list[float] = []

    async def receive() -> None:
        for _ in range(20):
            await pacing.arrived(250_000)
        ended.append(clock.now() - began)

    receiving = asyncio.create_task(receive())
    await clock.advance(20.0)
    await receiving
    assert 4.0 <= ended[0] <= 8.0


async def in_ten_pieces(payload: SmallPayload, urgent: bool) -> AsyncIterator[bytes]:
    assert not urgent
    for begin in range(0, payload.size, payload.size // 10):
        await asyncio.sleep(0.12)
        yield payload.read(begin, begin + payload.size // 10)


async def test_an_upload_may_take_longer_than_a_stall_as_long_as_it_moves(
    coordinator: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "STALL_S", 0.5)
    coordinator.tokens.add("token")
    store = Artifacts(coordinator.url, tmp_path / "cache", SystemClock())
    store.authorise("token")
    monkeypatch.setattr(store._pacing, "pieces", in_ten_pieces)
    payload = bytes(range(250)) * 40
    digest = hashlib.sha256(payload).hexdigest()
    await store.upload(SmallPayload(payload), digest, "a" * 32, audit_answer("b" * 32))
    assert coordinator.artifacts[digest] == payload
    assert coordinator.uploads == [digest]
    assert len(coordinator.requests) == 1
    await store.aclose()


async def test_the_end_of_a_round_does_not_wait_for_an_opening(coordinator: Double, start_agent: StartAgent) -> None:
    coordinator.gate = asyncio.Event()
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.waiting > 0)
        await coordinator.command(node.address, assign, ApplyRound(0, 3, {}, checkpoint=False))
        await coordinator.until(lambda: coordinator.bodies(RoundApplied))
        assert not coordinator.bodies(StepOpened)
        coordinator.gate.set()
        await coordinator.until(lambda: coordinator.bodies(StepOpened))


async def test_what_an_audit_asks_for_is_named_before_it_is_sent(coordinator: Double, start_agent: StartAgent) -> None:
    coordinator.gate = asyncio.Event()
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "naming")
        await coordinator.assign(node.address, assign)
        for audit in ("ef" * 16, "fe" * 16):
            await coordinator.command(node.address, assign, OpenStep(audit, 0, 3, 1))
        await coordinator.until(lambda: len(coordinator.bodies(OpeningMade)) == 2)
        # Neither waits for the other: both are due at once.
        await coordinator.until(lambda: coordinator.waiting == 2)
        assert not coordinator.bodies(StepOpened)
        coordinator.gate.set()
        await coordinator.until(lambda: len(coordinator.bodies(StepOpened)) == 2)
        made = {report.audit: report.opening for report in coordinator.bodies(OpeningMade)}
        assert made == {report.audit: report.opening for report in coordinator.bodies(StepOpened)}
        assert set(made.values()) <= set(coordinator.artifacts)


async def test_what_nobody_waits_for_any_more_costs_nobody_the_job(
    coordinator: Double, start_agent: StartAgent
) -> None:
    over, open_ = "ef" * 16, "fe" * 16
    coordinator.unwanted |= {audit_answer(over), state_answer(0, 3)}
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        await coordinator.command(node.address, assign, OpenStep(over, 0, 3, 1))
        await coordinator.command(node.address, assign, ApplyRound(0, 3, {}, checkpoint=True))
        await coordinator.until(lambda: coordinator.bodies(RoundApplied))
        assert coordinator.bodies(RoundApplied)[0].checkpoint is None, "what was not taken is not named"
        await coordinator.command(node.address, assign, OpenStep(open_, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert [report.audit for report in coordinator.bodies(StepOpened)] == [open_], (
            "nobody asked for the other any more"
        )
        assert {lease for lease, _ in coordinator.answered} == {assign.lease}
        assert not coordinator.bodies(TaskFailed)


async def test_an_opening_that_cannot_be_had_costs_the_auditor_nothing_but_its_word(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        plan = plan_of((0, 0, node.address))
        assign = assignment(coordinator, plan, 0, 0, "checkpoint")
        await coordinator.assign(node.address, assign)
        replay = ReplayStep("ef" * 16, plan, 0, 0, 3, 0, 0, 8, "0" * 64, 2, "0" * 64, None, opening="1" * 64)
        await coordinator.command(node.address, assign, replay)
        await coordinator.command(node.address, assign, OpenStep("fe" * 16, 0, 3, 1))
        await coordinator.until(lambda: coordinator.bodies(StepOpened))
        assert ("GET", "1" * 64, "") in coordinator.requests
        assert not coordinator.bodies(TaskFailed)
        assert not coordinator.bodies(AuditReport)
