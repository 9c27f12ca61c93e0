"""A simulated worker's part in an exchange by shards: parts and results are digests that lie where all workers see them."""

from dataclasses import dataclass, field

from protocol.task import ApplyRound, BeginRound, OuterRecord, ReduceRound, ReplayOuter, RoundHolding, ShardRecord
from tests.coordinator.rerun import digest

DELAYED = 400  # Looks that a reducer keeps the others waiting for.

Stage = tuple[str, int, int, int]
"""Job, epoch, round and stage."""


@dataclass
class ShardPost:
    """What members of a stage have sent each other of shards, for ever: the living and the dead.

    Attributes:
        parts: of a shard that somebody else was named for, by stage, shard and reducer: whose have come.
        results: by stage, turn, shard and sender.
        honest: what a result's parts and residue give, by what was handed out.
    """

    parts: dict[tuple[Stage, int, int], set[int]] = field(default_factory=dict)
    results: dict[Stage, dict[tuple[int, int, int], str]] = field(default_factory=dict)
    honest: dict[str, str] = field(default_factory=dict)


class FakeShards:
    """One member's. ``lie``: ``false result``: hands out something else than its parts give; ``no result``: says what it came to
    and hands nothing out; ``late result``: hands it out long after; ``no reduction``: never comes to anything."""

    def __init__(self, post: ShardPost, replica: int) -> None:
        self._post = post
        self._replica = replica
        self._left: str | None = None
        self._residue: str | None = None
        self.lie = ""
        self._looks = 0
        self.begin(("", -1, -1, -1), None)

    def begin(self, stage: Stage, begun: BeginRound | None) -> None:
        self._stage = stage
        self._order: ReduceRound | None = None
        self._reduced: dict[int, ShardRecord] = {}
        self._told: RoundHolding | None = None
        self._looks = 0
        named = None if begun is None else begun.residue
        self._residue, self._left = (self._left if self._left == named else None), None

    def order(self, order: ReduceRound) -> None:
        if (order.epoch, order.round) != self._stage[1:3] or (self._order and order.turn < self._order.turn):
            return
        if self._order is None or order.turn > self._order.turn:
            self._reduced = {}
        self._order = order
        for shard, reducer in order.reducers.items():
            if reducer != shard and self._replica in order.contributors:
                self._post.parts.setdefault((self._stage, shard, reducer), set()).add(self._replica)

    def look(self, held: dict[int, str]) -> list[RoundHolding]:
        """Reduce what has become possible, and report what is new."""
        order = self._order
        if order is None:
            return []
        self._looks += 1
        here = self._post.results.setdefault(self._stage, {})
        taken: dict[int, tuple[int, ...]] = {}
        for shard, reducer in order.reducers.items():
            if reducer != self._replica:
                continue
            if shard in order.passed:
                here[order.turn, shard, self._replica] = order.passed[shard]
                continue
            having = {*held} if shard == self._replica else self._post.parts.get((self._stage, shard, reducer), set())
            if shard != self._replica:
                taken[shard] = tuple(sorted(having))
            if shard not in self._reduced and {*order.contributors} <= having and self.lie != "no reduction":
                self._reduce(order, shard)
        for shard, record in self._reduced.items():
            if self.lie != "no result" and (self.lie != "late result" or self._looks > DELAYED):
                here[order.turn, shard, self._replica] = record.result
        results: dict[int, str] = {}
        for (turn, shard, sender), result in here.items():
            if turn == order.turn and (shard not in results or order.reducers[shard] == sender):
                results[shard] = result
        reduced = {shard: record.result for shard, record in self._reduced.items()}
        results |= {shard: result for shard, result in reduced.items() if order.reducers[shard] == self._replica}
        now = RoundHolding(order.epoch, order.round, {}, taken, order.turn, results, reduced)
        if now == self._told:
            return []
        self._told = now
        return [now]

    def apply(self, command: ApplyRound) -> tuple[str, tuple[ShardRecord, ...]]:
        """What is wrong with a command; and what this member did with shards."""
        handed = {result for sent in self._post.results.values() for result in sent.values()}
        handed |= {record.result for record in self._reduced.values()}
        mine = tuple(r for _, r in sorted(self._reduced.items()) if command.results.get(r.shard) == r.result)
        self._left = next((record.after for record in mine if record.shard == self._replica), None)
        return "" if handed >= {*command.results.values()} else "a result is applied that nobody handed out", mine

    def is_right(self, command: ReplayOuter, shown: OuterRecord, parameters: str, weights: dict[int, int]) -> bool:
        """What an auditor says of an outer step, of which a member had said ``shown``."""
        said = command.record
        same = (shown.before, shown.after, shown.results) == (said.before, said.after, said.results)
        did = {record.shard: record for record in shown.reduced}
        reduced = all(did.get(r.shard) == r and self._post.honest[r.result] == r.result for r in said.reduced)
        return same and reduced and (parameters, weights) == (command.parameters, command.weights)

    def _reduce(self, order: ReduceRound, shard: int) -> None:
        before = self._residue if shard == self._replica else None
        true = digest("result", self._stage, shard, sorted(order.contributors.items()), before)
        said = digest("false", true) if self.lie == "false result" else true
        self._post.honest[said] = true
        self._reduced[shard] = ShardRecord(shard, said, before, digest("residue", said))
