"""The relays of this network: who may be one, which of them live, and credentials for them.

A relay is its key, which the operator has allowed. It announces itself and reports every few seconds; nothing of it is stored,
because a coordinator that starts anew has heard from all of them within one period. Relays that were named on the command line
do not report: they live as long as they answer probes. Where a network has several cells, a relay speaks to one of them, which
passes on what it has believed; each probes for itself.
"""

import asyncio
import logging
import struct
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from common.errors import IceConfigError, IdentityError
from common.untrusted_text import untrusted
from coordinator.domain import relays as rules
from coordinator.domain.relays import RelayCandidate
from coordinator.errors import ConflictError, CottageError, ForbiddenError, InvalidError
from coordinator.metrics import Gauges
from coordinator.services.core.context import Context
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.relay_probe import probe
from protocol import identity
from protocol.codec import MessageError, decode_json
from protocol.network import MAX_RELAYS, RelayEnvelope, RelayOrder, RelayQuestion, RelayReport
from protocol.node import MAX_ICE_SERVERS, IceServers, OfferedIceServer
from protocol.rest import api
from transport.ice.ice import IceServer as CheckedServer
from transport.ice.ice import parse_ice, turn_credentials

QUESTION_CONTEXT = "cottage-relays"
RELAY_CONTEXT = "cottage-relay"
REPORT_S = 10.0
PROBE_EVERY_S = 10.0
MAX_SKEW_S = 60.0  # Between a relay's clock and this one: without NTP a machine drifts seconds a day.
MAX_REPORT = 1 << 20
JOB_DIGITS = 16  # A relay's user name has room for half of a job's id beside the node's address.
MAX_METERED = 20_000  # Nodes and jobs in each relay's account; those that have been idle longest go first.
MAX_TRAFFIC_SHOWN = 200
MAX_JOBS_KNOWN = 10_000  # To tell a job by the half of its id; beyond it the oldest are shown by that half.
SILENT_SHOWN_S = 3600.0  # So that the operator sees what is missing.

LOG = logging.getLogger(__name__)


class _Known:
    """A relay, and what it has told."""

    def __init__(self, urls: tuple[str, ...], secret: str, address: str | None = None) -> None:
        self.urls = urls
        self.secret = secret
        self.address = address
        self.rules = RelayCandidate(urls[0])
        self.report: RelayReport | None = None
        self.heard: float | None = None
        self.meter: OrderedDict[str, int] = OrderedDict()
        self._counted: dict[str, int] = {}
        self._relayed = 0

    def take(self, report: RelayReport, now: float, wall: float) -> int:
        """Believe a report; returns the bytes relayed since the last one."""
        if self.report is None or self.report.started != report.started:
            self._counted.clear()  # It has started anew, and so have its counters.
            self._relayed = 0
        self.urls, self.secret, self.report, self.heard = report.urls, report.secret, report, wall
        self.rules = msgspec.structs.replace(
            self.rules,
            name=report.urls[0],
            expires=now + rules.MISSED_REPORTS * REPORT_S,
            full=0 < report.allocations_max <= report.allocations,
        )
        for usage in report.usage:
            self._meter(usage.user, usage.bytes_relayed)
        fresh = max(0, report.bytes_relayed - self._relayed)
        self._relayed = report.bytes_relayed
        return fresh

    def _meter(self, user: str, relayed: int) -> None:
        fresh = relayed - self._counted.get(user, 0)
        if fresh <= 0:
            return
        self._counted[user] = relayed
        self.meter[user] = self.meter.get(user, 0) + fresh
        self.meter.move_to_end(user)
        if len(self.meter) > MAX_METERED:
            idle, _ = self.meter.popitem(last=False)
            self._counted.pop(idle, None)


