"""A node doubts a neighbour now and then, and puts a bond against what its own re-run has found: within its owner's limit."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from aiohttp import web

from desktop.agent.earnings import wallet
from desktop.agent.jobs.peer_audits import DOUBTED, MAX_ASKED, Accusation, PeerAudits
from desktop.agent.jobs.routing import Plans
from ledger.addresses import audit_bytes
from ledger.client import Ledger, LedgerConfig
from ledger.local.genesis import BOND, open_chain
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from ledger.local.store import LocalStore
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.node import LedgerInfo
from protocol.task import ApplyRound, AuditReport, BeginRound, ReplayStep, RoundApplied, StepChallenge
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double

JUDGE, NEIGHBOUR, ME = (NodeKey(bytes([number]) * 32) for number in (1, 2, 3))
PLAN = plan_of((0, 0, ME.address), (1, 0, NEIGHBOUR.address), (2, 0, JUDGE.address), (2, 1, JUDGE.address))
BEGIN = {"round": 3, "first_step": 30, "steps": 10, "total_steps": 100}
DIGEST, AUDIT = "ab" * 32, "ef" * 16


def replay(opening: str = DIGEST, audit: str = AUDIT, stage: int = 1, step: int = 0) -> ReplayStep:
    return ReplayStep(audit, PLAN, stage, 0, 3, 30, step, 100, DIGEST, 10, DIGEST, None, opening)


def doubts(chance: Callable[[int], int] = lambda _: 0, seat: tuple[int, int] = (0, 0)) -> PeerAudits:
    made = PeerAudits(Plans(PLAN), seat, chance)
    made.told(BeginRound(PLAN, **BEGIN))
    return made


def test_one_round_in_so_many_is_doubted_and_only_what_a_neighbour_did() -> None:
    drawn = [doubts(lambda most, lot=lot: lot % most).wonder(RoundApplied(0, 3, DIGEST)) for lot in range(DOUBTED)]
    assert [asked is not None for asked in drawn] == [True] + [False] * (DOUBTED - 1)
    assert drawn[0] == StepChallenge(3, 1, 0, 0), "stage 2 is no neighbour of stage 0"
    seats = {(2, 0): {(1, 0), (2, 1)}, (1, 0): {(0, 0), (2, 0)}}
    for seat, near in seats.items():
        lots = iter([0, len(near) - 1, 9] * 2)
        asked = doubts(lambda _, lots=lots: next(lots), seat).wonder(RoundApplied(0, 3, DIGEST))
        assert asked is not None
        assert (asked.stage, asked.replica) in near
        assert asked.step == 9


def test_a_round_is_doubted_once_and_one_that_was_never_begun_never() -> None:
    made = doubts()
    assert made.wonder(RoundApplied(0, 4, DIGEST)) is None
    assert made.wonder(RoundApplied(0, 3, DIGEST)) is not None
    assert made.wonder(RoundApplied(0, 3, DIGEST)) is None


def test_nobody_is_accused_of_what_was_not_asked_about_or_was_found_right() -> None:
    made = doubts()
    made.told(replay())
    assert made.accuse(AuditReport(AUDIT, "mismatch")) is None, "that audit was drawn by somebody else"
    made.wonder(RoundApplied(0, 3, DIGEST))
    made.told(replay())
    made.told(replay(audit="ee" * 16, step=5))
    assert made.accuse(AuditReport("ee" * 16, "mismatch")) is None, "another step than the one that was asked about"
    assert made.accuse(AuditReport(AUDIT, "mismatch")) == Accusation(AUDIT, NEIGHBOUR.address)
    assert made.accuse(AuditReport(AUDIT, "mismatch")) is None, "once"
    for verdict in ("match", "incomparable"):
        made.told(replay())
        assert made.accuse(AuditReport(AUDIT, verdict)) is None  # type: ignore[arg-type]


def test_what_is_remembered_is_bounded() -> None:
    made = doubts()
    for number in range(10 * MAX_ASKED):
        made.told(msgspec.structs.replace(BeginRound(PLAN, **BEGIN), round=number))
        made.told(msgspec.structs.replace(BeginRound(PLAN, **BEGIN), round=number + 10**6))
        made.wonder(RoundApplied(0, number, DIGEST))
    assert len(made._rounds) <= MAX_ASKED
    assert len(made._asked) <= MAX_ASKED


@contextlib.asynccontextmanager
async def market() -> AsyncIterator[tuple[Ledger, LedgerInfo]]:
    """A ledger on which the neighbour has a stake that the judge may slash."""
    chain, genesis = open_chain(LocalStore(":memory:"), time.time)
    runner = web.AppRunner(build_app(Rpc(chain, genesis), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            for key in (JUDGE, NEIGHBOUR):
                await ledger.faucet(key.address, Amount(10**9))
            await ledger.open_stake(NEIGHBOUR.seed, Amount(10**6), JUDGE.address)
            yield ledger, LedgerInfo(url, ledger.program, ledger.mint, JUDGE.address)
    finally:
        await runner.cleanup()


async def test_no_more_stands_at_a_time_than_the_owner_allows() -> None:
    async with market() as (ledger, info):
        await ledger.faucet(ME.address, Amount(10 * BOND))
        assert await wallet.accuse(info, ME, NEIGHBOUR.address, "01" * 16, BOND - 1) == 0
        assert await wallet.accuse(info, ME, NEIGHBOUR.address, "01" * 16, 2 * BOND - 1) == BOND
        assert await wallet.accuse(info, ME, NEIGHBOUR.address, "02" * 16, 2 * BOND - 1) == 0, "one stands already"
        assert await ledger.balance(ME.address) == 9 * BOND
        verdict = await ledger.prepare_verdict(
            JUDGE.seed, ME.address, audit_bytes("01" * 16), b"e" * 32, upheld=True, slash=Amount(0)
        )
        await ledger.confirm(verdict)
        assert await wallet.accuse(info, ME, NEIGHBOUR.address, "02" * 16, 2 * BOND - 1) == BOND, "it is decided"


async def test_a_bond_that_cannot_be_paid_or_is_against_nobody_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with market() as (ledger, info):
        await ledger.faucet(ME.address, Amount(BOND - 1))
        assert await wallet.accuse(info, ME, NEIGHBOUR.address, AUDIT, 10**9) == 0
        assert "the bond is" in caplog.text
        assert await wallet.accuse(info, ME, ME.address, AUDIT, 10**9) == 0
        assert "has no stake" in caplog.text


async def test_an_agent_asks_about_its_neighbour_and_bonds_what_its_worker_finds(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("desktop.agent.jobs.tasks.secrets.randbelow", lambda _: 0)
    async with market() as (ledger, info):
        coordinator.ledger = info
        async with start_agent(bond=BOND) as node:
            await ledger.faucet(node.address, Amount(BOND))
            plan = plan_of((0, 0, node.address), (1, 0, NEIGHBOUR.address))
            assign = assignment(coordinator, plan, 0, 0, "doubting")
            await coordinator.assign(node.address, assign)
            await coordinator.command(node.address, assign, BeginRound(plan, **BEGIN))
            await coordinator.command(node.address, assign, ApplyRound(0, 3, {0: DIGEST}, checkpoint=False))
            await coordinator.until(lambda: coordinator.bodies(StepChallenge))
            assert coordinator.bodies(StepChallenge) == [StepChallenge(3, 1, 0, 0)]
            asked = msgspec.structs.replace(replay(coordinator.store(b"an opening")), plan=plan)
            await coordinator.command(node.address, assign, asked)
            await coordinator.until(lambda: coordinator.bodies(AuditReport))
            for _ in range(200):
                state = await ledger.dispute(node.address, audit_bytes(AUDIT))
                if state is not None:
                    break
            assert state is not None
            assert (state.node, state.bond) == (NEIGHBOUR.address, BOND)
            assert await ledger.balance(node.address) == 0


async def test_an_agent_without_a_limit_asks_about_nobody(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        plan = plan_of((0, 0, node.address), (1, 0, NEIGHBOUR.address))
        assign = assignment(coordinator, plan, 0, 0, "doubting")
        await coordinator.assign(node.address, assign)
        for number in range(4):
            begun = msgspec.structs.replace(BeginRound(plan, **BEGIN), round=number)
            await coordinator.command(node.address, assign, begun)
            await coordinator.command(node.address, assign, ApplyRound(0, number, {0: DIGEST}, checkpoint=False))
        await coordinator.until(lambda: len(coordinator.bodies(RoundApplied)) == 4)
        assert coordinator.bodies(StepChallenge) == []
