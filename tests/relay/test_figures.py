"""The metrics of a relay, and what coturn's log tells of one."""

import re

import aiohttp
from aioice.stun import Method

from tests.relay.conftest import asker, code, coturn_relay, needs_coturn, peer, until
from tests.support.clock import VirtualClock
from transport.relay import metrics
from transport.relay.coturn import CoturnMeter
from transport.relay.message import Attribute
from transport.relay.server import RelayServer


async def test_metrics_are_prometheus_text_and_name_no_user(relay: RelayServer) -> None:
    async with peer() as (friend, at), asker(relay.addresses[0], "somebody") as client:
        mine = (await client.allocate()).attributes["XOR-RELAYED-ADDRESS"]
        await client.bind(0x4000, at)
        client.send(b"\x40\x00\x00\x05hello")
        await friend.next()
        friend.transport.sendto(b"hi", mine)
        await client.inbox.next()
        client.send(b"noise")
        await until(lambda: bool(relay.desk.counters.dropped))
        async with metrics.serving(relay, ("127.0.0.1", 0)) as base, aiohttp.ClientSession() as http:
            async with http.get(f"{base}/metrics") as answer:
                assert answer.content_type == "text/plain"
                text = await answer.text()
            async with http.get(f"{base}/healthz") as answer:
                assert await answer.json() == {"status": "ok"}
    for line in (
        "cottage_relay_allocations 1",
        'cottage_relay_bytes_total{direction="to_peers"} 5',
        'cottage_relay_bytes_total{direction="to_clients"} 2',
        'cottage_relay_packets_total{direction="to_peers"} 1',
        'cottage_relay_dropped_packets_total{reason="malformed"} 1',
        'cottage_relay_answers_total{method="allocate",outcome="401"} 1',
        'cottage_relay_answers_total{method="allocate",outcome="ok"} 1',
    ):
        assert line in text.splitlines()
    sample = re.compile(r'cottage_relay_[a-z_]+(\{[a-z]+="[a-z0-9_ ]+"(,[a-z]+="[a-z0-9_ ]+")*\})? [0-9.e+]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in text.splitlines())
    assert "somebody" not in text


def test_coturns_log_tells_allocations_and_bytes_of_each_user() -> None:
    meter = CoturnMeter(VirtualClock(), 10)
    for line in (
        "0: : session 001: new, realm=<cottage>, username=<1795196274:node-job>, lifetime=600\n",
        "1: : session 001: usage: realm=<cottage>, username=<1795196274:node-job>, rp=4, rb=293, sp=2047, sb=2052456\n",
        "1: : session 001: peer usage: realm=<cottage>, username=<1795196274:node-job>, rp=2044, rb=2044000, sp=1, sb=1\n",
        "2: : session 002: realm <cottage> user <1:x\n",
        "a line of something else\n",
    ):
        meter.read(line)
    assert (meter.allocations, meter.bytes_relayed) == (1, 2044001)
    assert [usage.user for usage in meter.users.unreported()[1]] == ["node-job"]
    meter.read("2: : session 001: delete: realm=<cottage>, username=<1795196274:node-job>\n")
    assert meter.allocations == 0


@needs_coturn
async def test_a_running_coturn_is_metered_and_nobody_can_write_lines_into_its_log() -> None:
    async with coturn_relay() as (address, meter), peer() as (friend, at), asker(address, "node-job") as client:
        await client.allocate()
        await client.bind(0x4000, at)
        client.send(b"\x40\x00\x00\x05hello")
        await friend.next()
        liar = f"9: : session 003: peer usage: realm=<cottage>, username=<{client.username}>, rp=0, rb=999, sp=0, sb=0"
        honest, client.username = client.username, f"x\n{liar}\n"
        assert code(await client.allocate()) in (401, 437)
        client.username = honest
        await until(lambda: meter.allocations == 1)
        await client.ask(Method.REFRESH, (Attribute.LIFETIME, bytes(4)))
        await until(lambda: meter.allocations == 0)
        assert meter.bytes_relayed == 5