class Relays:
    """Implements the part of ``ports.NetworkPort`` that is about relays."""

    def __init__(self, context: Context, links: Links) -> None:
        self._context = context
        self._links = links
        self._static = [_Known(relay.urls, relay.secret) for relay in context.config.turn]
        self._reporting: dict[str, _Known] = {}
        self._jobs: OrderedDict[str, str] = OrderedDict()
        self._new = asyncio.Event()
        self._listeners: list[Callable[[RelayEnvelope], None]] = []
        context.metrics.watch(self._gauges)

    def on_announced(self, listener: Callable[[RelayEnvelope], None]) -> None:
        """Call ``listener`` with every report that a relay has sent here, if it is believed; it must neither wait nor raise."""
        self._listeners.append(listener)

    # --- what relays say ------------------------------------------------------------------------------------------------

    def announce(self, envelope: RelayEnvelope, *, first_hand: bool = True) -> RelayOrder:
        """Take a relay's report.

        Args:
            first_hand: it was sent here, and not to another cell: then it is passed on, and counted.
        Raises:
            ForbiddenError: not a relay of this network, not signed by it, or not newer than its last one.
            InvalidError: a URL that is none of a relay.
            ConflictError: the first URL is another relay's, or there are ``MAX_RELAYS`` already.
            MessageError: the report is malformed.
        """
        try:
            report = self._checked(envelope)
        except (CottageError, MessageError):
            self._context.metrics.count("relay_reports_refused_total", int(first_hand))
            raise
        known = self._reporting.get(report.relay)
        if known is None:
            known = self._reporting[report.relay] = _Known(report.urls, report.secret, report.relay)
            LOG.info("relay %s announces itself at %s", report.relay, report.urls[0])
        elif known.urls[0] != report.urls[0]:
            known.rules = RelayCandidate(report.urls[0])  # It has moved: nothing is known of the new place.
        relayed = known.take(report, self._context.clock.now(), self._context.clock.time())
        if not known.rules.probed:
            self._new.set()
        self._context.metrics.count("relay_reports_total", int(first_hand))
        self._context.metrics.count("relay_bytes_total", relayed if first_hand else 0)
        for listener in self._listeners if first_hand else ():
            listener(envelope)
        return RelayOrder(REPORT_S, self._context.config.relay_user_rate)

    def _checked(self, envelope: RelayEnvelope) -> RelayReport:
        report: RelayReport = decode_json(envelope.report, RelayReport, MAX_REPORT)
        if report.relay not in self._context.config.relays:
            raise ForbiddenError(
                f"relay {report.relay} is not one of this network: its operator allows it with --relay {report.relay}"
            )
        try:
            identity.verify(report.relay, envelope.signature, RELAY_CONTEXT, envelope.report)
        except IdentityError as error:
            raise ForbiddenError(f"the report does not hold: {error}") from error
        skew = report.sent - self._context.clock.time()
        if abs(skew) > MAX_SKEW_S:
            raise ForbiddenError(f"the report was made {skew:+.0f} s from now by this clock: set the relay's clock")
        known = self._reporting.get(report.relay)
        if known is not None and known.report is not None and report.sent <= known.report.sent:
            raise ForbiddenError(f"a report of {report.sent!r} or later was taken before: this one is a repetition")
        self._check_urls(report)
        return report

    def _check_urls(self, report: RelayReport) -> None:
        for url in report.urls:
            check_relay_url(url)
        others = [known for known in self._known() if known.address != report.relay]
        if any(known.urls[0] == report.urls[0] for known in others):
            raise ConflictError(f"{report.urls[0]} is another relay's first URL: give each relay an address of its own")
        if len(others) >= MAX_RELAYS:
            raise ConflictError(f"{MAX_RELAYS} relays are known, which is all that nodes are told of")

    # --- what nodes are told --------------------------------------------------------------------------------------------

    def order(self, *nodes: str, before: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Names of the relays for traffic between nodes, best first; see ``domain.relays.order``."""
        relays = [known.rules for known in self._known()]
        return rules.order(nodes, relays, self._links.map.leg, self._context.clock.now(), before)

    def servers(self, names: tuple[str, ...], node: str, job: str | None = None) -> tuple[OfferedIceServer, ...]:
        """These relays with credentials for a node, for its part in a job if one is named; then STUN.

        Credentials are good for ``transport.ice.ice.TURN_LIFETIME_S``.
        """
        user = node if job is None else f"{node}-{job[:JOB_DIGITS]}"
        if job is not None:
            self._jobs[job[:JOB_DIGITS]] = job
            if len(self._jobs) > MAX_JOBS_KNOWN:
                self._jobs.popitem(last=False)
        by_name = {known.urls[0]: known for known in self._known()}
        found = []
        for name in names:
            relay = by_name[name]
            username, credential = turn_credentials(relay.secret, user, self._context.clock.time())
            found.append(OfferedIceServer(relay.urls, username, credential))
        stun = [*self._context.config.stun, *(parse_ice(name).stun for name in names if parse_ice(name).udp)]
        return (*found, *(OfferedIceServer((url,)) for url in stun))

    def credentials(self, question: RelayQuestion, host: str) -> IceServers:
        """Every relay that lives, with credentials for a node that wants to measure them.

        Raises:
            ForbiddenError: the question is not signed by the node, for this host, now.
        """
        skew = question.sent - self._context.clock.time()
        if abs(skew) > MAX_SKEW_S:
            raise ForbiddenError(f"the question was asked {skew:+.0f} s from now by this clock: set the node's clock")
        try:
            signed = host.encode(), struct.pack("!d", question.sent)
            identity.verify(question.node, question.signature, QUESTION_CONTEXT, *signed)
        except IdentityError as error:
            raise ForbiddenError(f"the question does not hold: {error}") from error
        now = self._context.clock.now()
        names = tuple(known.rules.name for known in self._known() if rules.live(known.rules, now))
        return IceServers(self.servers(names, question.node)[:MAX_ICE_SERVERS])

    # --- whether they live ----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Probe every relay now and then, and a new one at once, for ever."""
        while True:
            self._new.clear()
            self._forget()
            await asyncio.gather(*(self._probe(known) for known in self._known()))
            try:
                async with self._context.clock.timeout(PROBE_EVERY_S):
                    await self._new.wait()
            except TimeoutError:
                continue

    async def _probe(self, known: _Known) -> None:
        name = known.rules.name
        rtt = await probe(name, self._context.clock)
        if known.rules.name != name:
            return  # It has moved meanwhile.
        before = self._state(known)
        known.rules = rules.probed(known.rules, rtt)
        if rtt is None:
            self._context.metrics.count("relay_probes_failed_total")
        if self._state(known) != before:
            LOG.info("relay %s is %s", name, self._state(known))

    def _forget(self) -> None:
        oldest = self._context.clock.now() - SILENT_SHOWN_S
        for address, known in list(self._reporting.items()):
            if known.rules.expires is not None and known.rules.expires < oldest:
                del self._reporting[address]

    # --- what people see ------------------------------------------------------------------------------------------------

    def views(self) -> list[api.RelayView]:
        """Every relay, those that do not report last."""
        return [self._view(known) for known in (*self._reporting.values(), *self._static)]

    def _known(self) -> list[_Known]:
        return [*self._static, *self._reporting.values()]

    def _state(self, known: _Known) -> str:
        now = self._context.clock.now()
        if rules.live(known.rules, now):
            return "full" if known.rules.full else "up"
        return "silent" if known.rules.expires is not None and known.rules.expires <= now else "unreachable"

    def _view(self, known: _Known) -> api.RelayView:
        report, rtt = known.report, known.rules.rtt
        busiest = sorted(known.meter.items(), key=lambda entry: (-entry[1], entry[0]))[:MAX_TRAFFIC_SHOWN]
        return api.RelayView(
            relay=known.address,
            urls=known.urls,
            region=report.region if report else untrusted(""),
            state=self._state(known),  # type: ignore[arg-type]
            rtt_ms=None if rtt is None else round(rtt * 1000, 2),
            allocations=report.allocations if report else None,
            allocations_max=report.allocations_max if report else None,
            rate=report.rate if report else None,
            bytes_relayed=report.bytes_relayed if report else None,
            packets_dropped=report.packets_dropped if report else None,
            started=report.started if report else None,
            heard=known.heard,
            traffic=tuple(self._traffic(user, relayed) for user, relayed in busiest),
        )

    def _traffic(self, user: str, relayed: int) -> api.RelayTraffic:
        node, _, job = user.partition("-")
        return api.RelayTraffic(node, self._jobs.get(job, job) or None, relayed)

    def _gauges(self) -> Gauges:
        states = [self._state(known) for known in self._known()]
        reports = [
            known.report for known in self._reporting.values() if known.report and self._state(known) != "silent"
        ]
        up = sum(state in ("up", "full") for state in states)
        return {
            ("relays", "up"): float(up),
            ("relays", "down"): float(len(states) - up),
            ("relay_allocations",): float(sum(report.allocations for report in reports)),
            ("relay_rate_bytes_per_second",): sum(report.rate for report in reports),
        }


def check_relay_url(url: str) -> None:
    """See that a URL names a relay.

    Raises:
        InvalidError: it does not.
    """
    try:
        server = CheckedServer(url, "user", "credential")
    except IceConfigError as error:
        raise InvalidError(str(error), "urls") from error
    if not server.is_relay:
        raise InvalidError(f"{url!r} is no relay: give turn:HOST:PORT?transport=udp", "urls")
