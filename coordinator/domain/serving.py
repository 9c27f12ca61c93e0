"""Models that answer at nodes: what answers are worth, what a node needs, when one of them says nothing any more. Pure.

Who holds the stages of a replica together is in ``coordinator.domain.teams``.

A token of a prompt takes one pass in a batch of many. A token of an answer reads the whole model for the few answers that are
computed together, so it counts as ``ANSWER_PASSES``. A second of being ready counts as a token of an answer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Literal

import msgspec

from coordinator.domain import pricing
from coordinator.domain.lease import Lease
from coordinator.domain.placement import Needed
from protocol.ids import Digest, JobId, NodeAddress
from protocol.job.job import ServedAdapter, ServedWeights, ServeSpec
from protocol.models.model import ModelShape, inspect_config
from protocol.serving import CACHE_BYTES, draft_tokens, longest_of
from protocol.task import Layers

PERIOD_S = 300.0  # Between two times that nodes' answers are counted.
ANSWER_PASSES = 5
PROMISED_AT_ONCE = 16  # Answers that a node computes together; the next one waits.
SKETCH_S = 5.0  # After an answer's end, for what its stages say of what crossed between them.
SILENCE_S = 3.0  # From a node that has begun to answer; then another one goes on.
FIRST_SILENCE_S = 30.0  # Before its first token, while it reads the prompt and others' answers go on.
PING_S = 1.0  # Between two looks at a replica of several nodes whose answer waits; its seats are asked whether they are there.
PONG_S = (
    3.0  # For a seat's word that it is; then answers go on elsewhere. A computing home says it within milliseconds.
)
STUCK_S = 120.0  # That one pass may take a stage: 512 tokens of half an 8 B model are 40 s at 100 GFLOP/s.
AWAY_S = 10.0  # A seat that says nothing for so long is given to somebody else.
REST_S = 60.0  # For so long answers under way go on when a pause or a stop is asked for.
MAX_WAITING = 64  # Requests of a model that wait for a node.
FREED = 16  # Places that became free last: how soon one who is refused should ask again.
LEAST_AGAIN_S, MOST_AGAIN_S = 5.0, 60.0  # Stock clients take no longer time from an answer.
CHECK_FIRST, CHECK_EVERY = 3, 10  # The first answers of a node are checked, then one in so many, by lot.
PROBE_S = 120.0  # A node that nobody has asked for so long is asked whether it answers: only then it was ready.
_FLOAT16, _FLOAT32 = 2, 4
_LOADING = 1.25  # The model with what reading it takes for a moment.
_BASE_BYTES = 900 << 20  # Python, PyTorch, transformers.
_CARD_BYTES = 600 << 20
_CACHED_ANSWERS = 64  # Whose pages are kept, as far as CACHE_BYTES go.


class AdapterPoint(msgspec.Struct, frozen=True):
    """Of a deployment's models the one with an adapter. ``job``: that made it."""

    job: JobId


ModelPoint = int | Literal["start"] | AdapterPoint | None
"""Which of a job's models is asked: a checkpoint by its round, what the job started from, an adapter's; None: the newest."""


class NodeUsage(msgspec.Struct, frozen=True):
    """What a node did in a period. ``ready``: seconds that it held the model and answered when it was asked."""

    answers: int = 0
    prompt: int = 0
    tokens: int = 0
    ready: float = 0.0

    def __sub__(self, other: "NodeUsage") -> "NodeUsage":
        """What is left of both together."""
        return NodeUsage(self.answers - other.answers, self.prompt - other.prompt, self.tokens - other.tokens)

    def __add__(self, other: "NodeUsage") -> "NodeUsage":
        """Both together."""
        return NodeUsage(
            self.answers + other.answers,
            self.prompt + other.prompt,
            self.tokens + other.tokens,
            self.ready + other.ready,
        )


class CountedPeriod(msgspec.Struct, frozen=True):
    """What a replica did until a moment of the coordinator's clock.

    Attributes:
        home: which one it is, among those that answer and have answered.
        seats: its leases by stage; the first one is asked. ``unpaid``: those among them that get nothing for it.
        leaves: digests of its answers.
    """

    home: str
    seats: tuple[Lease, ...]
    usage: NodeUsage
    leaves: tuple[bytes, ...]
    until: float
    unpaid: frozenset[str] = frozenset()

    @property
    def lease(self) -> Lease:
        """The one that is asked."""
        return self.seats[0]

    @property
    def paid(self) -> tuple[Lease, ...]:
        """Those that are paid for it."""
        return tuple(seat for seat in self.seats if seat.id not in self.unpaid)


