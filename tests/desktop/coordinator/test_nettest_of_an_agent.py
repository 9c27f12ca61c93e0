"""The agent's own network tests: when it makes them, what it tells of them, and what its owner's limits forbid."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from desktop.agent.app import status
from desktop.agent.base.config import Home
from desktop.agent.cli import cli
from desktop.agent.coordinator import nettest
from desktop.agent.coordinator.nettest import FILE, FULL_TEST_BYTES, LineTests
from desktop.agent.errors import SettingsError
from desktop.agent.jobs.line_limits import LimitsChange
from protocol.network import NetworkReport
from protocol.node import OfferedIceServer
from protocol.task import TaskReady
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.relay.conftest import credentials, relay_options
from tests.support.clock import VirtualClock
from transport.nettest.errors import NoRelayError
from transport.nettest.result import NetTest, RelayResult
from transport.relay.options import Quota
from transport.relay.server import RelayServer
from transport.sctp.allowance import Allowance

RATE = 5e6
KNOWN = NetTest(0.0, 6.0, "port cone", True, relays=(RelayResult("turn:a:1", 0.02, 0.0, True, True),), up=2e6, down=8e6)


@contextlib.asynccontextmanager
async def relays(coordinator: Double) -> AsyncIterator[RelayServer]:
    async with RelayServer(relay_options(quota=Quota(speed_rate=RATE))) as relay:
        host, port = relay.addresses[0]
        coordinator.relays = (OfferedIceServer((f"turn:{host}:{port}?transport=udp",), *credentials("node")),)
        yield relay


async def test_the_first_start_tests_the_line_and_tells_the_coordinator(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with relays(coordinator), start_agent() as running:
        await coordinator.until(lambda: any(report.relays for _, report in coordinator.networks))
        told = next(report for _, report in coordinator.networks if report.relays)
        assert coordinator.questions[0] == running.address
        assert (told.nat, told.relays[0].udp) == ("none", True)
        assert told.up == pytest.approx(RATE, rel=0.15)
        assert told.down == pytest.approx(RATE, rel=0.15)
        kept = msgspec.json.decode((running.home.path / FILE).read_bytes(), type=NetTest)
        assert kept == running.agent.status().line


async def test_the_owner_can_ask_for_a_test_and_sees_it_in_the_status(
    coordinator: Double, start_agent: StartAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_agent() as running:
        await coordinator.until(lambda: coordinator.questions)  # Its own first try finds no relay.
        home = ("--home", str(running.home.path))
        code = await asyncio.to_thread(cli.main, ["nettest", *home])
        assert code == 2
        assert "no relay" in capsys.readouterr().err
        async with relays(coordinator):
            code = await asyncio.to_thread(cli.main, ["nettest", "--no-speed", "--json", *home])
            assert code == 0
            found = json.loads(capsys.readouterr().out)
            assert (found["nat"], found["up"], found["note"]) == ("none", None, "the rates were not asked for")
        assert await asyncio.to_thread(cli.main, ["status", *home]) == 0
        assert "every peer reaches you directly" in " ".join(capsys.readouterr().out.split())
        assert await asyncio.to_thread(cli.main, ["nettest", "--peer", "1" * 32, *home]) == 2
        assert "is no peer of this node now" in capsys.readouterr().err


async def test_an_order_that_is_none_is_refused(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as running:
        for resource, body in (("/v1/nettest", b"[]"), ("/v1/nettest/peer", b'{"peer": "me"}')):
            with pytest.raises(SettingsError):
                await status._request(running.home.socket, "POST", resource, body)


async def test_a_changed_limit_reaches_the_coordinator_with_the_rates(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("desktop.agent.app.agent.NETWORK_PAUSE_S", 0.05)
    async with start_agent() as running:
        running.agent._tests.last = KNOWN
        running.agent.change_limits(LimitsChange(up="1M"))
        await coordinator.until(lambda: any(report.up == 1e6 for _, report in coordinator.networks))
        assert coordinator.networks[-1][1].down == 8e6


class Watched:
    """``LineTests`` on a virtual clock, whose tests are counted and not made."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, allowance: Allowance | None = None) -> None:
        self.clock = VirtualClock()
        self.home = Home.at(folder)
        self.made: list[bool] = []
        self.told: list[NetworkReport] = []
        self.idle = True
        self.relays = True
        self.allowance = allowance or Allowance()

        async def ask(*_: object) -> list[object]:
            if not self.relays:
                raise NoRelayError("no relay is named")
            return []

        async def run(_: object, *, speed: bool, clock: VirtualClock) -> NetTest:
            self.made.append(speed)
            rates = (2e6, 8e6) if speed else (None, None)
            return msgspec.structs.replace(KNOWN, at=clock.time(), up=rates[0], down=rates[1], moved=10**6 * speed)

        monkeypatch.setattr(nettest, "ask_relays", ask)
        monkeypatch.setattr(nettest, "run", run)
        self.tests = self.again()

    def again(self) -> LineTests:
        return LineTests(self.home, self.home.key(), "http://c.test", self.allowance, self.clock, self.told.append)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.tests.watch(lambda: self.idle))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_it_tests_at_once_and_then_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Watched(tmp_path, monkeypatch)
    async with at.watched():
        await at.clock.advance(5)
        assert at.made == [True]
        await at.clock.advance(86_000)
        assert len(at.made) == 1
        await at.clock.advance(1000)
        assert len(at.made) == 2
    at.tests = at.again()
    async with at.watched():
        await at.clock.advance(60)
    assert len(at.made) == 2, "a restart does not test what was tested today"
    assert at.told[-1].up == 2e6, "but tells it"


