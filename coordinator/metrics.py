"""All figures of the coordinator in one place, in Prometheus' text form. No label ever carries an id, or what a stranger wrote.

``prometheus_client`` writes them; it adds those of the process (``process_*``) where the system tells them, as Linux does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_COUNTERS: Mapping[str, str] = {
    "connections_total": "node connections accepted",
    "nodes_let_go_total": "node connections ended so that the node goes where another cell lacks it",
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
    "answers_total": "answers of deployed models that nodes have ended",
    "private_sessions_total": "private sessions that clients were granted with nodes of deployments",
    "private_counts_refused_total": "counts of private sessions that no client signed, or that came too late to be paid",
    "answers_moved_total": "answers that went on at another node, since one was gone or silent",
    "answers_failed_total": "requests that a node of a deployed model could not answer",
    "answers_checked_total": "answers of nodes that were drawn again",
    "accusations_proven_total": "wrong answers that no rounding explains, as two owners' machines found: they cost stake",
    "accusations_cleared_total": "wrong answers that rounding may explain: they cost no stake",
    "accusations_dropped_total": "wrong answers of which no two machines of the class could say anything",
    "answers_wrong_total": "answers of nodes that were not their model's",
    "elements_wrong_total": "results of elements of array jobs that other owners contradicted",
    "answers_unchecked_total": "answers that were to be drawn again, and could not be",
    "http_requests_total": "requests answered, by the kind of their route and the status",
}

_GAUGES: Mapping[str, str] = {
    "build_info": "the version that runs; always 1",
    "nodes": "nodes that are here, by what they do: busy, free, draining, paused by their owner, short of stake",
    "auditors": "the operator's own auditors that the coordinator was told of, by whether they are here or away",
    "jobs": "jobs, by their state",
    "outbox_rows": "rows for the ledger that are queued, sent, or given up, of money or else records",
    "outbox_oldest_seconds": "age of the oldest row for the ledger that is not over, of money or else records; 0: none waits",
    "looks_waiting": "opened steps that wait for one of the operator's auditors",
    "looks_oldest_seconds": "since when a look is waited for, at the most; 0: none is",
    "answers_under_way": "answers of deployed models that nodes are giving",
    "answers_waiting": "requests that wait for a node of a deployed model",
    "answers_to_check": "answers of nodes that wait to be drawn again",
    "links": "ends of links that live now, by the kind of their way",
    "relays": "relays, by whether they are handed out",
    "relay_allocations": "allocations that relays hold",
    "relay_rate_bytes_per_second": "bytes a second that relays say they relay now",
    "uploaded_bytes": "bytes of files that accounts have uploaded",
    "artifacts_used_bytes": "bytes in use where artifacts lie: of the bucket, or of the whole disk",
    "artifacts_limit_bytes": "bytes that there may be where artifacts lie: of the bucket, or of the whole disk",
    "disk_free_bytes": "bytes that the disk of the data folder has left",
    "disk_bytes": "bytes of the disk of the data folder",
    "backup_age_seconds": "since `cottage backup` last made a whole backup; nothing is told where it never did",
    "database_up": "whether the database answered just now",
    "ledger_up": "whether the ledger answered when it was last asked",
    "wallet_lamports": "what the coordinator's wallet had for fees and rents when the ledger was last asked",
    "wallet_tokens": "what the coordinator's wallet had in tokens when the ledger was last asked",
}

_HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "http_request_seconds": (
        "until an answer began, without connections that stay open, by the kind of the route",
        (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    ),
    "loop_late_seconds": (
        "how late the event loop came to what was due, looked at once a second",
        (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    ),
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

_LABELS: Mapping[str, tuple[str, ...]] = {
    "http_requests_total": ("route", "status"),
    "http_request_seconds": ("route",),
    "build_info": ("version",),
    "nodes": ("state",),
    "auditors": ("state",),
    "jobs": ("state",),
    "outbox_rows": ("part", "state"),
    "outbox_oldest_seconds": ("part",),
    "links": ("kind",),
    "relays": ("state",),
}
"""What each may be told apart by: words of the coordinator's own, of which there are few."""

Gauges = Mapping[tuple[str, ...], float]
"""(name, values of its labels ...) -> value."""

disable_created_metrics()  # type: ignore[no-untyped-call]


class _Watched(Collector):
    """Gauges, which are asked for when somebody looks."""

    def __init__(self) -> None:
        self.sources: list[Callable[[], Gauges]] = []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        found = {key: value for source in self.sources for key, value in source().items()}
        for name, text in _GAUGES.items():
            family = GaugeMetricFamily(f"cottage_{name}", text, labels=_LABELS.get(name, ()))
            for (owner, *labels), value in found.items():
                if owner == name:
                    family.add_metric(labels, value)
            yield family


class Metrics:
    """Counters, histograms and gauges by name; a name that is not in the lists is a mistake and raises KeyError."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"cottage_{name}", text, _LABELS.get(name, ()), registry=registry)
            for name, text in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"cottage_{name}", text, _LABELS.get(name, ()), buckets=bounds, registry=registry)
            for name, (text, bounds) in _HISTOGRAMS.items()
        }
        self._watched = _Watched()
        registry.register(self._watched)
        ProcessCollector(registry=registry)

    def count(self, name: str, by: int = 1, labels: Sequence[str] = ()) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def value(self, name: str, labels: Sequence[str] = ()) -> int:
        """Where a counter stands; one with labels that was never counted stands at 0."""
        told = dict(zip(_LABELS.get(name, ()), labels, strict=True))
        return int(self._registry.get_sample_value(f"cottage_{name}", told) or 0)

    def observe(self, name: str, value: float, labels: Sequence[str] = ()) -> None:
        """Put a value into its histogram."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(value)

    def watch(self, source: Callable[[], Gauges]) -> None:
        """Ask ``source`` for gauges whenever somebody looks."""
        self._watched.sources.append(source)

    def text(self) -> str:
        """The exposition format, one metric after the other."""
        return generate_latest(self._registry).decode()
