"""All counters of the coordinator in one place, in Prometheus' text form. No label ever carries an id."""

from collections.abc import Mapping

_HELP: Mapping[str, str] = {
    "connections_total": "node connections accepted",
    "connections_refused_total": "node connections refused at the door",
    "messages_total": "messages from nodes",
    "messages_malformed_total": "messages from nodes that closed their connection",
    "messages_throttled_total": "connections closed for sending too much",
    "signals_total": "signalling envelopes passed on",
    "signals_dropped_total": "signalling envelopes for a node that is not in the same plan or not here",
    "reports_total": "reports stored",
    "reports_stale_total": "reports of leases that had ended, or seen before",
    "leases_granted_total": "leases granted",
    "leases_expired_total": "leases that ran out",
    "rounds_complete_total": "outer rounds completed",
    "rounds_void_total": "outer rounds that had to be done again",
    "audits_passed_total": "audits passed",
    "audits_failed_total": "audits failed",
    "audits_void_total": "audits that nobody could conclude",
    "ledger_confirmed_total": "ledger transactions confirmed",
    "ledger_retried_total": "ledger transactions signed anew after they had expired",
    "ledger_failed_total": "ledger transactions given up",
    "ledger_unavailable_total": "times that the ledger did not answer",
}


class Metrics:
    """Counters by name; a name that is not in the list is a mistake and raises KeyError."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(_HELP, 0)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        self._values[name] += by

    def value(self, name: str) -> int:
        """Where a counter stands."""
        return self._values[name]

    def text(self) -> str:
        """The exposition format, one counter after the other."""
        lines: list[str] = []
        for name, value in self._values.items():
            lines += (
                f"# HELP cottage_{name} {_HELP[name]}",
                f"# TYPE cottage_{name} counter",
                f"cottage_{name} {value}",
            )
        return "\n".join(lines) + "\n"