async def test_it_waits_until_nothing_else_uses_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Watched(tmp_path, monkeypatch)
    at.idle = False
    async with at.watched():
        await at.clock.advance(1000)
        assert at.made == []
        at.idle = True
        await at.clock.advance(60)
        assert at.made == [True]


async def test_without_relays_it_asks_again_later_not_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Watched(tmp_path, monkeypatch)
    at.relays = False
    async with at.watched():
        await at.clock.advance(1000)
        at.relays = True
        await at.clock.advance(700)
        assert at.made == []
        await at.clock.advance(200)
        assert at.made == [True]


@pytest.mark.parametrize(
    "allowance",
    [Allowance(upload=1e6), Allowance(download=1e6), Allowance(monthly_bytes=FULL_TEST_BYTES - 1)],
    ids=["up", "down", "month"],
)
async def test_the_owners_limits_forbid_filling_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowance: Allowance
) -> None:
    at = Watched(tmp_path, monkeypatch, allowance)
    test = await at.tests.run()
    assert at.made == [False]
    assert "not measured" in test.note
    assert (test.up, at.told[-1].up) == (None, None)


async def test_rates_of_an_earlier_test_stay_and_are_never_above_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Watched(tmp_path, monkeypatch)
    await at.tests.run()
    at.allowance.change(1e6, None, None)
    test = await at.tests.run()
    assert (test.up, test.down) == (2e6, 8e6)
    assert (at.told[-1].up, at.told[-1].down) == (1e6, 8e6)


async def test_what_a_test_takes_counts_towards_the_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Watched(tmp_path, monkeypatch, Allowance(monthly_bytes=2 * FULL_TEST_BYTES))
    await at.tests.run()
    assert at.allowance.usage.used == 10**6


@pytest.mark.parametrize("content", [b"{", b'{"at": -1, "seconds": 1}', b'{"at": 1, "seconds": 1, "nat": "wall"}'])
async def test_a_damaged_file_is_a_line_that_was_never_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    at = Watched(tmp_path, monkeypatch)
    assert at.tests.last is None
    async with at.watched():
        await at.clock.advance(5)
    assert at.made == [True]
    assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=NetTest) == at.tests.last


async def test_the_link_to_a_peer_of_the_plan_is_tested_when_the_owner_asks(
    coordinator: Double, start_agent: StartAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_agent("a") as node, start_agent("b") as other:
        plan = plan_of((0, 0, node.address), (1, 0, other.address))
        for stage, one in enumerate((node, other)):
            await coordinator.assign(one.address, assignment(coordinator, plan, stage, 0, "checkpoint"))
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2)
        words = ["nettest", "--peer", other.address, "--home", str(node.home.path)]
        assert await asyncio.to_thread(cli.main, [*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["peer"], found["note"], found["relayed"]) == (other.address, "", False)
        assert min(found["up"], found["down"]) > 0
        assert await asyncio.to_thread(cli.main, words) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "round trip" in shown
        assert "once in 600 s is enough" in shown or "the link is at work" in shown, "a peer's line is not filled again"
        assert other.agent.status().dropped == {}
