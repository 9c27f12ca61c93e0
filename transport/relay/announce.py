"""Tells the coordinator that this relay is there, and what it carries; relaying never waits for it."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from common.clock import Clock, backoff
from common.errors import UrlError
from common.http_sessions import open_session, through
from common.untrusted_text import untrusted
from common.urls import is_loopback, parse_url
from protocol.codec import MessageError, decode_json, encode_json
from protocol.identity import NodeKey
from protocol.network import RelayEnvelope, RelayOrder, RelayReport
from transport.relay.errors import AnnounceError, OptionsError
from transport.relay.usage import Users

CONTEXT = "cottage-relay"
PATH = "/api/v1/relays/announce"
# Longer than a busy coordinator takes, short beside the three reports after which it gives a relay up.
REQUEST_S = 10.0
MAX_ANSWER = 64 * 1024
MAX_COMPLAINT = 300  # Characters of a refusal that go into the log.

LOG = logging.getLogger(__name__)


class RelayMeter(Protocol):
    """What is told of a relay, be it ours or coturn.

    Attributes:
        started: unix seconds; all counters count from there.
        users: who relays, and how much.
        allocations, allocations_max: relayed addresses in use, and the most.
        bytes_relayed, packets_dropped: since the start.
    """

    started: float

    @property
    def users(self) -> Users: ...
    @property
    def allocations(self) -> int: ...
    @property
    def allocations_max(self) -> int: ...
    @property
    def bytes_relayed(self) -> int: ...
    @property
    def packets_dropped(self) -> int: ...


@dataclass(frozen=True)
class Identity:
    """How the relay presents itself.

    Attributes:
        urls: ``turn:`` and ``turns:`` addresses, the main one first.
    """

    key: NodeKey
    urls: tuple[str, ...]
    secret: str
    region: str = ""


def check_coordinator(url: str, *, plain_allowed: bool = False) -> str:
    """Return the base URL without its last slash.

    The report carries the relay's secret: whoever overhears it can relay for free and be taken for any node.

    Raises:
        OptionsError: no URL, or it is neither https nor on this machine.
    """
    try:
        parsed = parse_url(url)
    except UrlError as error:
        raise OptionsError(f"--coordinator: {error}") from error
    if parsed.scheme == "http" and not is_loopback(parsed.raw_host or "") and not plain_allowed:
        raise OptionsError(f"{url} would carry the relay's secret over the network in the clear: use https")
    return str(parsed).rstrip("/")


class Announcer:
    """Reports to one coordinator as often as it asks."""

    def __init__(
        self,
        coordinator: str,
        identity: Identity,
        meter: RelayMeter,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``coordinator``: a base URL as ``check_coordinator`` returns it."""
        self._url = coordinator + PATH
        self._identity = identity
        self._meter = meter
        self._clock = clock
        self._jitter = jitter
        self._last: tuple[float, int] | None = None
        self._sent = 0.0

    async def run(self) -> None:
        """Report for ever; what goes wrong is logged and tried again, ever more rarely."""
        failed = 0
        async with open_session(timeout=aiohttp.ClientTimeout(total=REQUEST_S)) as session:
            while True:
                try:
                    order = await self.once(session)
                except AnnounceError as error:
                    failed += 1
                    LOG.warning("not announced (try %d): %s", failed, error)
                    await self._clock.sleep(backoff(failed, self._jitter))
                    continue
                if failed or self._last is None:
                    LOG.info("announced to %s", self._url)
                failed = 0
                await self._clock.sleep(order.next_seconds)

    async def once(self, session: aiohttp.ClientSession) -> RelayOrder:
        """Report once, and obey the answer.

        Raises:
            AnnounceError: refused, unreachable, or an answer that is none.
        """
        told, usage = self._meter.users.unreported()
        now, relayed = self._clock.time(), self._meter.bytes_relayed
        self._sent = max(now, self._sent + 1e-6)  # Must grow even where the clock stands still.
        before = self._last or (self._meter.started, 0)
        report = RelayReport(
            relay=self._identity.key.address,
            sent=self._sent,
            started=self._meter.started,
            urls=self._identity.urls,
            secret=self._identity.secret,
            region=untrusted(self._identity.region),
            allocations=self._meter.allocations,
            allocations_max=self._meter.allocations_max,
            bytes_relayed=relayed,
            packets_dropped=self._meter.packets_dropped,
            rate=max(0.0, (relayed - before[1]) / max(now - before[0], 1e-3)),
            usage=usage,
        )
        order = await self._post(session, report)
        self._last = (now, relayed)
        for user, entry in zip(told, usage, strict=True):
            user.bytes_reported = entry.bytes_relayed
        self._meter.users.limit(order.user_rate)
        return order

    async def _post(self, session: aiohttp.ClientSession, report: RelayReport) -> RelayOrder:
        data = encode_json(report)
        envelope = RelayEnvelope(report=data, signature=self._identity.key.sign(CONTEXT, data))
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(
                self._url, data=encode_json(envelope), headers=headers, allow_redirects=False
            ) as answer:
                body = await answer.content.read(MAX_ANSWER)
                if answer.status != 200:
                    complaint = body.decode(errors="replace")[:MAX_COMPLAINT]
                    raise AnnounceError(f"the coordinator answered {answer.status}: {complaint}")
                order: RelayOrder = decode_json(body, RelayOrder)
                return order
        except TimeoutError:
            way = through(parse_url(self._url))
            raise AnnounceError(f"no answer from {self._url}{way} within {REQUEST_S:.0f} s") from None
        except (aiohttp.ClientError, MessageError, OSError) as error:
            raise AnnounceError(f"{self._url}{through(parse_url(self._url))}: {error}") from error
