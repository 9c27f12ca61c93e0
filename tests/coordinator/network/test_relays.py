"""Relays and the coordinator: real HTTP, real WebSockets, a real relay. Who may be a relay, which are handed out, and to whom."""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from common.clock import SystemClock
from coordinator import cli
from coordinator.config import Config, TurnRelay
from coordinator.services.network import relay_assignment, relays
from coordinator.services.network import relay_probe as probes
from coordinator.services.network.relay_probe import probe
from protocol.codec import encode_json
from protocol.identity import NodeKey
from protocol.network import NetworkReport, PeerMeasure, RelayEnvelope, RelayMeasure, RelayReport, RelayUsage
from protocol.node import OfferedIceServer
from tests.coordinator.conftest import House, nodes, opened, until
from tests.coordinator.fakes import FakeChain
from tests.coordinator.network.test_node_socket import running
from transport.ice.ice import TURN_LIFETIME_S, parse_ice, turn_credentials
from transport.relay.announce import Announcer, Identity
from transport.relay.options import RelayOptions
from transport.relay.server import RelayServer

KEY, OTHER = NodeKey(b"r" * 32), NodeKey(b"q" * 32)
SECRET = "a secret that only relays know"
ANYWHERE = "turn:relay.invalid:3478?transport=udp"


def report(key: NodeKey = KEY, **changes: Any) -> RelayReport:
    fields: dict[str, Any] = {"sent": time.time(), "started": 1.0, "urls": (ANYWHERE,), "secret": SECRET}
    return RelayReport(relay=key.address, **(fields | changes))


def envelope(told: RelayReport, key: NodeKey = KEY) -> bytes:
    data = encode_json(told)
    return encode_json(RelayEnvelope(data, key.sign("cottage-relay", data)))


class Door:
    """The coordinator's REST interface."""

    def __init__(self, house: House, http: aiohttp.ClientSession) -> None:
        self.house = house
        self.url = house.url.replace("/api/v1/node", "")
        self._http = http

    async def announce(self, body: bytes) -> tuple[int, dict[str, Any]]:
        async with self._http.post(f"{self.url}/api/v1/relays/announce", data=body) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> Any:
        async with self._http.get(f"{self.url}{path}") as answer:
            assert answer.status == 200
            return await answer.json() if path.startswith("/api") else await answer.text()


@asynccontextmanager
async def door(config: Config, **settings: Any) -> AsyncIterator[Door]:
    allowed = {"relays": frozenset({KEY.address, OTHER.address})}
    async with opened(dataclasses.replace(config, **(allowed | settings)), FakeChain(), rest=True) as house:
        async with aiohttp.ClientSession() as http:
            yield Door(house, http)


