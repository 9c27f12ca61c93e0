"""What an owner sees and changes: settings, earnings, activity, the self-test, support, withdrawing; on the agent's socket."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.token_worth import TokenWorth
from desktop.agent.app import agent as agent_module
from desktop.agent.app import settings, status, support
from desktop.agent.app.agent import MAX_FAILURES
from desktop.agent.app.selftest import NAMES, NOT_TESTED, SelfTestMeans, SelfTestResult, Speed, Steps
from desktop.agent.app.service import Service
from desktop.agent.base import activity
from desktop.agent.base.activity import Activity
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import Device, processor
from desktop.agent.cli import cli
from desktop.agent.earnings.earnings import DAYS, EarningsFile
from desktop.agent.earnings.earnings_estimate import MAX_BUSY, MarketPrices, NetworkPrices, predict
from desktop.agent.errors import NoAgentError, NoEngineError, NoImageError, SandboxError, SettingsError
from desktop.agent.hardware.benchmark import Benchmark
from desktop.agent.jobs.tasks import HeldTask
from desktop.agent.lending.keeper import LendingChange
from desktop.answers import ActivityEvents, BackupDone, EarningsSummary, KeyWords, WalletWithdrawal
from protocol.identity import NodeKey
from protocol.node import JobEarned, Refused
from tests.desktop.conftest import JOB, StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.protocol.test_wallets import SECRETS
from tests.support.wait import HANGS_S
from transport.nettest.errors import NettestError
from transport.nettest.result import NetTest, RelayResult

CARD = Device("cuda", "RTX 4090", 24_000, "Driver 565.77.")
LINE = NetTest(0.0, 6.0, "port cone", True, relays=(RelayResult("turn:a:1", 0.02, 0.0, True, True),), up=5e6, down=3e7)


@pytest.fixture
def home(tmp_path: Path, coordinator: Double, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Home.at(tmp_path / "home")
    made.remember(
        Settings(coordinator=coordinator.url, name="attic", sandbox="process", threads=1, memory_mb=1024, always=True)
    )
    return made


@contextlib.asynccontextmanager
async def serving(home: Home, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """The program with the scripted worker, which stays when lending is off."""
    from desktop.agent.app import startup
    from tests.desktop.agent_program import scripted

    monkeypatch.setattr(startup, "make_sandbox", scripted)
    service = Service(home, stays=True)
    with home.locked():
        running = asyncio.create_task(service.run())
        try:
            async with asyncio.timeout(HANGS_S):
                while not home.socket.exists():
                    await asyncio.sleep(0.01)
            yield service
        finally:
            service.stop()
            async with asyncio.timeout(HANGS_S):
                await running


async def answers(home: Home) -> bool:
    try:
        await status.ask(home.socket)
    except NoAgentError:
        return False
    return True


async def until_online(home: Home, coordinator: Double) -> str:
    address = home.key().address
    await coordinator.until(lambda: address in coordinator.nodes)
    return address


# --- the switch and settings ------------------------------------------------------------------------------------------


async def test_the_switch_is_kept_and_the_desk_answers_while_it_is_off(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home, monkeypatch) as service:
        told = await status.ask(home.socket)
        assert (told.on, told.state, told.name) == (False, "off", "attic")
        await status.ask_lending(home.socket, LendingChange(on=True))
        address = await until_online(home, coordinator)
        assert home.switch.read_text() == "on\n"
        await status.ask_lending(home.socket, LendingChange(on=False))
        await coordinator.until(lambda: address not in coordinator.nodes and service.desk.agent is None)
        assert (await status.ask(home.socket)).state == "off"
        kinds = [event.kind for event in (await status.ask_for(home.socket, "activity", ActivityEvents)).events]
    assert "started" in kinds
    assert home.switch.read_text() == "off\n"


async def test_it_leaves_when_its_owner_asks_by_a_word_and_answers_before(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home, monkeypatch):
        await status.ask_lending(home.socket, LendingChange(on=True))
        address = await until_online(home, coordinator)
        assert (await status.ask_leave(home.socket)).node == address
        await coordinator.until(lambda: address not in coordinator.nodes)
        while await answers(home):
            await asyncio.sleep(0.01)
    assert home.switch.read_text() == "on\n"  # It lends again at its next start.


async def test_a_name_and_a_wallet_are_told_to_the_coordinator_and_jobs_go_on(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home, monkeypatch):
        await status.ask_lending(home.socket, LendingChange(on=True))
        address = await until_online(home, coordinator)
        await coordinator.assign(address, assignment(coordinator, plan_of((0, 0, address)), 0, 0, "checkpoint"))
        async with asyncio.timeout(HANGS_S):
            while not [task for task in (await status.ask(home.socket)).tasks if task.state == "running"]:
                await asyncio.sleep(0.02)
        [before] = (await status.ask(home.socket)).tasks
        other = NodeKey(b"\1" * 32).address
        change = settings.SettingsChange(name="cellar", payout=other, floor="0.002")
        view = await status.ask_for(home.socket, "settings", settings.SettingsView, change)
        assert (view.effect, view.settings.floor) == ("rejoin", 2000)
        await coordinator.until(lambda: len(coordinator.hellos) == 2)
        hello = coordinator.hellos[-1]
        assert (hello.profile.name, hello.payout, hello.profile.floor) == ("cellar", other, 2000)
        assert [lease.lease for lease in hello.leases] == [before.lease]
        [after] = (await status.ask(home.socket)).tasks
        assert (after.pid, after.state) == (before.pid, "running")


async def test_what_needs_a_new_start_is_handed_over_and_comes_back_with_it(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home, monkeypatch):
        await status.ask_lending(home.socket, LendingChange(on=True))
        await until_online(home, coordinator)
        change = settings.SettingsChange(memory_mb=2048)
        view = await status.ask_for(home.socket, "settings", settings.SettingsView, change)
        assert view.effect == "restart"
        await coordinator.until(lambda: len(coordinator.hellos) == 2)
        assert coordinator.goodbyes == ["the owner stopped the agent"]
        assert coordinator.hellos[-1].profile.memory_mb == 2048
        assert (await status.ask(home.socket)).on


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"payout": "not a wallet"}, "is not a wallet address"),
        ({"coordinator": "ftp://x"}, "no address of a server"),
        ({"floor": "-1"}, "is no amount"),
        ({"electricity": "cheap"}, "is no amount"),
        ({"worth": "much"}, "is no amount"),
        ({"currency": "€"}, "'€' is no currency: write its three letters"),
        ({"threads": 5000}, "cannot be used"),
        ({"threads": 1000}, "more than this computer has"),
        ({"memory_mb": 10**8}, "more than this computer has"),
        ({"gpu": -2}, "cannot be used"),
        ({"disk_gb": 0}, "cannot be used"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_and_nothing_changes(change: dict[str, Any], words: str) -> None:
    address = NodeKey(b"\1" * 32).address
    with pytest.raises(SettingsError, match=words):
        settings.SettingsChange(**change).apply(Settings(), address)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_the_place_of_the_payee_is_kept_nowhere(
    kind: str, home: Home, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(["settings", "--home", str(home.path), "--payout", SECRETS[kind]]) != 0
    captured = capsys.readouterr()
    told = captured.out + captured.err + caplog.text
    assert "is not a wallet address" in told
    kept = "".join(
        file.read_text() for file in home.path.rglob("*") if file.is_file() and file.suffix in (".json", ".log")
    )
    assert not any(part in told + kept for part in SECRETS[kind].split() if len(part) > 8)


def test_a_payee_is_kept_as_its_address_alone(home: Home) -> None:
    payee = NodeKey(b"\2" * 32).address
    assert cli.main(["settings", "--home", str(home.path), "--payout", f" solana:{payee}?label=me\n"]) == 0
    assert home.settings().payout == payee
    by_hand = Settings("http://127.0.0.1:9", payout=f" {payee}")
    assert by_hand.completed(NodeKey(b"\1" * 32).address).payout == payee
    assert settings.SettingsChange(payout=f"{payee}\n").apply(Settings(), payee).payout == payee
    assert settings.SettingsChange(payout=" ").apply(by_hand, payee).payout == ""


def test_settings_are_changed_without_an_agent_and_shown_in_the_same_words(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["settings", "--home", str(home.path)]
    assert cli.main([*words, "--electricity", "0.3", "--disk-gb", "40"]) == 0
    shown = capsys.readouterr().out
    assert "0.3 tokens a kWh" in shown
    assert "in force from its next start" in shown
    assert cli.main([*words, "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["settings"]
    assert (kept["electricity"], kept["disk_gb"]) == (300_000, 40)
    assert cli.main([*words, "--currency", "eur", "--worth", "0.92"]) == 0
    shown = capsys.readouterr().out
    assert "0.3 EUR a kWh" in shown
    assert "0.92 EUR a token" in shown
    assert cli.main([*words, "--gpu", "-9"]) == 2


async def test_a_refusal_switches_off_and_says_why(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.refusal = Refused("too old")
    async with serving(home, monkeypatch):
        await status.ask_lending(home.socket, LendingChange(on=True))
        async with asyncio.timeout(HANGS_S):
            while not (told := await status.ask(home.socket)).trouble:
                await asyncio.sleep(0.02)
        assert not told.on
        assert "too old" in told.trouble
        [event] = [
            event
            for event in (await status.ask_for(home.socket, "activity", ActivityEvents)).events
            if event.kind == "stopped"
        ]
        assert event.severity == "error"
        assert event.detail["cause"] == told.trouble_cause, "for a window that has words of its own"


async def test_switched_on_once_more_it_looks_at_once_whether_what_was_missing_has_come(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    from desktop.agent.app import service as service_module
    from desktop.agent.app import startup

    async with serving(home, monkeypatch):
        there, missing = startup.make_sandbox, [True]

        def make(*arguments: Any) -> Any:
            if missing:
                raise NoEngineError("none", why="absent")
            return there(*arguments)

        monkeypatch.setattr(startup, "make_sandbox", make)
        monkeypatch.setattr(service_module, "RETRY_S", 3600.0)
        await status.ask_lending(home.socket, LendingChange(on=True))
        async with asyncio.timeout(HANGS_S):
            while (await status.ask(home.socket)).trouble_cause != "no engine":
                await asyncio.sleep(0.02)
        missing.clear()
        await status.ask_lending(home.socket, LendingChange(on=True))
        await until_online(home, coordinator)
        assert not (await status.ask(home.socket)).trouble


async def fail(home: Home, coordinator: Double, address: str, script: str, files: dict[str, str] | None = None) -> None:
    """One job that fails before its first step."""
    before = len(await failures(home))
    broken = assignment(coordinator, plan_of((0, 0, address)), 0, 0, script)
    broken.files.update(files or {})
    await coordinator.assign(address, broken)
    async with asyncio.timeout(HANGS_S):
        while len(await failures(home)) <= before:
            await asyncio.sleep(0.02)


async def until_given_up(home: Home) -> status.AgentStatus:
    async with asyncio.timeout(HANGS_S):
        while (told := await status.ask(home.socket)).on:
            await asyncio.sleep(0.02)
    return told


async def test_five_failures_in_a_row_and_a_failed_test_end_lending_until_its_owner_says_otherwise(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> Benchmark:
        raise SandboxError("no processor is here any more")

    monkeypatch.setattr(agent_module, "measure_now", broken)
    async with serving(home, monkeypatch):
        await status.ask_lending(home.socket, LendingChange(on=True))
        address = await until_online(home, coordinator)
        for _ in range(MAX_FAILURES):
            await fail(home, coordinator, address, "crash", {"../escape": "00" * 32})
        told = await until_given_up(home)
        assert told.trouble.startswith(f"{MAX_FAILURES} jobs in a row failed")
        assert told.trouble.endswith("This computer's own test: no processor is here any more")
        assert (told.trouble_cause, told.trouble_detail["jobs"]) == ("failures", str(MAX_FAILURES))
        assert told.trouble_detail["what"] in told.trouble
        summary = await status.ask_for(home.socket, "earnings", EarningsSummary)
        assert {(job.standing, *(r.why for r in job.reasons)) for job in summary.jobs} == {("not paid", "failed")}


async def test_a_disk_that_fails_five_jobs_ends_lending_without_a_test(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: HeldTask) -> None:
        raise OSError(28, "No space left on device")

    async with serving(home, monkeypatch):
        await status.ask_lending(home.socket, LendingChange(on=True))
        address = await until_online(home, coordinator)
        monkeypatch.setattr(HeldTask, "_lay_out_files", full)
        for _ in range(MAX_FAILURES):
            await fail(home, coordinator, address, "train")
        assert "No space left" in (await until_given_up(home)).trouble


WAYS_TO_FAIL = ("unusable", "diverging", "failing", "garbage", "huge", "stranger", "misplaced", "dying")


@pytest.mark.long
async def test_jobs_stop_no_computer_that_passes_its_own_test_however_they_fail(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home, monkeypatch):
        await status.ask_lending(home.socket, LendingChange(on=True))
        address = await until_online(home, coordinator)
        for script in WAYS_TO_FAIL * 3:
            told = await status.ask(home.socket)
            assert (told.on, told.trouble) == (True, "")
            await fail(home, coordinator, address, script)
        events = (await status.ask_for(home.socket, "activity", ActivityEvents)).events
        tested = [event for event in events if event.kind == "jobs failed"]
        assert len(tested) >= 2
        assert all("own test passed" in event.text and event.severity == "warning" for event in tested)
        await coordinator.assign(address, assignment(coordinator, plan_of((0, 0, address)), 0, 0, "train"))


async def failures(home: Home) -> list[str]:
    events = (await status.ask_for(home.socket, "activity", ActivityEvents)).events
    return [event.text for event in events if event.kind == "job failed"]


# --- earnings ---------------------------------------------------------------------------------------------------------


def test_each_job_says_how_it_stands_and_why(tmp_path: Path) -> None:
    book, now = EarningsFile(tmp_path / "e.db"), time.time()
    jobs = {
        name: f"{number:02}" * 16 for number, name in enumerate(("paid", "saving", "failed", "fresh", "old", "now"))
    }
    for number, (name, job) in enumerate(jobs.items()):
        book.record_work(
            "http://c", str(number), job, name, now - 100, 60.0, "out of memory" if name == "failed" else ""
        )
    book.record("http://c", JobEarned(jobs["paid"], 500, 500, "5xyz"), now)
    book.record("http://c", JobEarned(jobs["saving"], 300, 100, ""), now)
    book.record("http://c", JobEarned(jobs["old"], 0, 0, "", "cancelled", "stopped"), now)
    summary = book.summary(now, {jobs["now"]}, "http://rpc", "http://c")
    found = {job.name: (job.standing, *((r.why, r.detail) for r in job.reasons)) for job in summary.jobs}
    assert found == {
        "paid": ("paid",),
        "saving": ("pending", ("saving", "")),
        "failed": ("not paid", ("failed", "out of memory")),
        "fresh": ("pending", ("nothing told", "")),
        "old": ("not paid", ("no round: cancelled", "")),
        "now": ("working",),
    }
    [paid] = [job for job in summary.jobs if job.name == "paid"]
    assert paid.proof == f"cottage ledger check {jobs['paid']} --coordinator http://c --rpc http://rpc"
    assert (summary.verified, summary.paid, summary.today, summary.week) == (800, 600, 800, 800)


@given(st.lists(st.tuples(st.integers(0, DAYS + 5), st.integers(0, 10**6)), max_size=30))
def test_days_hold_what_was_verified_on_them_and_never_more(gains: list[tuple[int, int]]) -> None:
    book, now, total, recent = EarningsFile(Path(":memory:")), time.time(), 0, 0
    for days_ago, amount in sorted(gains, reverse=True):
        total += amount
        recent += amount if days_ago < DAYS - 1 else 0
        book.record("http://c", JobEarned(JOB, total, 0, ""), now - days_ago * 86_400)
    summary = book.summary(now)
    assert summary.verified == total
    assert len(summary.days) == DAYS
    assert recent <= sum(day.verified for day in summary.days) <= total
    assert summary.today == summary.days[-1].verified
    book.close()


def test_the_activity_forgets_the_oldest_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_KEPT", 50)
    book = Activity(tmp_path / "a.db")
    for number in range(55):
        book.add(float(number), "earned", f"{number}", amount=str(number))
    kept = book.newest(3).events
    assert [event.text for event in kept] == ["54", "53", "52"]
    assert kept[0].detail == {"amount": "54"}
    assert book.last == 55
    assert book._database.execute("SELECT count(*) FROM event").fetchone() == (50,)


# --- the self-test ----------------------------------------------------------------------------------------------------


async def found_by(home: Home, device: Device, flops: Any, line: Any) -> SelfTestResult:
    async def measure(_: Device) -> Speed:
        if isinstance(flops, Exception):
            raise flops
        return flops if isinstance(flops, Speed) else Speed(float(flops))

    async def test_line() -> NetTest:
        if isinstance(line, Exception):
            raise line
        found: NetTest = line
        return found

    last = SelfTestResult(NOT_TESTED)
    async for last in Steps(home, home.settings(), SelfTestMeans(lambda: device, measure, test_line)).results(1.0):
        assert [check.name for check in last.checks] == list(NAMES)
    return last


async def test_the_self_test_says_of_each_step_what_it_found(home: Home, coordinator: Double) -> None:
    good = await found_by(home, CARD, 1e12, LINE)
    found = {check.name: (check.state, check.code) for check in good.checks}
    assert found["gpu"] == ("good", "found")
    assert found["sandbox"] == ("warning", "unprotected")
    assert found["speed"] == ("good", "measured")
    assert found["coordinator"] == ("good", "answers")
    assert found["line"] == ("good", "tested")
    assert found["earnings"] == ("good", "some")
    assert good.prediction is not None
    assert not good.running
    assert good.can_lend
    home.remember(msgspec.structs.replace(home.settings(), coordinator="http://127.0.0.1:9"))
    away = {check.name: (check.state, check.code) for check in (await found_by(home, CARD, 1e12, LINE)).checks}
    assert away["coordinator"] == ("bad", "no answer")
    assert away["earnings"] == ("warning", "not known")


async def test_a_speed_measured_on_a_busy_machine_is_told_as_that(home: Home, coordinator: Double) -> None:
    test = await found_by(home, CARD, Speed(2.9e8, busy=True), LINE)
    (speed,) = [check for check in test.checks if check.name == "speed"]
    assert (speed.state, speed.code, speed.detail) == ("warning", "busy", {"gigaflops": "0.3"})
    assert test.can_lend


@pytest.mark.parametrize(
    ("error", "code"),
    [(NoEngineError("none"), "no engine"), (NoImageError("none"), "no image"), (SandboxError("odd"), "unsafe")],
)
async def test_a_sandbox_that_lacks_something_is_told_by_a_code(home: Home, error: Exception, code: str) -> None:
    test = await found_by(home, processor("no driver"), error, NettestError("no relay"))
    found = {check.name: (check.state, check.code) for check in test.checks}
    assert found["gpu"] == ("warning", "processor")
    assert found["sandbox"] == ("bad", code)
    assert found["speed"] == ("bad", "not measured")
    assert not test.can_lend


NETWORK = NetworkPrices(10, 4, 2_000)
FULL = 1e12 * 86_400 / 1e15 * 2_000  # A day's work of 10^12 operations a second at that price.


def test_a_prediction_is_a_range_of_the_networks_prices_less_what_power_costs() -> None:
    found = predict(1e12, NETWORK, None, 300.0, Settings(electricity=300))
    assert (found.power, found.guessed, found.learned) == (2_160, False, False)
    assert (found.low, found.high) == (math.floor(FULL * 0.4 - 2_160 * 0.4), math.floor((FULL - 2_160) * MAX_BUSY))
    assert predict(1e12, NetworkPrices(0, 0, 2_000), None, None, Settings()).low == 0


def test_what_other_machines_weeks_brought_goes_before_the_price() -> None:
    found = predict(1e12, NETWORK, MarketPrices(1_000, 250, 3_000), 300.0, Settings(electricity=300))
    assert found.learned
    assert found.low == math.floor(1e12 * 86_400 / 1e15 * 250 - 2_160 / 4), "it draws power while it works"
    assert found.high == math.floor(1e12 * 86_400 / 1e15 * 3_000 - 2_160), "jobs pay a least price, too"


@pytest.mark.parametrize(
    ("settings", "said", "power", "currency"),
    [
        (Settings(electricity=300_000), None, 2_160_000, None),
        (Settings(electricity=300_000), TokenWorth("USD", 500_000), 2_160_000, "USD"),
        (Settings(electricity=300_000, currency="EUR"), None, None, None),
        (Settings(electricity=300_000, currency="EUR"), TokenWorth("USD", 500_000), None, None),
        (Settings(electricity=300_000, currency="USD"), TokenWorth("USD", 500_000), 4_320_000, "USD"),
        (Settings(electricity=300_000, currency="EUR", worth=2_000_000), TokenWorth("USD", 1), 1_080_000, "EUR"),
        (Settings(currency="EUR"), None, 0, None),
    ],
)
def test_electricity_is_reckoned_in_tokens_where_somebody_has_said_what_one_is_worth(
    settings: Settings, said: TokenWorth | None, power: int | None, currency: str | None
) -> None:
    found = predict(1e12, NETWORK, MarketPrices(2_000, worth=said), 300.0, settings)
    assert found.power == power
    assert (found.worth.currency if found.worth else None) == currency


# --- support and identity ---------------------------------------------------------------------------------------------


def test_a_report_for_support_says_what_happened_and_nothing_private(home: Home) -> None:
    address, words = home.key().address, " ".join(["abandon"] * 24)
    home.log.write_text(
        f"2026-11-22 10:00:00 connected to https://user:hunter2@cottage.example as {address} from 203.0.113.7\n"
        f"token: s3cr3t-token; somebody@example.org; 2001:db8::1; {home.path}/node.key; the words: {words}\n"
        "lending: Ready to lend.\n"
    )
    with contextlib.closing(Activity(home.activity)) as book:
        book.add(1.0, "paid", f"sent 5 millionths to {address}", target=address)
        text = support.report(home, book, "0.1.0")
    for private in (
        address,
        "hunter2",
        "203.0.113.7",
        "s3cr3t",
        "somebody@",
        "2001:db8",
        str(home.path),
        "abandon abandon",
        "attic",
    ):
        assert private not in text, private
    assert "Ready to lend." in text
    assert "sandbox=process" in text


async def test_a_backup_and_the_words_are_had_over_the_socket_only_by_asking(
    start_agent: StartAgent, tmp_path: Path
) -> None:
    async with start_agent() as running:
        file = tmp_path / "key.cottage"
        order = status.BackupOrder(str(file), "a long passphrase")
        done = await status.ask_for(running.home.socket, "backup", BackupDone, order, status.LONG_TIMEOUT_S)
        assert done.address == running.address
        assert file.stat().st_mode & 0o777 == 0o600
        with pytest.raises(SettingsError, match="never overwritten"):
            await status.ask_for(running.home.socket, "backup", BackupDone, order, status.LONG_TIMEOUT_S)
        words = await status.ask_for(running.home.socket, "words", KeyWords, status.WordsOrder())
        assert len(words.words.split()) == 24
        assert running.home.socket.stat().st_mode & 0o777 == 0o600


async def test_withdrawing_from_a_coordinator_of_before_says_that_it_pays_for_none(start_agent: StartAgent) -> None:
    async with start_agent() as running:
        order = status.WithdrawOrder(NodeKey(b"\2" * 32).address)
        found = await status.ask_for(running.home.socket, "withdraw", WalletWithdrawal, order)
        assert found.denied is not None
        assert found.denied.reason == "not offered"
        assert "older version" in found.denied.text


async def test_an_order_with_unknown_fields_is_refused(start_agent: StartAgent) -> None:
    async with start_agent() as running:
        with pytest.raises(SettingsError):
            await status.ask_for(running.home.socket, "settings", msgspec.Raw, {"sandbox": "process"})
