"""What crosses between stages of a step that is done now: through the agent, to and from neighbours."""

from dataclasses import dataclass

from protocol.boundary import Kind
from protocol.worker import PeerSend, TensorName
from trainer.codecs.envelope import unwrap, wrap
from trainer.errors import RoundEndedError, RoundError
from trainer.worker.inbox import RoundKey, WorkerInbox
from trainer.worker.outbox import WorkerOutbox


@dataclass
class LiveBoundary:
    """Payloads of one step through the agent. ``may_end``: the stage before may say that there is no such step."""

    inbox: WorkerInbox
    outbox: WorkerOutbox
    key: RoundKey
    step: int
    stage: int
    replica: int
    validation: bool = False
    peers: tuple[int, ...] = ()
    may_end: bool = False
    wrapped: frozenset[Kind] = frozenset()
    """Kinds that cross in zstd envelopes, of which at most ``limit`` bytes are unpacked."""
    limit: int = 0

    def arrived(self, kind: Kind, micro: int) -> bool:
        """As ``Boundary.arrived``."""
        return self.inbox.has(self._name(kind, micro))

    def receive(self, kind: Kind, micro: int) -> bytes:
        """As ``Boundary.receive``; raises ``RoundEndedError`` where the step does not take place."""
        name = self._name(kind, micro)
        if self.may_end and kind == "activation" and micro == 0:
            end = TensorName("end", *self.key, self.step, 0)
            if self.inbox.first_of(end, name) == end:
                raise RoundEndedError(f"the round ended before step {self.step}")
        data = self.inbox.take(name)
        return unwrap(data, self.limit) if kind in self.wrapped else data

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """As ``Boundary.send``."""
        if kind == "exchange":
            wrapped = wrap(payload)
            for peer in self.peers:
                self.outbox.put(PeerSend(self.stage, peer, self._name(kind, micro), naive), wrapped)
            return
        to = self.stage + 1 if kind == "activation" else self.stage - 1
        crossing = wrap(payload) if kind in self.wrapped else payload
        self.outbox.put(PeerSend(to, self.replica, self._name(kind, micro), naive), crossing)

    def _name(self, kind: Kind, micro: int) -> TensorName:
        if kind == "behind" or kind == "ahead":
            raise RoundError(f"entries of the cache {kind} a stage never cross its boundary")
        epoch, round_index = self.key
        return TensorName("validation" if self.validation else kind, epoch, round_index, self.step, micro)