@asynccontextmanager
async def relay_server() -> AsyncIterator[tuple[RelayServer, str]]:
    """Our own relay on a free port, and its URL."""
    async with RelayServer(RelayOptions(SECRET, port=0, nat_port=None)) as server:
        host, port = server.addresses[0][:2]
        yield server, f"turn:{host}:{port}?transport=udp"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes and looks in quick succession."""
    monkeypatch.setattr(relays, "PROBE_EVERY_S", 0.05)
    monkeypatch.setattr(relay_assignment, "LOOK_S", 0.02)
    monkeypatch.setattr(probes, "PROBE_S", 0.5)


def relay_of(servers: tuple[OfferedIceServer, ...]) -> list[str]:
    return [server.urls[0] for server in servers if server.urls[0].startswith("turn")]


# --- who may be a relay -------------------------------------------------------------------------------------------------


async def test_a_relay_that_the_operator_allows_is_taken_and_told_when_to_come_back(config: Config) -> None:
    async with door(config, relay_user_rate=1e6) as at:
        status, order = await at.announce(envelope(report(region="eu", allocations=3, allocations_max=100)))
        assert (status, order) == (200, {"next_seconds": 10.0, "user_rate": 1e6})
        (view,) = await at.get("/api/v1/relays")
        assert (view["relay"], view["urls"], view["region"]) == (KEY.address, [ANYWHERE], "eu")
        assert (view["allocations"], view["allocations_max"]) == (3, 100)
        assert SECRET not in str(view)


STRANGER = NodeKey(b"z" * 32)


def bad() -> dict[str, tuple[bytes, int, str]]:
    """Announcements by name, made now: a report that is a minute old is refused for that."""
    return {
        "a stranger": (envelope(report(STRANGER), STRANGER), 403, "its operator allows it with --relay"),
        "a stranger's signature": (envelope(report(), STRANGER), 403, "is not by"),
        "another purpose's signature": (
            encode_json(RelayEnvelope(encode_json(report()), KEY.sign("cottage-hello", encode_json(report())))),
            403,
            "is not by",
        ),
        "a STUN server": (envelope(report(urls=("stun:relay.invalid:3478",))), 422, "is no relay"),
        "no URL at all": (envelope(report(urls=("http://relay.invalid",))), 422, "is no ICE server"),
        "a second URL that is none": (envelope(report(urls=(ANYWHERE, "turn:a b"))), 422, "is no ICE server"),
        "a short secret": (envelope(report(secret="short")), 422, "secret"),
        "no URLs": (envelope(report(urls=())), 422, "urls"),
        "no report": (encode_json(RelayEnvelope(b"{}", bytes(64))), 422, "is missing: give it"),
        "no envelope": (b"[]", 422, "must be a table"),
        "random bytes": (random.Random(1).randbytes(200), 422, ""),
        "too many bytes": (b" " * (3 << 20), 413, "bytes"),
    }


@pytest.mark.parametrize("name", bad())
async def test_what_is_no_report_of_an_allowed_relay_is_refused_with_its_reason(config: Config, name: str) -> None:
    body, status, complaint = bad()[name]
    async with door(config) as at:
        found, problem = await at.announce(body)
        assert (found, complaint in problem["detail"]) == (status, True), problem
        assert await at.get("/api/v1/relays") == []


@pytest.mark.parametrize("skew", [-3600.0, -61.0, 61.0, 3600.0])
async def test_a_report_of_another_time_is_refused(config: Config, skew: float) -> None:
    async with door(config) as at:
        status, problem = await at.announce(envelope(report(sent=time.time() + skew)))
        assert (status, "set the relay's clock" in problem["detail"]) == (403, True)


async def test_a_report_is_good_once(config: Config) -> None:
    async with door(config) as at:
        sent = time.time()
        first, later = envelope(report(sent=sent)), envelope(report(sent=sent + 0.001))
        assert (await at.announce(first))[0] == 200
        status, problem = await at.announce(first)
        assert (status, "a repetition" in problem["detail"]) == (403, True)
        assert (await at.announce(later))[0] == 200
        assert (await at.announce(first))[0] == 403
        assert at.house.parts.context.metrics.value("relay_reports_refused_total") == 2


async def test_a_relay_cannot_take_the_name_of_another(config: Config) -> None:
    named = TurnRelay(("turn:named.invalid:3478",), SECRET)
    async with door(config, turn=(named,)) as at:
        assert (await at.announce(envelope(report())))[0] == 200
        status, problem = await at.announce(envelope(report(OTHER), OTHER))
        assert (status, "another relay's first URL" in problem["detail"]) == (409, True)
        assert (await at.announce(envelope(report(OTHER, urls=named.urls), OTHER)))[0] == 409
        assert (await at.announce(envelope(report())))[0] == 200, "the relay itself comes back as it was"


async def test_traffic_is_metered_by_node_and_job_over_a_restart_of_the_relay(config: Config) -> None:
    node, job = NodeKey(b"n" * 32).address, "0123456789abcdef" * 2
    async with door(config) as at:
        at.house.parts.relays.servers((), node, job)  # Credentials for the job are made: from now on its id is known.
        for started, relayed in ((1.0, 1000), (1.0, 1500), (2.0, 300)):
            used = (RelayUsage(f"{node}-{job[:16]}", relayed), RelayUsage(node, 10), RelayUsage("?", 1))
            told = report(sent=time.time(), started=started, bytes_relayed=relayed, usage=used)
            assert (await at.announce(envelope(told)))[0] == 200
        (view,) = await at.get("/api/v1/relays")
        assert [(entry["node"], entry["job"], entry["bytes_relayed"]) for entry in view["traffic"]] == [
            (node, job, 1800),
            (node, None, 20),
            ("?", None, 2),
        ]
        assert "cottage_relay_bytes_total 1800" in at.house.parts.context.metrics.text()


async def test_a_relay_that_names_ever_new_users_is_metered_in_bounds(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "MAX_METERED", 5)
    async with door(config) as at:
        for number in range(10):
            used = (*(RelayUsage(f"user{number}.{i}", i) for i in range(50)), RelayUsage("steady", 1000 + number))
            assert (await at.announce(envelope(report(sent=time.time(), usage=used))))[0] == 200
        known = at.house.parts.relays._reporting[KEY.address]
        assert len(known.meter) == 5
        assert set(known._counted) == set(known.meter)
        assert known.meter["steady"] >= 1000


# --- whether they live --------------------------------------------------------------------------------------------------


async def test_a_real_relay_announces_itself_is_probed_and_reaches_the_nodes(config: Config, quick: None) -> None:
    async with door(config) as at, relay_server() as (server, url):
        announcer = Announcer(at.url, Identity(KEY, (url,), SECRET, "home"), server, SystemClock())
        async with nodes(at.house, 1) as (node,), aiohttp.ClientSession() as http:
            assert node.welcomes[0].ice_servers == ()
            await announcer.once(http)
            await until(lambda: node.ice_servers)
            offered = node.ice_servers[-1]
            assert relay_of(offered.servers) == [url]
            assert offered.servers[1].urls == (parse_ice(url).stun,)
            (view,) = await at.get("/api/v1/relays")
            assert (view["state"], view["region"]) == ("up", "home")
            assert 0 < view["rtt_ms"] < 1000
            await _allocates(server, offered.servers[0])
            assert 'cottage_relays{state="up"} 1.0' in at.house.parts.context.metrics.text()
            await server.aclose()
            await until(lambda: node.ice_servers[-1].servers == ())
            assert (await at.get("/api/v1/relays"))[0]["state"] == "unreachable"
            async with nodes(at.house, 1, first=2) as (late,):
                await until(lambda: late.welcomes)
                assert late.welcomes[0].ice_servers == ()


async def _allocates(server: RelayServer, offered: OfferedIceServer) -> None:
    """See that the relay takes the credentials, with another implementation's client."""
    from aioice import turn

    where = parse_ice(offered.urls[0])
    transport, _ = await turn.create_turn_endpoint(
        asyncio.DatagramProtocol,
        server_addr=(where.host, where.port),
        username=offered.username,
        password=offered.credential,
    )
    assert server.allocations == 1
    transport.close()
    await until(lambda: server.allocations == 0)


