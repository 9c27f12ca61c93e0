"""One member's part in an exchange by shards: its parts go out, what comes in is reduced, and results go round.

::

    contribute --> own parts to the other reducers
    ReduceRound -> wait until the contributors' parts of a shard are here --> reduce --> result to everybody of the stage
    ApplyRound --> wait until the agreed results are here --> the outer step

Parts and results come in another thread than the one that computes; each is checked there, and reported.
"""

import hashlib
import threading
from dataclasses import dataclass

from torch import Tensor

from protocol.task import ApplyRound, Plan, ReduceRound, RoundHolding, ShardRecord
from protocol.worker import PeerSend, TensorName
from trainer.codecs.envelope import unwrap, wrap
from trainer.errors import CodecError
from trainer.outer.audit import part_name, residue_name, result_name
from trainer.outer.method import OuterMethod
from trainer.outer.shards import (
    MOST_OVERHEAD,
    Result,
    ShardPart,
    Shards,
    check_result,
    reduce_shard,
    residue_digest,
    result_limit,
)
from trainer.worker.inbox import Held, RoundKey, WorkerInbox
from trainer.worker.outbox import WorkerOutbox


@dataclass(frozen=True)
class Reduced:
    """A shard that this member has reduced: the residue that it began with, and what it came to."""

    before: Tensor | None
    result: Result


@dataclass(frozen=True)
class Agreed:
    """What an outer step by shards is made of.

    Attributes:
        results: by shard.
        reduced: what this member did with shards.
        shown: all that an audit of it asks for, by the names of ``trainer.outer.audit``.
    """

    results: dict[int, bytes]
    reduced: tuple[ShardRecord, ...]
    shown: dict[str, bytes]