def waves(periods: Sequence[CountedPeriod]) -> list[list[CountedPeriod]]:
    """Periods in their order, of each replica's number one at a time: a stored period has one share for each seat."""
    found: list[list[CountedPeriod]] = []
    for one in periods:
        number = one.lease.replica
        free = next((wave for wave in found if all(other.lease.replica != number for other in wave)), None)
        if free is None:
            found.append([one])
        else:
            free.append(one)
    return found


class Served(msgspec.Struct, frozen=True):
    """What a deployment has done.

    Attributes:
        checked: answers that were drawn again, of which ``wrong`` were not the model's.
        nodes: the same by node: those that it took part in, and those that it can have spoilt.
    """

    answers: int = 0
    prompt: int = 0
    tokens: int = 0
    checked: int = 0
    wrong: int = 0
    nodes: dict[NodeAddress, tuple[int, int]] = {}

    def looked_at(self, nodes: Sequence[NodeAddress], suspects: Collection[NodeAddress], wrong: bool) -> "Served":
        """With one more answer of these nodes that was drawn again."""
        known = dict(self.nodes)
        for node in nodes:
            checked, found = known.get(node, (0, 0))
            known[node] = (checked + 1, found + (node in suspects))
        return msgspec.structs.replace(self, checked=self.checked + 1, wrong=self.wrong + wrong, nodes=known)

    def plus(self, usage: NodeUsage) -> "Served":
        """With what a node did in a period."""
        return msgspec.structs.replace(
            self,
            answers=self.answers + usage.answers,
            prompt=self.prompt + usage.prompt,
            tokens=self.tokens + usage.tokens,
        )


def operations(parameters: int, usage: NodeUsage) -> int:
    """Floating-point operations that a period counts as."""
    tokens = usage.prompt + ANSWER_PASSES * (usage.tokens + int(usage.ready))
    return pricing.PASS_OPERATIONS * parameters * tokens


def worth(parameters: int, rate: int, usage: NodeUsage) -> int:
    """What a period is worth, in millionths, rounded up. ``rate``: the price of 10^15 operations."""
    return pricing.price(operations(parameters, usage), rate, 0)


def pot(operations_of_all: Sequence[int], rate: int, room: int) -> int:
    """What a period of all seats is worth, by their operations, and ``room`` at the most."""
    return max(0, min(pricing.price(sum(operations_of_all), rate, 0), room))


def stage_parameters(shape: ModelShape, layers: Sequence[Layers], stage: int) -> int:
    """Scalars that a stage computes with: those of all stages are the model's ``distinct_parameters``. A matrix that is token
    embedding and head counts as the head: looking rows up costs nothing."""
    cut, is_first = layers[stage], stage == 0
    found = shape.stage_parameters(cut.first, cut.last, is_first, stage == len(layers) - 1)
    return found - shape.tied_parameters * is_first


def operations_by_seat(shape: ModelShape, layers: Sequence[Layers], period: CountedPeriod) -> dict[str, int]:
    """Operations of each lease that is paid for a period: those of its own layers."""
    return {seat.id: operations(stage_parameters(shape, layers, seat.stage or 0), period.usage) for seat in period.paid}


def hour(parameters: int, rate: int) -> int:
    """The price of an hour of a ready node that nobody asks."""
    return worth(parameters, rate, NodeUsage(ready=pricing.HOUR))


class HeldModel(msgspec.Struct, frozen=True):
    """What the nodes of a replica hold: a model, with room for prompts and answers of ``context`` tokens.

    ``draft``: a small model that the first of several nodes holds beside its layers.
    """

    shape: ModelShape
    context: int
    weights: ServedWeights = "float32"
    draft: ModelShape | None = None


class ServedFiles(msgspec.Struct, frozen=True):
    """What a process that answers has: a model's archive, how it holds that, and archives of adapters in their order."""

    archive: Digest
    weights: ServedWeights = "float32"
    adapters: tuple[Digest, ...] = ()


