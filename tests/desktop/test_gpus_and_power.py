"""Which card is lent, and the owner's power cap: held by the driver, or by pauses where the driver refuses."""

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desktop.agent.app import settings, status
from desktop.agent.app.selftest import SelfTestMeans, Speed, Steps
from desktop.agent.app.startup import chosen
from desktop.agent.base import gpu
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import detect
from desktop.agent.cli import cli
from desktop.agent.hardware import power
from desktop.agent.hardware.power import LEAST_SHARE, PowerCap, next_share
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox
from desktop.agent.sandbox.restrictions import container_options
from desktop.agent.sensors.nvml import NvmlGpu
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.desktop.lending.test_keeper import Sensed, is_frozen
from tests.desktop.nvml_double import Card, Driver
from tests.support.wait import HANGS_S

FIRST, SECOND = "GPU-5d1c0e2a-1111-2222-3333-444455556666", "GPU-9f00aa12-1111-2222-3333-444455556666"


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(Card(FIRST), Card(SECOND, "NVIDIA GeForce RTX 3060", 12288))
    driver.install(monkeypatch)
    return driver


# --- which card -------------------------------------------------------------------------------------------------------


def test_a_card_that_was_chosen_by_its_number_stays_chosen_when_the_numbers_change(
    cards: Driver, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ["settings", "--home", str(tmp_path)]
    assert cli.main([*words, "--gpu", "1"]) == 0
    kept = Home.at(tmp_path).settings()
    assert kept.gpu == SECOND
    cards.cards.reverse()
    assert chosen(kept.gpu).name == "NVIDIA GeForce RTX 3060"
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "NVIDIA GeForce RTX 3060" in told
    assert "not lent" in told
    assert cli.main([*words, "--gpu", FIRST]) == 0
    assert Home.at(tmp_path).settings().gpu == FIRST
    assert cli.main([*words, "--gpu", "-1"]) == 0
    assert chosen(Home.at(tmp_path).settings().gpu).gpu == ""


def test_settings_of_before_which_have_a_number_still_mean_that_card(cards: Driver, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"gpu": 1}')
    assert chosen(Home.at(tmp_path).settings().gpu).gpu == SECOND
    assert chosen(Settings().gpu).gpu == FIRST


async def test_a_chosen_card_that_is_gone_is_named_and_no_other_is_lent_in_its_place(
    cards: Driver, tmp_path: Path
) -> None:
    del cards.cards[1]
    device = chosen(SECOND)
    assert (device.kind, device.gpu) == ("cpu", "")
    assert SECOND in device.note
    assert "cottage node settings --gpu" in device.note

    async def unmeasured(_: Any) -> Speed:
        return Speed(0.0)

    steps = Steps(Home.at(tmp_path), Settings(gpu=SECOND), SelfTestMeans(lambda: chosen(SECOND), unmeasured, None))  # type: ignore[arg-type]
    async for found in steps.results(0.0):
        first = found.checks[0]
    assert (first.name, first.state, first.code) == ("gpu", "warning", "gone")
    assert not detect(1).gpu


def test_what_is_no_card_is_refused_before_it_is_kept(cards: Driver, tmp_path: Path) -> None:
    for wrong in ("GPU-nonsense", "-9"):
        assert cli.main(["settings", "--home", str(tmp_path), "--gpu", wrong]) == 2
    assert Home.at(tmp_path).settings().gpu == 0


def test_the_owners_other_card_neither_stops_lending_nor_counts_as_used(cards: Driver) -> None:
    cards.cards[0].celsius, cards.cards[0].used_mb = 99, 20_000  # A game runs on it.
    lent = NvmlGpu(SECOND)
    assert (lent.celsius(), lent.own_vram(())) == (50.0, 1000 << 20)
    cards.cards[1].processes = [SimpleNamespace(pid=10**7, usedGpuMemory=400 << 20)]
    assert lent.own_vram([10**7]) == 600 << 20
    processor = NvmlGpu("")
    assert (processor.celsius(), processor.own_vram(())) == (None, None)


async def test_a_job_sees_the_lent_card_alone(cards: Driver, tmp_path: Path) -> None:
    [request] = container_options(SandboxLimits(1024, 1), None, {}, SECOND)["device_requests"]
    assert (request["DeviceIDs"], request["Capabilities"]) == ([SECOND], [["gpu"]])
    script = tmp_path / "see.py"
    script.write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    sandbox = ProcessSandbox(SandboxLimits(1024, 1), command=("/usr/bin/env", "python3"), gpu=SECOND)
    assert (await sandbox.measure((str(script),), 20)).strip() == SECOND.encode()


# --- the power cap ----------------------------------------------------------------------------------------------------


class Ahead:
    """A clock on which nobody waits."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    time = now

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)

    def timeout(self, seconds: float | None) -> contextlib.AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)


class Job:
    """Makes its card draw ``full`` watts while it computes, ``idle`` while it is held."""

    def __init__(self, card: Card, idle: float, full: float) -> None:
        self.card, self.idle, self.full = card, idle, full
        self.card.watts, self.held = full, 0

    async def rest(self, resting: bool) -> None:
        self.held += resting
        self.card.watts = self.idle if resting else self.full


async def watch(job: Job, cap: PowerCap, clock: Ahead, periods: int) -> tuple[float, float]:
    """Watts on average, over the second half of the periods; the share of the last one."""
    drawn: list[float] = []
    real = power.draw

    def noted(gpu: str) -> float:
        drawn.append(real(gpu))
        return drawn[-1]

    power.draw = noted
    running = asyncio.create_task(cap.run())
    try:
        while clock.at < periods * power.PERIOD_S and not running.done():
            if clock.at < periods * power.PERIOD_S / 2:
                drawn.clear()
            await asyncio.sleep(0)
    finally:
        power.draw = real
        running.cancel()
        await asyncio.wait((running,))
    return sum(drawn) / len(drawn), cap._share


async def test_where_the_driver_refuses_pauses_keep_the_average_below_the_cap(cards: Driver) -> None:
    clock = Ahead()
    job = Job(cards.cards[0], idle=30.0, full=400.0)
    cap = PowerCap(FIRST, lambda: [job], clock)
    assert cap.hold(250)
    assert (cap.held, cap.why) == ("pauses", "the driver lets only an administrator set it")
    mean, share = await watch(job, cap, clock, 200)
    assert 0.85 * 250 < mean < 1.05 * 250  # Samples at the ends of pauses are shorter than others.
    assert share == pytest.approx((250 - 30) / (400 - 30), abs=0.02)
    assert job.card.watts == job.full, "it goes on when the cap ends"
    cap.hold(0)
    assert cap.held == ""


async def test_a_cap_above_what_the_card_draws_never_holds_a_job(cards: Driver) -> None:
    clock = Ahead()
    job = Job(cards.cards[0], idle=30.0, full=200.0)
    cap = PowerCap(FIRST, lambda: [job], clock)
    cap.hold(250)
    _, share = await watch(job, cap, clock, 30)
    assert (share, job.held) == (1.0, 0)


async def test_the_drivers_cap_is_set_while_jobs_compute_and_what_was_before_comes_back(cards: Driver) -> None:
    card = cards.cards[0]
    card.administrator, card.limit = True, 400_000
    cap = PowerCap(FIRST, list, Ahead())
    assert cap.hold(250)
    assert (cap.held, card.limit) == ("driver", 250_000)
    assert not cap.hold(250)
    cap.hold(300)
    assert card.limit == 300_000
    cap.hold(0)
    assert (cap.held, card.limit) == ("", 400_000)
    cap.hold(100)  # Less than the driver takes.
    assert (cap.held, card.limit) == ("pauses", 400_000)
    assert "between 150 and 600 watts" in cap.why


async def test_a_cap_that_nothing_can_hold_says_so(cards: Driver) -> None:
    cards.mute = True
    job = Job(cards.cards[0], 30.0, 400.0)
    cap = PowerCap(FIRST, lambda: [job], Ahead())
    cap.hold(250)
    running = asyncio.create_task(cap.run())
    async with asyncio.timeout(HANGS_S):
        while cap.held != "not":
            await asyncio.sleep(0.001)
    running.cancel()
    assert "does not tell what the GPU draws" in cap.why


@given(idle=st.floats(5, 80), extra=st.floats(50, 500), cap=st.floats(90, 600))
def test_the_share_comes_to_rest_where_the_average_is_the_cap_or_nothing_is_held(
    idle: float, extra: float, cap: float
) -> None:
    share = 1.0
    for _ in range(400):
        share = next_share(share, idle + share * extra, cap)
        assert LEAST_SHARE <= share <= 1.0
    wanted = min(1.0, max(LEAST_SHARE, (cap - idle) / extra))
    assert share == pytest.approx(wanted, abs=0.02)


async def test_a_worker_is_held_for_moments_under_a_cap_and_its_owner_reads_why(
    cards: Driver, coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "PERIOD_S", 0.2)
    cards.cards[0].watts = 400.0
    sensed = Sensed()
    async with start_agent(readings=sensed, device=detect()) as node:
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "hanging")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: node.pids())
        [pid] = node.pids()
        change = settings.SettingsChange(watts=250)
        await status.ask_for(node.home.socket, "settings", settings.SettingsView, change)
        await coordinator.until(lambda: is_frozen(pid))
        await coordinator.until(lambda: not is_frozen(pid))
        view = await status.ask_for(node.home.socket, "settings", settings.SettingsView)
        assert (view.effect, view.cap, view.settings.watts) == ("now", "pauses", 250)
        assert "administrator" in view.cap_why
        assert (await status.ask(node.home.socket)).gpu == FIRST
        sensed.set(fullscreen="Doom")
        await coordinator.until(lambda: not node.agent.cap.held)
        await coordinator.until(lambda: is_frozen(pid))  # For the game, and no pause of the cap lets it go on.
        await asyncio.sleep(5 * power.PERIOD_S)
        assert is_frozen(pid)


@pytest.mark.parametrize(
    ("vendors", "maker"),
    [((), ""), (("0x1002", "0x8086"), "AMD"), (("0x8086",), "Intel"), (("0x10de", "0x8086"), ""), (("0x1af4",), "")],
)
def test_a_card_of_another_maker_is_named_as_not_supported_yet(
    tmp_path: Path, vendors: tuple[str, ...], maker: str
) -> None:
    for number, vendor in enumerate(vendors):
        folder = tmp_path / f"card{number}" / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
    assert gpu._other_maker(tmp_path) == maker
