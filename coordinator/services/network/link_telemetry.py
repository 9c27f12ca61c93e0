"""What nodes tell of their lines and links: taken now and then, kept as the scheduler's matrices, counted for the operator."""

from typing import Literal

import msgspec

from coordinator.domain.network import STALE_S, NetworkMap
from coordinator.metrics import Gauges
from coordinator.services.core.context import Context
from protocol.network import NetworkReport, PeerMeasure

REPORT_S = 5.0  # Between two reports of a node; agents send one in half a minute, and one after a measurement.
MAX_COUNTED = 100_000  # Links whose byte counters are remembered, to count only what is new.


class Links:
    """The measured network."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heard: dict[str, float] = {}
        self._bytes: dict[tuple[str, str], tuple[int, int]] = {}
        self.map = NetworkMap()

    def report(self, node: str, report: NetworkReport, *, linked: bool = True) -> bool:
        """Take a node's report; False where its last one was less than ``REPORT_S`` ago, and this one is dropped.

        Args:
            linked: it holds a lease. Who does not has no links, and what it says of any is not kept.
        """
        now, metrics = self._context.clock.now(), self._context.metrics
        if now - self._heard.get(node, now - REPORT_S) < REPORT_S:
            metrics.count("network_reports_dropped_total")
            return False
        self._heard[node] = now
        metrics.count("network_reports_total")
        report = report if linked else msgspec.structs.replace(report, peers=())
        self.map.learn(node, report, now)
        for measure in report.peers:
            self._count(node, measure)
        return True

    def left(self, node: str) -> None:
        """A node that holds nothing is gone: whoever comes and goes leaves nothing here."""
        self._heard.pop(node, None)
        self.map.drop(node)

    def forget(self) -> None:
        """Let go of what is too old to be true, and of nodes that have been silent for as long."""
        now = self._context.clock.now()
        self.map.forget(now)
        self._heard = {node: at for node, at in self._heard.items() if now - at < STALE_S}
        self._bytes = {link: counted for link, counted in self._bytes.items() if link[0] in self._heard}

    def gauges(self) -> Gauges:
        """Links that live now, by the kind of their way: how many ends have told of one."""
        kinds: dict[str, int] = {"direct": 0, "relay": 0}
        for _, measure in self.map.links(self._context.clock.now()):
            kinds[kind_of(measure)] += 1
        return {("links", kind): float(count) for kind, count in kinds.items()}

    def _count(self, node: str, measure: PeerMeasure) -> None:
        metrics = self._context.metrics
        if measure.rtt_s > 0:
            metrics.observe("link_rtt_seconds", measure.rtt_s)
        metrics.observe("link_loss_ratio", measure.loss)
        for rate in (measure.send_rate, measure.receive_rate):
            if rate > 0:
                metrics.observe("link_rate_bytes_per_second", rate)
        link = (node, measure.peer)
        sent, received = self._bytes.get(link, (0, 0))
        if measure.bytes_sent < sent or measure.bytes_received < received:
            sent = received = 0  # The agent has started anew, and so have its counters.
        if link in self._bytes or len(self._bytes) < MAX_COUNTED:
            self._bytes[link] = (measure.bytes_sent, measure.bytes_received)
            metrics.count("link_bytes_sent_total", measure.bytes_sent - sent)
            metrics.count("link_bytes_received_total", measure.bytes_received - received)


def kind_of(measure: PeerMeasure) -> Literal["direct", "relay"]:
    """``relay`` where either candidate of the pair is one."""
    return "relay" if "relay" in measure.pair.split("/") else "direct"
