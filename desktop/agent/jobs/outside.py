"""What a worker's bridge needs of its agent, and what passed through it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from desktop.agent.base.payloads import Payload
from desktop.agent.federated.summing import OwnersSums
from desktop.agent.jobs.crash_records import RecalledPart, RoundStart
from desktop.agent.jobs.spool import Spool
from protocol.task import KeptState, TaskReport, Traffic
from protocol.worker import PeerSend, RecordPart, RecordRecall


@dataclass
class TaskTraffic:
    """What a lease has exchanged since it began, in bytes; messages to this same node are in none of it."""

    activations: int = 0
    bulk: int = 0
    wire: int = 0
    naive: int = 0
    artifacts: int = 0

    def report(self) -> Traffic:
        """As the coordinator wants it."""
        return Traffic(self.activations, self.bulk, self.wire, self.naive, self.artifacts)


@dataclass(frozen=True)
class Outside:
    """What a bridge needs of the agent.

    Attributes:
        send_peer: carries a payload to a place of the job until it is there or its epoch is over.
        upload: stores an artifact with the coordinator under the digest, as the answer (``protocol.artifacts``) to what was
            asked under the lease; the last word: whether a round's end waits for it.
        fetch: the bytes of an artifact, checked.
        fetch_state: a stage's state from the peers that keep it.
        keep: puts a stage's state, or (True) its optimizer's moments, where peers can have it; returns its manifest's digest.
        spool: where what is too large for memory lies until it is kept or stored.
        report: passes a report on; False: it may get lost.
        record: keeps what a round can be opened from after a crash, and what that began with; False: it could not. None: such
            records are not kept.
        recall: the same again.
        sums: this node's part in secure sums of a federated job; None: it has none.
    """

    send_peer: Callable[[Any, PeerSend, bytes], Awaitable[None]]
    upload: Callable[[Payload, str, str, bool], Awaitable[None]]
    fetch: Callable[[str], Awaitable[Payload]]
    fetch_state: Callable[[KeptState], Awaitable[Payload]]
    keep: Callable[[Payload, bool], Awaitable[str]]
    spool: Spool
    report: Callable[[TaskReport, bool], Awaitable[None]]
    record: Callable[[RecordPart, RoundStart, Payload], Awaitable[bool]] | None = None
    recall: Callable[[RecordRecall], Awaitable[Sequence[RecalledPart]]] | None = None
    sums: OwnersSums | None = None
