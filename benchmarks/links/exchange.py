"""What a node uploads in an exchange between replicas, and how long it takes: everybody to everybody beside shards.

    python -m benchmarks.links.exchange [--values 8000000] [--updates int8,int4,coarse] [--replicas 2,4,8,16,32,64]

Members are the worker's own (``trainer.worker.sharding``), contributions are encoded, cut, proven, reduced and handed out as in a
round; every message is counted with its header, what is told to the coordinator too. ``upload`` is what the busiest node sends,
in encoded updates. Seconds follow from these bytes on home lines of 100 Mbit/s down and 20 up with a round trip of 50 ms, at the
level of flows: a phase takes as long as its busiest line, and each decision one round trip to the coordinator.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.common import publish
from protocol.codec import encode as encode_message
from protocol.job.job import TrainingSpec
from protocol.plan import Layers, Member, Plan
from protocol.task import ApplyRound, ReduceRound, RoundHolding
from protocol.worker import PeerHeader, PeerSend, TensorName
from trainer.codecs.envelope import wrap
from trainer.outer import OuterMethod, OuterState, outer_method
from trainer.outer.shards import contribution_digest
from trainer.stage.storage import Slot
from trainer.worker.inbox import PartsHeld, WorkerInbox
from trainer.worker.sharding import ShardExchange

UP, DOWN, ROUND_TRIP = 20e6 / 8, 100e6 / 8, 0.05
JOB, NODE = "a" * 32, "1" * 32
KEY = (0, 0)
COMMON = 0.5  # Of an update's length that replicas have in common: they learn the same thing from other samples.


@dataclass
class Lines:
    """What each replica has sent and received in a phase."""

    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)
    messages: int = 0

    def carry(self, source: int, to: int, size: int) -> None:
        """One message."""
        self.sent[source] += size
        self.received[to] += size
        self.messages += 1

    @property
    def seconds(self) -> float:
        """Until the busiest line is done, and its last byte is there."""
        return max(max(self.sent.values()) / UP, max(self.received.values()) / DOWN) + ROUND_TRIP / 2


class Post:
    """An outbox whose messages arrive at once, and are counted."""

    def __init__(self, replica: int, deliver: Callable[[int, PeerSend, bytes], None]) -> None:
        self._replica = replica
        self._deliver = deliver

    def put(self, message: PeerSend, *pieces: bytes) -> None:
        """As ``WorkerOutbox.put``."""
        self._deliver(self._replica, message, b"".join(pieces))


class Exchange:
    """One exchange of ``count`` replicas of a stage."""

    def __init__(self, method: OuterMethod, count: int, size: int) -> None:
        self._method = method
        self.count = count
        self._size = size
        self._common = torch.randn(size, generator=torch.Generator().manual_seed(0))
        self._scale = torch.exp(torch.randn(size // 4096 + 1, generator=torch.Generator().manual_seed(1)))
        self.lines = Lines()
        self.told: Counter[int] = Counter()

    def update(self, replica: int) -> torch.Tensor:
        """A pseudo-gradient: parts of the model have moved by different amounts."""
        own = torch.randn(self._size, generator=torch.Generator().manual_seed(2 + replica))
        scale = self._scale.repeat_interleave(4096)[: self._size]
        return 1e-3 * scale * (COMMON * self._common + (1 - COMMON**2) ** 0.5 * own)

    def pieces(self, replica: int, cut: int) -> tuple[bytes, ...]:
        """Its contribution, encoded."""
        anchor = torch.zeros(self._size)
        local = self._method.fresh(_state(anchor))
        return self._method.contribution(anchor, -self.update(replica), local, 0, cut).pieces

    def mesh(self) -> dict[str, Any]:
        """Each sends all of it to each other one."""
        lines, encoded = Lines(), 0
        for replica in range(self.count):
            (data,) = self.pieces(replica, 1)
            size = len(wrap(data)) + _header_bytes(replica, 0)
            encoded = max(encoded, len(wrap(data)))
            for other in range(self.count):
                if other != replica:
                    lines.carry(replica, other, size)
        reports = sum(
            len(encode_message(RoundHolding(*KEY, dict.fromkeys(range(held + 1), "0" * 64))))
            for held in range(self.count)
        )
        upload = max(lines.sent.values()) + reports
        return {"encoded": encoded, "bytes": upload, "upload": round(upload / encoded, 3), "seconds": lines.seconds}

    def sharded(self, encoded: int) -> dict[str, Any]:
        """Each sends everybody's shard to who reduces it, and its own result to all."""
        plan = Plan(0, (Layers(0, 1),), tuple(Member(0, replica, NODE) for replica in range(self.count)))
        inboxes = [WorkerInbox(lambda *_: None) for _ in range(self.count)]
        members = [
            ShardExchange(self._method, inboxes[p], Post(p, self._deliver), 0, p)  # type: ignore[arg-type]
            for p in range(self.count)
        ]
        self._members = members
        roots = {}
        for member, inbox in zip(members, inboxes, strict=True):
            member.begin(KEY, plan, None)
            inbox.begin(KEY)
        for replica, member in enumerate(members):
            pieces = self.pieces(replica, self.count)
            roots[replica] = contribution_digest(pieces)
            member.contribute(pieces, 0)
        parts, self.lines = self.lines, Lines()
        reducers = {replica: replica for replica in range(self.count)}
        for member in members:
            member.order(ReduceRound(*KEY, 1, roots, reducers))
        for replica, (member, inbox) in enumerate(zip(members, inboxes, strict=True)):
            order = inbox.next_order()
            assert order is not None
            assert order[0] == PartsHeld(replica)
            member.reduce(replica)
            self._tell(replica)
        results, self.lines = self.lines, Lines()
        due = members[0].holding().results
        assert len(due) == self.count
        applied = {
            contribution_digest(list(m.agreed(ApplyRound(*KEY, roots, results=due)).results.values())) for m in members
        }
        assert len(applied) == 1, "everybody has the same results"
        upload = max(parts.sent[p] + results.sent[p] + self.told[p] for p in range(self.count))
        # Contributors are chosen, and results are agreed on.
        seconds = parts.seconds + results.seconds + 2 * ROUND_TRIP
        return {
            "bytes": upload,
            "upload": round(upload / encoded, 3),
            "seconds": seconds,
            "told": max(self.told.values()),
        }

    def _deliver(self, source: int, message: PeerSend, payload: bytes) -> None:
        self.lines.carry(source, message.replica, len(payload) + _header_bytes(source, message.replica))
        assert self._members[message.replica].take(message.name, source, payload)
        self._tell(message.replica)

    def _tell(self, replica: int) -> None:
        """What a member says to the coordinator of what has come."""
        if (news := self._members[replica].news()) is not None:
            self.told[replica] += len(encode_message(news))