def context_of(shape: ModelShape, wanted: int | None) -> int:
    """Tokens of a prompt with its answer, as nodes read them."""
    return longest_of(_token_bytes(shape), shape.max_positions, wanted)


def _token_bytes(shape: ModelShape) -> int:
    """Of keys and values of a token, of all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * _FLOAT32


def with_adapters(shape: ModelShape, adapters: Sequence[ServedAdapter]) -> ModelShape:
    """The sizes of a model whose layers have adapters beside them, for what it takes in memory."""
    more = sum(shape.stage_learns(0, 1, False, False, one.lora)[0] for one in adapters if one.lora is not None)
    return replace(shape, layer_parameters=shape.layer_parameters + more)


def needed(held: HeldModel, layers: Sequence[Layers]) -> Needed:
    """Memory that the nodes of a replica need to hold their layers and answer, by stage."""
    found = [
        stage_needed(held, cut.last - cut.first, stage == 0, stage == len(layers) - 1)
        for stage, cut in enumerate(layers)
    ]
    return {
        "main": [one["main"][0] for one in found],
        "card": [one["card"][0] for one in found],
        "beside": [one["beside"][0] for one in found],
    }


def stage_needed(held: HeldModel, layers: int, is_first: bool, is_last: bool) -> Needed:
    """The same of one stage with so many layers; the first has the embedding too, the last the head: a copy each where they are
    tied, one where it is the same stage in float32. Of the whole model's cache it has what belongs to its layers, and beside it
    what crosses its boundaries, as halves with a scale."""
    shape, context = held.shape, held.context
    if held.weights == "float32":
        copies = shape.tied_parameters * (is_first and is_last)
        weights = _FLOAT32 * (shape.stage_parameters(0, layers, is_first, is_last) - copies)
        loading = int(weights * _LOADING)
    else:
        weights = shape.narrow_bytes(layers, is_first, is_last, held.weights)
        # What becomes codes is float32 while it is read; a matrix is again while it is computed with.
        largest = max(shape.largest_matrix, shape.vocabulary * shape.hidden * is_first)
        loading = int(weights * _LOADING) + _FLOAT32 * largest
        weights += _FLOAT32 * shape.largest_matrix
    token = _token_bytes(shape)
    tokens = max(context, min(CACHE_BYTES // token, _CACHED_ANSWERS * context))
    sides = (not is_first) + (not is_last)
    cache = tokens * (token * layers // shape.layers + sides * (_FLOAT16 * shape.hidden + _FLOAT32))
    if held.draft is not None and is_first and not is_last:
        own, kept = draft_bytes(held.draft, context)
        weights, loading, cache = weights + own, loading + int(own * _LOADING), cache + kept
    return {
        "main": (loading + cache + _BASE_BYTES,),
        "card": (weights + cache + _CARD_BYTES,),
        "beside": (loading + _BASE_BYTES,),
    }


def again_in(waiting: int, freed: Sequence[float], now: float) -> float:
    """Seconds after which so many who wait have a place, as quickly as places became free lately: ``freed``, the oldest first."""
    pace = (now - freed[0]) / len(freed) if freed else 0.0
    return min(MOST_AGAIN_S, max(LEAST_AGAIN_S, waiting * pace))


def draft_bytes(shape: ModelShape, context: int) -> tuple[int, int]:
    """Of a draft model's weights, as float32 with a matrix of its own at each end, and of its keys and values."""
    token = _token_bytes(shape)
    return _FLOAT32 * shape.parameters, token * draft_tokens(token, min(context, shape.max_positions))


def held_model(shape: ModelShape, serve: ServeSpec) -> HeldModel:
    """What a document has the nodes of a replica hold. ``shape``: of its model.

    Raises:
        ModelConfigError: the draft model's config is of no family that is known.
    """
    draft = None if serve.draft is None or serve.draft.config is None else inspect_config(serve.draft.config)
    held = with_adapters(shape, serve.adapters)
    return HeldModel(held, context_of(shape, serve.context), serve.weights, draft)


class Join(msgspec.Struct, frozen=True):
    """Nodes of a replica that hold it together since ``epoch``: their leases by stage."""

    epoch: int
    leases: tuple[str, ...]


def sketch_key(secret: str, lease: str) -> bytes:
    """What the holder of a lease makes its sketches with, and no other node knows. ``secret``: the run's."""
    return blake2b(lease.encode(), key=bytes.fromhex(secret), digest_size=16).digest()


