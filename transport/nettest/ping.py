"""The way to a relay: round trips and loss, by STUN Bindings at an even pace."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from transport.nettest.binding import Binder, binder
from transport.nettest.target import is_ipv6
from transport.relay.message import Address

COUNT = 50  # A relay answers strangers 50 messages a second; two homes behind one address may measure at once.
PERIOD_S = 0.03
PATIENCE_S = 0.7  # For the last answers; who takes longer is no use as a relay.


@dataclass(frozen=True)
class PingResult:
    """What became of the questions to one server.

    Attributes:
        rtt_s: the median; None where nothing came back.
        loss: share of questions without an answer, whether lost on the way there or back.
    """

    sent: int
    rtt_s: float | None
    loss: float


def summarise(sent: int, rtts: Sequence[float]) -> PingResult:
    """The figures of ``sent`` questions and the round trips, in seconds, of those that were answered."""
    return PingResult(sent, statistics.median(rtts) if rtts else None, 1 - len(rtts) / sent if sent else 0.0)


async def ping(server: Address, count: int = COUNT) -> PingResult:
    """Ask one server ``count`` times over UDP. A system without its family of addresses hears nothing."""
    try:
        async with binder(ipv6=is_ipv6(server)) as own:
            return await _ping(own, server, count)
    except OSError:
        return summarise(0, ())


async def _ping(own: Binder, server: Address, count: int) -> PingResult:
    loop = asyncio.get_running_loop()
    began = loop.time()
    asked = []
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number * PERIOD_S - loop.time()))
        asked.append((loop.time(), own.ask_once(server)))
    await asyncio.wait([answer for _, answer in asked], timeout=PATIENCE_S)
    return summarise(count, [answer.result().at - at for at, answer in asked if answer.done()])