async def test_a_relay_that_stops_reporting_is_not_handed_out(
    config: Config, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "REPORT_S", 0.1)
    async with door(config) as at, relay_server() as (_, url):
        found = at.house.parts.relays
        await at.announce(envelope(report(urls=(url,))))
        await until(lambda: found.order())
        await until(lambda: not found.order())
        assert (await at.get("/api/v1/relays"))[0]["state"] == "silent"
        await at.announce(envelope(report(urls=(url,))))
        await until(lambda: found.order() == (url,))


async def test_a_relay_that_moves_must_answer_at_its_new_place_first(config: Config, quick: None) -> None:
    async with door(config) as at, relay_server() as (_, url):
        found = at.house.parts.relays
        await at.announce(envelope(report(urls=(url,))))
        await until(lambda: found.order() == (url,))
        await at.announce(envelope(report(urls=(ANYWHERE,))))
        assert found.order() == ()


async def test_a_full_relay_is_handed_out_after_all_others(config: Config, quick: None) -> None:
    async with door(config) as at, relay_server() as (_, one), relay_server() as (_, two):
        found = at.house.parts.relays
        await at.announce(envelope(report(urls=(one,), allocations=9, allocations_max=9)))
        await at.announce(envelope(report(OTHER, urls=(two,), allocations=8, allocations_max=9), OTHER))
        await until(lambda: found.order() == (two, one))
        assert {view["state"] for view in await at.get("/api/v1/relays")} == {"up", "full"}


