"""All figures of the coordinator in one place, in Prometheus' text form. No label ever carries an id.

Source: Prometheus text exposition format 0.0.4.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

_COUNTERS: Mapping[str, str] = {
    "connections_total": "node connections accepted",
    "connections_refused_total": "node connections refused at the door",
    "messages_total": "messages from nodes",
    "messages_malformed_total": "messages from nodes that closed their connection",
    "asks_dropped_total": "questions of nodes about their money that came too often",
    "messages_throttled_total": "connections closed for sending too much",
    "network_reports_total": "reports of nodes' lines and links taken",
    "network_reports_dropped_total": "reports of nodes' lines and links that came too soon after the last one",
    "link_bytes_sent_total": "bytes that nodes say they sent to their peers",
    "link_bytes_received_total": "bytes that nodes say they received from their peers",
    "relay_reports_total": "reports of relays taken",
    "relay_reports_refused_total": "reports of relays refused",
    "relay_probes_failed_total": "probes that a relay did not answer",
    "relay_bytes_total": "bytes that relays say they have relayed",
    "ice_servers_sent_total": "times that a node was told which relays to use",
    "signals_total": "signalling envelopes passed on",
    "signals_dropped_total": "signalling envelopes for a node that is not in the same plan or not here",
    "reports_total": "reports stored",
    "reports_stale_total": "reports of leases that had ended, or seen before",
    "leases_granted_total": "leases granted",
    "leases_expired_total": "leases that ran out",
    "rounds_complete_total": "outer rounds completed",
    "rounds_void_total": "outer rounds that had to be done again",
    "rounds_lost_total": "complete outer rounds that were lost with all who kept their state, and done again",
    "audits_passed_total": "audits passed",
    "audits_failed_total": "audits failed",
    "audits_void_total": "audits that nobody could conclude",
    "draws_late_total": "times that a draw of audits waited because the ledger did not answer",
    "canaries_caught_total": "auditors that found a forged step right",
    "boundaries_apart_total": "neighbours that said otherwise what crossed between them, at an audit",
    "audits_distant_total": "audits that other environment classes found too far off, which proves nothing",
    "audits_unwatched_total": "commitments that none of the operator's auditors could run again, so that other nodes decide",
    "looks_total": "audits that one of the operator's auditors has run again",
    "looks_found_total": "looks after which the work was not paid",
    "looks_missed_total": "looks that were due and could not be made any more, so that the work was not paid",
    "looks_wrong_total": "disputes that proved one of the operator's auditors wrong",
    "heldout_differs_total": "replicas that came to another held-out loss than most of their kind, which proves nothing",
    "heldout_undecided_total": "held-out losses that have no quorum: computers contradict each other",
    "boundaries_undecided_total": "pairs of them of which re-running blamed neither",
    "disputes_total": "disputes opened",
    "rollbacks_total": "times that a job went back before a forged round",
    "artifacts_withheld_total": "artifacts that a node asked for and may not read",
    "artifacts_refused_total": "artifacts that a node wanted to store and was not asked for, or that were too large",
    "artifacts_removed_total": "artifacts that nothing referred to any more",
    "ledger_confirmed_total": "ledger transactions confirmed",
    "ledger_retried_total": "ledger transactions signed anew after they had expired",
    "ledger_failed_total": "ledger transactions given up",
    "ledger_unavailable_total": "times that the ledger did not answer",
    "withdrawals_total": "withdrawals signed and sent, whose fee and rent the coordinator pays",
    "withdrawals_refused_total": "withdrawals that were asked for and not offered or not signed",
    "log_lines_dropped_total": "lines of jobs' logs that were too many to be stored",
    "store_away_total": "times that a loop or a node's report waited because the database did not answer",
}

_GAUGES: Mapping[str, str] = {
    "looks_waiting": "opened steps that wait for one of the operator's auditors",
    "links": "ends of links that live now, by the kind of their way",
    "relays": "relays, by whether they are handed out",
    "relay_allocations": "allocations that relays hold",
    "relay_rate_bytes_per_second": "bytes a second that relays say they relay now",
}

_HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "look_wait_seconds": (
        "from a draw until one of the operator's auditors had looked",
        (1, 5, 15, 60, 300, 900, 3600, 14400, 86400),
    ),
    "link_rtt_seconds": ("round trips of links as nodes tell them", (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)),
    "link_loss_ratio": ("share of packets lost on links as nodes tell it", (0, 0.0001, 0.001, 0.003, 0.01, 0.03, 0.1)),
    "link_rate_bytes_per_second": (
        "payload rates of links as nodes tell them, either direction, idle ones left out",
        (1e4, 1e5, 1e6, 2.5e6, 5e6, 1.25e7, 2.5e7, 1.25e8),  # 1.25e7 is 100 Mbit/s.
    ),
}

Gauges = Mapping[tuple[str, str], float]
"""(name, labels as they are written) -> value."""


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> list[str]:
        lines: list[str] = []
        total = 0
        for bound, count in zip((*map(repr, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self.sum!r}", f"{name}_count {total}"]


class Metrics:
    """Counters, histograms and gauges by name; a name that is not in the lists is a mistake and raises KeyError."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(_COUNTERS, 0)
        self._histograms = {name: _Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._sources: list[Callable[[], Gauges]] = []

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        self._values[name] += by

    def value(self, name: str) -> int:
        """Where a counter stands."""
        return self._values[name]

    def observe(self, name: str, value: float) -> None:
        """Put a value into its histogram."""
        self._histograms[name].observe(value)

    def watch(self, source: Callable[[], Gauges]) -> None:
        """Ask ``source`` for gauges whenever somebody looks."""
        self._sources.append(source)

    def text(self) -> str:
        """The exposition format, one metric after the other."""
        lines: list[str] = []
        for name, value in self._values.items():
            lines += (*_head(name, _COUNTERS[name], "counter"), f"cottage_{name} {value}")
        gauges = {key: value for source in self._sources for key, value in source().items()}
        for name, text in _GAUGES.items():
            lines += _head(name, text, "gauge")
            for (owner, labels), level in gauges.items():
                if owner == name:
                    lines.append(f"cottage_{name}{{{labels}}} {level!r}" if labels else f"cottage_{name} {level!r}")
        for name, histogram in self._histograms.items():
            lines += (*_head(name, _HISTOGRAMS[name][0], "histogram"), *histogram.lines(f"cottage_{name}"))
        return "\n".join(lines) + "\n"


def _head(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP cottage_{name} {text}", f"# TYPE cottage_{name} {kind}"