def _state(anchor: torch.Tensor) -> OuterState:
    return OuterState(anchor, torch.zeros_like(anchor))


def _header_bytes(source: int, to: int) -> int:
    """In front of a payload, between agents."""
    return len(encode_message(PeerHeader(JOB, 0, source, 0, to, TensorName("shard", *KEY, 1, source))))


def measure(update: str, count: int, size: int) -> dict[str, Any]:
    """Both ways of so many replicas."""
    spec = TrainingSpec(pseudo_gradient=update)  # type: ignore[arg-type]
    exchange = Exchange(outer_method(spec, [Slot("whole", (size,), 0, size)], size), count, size)
    mesh = exchange.mesh()
    sharded = exchange.sharded(mesh["encoded"])
    return {"update": update, "replicas": count, "values": size, "mesh": mesh, "sharded": sharded}


def main() -> int:
    """Print a row for each, and write the document; 1 where a node sends more than 2.2 encoded updates by shards."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--values", type=int, default=8_000_000, help="of a stage; a multiple of 64")
    parser.add_argument("--updates", default="int8,int4,coarse")
    parser.add_argument("--replicas", default="2,4,8,16,32,64")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| update | replicas | mesh: upload | seconds | shards: upload | seconds |\n|---|---|---|---|---|---|",
        flush=True,
    )
    rows = []
    for update in options.updates.split(","):
        for count in map(int, options.replicas.split(",")):
            row = measure(update, count, options.values)
            mesh, sharded = row["mesh"], row["sharded"]
            rows.append(row)
            print(
                f"| {update} | {count} | {mesh['upload']:.2f} | {mesh['seconds']:.1f} | {sharded['upload']:.2f} "
                f"| {sharded['seconds']:.1f} |",
                flush=True,
            )
    claim = "by shards a node uploads at most 2.2 times its encoded update, whatever the number of replicas"
    publish("exchange", claim, {"rows": rows})
    return int(any(row["sharded"]["upload"] > 2.2 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