async def test_a_probe_over_tcp_counts_a_connection_and_a_closed_port_does_not_answer() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await probe(f"turn:127.0.0.1:{port}?transport=tcp", SystemClock()) is not None
    server.close()
    await server.wait_closed()
    assert await probe(f"turns:127.0.0.1:{port}?transport=tcp", SystemClock()) is None
    assert await probe("turn:name.invalid:3478", SystemClock()) is None


async def test_a_probe_is_sent_again_and_a_stranger_cannot_answer_it() -> None:
    """The first question is lost, and to the second an answer to another question comes first."""
    from aioice import stun

    class Server(asyncio.DatagramProtocol):
        asked = 0

        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.asked += 1
            if self.asked == 1:
                return
            message = stun.parse_message(data)
            for transaction in (bytes(12), message.transaction_id):
                kind = stun.Class.RESPONSE
                answer = stun.Message(stun.Method.BINDING, kind, transaction_id=transaction)
                answer.attributes["XOR-MAPPED-ADDRESS"] = addr
                self.transport.sendto(bytes(answer), addr)

    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(Server, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    rtt = await probe(f"turn:127.0.0.1:{port}", SystemClock())
    assert rtt is not None
    assert server.asked == 2
    transport.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("turn:a.test", ("a.test", 3478, True)),
        ("turn:a.test:1?transport=udp", ("a.test", 1, True)),
        ("turn:a.test:1?transport=tcp", ("a.test", 1, False)),
        ("turns:a.test?transport=tcp", ("a.test", 5349, False)),
        ("turn:[2001:db8::1]:7", ("2001:db8::1", 7, True)),
    ],
)
def test_a_url_names_host_port_and_transport(url: str, expected: tuple[str, int, bool]) -> None:
    where = parse_ice(url)
    assert (where.host, where.port, where.udp) == expected


# --- what nodes are told ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_relays(config: Config, **settings: Any) -> AsyncIterator[tuple[Door, str, str]]:
    async with relay_server() as (_, one), relay_server() as (_, two):
        turn = (TurnRelay((one,), SECRET), TurnRelay((two, two.replace("udp", "tcp")), SECRET))
        async with door(config, turn=turn, **settings) as at:
            await until(lambda: len(at.house.parts.relays.order()) == 2)
            yield at, one, two


def measured(*legs: tuple[str, float]) -> NetworkReport:
    return NetworkReport(relays=tuple(RelayMeasure(url, rtt, 0.0, True) for url, rtt in legs))


async def test_both_ends_of_a_pair_get_the_same_relay_first_with_credentials_of_their_own(
    config: Config, quick: None
) -> None:
    async with two_relays(config) as (at, one, two), nodes(at.house, 4) as made:
        for number, node in enumerate(made):
            near, far = (one, two) if number % 2 else (two, one)
            await node.send(measured((near, 0.01 * (number + 1)), (far, 0.5)))
        job = await running(at.house)
        by_node = {node.key.address: node for node in made}
        await until(lambda: all(node.ice_servers and len(node.ice_servers[-1].peers) == 2 for node in made))
        legs = at.house.parts.relays._links.map.leg
        await until(lambda: all(legs(node, url) for node in by_node for url in (one, two)))
        await asyncio.sleep(0)
        for address, node in by_node.items():
            for peer, servers in node.ice_servers[-1].peers.items():
                chosen = relay_of(servers)
                assert chosen == relay_of(by_node[peer].ice_servers[-1].peers[address])
                sums = {url: (legs(address, url) or 0) + (legs(peer, url) or 0) for url in (one, two)}
                assert sums[chosen[0]] == min(sums.values())
                user = servers[0].username.partition(":")[2]
                assert user == f"{address}-{job[:16]}"
                assert len(user) <= 64


