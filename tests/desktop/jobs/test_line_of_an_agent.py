"""The agent and its line: what it tells of it, which relays it takes, and the limits that its owner sets while it runs."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desktop.agent.app import status
from desktop.agent.app.views import link_views
from desktop.agent.base.config import MAX_LIMIT, MIN_RATE, Home, Settings
from desktop.agent.cli import cli
from desktop.agent.coordinator import network_report
from desktop.agent.errors import NoAgentError, SettingsError
from desktop.agent.jobs.line_limits import (
    LimitsChange,
    LineLimits,
    parse_quantity,
    parse_rate,
    show_quantity,
    show_rate,
)
from desktop.agent.jobs.traffic_usage import SAVE_S, LineShare, load_usage
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.network import MAX_PEERS_MEASURED, NetworkReport, RelayMeasure
from protocol.node import IceServers, NodeMessage, OfferedIceServer
from tests.desktop.conftest import StartAgent
from tests.desktop.coordinator_double import Double
from transport.ice.stats import LinkState, LinkStats
from transport.sctp.allowance import Usage

A, B = (NodeKey(bytes([number]) * 32).address for number in (1, 2))
NEAR = OfferedIceServer(
    ("turn:near.test:3478?transport=udp", "turn:near.test:3478?transport=tcp"), "1:me", "credential"
)
FAR = OfferedIceServer(("turn:far.test:3478",), "1:me", "credential")
STUN = OfferedIceServer(("stun:near.test:3478",))
MAY, JUNE = 1_778_000_000.0, 1_781_000_000.0


def link(**changes: object) -> LinkStats:
    fields: dict[str, object] = {
        "state": LinkState.UP,
        "rtt_s": 0.031,
        "min_rtt_s": 0.030,
        "queue_s": 0.001,
        "loss": 0.01,
        "retransmitted": 7,
        "send_rate": 5e6,
        "receive_rate": 1e6,
        "mtu": 1492,
        "pair": "relay/host",
        "relayed": True,
        "wire_sent": 1000,
        "wire_received": 500,
        "packets_sent": 10,
        "packets_received": 5,
    }
    return LinkStats(**(fields | changes))  # type: ignore[arg-type]


# --- what it tells ------------------------------------------------------------------------------------------------------


def test_a_report_has_the_links_that_are_up_with_headers_counted() -> None:
    links = {B: link(), A: link(rtt_s=None), "down": link(state=LinkState.CONNECTING)}
    made = network_report.report(None, links)
    assert [measure.peer for measure in made.peers] == sorted((A, B))
    told = next(measure for measure in made.peers if measure.peer == B)
    assert (told.pair, told.rtt_s, told.loss, told.queue_s, told.retransmitted) == ("relay/host", 0.031, 0.01, 0.001, 7)
    assert (told.send_rate, told.receive_rate) == (5e6, 1e6)
    assert (told.bytes_sent, told.bytes_received) == (1000 + 10 * 28, 500 + 5 * 28)
    assert decode(encode(made), NodeMessage) == made


def test_a_report_carries_what_the_last_network_test_found() -> None:
    line = NetworkReport("symmetric", True, 5e6, 2e7, (RelayMeasure(NEAR.urls[0], 0.02, 0.0, True),))
    made = network_report.report(line, {B: link()})
    assert (made.nat, made.ipv6, made.up, made.down, made.relays) == ("symmetric", True, 5e6, 2e7, line.relays)
    assert len(made.peers) == 1


@given(st.floats(-1e6, 1e9), st.floats(-2, 2), st.floats(-1, 1e12), st.text(max_size=300))
def test_odd_figures_of_a_link_still_make_a_message_that_the_coordinator_takes(
    seconds: float, loss: float, rate: float, pair: str
) -> None:
    odd = link(
        rtt_s=seconds, queue_s=seconds, loss=loss, send_rate=rate, receive_rate=rate, pair=pair.replace("\0", "")
    )
    made = network_report.report(
        None, {NodeKey(bytes([i]) * 32).address: odd for i in range(1, MAX_PEERS_MEASURED + 9)}
    )
    assert len(made.peers) == MAX_PEERS_MEASURED
    assert decode(encode(made), NodeMessage) == made


async def test_the_coordinator_hears_of_the_line_on_connecting_and_after_a_test(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("desktop.agent.app.agent.NETWORK_PAUSE_S", 0.01)
    async with start_agent() as running:
        await coordinator.until(lambda: coordinator.networks)
        assert coordinator.networks[0] == (running.address, NetworkReport())
        running.agent.measured(NetworkReport(nat="port cone", up=1e6))
        await coordinator.until(lambda: len(coordinator.networks) > 1)
        assert coordinator.networks[-1][1] == NetworkReport(nat="port cone", up=1e6)
        await coordinator.stop()
        running.agent.measured(NetworkReport(nat="symmetric"))
        await coordinator.start()
        await coordinator.until(lambda: coordinator.networks[-1][1].nat == "symmetric")


def test_the_status_shows_how_each_link_is() -> None:
    (view,) = link_views({B: link()})
    assert (view.relayed, view.route, view.mtu, view.retransmitted) == (True, "relay/host", 1492, 7)
    assert (view.rtt_ms, view.min_rtt_ms, view.queue_ms, view.loss) == (31.0, 30.0, 1.0, 0.01)
    assert (view.send_rate, view.receive_rate) == (5e6, 1e6)
    assert link_views({B: LinkStats()})[0].min_rtt_ms is None


# --- which relays it takes ----------------------------------------------------------------------------------------------


async def test_relays_are_taken_for_all_peers_and_for_single_ones(coordinator: Double, start_agent: StartAgent) -> None:
    coordinator.ice_servers = (STUN,)
    async with start_agent() as running:
        await coordinator.until(lambda: running.agent._network)
        net = running.agent._network
        assert net is not None

        def urls(peer: str) -> list[str]:
            return [server.url for server in net._servers_for(peer)]

        assert urls(A) == [*STUN.urls]
        await coordinator.send(running.address, IceServers((NEAR, STUN), {A: (FAR, NEAR)}))
        await coordinator.until(lambda: urls(A) == [*FAR.urls, *NEAR.urls])
        assert urls(B) == [*NEAR.urls, *STUN.urls]
        await coordinator.send(running.address, IceServers((FAR,), {B: (NEAR,)}))
        await coordinator.until(lambda: urls(B) == [*NEAR.urls])
        assert urls(A) == [*FAR.urls], "what is not named any more falls back to the servers for all"


async def test_a_bad_server_or_peer_of_the_coordinator_is_left_out(
    coordinator: Double, start_agent: StartAgent
) -> None:
    no_key = "1" * 32  # The zero bytes: base58, but a point of small order.
    async with start_agent() as running:
        await coordinator.until(lambda: running.agent._network)
        bad = OfferedIceServer(("http://bad.test", *FAR.urls), "1:me", "credential")
        await coordinator.send(running.address, IceServers((bad,), {no_key: (NEAR,), A: (NEAR,)}))
        net = running.agent._network
        assert net is not None
        await coordinator.until(lambda: len(net._servers_for(A)) == 2)
        assert [server.url for server in net._servers_for(B)] == [*FAR.urls]
        assert running.agent.status().state == "online"


# --- limits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5M", 5_000_000),
        ("5 MB/s", 5_000_000),
        ("40Mbit", 5_000_000),
        ("40 mbit/s", 5_000_000),
        ("1.5g", 1_500_000_000),
        ("500G", 500_000_000_000),
        ("12000", 12_000),
        ("off", None),
        (" OFF ", None),
    ],
)
def test_people_write_quantities_as_they_like(text: str, expected: int | None) -> None:
    assert parse_quantity("--up", text) == expected


@pytest.mark.parametrize("text", ["", "fast", "-5M", "5X", "0", "1e9", "5M5", "9999T", "M", "0.0000001", "5 M B", "٥M"])
def test_what_is_no_quantity_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(SettingsError, match="or off"):
        parse_quantity("--up", text)


def test_a_rate_that_cannot_hold_a_link_is_refused() -> None:
    assert parse_rate("--up", str(MIN_RATE)) == MIN_RATE
    with pytest.raises(SettingsError, match="too little to hold a link"):
        parse_rate("--up", str(MIN_RATE - 1))


@given(st.integers(MIN_RATE, MAX_LIMIT))
def test_every_limit_can_be_shown(value: int) -> None:
    assert show_rate(value).count("bit/s") == 1
    assert show_quantity(value).endswith("B")


def test_limits_are_shown_in_both_units() -> None:
    assert show_rate(5_000_000) == "5 MB/s (40 Mbit/s)"
    assert show_rate(None) == show_quantity(None) == "no limit"
    assert show_quantity(500_000_000_000) == "500 GB"


def test_a_change_leaves_alone_what_it_does_not_name() -> None:
    before = LineLimits(up=5_000_000, month=10**12, polite=True)
    assert LimitsChange().apply(before) == before
    after = LimitsChange(down="40Mbit", month="off").apply(before)
    assert after == LineLimits(up=5_000_000, down=5_000_000, polite=True)
    assert LineLimits.of(after.into(Settings(name="attic"))) == after
    assert after.into(Settings(name="attic")).name == "attic"


def limits(home: Home, *words: str) -> tuple[int, list[str]]:
    return cli.main(["limits", "--home", str(home.path), *words]), list(words)


async def test_limits_change_at_once_in_a_running_agent_and_stay_for_the_next_start(
    coordinator: Double, start_agent: StartAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_agent() as running:
        await coordinator.until(lambda: running.agent._network)
        net = running.agent._network
        assert net is not None
        words = ("--up", "5M", "--down", "40Mbit", "--month", "500G", "--polite", "on", "--json")
        code, _ = await asyncio.to_thread(limits, running.home, *words)
        view = json.loads(capsys.readouterr().out)
        assert (code, view["applied"], view["used"]) == (0, True, 0)
        assert view["limits"] == {"up": 5_000_000, "down": 5_000_000, "month": 500_000_000_000, "polite": True}
        allowance = net._context.options.allowance
        assert allowance is running.agent._share.allowance
        assert (allowance.upload, allowance.download, allowance.monthly_bytes) == (5e6, 5e6, 500e9)
        assert net._context.options.polite is True
        assert LineLimits.of(running.home.settings()) == LineLimits(5_000_000, 5_000_000, 500_000_000_000, True)
        await asyncio.to_thread(limits, running.home, "--up", "off", "--polite", "off")
        shown = " ".join(capsys.readouterr().out.split())
        assert "no limit" in shown
        assert "in force" in shown
        assert (allowance.upload, allowance.download, net._context.options.polite) == (None, 5e6, False)
        code, _ = await asyncio.to_thread(limits, running.home, "--up", "fast")
        assert code == 2
        assert "no quantity" in capsys.readouterr().err
        assert running.agent.limits().limits.down == 5_000_000
    kept = running.home.settings()
    assert (kept.up, kept.down, kept.month, kept.polite) == (0, 5_000_000, 500_000_000_000, False)


async def test_a_change_that_cannot_be_kept_changes_nothing(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as running:
        (running.home.path / "settings.json.new").mkdir()
        with pytest.raises(SettingsError, match="cannot be written"):
            await status.ask_limits(running.home.socket, LimitsChange(up="5M"))
        assert running.agent.limits().limits == LineLimits()


def test_limits_of_an_agent_that_does_not_run_wait_for_its_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home.at(tmp_path / "home")
    home.remember(Settings(coordinator="http://c.test", name="attic"))
    assert limits(home, "--up", "2M")[0] == 0
    assert "no agent runs here" in capsys.readouterr().out
    assert home.settings() == Settings(coordinator="http://c.test", name="attic", up=2_000_000)
    assert limits(home)[0] == 0
    assert "2 MB/s" in capsys.readouterr().out
    with home.locked():
        assert limits(home, "--up", "3M")[0] == 5, "an agent is starting: it would not hear of the change"
    assert home.settings().up == 2_000_000


async def test_without_an_agent_there_is_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(NoAgentError, match="no agent answers"):
        await status.ask_limits(tmp_path / "agent.sock")


def test_options_of_a_start_are_limits_too(tmp_path: Path) -> None:
    options = cli._parser().parse_args(["run", "--home", str(tmp_path), "--up", "5M", "--polite", "on"])
    found = cli._settings(options, Home.at(tmp_path))
    assert (found.up, found.down, found.polite) == (5_000_000, 0, True)


# --- the month ----------------------------------------------------------------------------------------------------------


def test_the_months_count_is_kept_over_a_restart_and_begins_anew_with_the_month(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    first = LineShare(file, LineLimits(month=1000), MAY)
    first.look(MAY)
    first.allowance.on_received("peer", 600, 0.0)
    first.look(MAY + SAVE_S - 1)
    assert not file.exists(), "not every moment"
    first.look(MAY + SAVE_S)
    assert load_usage(file, MAY) == Usage("2026-05", 600)
    second = LineShare(file, LineLimits(month=1000), MAY)
    assert second.allowance.remaining == 400
    second.allowance.charge_upload(400, 0.0)
    assert second.allowance.exhausted
    second.look(JUNE)
    assert (second.allowance.exhausted, second.usage) == (False, Usage("2026-06", 0))
    second.save(JUNE)
    assert load_usage(file, JUNE) == Usage("2026-06", 0)
    assert load_usage(file, MAY) == Usage("2026-06", 0), "a clock that was put back does not give the month again"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b'{"month": "2026-05", "used": "x"}', b'{"month": "2026-05", "used": -5}']
)
def test_a_damaged_count_begins_anew_and_the_agent_starts_all_the_same(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "usage.json"
    file.write_bytes(content)
    share = LineShare(file, LineLimits(), MAY)
    share.look(MAY)
    assert share.usage == Usage("2026-05", 0)


def test_a_count_that_cannot_be_kept_ends_nothing(tmp_path: Path) -> None:
    share = LineShare(tmp_path / "missing" / "usage.json", LineLimits(), MAY)
    share.allowance.on_received("peer", 1, 0.0)
    share.save(MAY)
    assert share.usage.used == 1


def test_the_owner_is_told_when_the_cap_comes_near(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    share = LineShare(tmp_path / "usage.json", LineLimits(month=1000), MAY)
    share.look(MAY)
    share.allowance.on_received("peer", 800, 0.0)
    share.allowance.on_received("peer", 200, 0.0)
    assert [record.getMessage()[:4] for record in caplog.records] == ["80 %", "this"]