class ShardExchange:
    """That of stage ``stage`` of replica ``replica``; its shard is the one of that name."""

    def __init__(self, method: OuterMethod, inbox: WorkerInbox, outbox: WorkerOutbox, stage: int, replica: int) -> None:
        """``inbox`` keeps what came in, as long as its round is not over."""
        self._method = method
        self._inbox = inbox
        self._outbox = outbox
        self._stage = stage
        self._replica = replica
        self._lock = threading.RLock()
        self._key: RoundKey = (-1, -1)
        self._replicas: tuple[int, ...] = ()
        self._parts: dict[int, ShardPart] = {}
        self._sent: set[tuple[int, int]] = set()
        self._order: ReduceRound | None = None
        self._reduced: dict[int, Reduced] = {}
        self._told: RoundHolding | None = None
        self._sound: dict[Held, bool] = {}
        self._left: Tensor | None = None
        self._residue: Tensor | None = None

    # --- called from the socket's loop, too ----------------------------------------------------------------------------

    def take(self, name: TensorName, replica: int, data: bytes) -> bool:
        """Keep a part or a result of another replica; False where it is none, or is not wanted."""
        key = (name.epoch, name.round)
        try:
            if name.kind == "result":
                result = unwrap(data, result_limit(self._method.shards(name.round, 2), 0))
                digest = hashlib.sha256(result).hexdigest()
                return self._inbox.keep(key, Held("result", replica, name.micro, name.step), digest, result)
            written = unwrap(data, self._method.limit(name.round) + MOST_OVERHEAD)
            part = ShardPart.read(written)
            self._method.shards(name.round, part.count).check(part.data, part.place)
        except CodecError:
            return False  # Not held: the coordinator learns from our RoundHolding that this replica cannot contribute.
        return self._inbox.keep(key, Held("shard", replica, name.micro), part.root, written)

    def news(self) -> RoundHolding | None:
        """What has come since the last time; None: nothing."""
        with self._lock:
            before, self._told = self._told, self.holding()
            now = self._told
            if before is None or now.turn != before.turn:
                return now
            held = {p: digest for p, digest in now.held.items() if before.held.get(p) != digest}
            taken = {shard: found for shard, found in now.taken.items() if before.taken.get(shard) != found}
            results = {shard: digest for shard, digest in now.results.items() if before.results.get(shard) != digest}
            reduced = {shard: digest for shard, digest in now.reduced.items() if before.reduced.get(shard) != digest}
            if not (held or taken or results or reduced):
                return None
            return RoundHolding(*self._key, held, taken, now.turn, results, reduced)

    def holding(self) -> RoundHolding:
        """All that is held of the round."""
        with self._lock:
            found = self._inbox.held()
            held: dict[int, str] = {}
            taken: dict[int, list[int]] = {}
            results: dict[int, tuple[bool, str]] = {}
            for place, (digest, data) in found.items():
                if place.kind == "shard" and self._fits(place, data):
                    if place.shard == self._replica:
                        held[place.replica] = digest
                    else:
                        taken.setdefault(place.shard, []).append(place.replica)
                elif place.kind == "result" and place.turn == self._turn and self._is_sound(place, data):
                    in_charge = self._order is not None and self._order.reducers.get(place.shard) == place.replica
                    if in_charge or place.shard not in results:
                        results[place.shard] = in_charge, digest
            return RoundHolding(
                *self._key,
                dict(sorted(held.items())),
                {shard: tuple(sorted(replicas)) for shard, replicas in sorted(taken.items())},
                self._turn,
                {shard: digest for shard, (_, digest) in sorted(results.items())},
                {shard: mine.result.digest for shard, mine in sorted(self._reduced.items())},
            )

    # --- called from the computing thread --------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Shards of the round."""
        return len(self._replicas)

    @property
    def told(self) -> RoundHolding | None:
        """All that was said to be held of the round."""
        return self._told

    @property
    def key(self) -> RoundKey:
        """The round that was begun last."""
        return self._key

    def begin(self, key: RoundKey, plan: Plan, residue: str | None) -> None:
        """A round begins; before the inbox learns of it. ``residue``: as in ``BeginRound``."""
        with self._lock:
            self._key, self._replicas = key, plan.replicas()
            self._parts, self._sent, self._order, self._reduced = {}, set(), None, {}
            self._told, self._sound = None, {}
            self._residue, self._left = (self._left if residue_digest(self._left) == residue else None), None

    def contribute(self, pieces: tuple[bytes, ...], naive: int) -> None:
        """Send each other replica its shard; ``naive``: as in ``PeerSend``, of each."""
        parts = dict(zip(self._replicas, ShardPart.of(pieces), strict=True))
        with self._lock:
            self._parts = parts
        self._inbox.keep(
            self._key,
            Held("shard", self._replica, self._replica),
            parts[self._replica].root,
            parts[self._replica].write(),
        )
        for replica in self._replicas:
            if replica != self._replica:
                self._send_part(replica, replica, naive)

    def order(self, order: ReduceRound) -> None:
        """The contributors were chosen, or somebody else was named for a shard."""
        with self._lock:
            if order.turn < self._turn:
                return
            if order.turn > self._turn:
                self._reduced = {}
            self._order = order
        for shard, reducer in sorted(order.reducers.items()):
            if reducer == self._replica:
                self._take_charge(order, shard)
            elif shard in self._parts and self._replica in order.contributors and reducer != shard:
                self._send_part(shard, reducer)

    def reduce(self, shard: int) -> None:
        """All parts of a shard are here."""
        order = self._order
        if order is None or order.reducers.get(shard) != self._replica or shard in self._reduced:
            return
        place, found = self._replicas.index(shard), self._inbox.held()
        parts = {p: ShardPart.read(found[Held("shard", p, shard)][1]).data for p in order.contributors}
        shards = self._method.shards(self._key[1], self.count)
        free = shards.take(self._method.free(self._key[1]), place)
        before = self._residue if shard == self._replica else None
        made = self.made(shards, place, parts, free, before, order.weights)
        with self._lock:
            self._reduced[shard] = Reduced(before, made)
        self._inbox.keep(self._key, Held("result", self._replica, shard, order.turn), made.digest, made.data)
        self._hand_out(shard, order.turn, made.data)

    def made(
        self,
        shards: Shards,
        place: int,
        parts: dict[int, bytes],
        free: Tensor,
        residue: Tensor | None,
        weights: dict[int, int],
    ) -> Result:
        """What comes of a shard: as ``reduce_shard``."""
        return reduce_shard(shards, place, parts, self._method.combining, free, residue, weights)

    def agreed(self, command: ApplyRound) -> Agreed:
        """What the outer step takes, once it is here.

        Raises:
            AbandonedError: a newer round begins first, or the worker ends.
        """
        results = self._inbox.results(command.results)
        shown = {result_name(shard): data for shard, data in results.items()}
        records: list[ShardRecord] = []
        found = self._inbox.held()
        for shard, mine in sorted(self._reduced.items()):
            parts = {p: found.get(Held("shard", p, shard)) for p in command.contributors}
            if mine.result.digest != command.results[shard] or None in parts.values():
                continue
            before, after = residue_digest(mine.before), residue_digest(mine.result.residue)
            records.append(ShardRecord(shard, mine.result.digest, before, after))
            shown |= {part_name(shard, p): part[1] for p, part in parts.items() if part is not None}
            if mine.before is not None:
                shown[residue_name(shard)] = mine.before.contiguous().numpy().tobytes()
            if shard == self._replica:
                self._left = mine.result.residue
        return Agreed(results, tuple(records), shown)

    # --- small helpers -------------------------------------------------------------------------------------------------

    @property
    def _turn(self) -> int:
        return 0 if self._order is None else self._order.turn

    def _take_charge(self, order: ReduceRound, shard: int) -> None:
        """Pass the result of a shard on that is here already, or reduce it once its parts are."""
        if (due := order.passed.get(shard)) is not None:
            for place, (digest, data) in self._inbox.held().items():
                if (place.kind, place.shard, digest) == ("result", shard, due):
                    self._hand_out(shard, order.turn, data)
                    return
            return
        if shard in self._reduced:
            return
        if shard != self._replica and shard in self._parts:
            own = self._parts[shard]
            self._inbox.keep(self._key, Held("shard", self._replica, shard), own.root, own.write())
        self._inbox.expect(shard, {Held("shard", p, shard): root for p, root in order.contributors.items()})

    def _send_part(self, shard: int, reducer: int, naive: int = 0) -> None:
        if (shard, reducer) not in self._sent:
            self._sent.add((shard, reducer))
            name = TensorName("shard", *self._key, 0, shard)
            self._outbox.put(PeerSend(self._stage, reducer, name, naive), wrap(self._parts[shard].write()))

    def _hand_out(self, shard: int, turn: int, result: bytes) -> None:
        name, wrapped = TensorName("result", *self._key, turn, shard), wrap(result)
        for replica in self._replicas:
            if replica != self._replica:
                self._outbox.put(PeerSend(self._stage, replica, name), wrapped)

    def _fits(self, place: Held, written: bytes) -> bool:
        """Whether a part is cut as this plan cuts."""
        if place not in self._sound:
            part = ShardPart.read(written)
            where = part.place < len(self._replicas) and self._replicas[part.place] == place.shard
            self._sound[place] = where and part.count == self.count and place.replica in self._replicas
        return self._sound[place]

    def _is_sound(self, place: Held, data: bytes) -> bool:
        """Whether a result can be decoded."""
        if place not in self._sound:
            self._sound[place] = False
            if place.shard in self._replicas and place.replica in self._replicas:
                at, shards = self._replicas.index(place.shard), self._method.shards(self._key[1], self.count)
                try:
                    check_result(shards, at, data)
                    self._sound[place] = True
                except CodecError:
                    pass
        return self._sound[place]