async def test_a_node_without_measurements_gets_both_relays_and_every_way_to_them(config: Config, quick: None) -> None:
    async with two_relays(config, stun=("stun:stun.test:3478",)) as (at, one, two), nodes(at.house, 1) as (node,):
        offered = node.welcomes[0].ice_servers
        assert sorted(relay_of(offered)) == sorted((one, two))
        assert any(server.urls == (two, two.replace("udp", "tcp")) for server in offered)
        assert OfferedIceServer(("stun:stun.test:3478",)) in offered


async def test_credentials_are_good_and_renewed_half_way_through_their_life(
    config: Config, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_assignment, "RENEW_S", 0.2)
    async with two_relays(config) as (at, _, _two), nodes(at.house, 1) as (node,):
        await until(lambda: len(node.ice_servers) >= 3)
        first = node.welcomes[0].ice_servers[0]
        expires, _, user = first.username.partition(":")
        assert user == node.key.address
        made = int(expires) - TURN_LIFETIME_S
        assert abs(made - time.time()) < 60
        assert turn_credentials(SECRET, user, made) == (first.username, first.credential)


async def test_nothing_is_said_where_there_is_nothing_to_say(config: Config, quick: None) -> None:
    async with door(config) as at, nodes(at.house, 4) as made:
        await running(at.house)
        look = at.house.parts.relay_assignment.look
        for _ in range(3):
            look()
        assert at.house.parts.context.metrics.value("ice_servers_sent_total") == 0
        assert not any(node.ice_servers for node in made)


async def test_what_has_not_changed_is_not_said_again(config: Config, quick: None) -> None:
    async with two_relays(config) as (at, _, _two), nodes(at.house, 4):
        metrics = at.house.parts.context.metrics
        await until(lambda: metrics.value("ice_servers_sent_total") == 4)
        for _ in range(5):
            at.house.parts.relay_assignment.look()
        assert metrics.value("ice_servers_sent_total") == 4


# --- what nodes tell ----------------------------------------------------------------------------------------------------


def link(peer: str, pair: str, sent: int, received: int, **changes: Any) -> PeerMeasure:
    return PeerMeasure(peer, pair, changes.get("rtt", 0.03), changes.get("loss", 0.0), 2e6, 0.0, 0.0, 0, sent, received)


async def test_reports_fill_the_matrices_and_the_metrics_without_naming_anybody(config: Config) -> None:
    async with door(config) as at, nodes(at.house, 2) as (one, two):
        links, metrics = at.house.parts.conversation._links, at.house.parts.context.metrics
        peer = two.key.address
        at.house.parts.leases.of_node = lambda _node: ("a lease",)  # type: ignore[method-assign, assignment, return-value]
        await one.send(NetworkReport(up=1e6, down=2e6, peers=(link(peer, "host/srflx", 100, 50, loss=0.02),)))
        await two.send(NetworkReport(peers=(link(one.key.address, "relay/host", 50, 100),)))
        await until(lambda: metrics.value("network_reports_total") == 2)
        assert links.map.rtt(one.key.address, peer) == 0.03
        line = links.map.line(one.key.address)
        assert line is not None
        assert line.up == 1e6
        text = metrics.text()
        assert 'cottage_links{kind="direct"} 1.0' in text
        assert 'cottage_links{kind="relay"} 1.0' in text
        assert "cottage_link_bytes_sent_total 150" in text
        assert "cottage_link_bytes_received_total 150" in text
        assert 'cottage_link_rtt_seconds_bucket{le="0.05"} 2' in text
        assert 'cottage_link_loss_ratio_bucket{le="0.01"} 1' in text
        assert 'cottage_link_loss_ratio_bucket{le="+Inf"} 2' in text
        assert 'cottage_link_rate_bytes_per_second_bucket{le="2.5e+06"} 2' in text
        assert one.key.address not in text
        assert peer not in text


