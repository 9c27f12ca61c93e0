"""What a relay tells its operator: Prometheus text at ``/metrics``, and ``/healthz``.

Labels are methods, outcomes and reasons, which are few; users are not among them.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from aiohttp import web

from common.urls import join, url_of
from transport.relay.errors import ListenError
from transport.relay.message import Address
from transport.relay.server import RelayServer

CONTENT_TYPE = "text/plain; version=0.0.4"


def render(relay: RelayServer) -> str:
    """All figures of a relay in Prometheus' text format, version 0.0.4."""
    return "\n".join(_lines(relay)) + "\n"


def _lines(relay: RelayServer) -> Iterator[str]:
    counters, quota = relay.desk.counters, relay.options.quota
    yield from _family("allocations", "gauge", "Relayed addresses in use", {"": relay.allocations})
    yield from _family("allocations_max", "gauge", "Relayed addresses at most", {"": quota.allocations})
    yield from _family("connections", "gauge", "Clients over TCP and TLS", {"": relay.connections})
    yield from _family("start_time_seconds", "gauge", "Unix time of the start", {"": relay.started})
    ways = {'{direction="to_peers"}': counters.to_peers_bytes, '{direction="to_clients"}': counters.to_clients_bytes}
    yield from _family("bytes_total", "counter", "Payload relayed", ways)
    ways = {
        '{direction="to_peers"}': counters.to_peers_packets,
        '{direction="to_clients"}': counters.to_clients_packets,
    }
    yield from _family("packets_total", "counter", "Packets relayed", ways)
    dropped = {f'{{reason="{reason}"}}': count for reason, count in sorted(counters.dropped.items())}
    yield from _family("dropped_packets_total", "counter", "Packets that went nowhere", dropped)
    ways = {f'{{direction="{way.name.lower()}"}}': moved for way, moved in relay.desk.speed.moved.items()}
    yield from _family("speed_test_bytes_total", "counter", "Payload of speed tests", ways)
    answers = {
        f'{{method="{method}",outcome="{outcome}"}}': count
        for (method, outcome), count in sorted(counters.answers.items())
    }
    yield from _family("answers_total", "counter", "Requests answered; an outcome is ok or a STUN error code", answers)


def _family(name: str, kind: str, text: str, samples: dict[str, int] | dict[str, float]) -> Iterator[str]:
    full = f"cottage_relay_{name}"
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {kind}"
    for labels, value in samples.items():
        yield f"{full}{labels} {value}"


@asynccontextmanager
async def serving(relay: RelayServer, address: Address) -> AsyncIterator[str]:
    """Serve the figures on ``address``, port 0 for a free one; gives the base URL.

    Raises:
        ListenError: the address or port cannot be used.
    """

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text=render(relay), headers={"Content-Type": CONTENT_TYPE})

    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", health)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address)
        try:
            await site.start()
        except OSError as error:
            raise ListenError(f"cannot serve metrics on {join(*address)}: {error.strerror}") from error
        yield url_of(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()