def answering(
    layers: Sequence[Layers], joins: Mapping[int, Join], leases: Mapping[str, Lease]
) -> dict[str, tuple[Lease, ...]]:
    """Replicas that can take requests, by a name that is new whenever their seats change: their leases by stage.

    Args:
        leases: the live ones.
    """
    if len(layers) == 1:
        return {lease.id: (lease,) for lease in leases.values() if lease.state == "ready"}
    whole = [join for join in joins.values() if all(lease in leases for lease in join.leases)]
    return {f"{join.leases[0]}:{join.epoch}": tuple(leases[lease] for lease in join.leases) for join in whole}


def joined(stages: int, epoch: int, joins: Mapping[int, Join], leases: Sequence[Lease]) -> tuple[int, dict[int, Join]]:
    """Whoever holds a replica together now, and the newest epoch: each change of a replica's seats makes one.

    Args:
        leases: the live ones.
    """
    if stages == 1:
        return epoch, {}
    found: dict[int, Join] = {}
    for number in sorted({lease.replica for lease in leases if lease.replica is not None}):
        seats = {lease.stage: lease for lease in leases if lease.replica == number and lease.state == "ready"}
        if len(seats) < stages:
            continue
        members = tuple(seats[stage].id for stage in range(stages))
        before = joins.get(number)
        if before is None or before.leases != members:
            epoch += 1
            before = Join(epoch, members)
        found[number] = before
    return epoch, found


class Blame(msgspec.Struct, frozen=True):
    """Stages of a replica that a wrong answer costs something.

    Attributes:
        guilty: it made the answer wrong: it loses what is not verified, its place in the job and its standing.
        apart: two of which one lies: they lose what is not verified, and share no replica any more.
        silent: those that have not said what would tell: they lose what is not verified, and this seat.
        untold: one of them made it wrong, and nothing tells which: they lose what is not verified, and this seat.
    """

    guilty: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    untold: tuple[int, ...] = ()

    @property
    def unpaid(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.guilty, *self.apart, *self.silent, *self.untold)


def blame_of_embeddings(seats: int) -> Blame:
    """Whose a wrong embedding is: of its texts no stage says what crossed."""
    return Blame(guilty=(0,)) if seats == 1 else Blame(untold=tuple(range(seats)))


def blame(seats: int, stages: Sequence[int], silent: Sequence[int]) -> Blame:
    """Whose a wrong answer is.

    Where every cut is right, the last stage is named, which draws. But the first one tells it how to draw, and tells the
    coordinator what was drawn, so it may be either.

    Args:
        seats: how many made it. stages: those that its check names.
        silent: those that have not said all that crossed: their words may have been lost with a connection, or the first stage
            may have closed the request for them too early.
    """
    if seats == 1:
        return Blame(guilty=(0,))
    named = tuple(sorted({stage for stage in stages if stage < seats}))
    if len(named) == 1 and named[0] not in silent:
        return Blame(guilty=named) if named[0] < seats - 1 else Blame(apart=(0, seats - 1))
    if len(named) == 2:
        return Blame(apart=named)
    return Blame(silent=named or tuple(silent))


class Replica(msgspec.Struct, frozen=True):
    """A replica that could take a request.

    Attributes:
        name: another one whenever its seats change.
        answering: answers under way there.
        silent: it has let an answer wait, and has said nothing since.
        tried: it has failed at this request before.
    """

    name: str
    answering: int
    silent: bool
    tried: bool


def chosen(replicas: Sequence[Replica]) -> str | None:
    """Who takes a request: who has the fewest; None: it has to wait, for room or for somebody who answers."""
    able = [one for one in replicas if not one.silent and not one.tried and one.answering < PROMISED_AT_ONCE]
    return min(able, key=lambda one: (one.answering, one.name)).name if able else None


def is_drawn(checked: int, lot: int) -> bool:
    """Whether an answer is checked. ``checked``: of the node so far; ``lot``: a number that nobody foresaw."""
    return checked < CHECK_FIRST or lot % CHECK_EVERY == 0


Ending = Literal["", "hours", "budget"]


def ending(now: float, deadline: float, spent: int, escrow: int) -> Ending:
    """Why a deployment ends by itself now; empty: it goes on."""
    return "hours" if now >= deadline else "budget" if spent >= escrow else ""