async def test_only_one_report_in_five_seconds_is_taken_and_nobody_is_cut_off(config: Config) -> None:
    async with door(config) as at, nodes(at.house, 1) as (node,):
        metrics = at.house.parts.context.metrics
        for number in range(20):
            await node.send(NetworkReport(up=float(number)))
        await until(lambda: metrics.value("network_reports_dropped_total") == 19)
        line = at.house.parts.conversation._links.map.line(node.key.address)
        assert line is not None
        assert line.up == 0.0
        assert node.closed == ""


async def test_bytes_are_counted_once_even_when_an_agent_starts_anew(config: Config) -> None:
    async with door(config) as at:
        links, metrics = at.house.parts.conversation._links, at.house.parts.context.metrics
        for sent in (100, 300, 40):
            links._heard.clear()
            assert links.report("n", NetworkReport(peers=(link(KEY.address, "host/host", sent, 0),)))
        assert metrics.value("link_bytes_sent_total") == 340


async def test_the_metrics_are_in_the_text_form_that_prometheus_reads(config: Config) -> None:
    async with two_relays(config) as (at, _, _two):
        lines = at.house.parts.context.metrics.text().splitlines()
        typed = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
        for line in lines:
            if not line.startswith("#"):
                name, _, value = line.partition(" ")
                base = name.partition("{")[0]
                owner = next(n for n in (base, base.rsplit("_", 1)[0]) if n in typed)
                assert (owner == base) or typed[owner] == "histogram"
                float(value)


# --- options ------------------------------------------------------------------------------------------------------------


def settings_of(tmp_path: Path, *words: str) -> Config:
    options = cli._parser().parse_args(["--data", str(tmp_path), "--ledger-url", "http://127.0.0.1:1", *words])
    return cli._config(options)


def test_urls_of_one_host_with_one_secret_are_ways_to_one_relay(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("first secret\n")
    (tmp_path / "b").write_text("second secret\n")
    ways = ("turn:a.test:3478?transport=udp", "turns:a.test:5349?transport=tcp", "turn:b.test:3478?transport=udp")
    words = [word for url in ways for word in ("--turn", url)]
    together = settings_of(tmp_path, *words, "--turn-secret-file", str(tmp_path / "a"))
    assert together.turn == (TurnRelay(ways[:2], "first secret"), TurnRelay(ways[2:], "first secret"))
    files = [word for name in "aab" for word in ("--turn-secret-file", str(tmp_path / name))]
    assert settings_of(tmp_path, *words, *files).turn[1] == TurnRelay(ways[2:], "second secret")
    assert "secret" not in repr(together.turn[0]).replace("turn-secret", "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--turn", "turn:a.test:3478"), "--turn-secret-file was given 0 times"),
        (("--turn", "turn:a.test:3478", "--turn-secret-file", "missing"), "cannot be read"),
        (("--turn", "turn:a.test:3478", "--turn-secret-file", "empty"), "is empty"),
        (("--turn-secret-file", "empty", "--turn-secret-file", "empty"), "given 2 times"),
        (("--turn", "stun:a.test:3478"), "is no relay"),
        (("--stun", "turn:a.test:3478"), "is a relay"),
        (("--stun", "http://a.test"), "is no ICE server"),
        (("--relay", "nobody"), "cottage relay"),
        (("--relay-user-rate", "-1"), "out of bounds"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_with_the_way_out(
    tmp_path: Path, words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    found = [str(tmp_path / word) if word in ("empty", "missing") else word for word in words]
    try:
        code = cli.main(["--data", str(tmp_path), "--ledger-url", "http://127.0.0.1:1", *found])
    except SystemExit as error:
        code = int(str(error.code))
    assert code == cli.EXIT_USAGE
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_relays_stun_and_their_rate_reach_the_settings(tmp_path: Path) -> None:
    found = settings_of(
        tmp_path,
        "--relay",
        KEY.address,
        "--relay",
        OTHER.address,
        "--stun",
        "stun:a.test:3478",
        "--relay-user-rate",
        "40",
    )
    assert found.relays == {KEY.address, OTHER.address}
    assert (found.stun, found.relay_user_rate) == (("stun:a.test:3478",), 5e6)
