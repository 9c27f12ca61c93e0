"""An agent that keeps to its owner's rules: a real agent and worker, with sensors that the test moves."""

import asyncio
import math
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from common.clock import SystemClock
from desktop.agent.app import status
from desktop.agent.errors import SettingsError
from desktop.agent.jobs.line_limits import LimitsChange
from desktop.agent.lending.facts import Facts
from desktop.agent.lending.keeper import DECIDE_S, LendingChange, LendingKeeper, RulesChange, load
from desktop.agent.lending.policy import HOLD_S, LINGER_S, Cause, Decision, State
from protocol.codec import encode_json
from tests.desktop.app.test_agent_as_a_process import words_of
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.clock import VirtualClock
from transport.sctp.allowance import Usage, month_of


class Later(SystemClock):
    """The time of day can be moved on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Sensed:
    """Readings that the test sets."""

    def __init__(self) -> None:
        self.facts = Facts(0.0, idle_s=math.inf, on_battery=False, fullscreen="")
        self.jobs: frozenset[int] = frozenset()

    def set(self, **changes: object) -> None:
        self.facts = msgspec.structs.replace(self.facts, **changes)

    def read(self, at: float, busy: bool, jobs: Iterable[int] = ()) -> Facts:
        self.jobs = frozenset(jobs)
        return msgspec.structs.replace(self.facts, at=at, busy=busy)


def is_frozen(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


async def test_a_game_freezes_the_work_and_its_end_lets_it_go_on(coordinator: Double, start_agent: StartAgent) -> None:
    sensed, clock = Sensed(), Later()
    async with start_agent(readings=sensed, clock=clock) as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "hanging")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: node.pids())
        [pid] = node.pids()
        await coordinator.until(lambda: sensed.jobs == {pid})
        sensed.set(fullscreen="Doom")
        await coordinator.until(lambda: is_frozen(pid))
        view = await status.ask(node.home.socket)
        assert (view.state, view.lending_state) == ("online", State.PAUSED)
        assert view.lending == "Paused: Doom is running. The job waits a moment, nothing is lost."
        sensed.set(fullscreen="")
        clock.ahead += LINGER_S[Cause.GAME]
        await coordinator.until(lambda: not is_frozen(pid))
        assert not coordinator.goodbyes
        assert node.pids() == [pid]


async def test_a_long_game_hands_the_work_over_and_the_node_comes_back_after_it(
    coordinator: Double, start_agent: StartAgent
) -> None:
    sensed, clock = Sensed(), Later()
    async with start_agent(readings=sensed, clock=clock) as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "hanging")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: node.pids())
        [pid] = node.pids()
        sensed.set(fullscreen="Doom")
        await coordinator.until(lambda: is_frozen(pid))
        clock.ahead += HOLD_S
        await coordinator.until(lambda: coordinator.goodbyes)
        assert coordinator.goodbyes == ["Paused: Doom is running."]
        await coordinator.until(lambda: not Path(f"/proc/{pid}").exists())
        await coordinator.until(
            lambda: (node.agent.status().state, node.agent.status().reason) == ("away", "Paused: Doom is running.")
        )
        await coordinator.until(lambda: not coordinator.nodes)
        sensed.set(fullscreen="")
        clock.ahead += LINGER_S[Cause.GAME]
        await coordinator.until(lambda: node.address in coordinator.nodes)
        assert coordinator.hellos[-1].leases == ()


async def test_who_sits_at_the_computer_when_the_agent_starts_is_not_disturbed(
    coordinator: Double, start_agent: StartAgent
) -> None:
    sensed = Sensed()
    sensed.set(idle_s=1.0)
    async with start_agent(readings=sensed) as node:
        assert node.agent.status().state == "away"
        assert coordinator.hellos == []
        sensed.set(idle_s=301.0)
        await coordinator.until(lambda: node.address in coordinator.nodes)


async def test_who_is_there_may_have_it_lend_now(coordinator: Double, start_agent: StartAgent) -> None:
    sensed = Sensed()
    sensed.set(idle_s=1.0)
    async with start_agent(readings=sensed) as node:
        assert coordinator.hellos == []
        await status.ask_lending(node.home.socket, LendingChange(here_s=3600))
        await coordinator.until(lambda: node.address in coordinator.nodes)


async def test_a_pause_is_asked_for_kept_over_a_restart_and_ended(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        view = await status.ask_lending(node.home.socket, LendingChange(pause_s=3600))
        assert view.wish.paused_until > 0
        await coordinator.until(lambda: coordinator.goodbyes)
    assert load(node.home.lending).paused_until == view.wish.paused_until
    coordinator.goodbyes.clear()
    (node.home.path / "jobs").rmdir()
    async with start_agent() as again:
        assert again.agent.status().lending.startswith("Paused until ")
        await status.ask_lending(again.home.socket, LendingChange(pause_s=0))
        await coordinator.until(lambda: again.address in coordinator.nodes)


async def test_finishing_takes_no_new_work_and_then_ends_the_agent(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "hanging")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: node.pids())
        await status.ask_lending(node.home.socket, LendingChange(finish=True))
        await coordinator.until(lambda: node.agent.status().lending_state is State.FINISHING)
        await coordinator.until(lambda: coordinator.beats and not coordinator.beats[-1][1].accepting)
        another = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "hanging")
        await coordinator.assign(node.address, another)
        await status.ask(node.home.socket)  # Whatever came before is dealt with.
        assert [task.lease for task in node.agent.status().tasks] == [assign.lease]
        assert not node.task.done()
        os.kill(node.pids()[0], signal.SIGKILL)
        await asyncio.wait_for(node.task, 30)


async def test_a_node_whose_month_is_used_up_leaves_and_comes_back_with_a_larger_cap(
    coordinator: Double, start_agent: StartAgent, tmp_path: Path
) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "usage.json").write_bytes(encode_json(Usage(month_of(time.time()), 2000)))
    async with start_agent() as node:
        await status.ask_limits(node.home.socket, LimitsChange(month="1k"))
        await coordinator.until(lambda: coordinator.goodbyes)
        assert "this month's data is used up" in coordinator.goodbyes[0]
        await status.ask_limits(node.home.socket, LimitsChange(month="1M"))
        await coordinator.until(lambda: len(coordinator.hellos) == 2)


async def test_rules_out_of_their_bounds_change_nothing(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        view = await status.ask_lending(node.home.socket, LendingChange(rules=RulesChange(max_celsius=70)))
        assert view.rules.max_celsius == 70
        before = node.home.lending.read_bytes()
        with pytest.raises(SettingsError, match="max_celsius"):
            await status.ask_lending(node.home.socket, LendingChange(rules=RulesChange(max_celsius=200)))
        assert node.home.lending.read_bytes() == before


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "lending.json").write_text("{")
    with pytest.raises(SettingsError, match="Correct it or delete it"):
        LendingKeeper(tmp_path / "lending.json", None, SystemClock())


class Follower:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[State] = []

    def workers(self) -> tuple[bool, tuple[int, ...]]:
        return True, ()

    def cap_used(self) -> bool:
        return False

    async def follow(self, decision: Decision, sentence: str) -> None:
        self.told.append(decision.state)


async def test_each_new_state_is_told_once(tmp_path: Path) -> None:
    sensed, clock, follower = Sensed(), Later(), Follower()
    keeper = LendingKeeper(tmp_path / "lending.json", sensed, clock)
    for change in ({}, {"on_battery": True}, {"fullscreen": "Doom"}, {"fullscreen": "", "on_battery": False}):
        sensed.set(**change)
        await keeper.look(follower)
        await keeper.look(follower)
    clock.ahead += 1000
    await keeper.look(follower)
    assert follower.told == [State.PAUSED, State.LENDING]


async def test_who_pauses_and_resumes_reads_the_state_after_it(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent(readings=Sensed()) as node:
        home = ("--home", str(node.home.path))
        code, text = await words_of("pause", "1h", *home)
        assert code == 0
        assert re.fullmatch(r"Paused until .+: you asked for a pause\.\n", text)
        assert await words_of("resume", *home) == (0, "Ready to lend.\n")


async def test_a_change_is_answered_though_nobody_looks(tmp_path: Path) -> None:
    clock = VirtualClock()
    keeper = LendingKeeper(tmp_path / "lending.json", Sensed(), clock)
    asked = asyncio.create_task(keeper.change_and_look(LendingChange(pause_s=60.0)))
    await clock.advance(DECIDE_S)
    assert (await asked).wish.paused_until > 0
