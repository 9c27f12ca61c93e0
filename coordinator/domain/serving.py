"""Models that answer at nodes: what answers are worth, what a node needs, when one of them says nothing any more. Pure.

A token of a prompt takes one pass in a batch of many. A token of an answer reads the whole model for the few answers that are
computed together, so it counts as ``ANSWER_PASSES``. A second of being ready counts as a token of an answer.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from coordinator.domain import pricing
from coordinator.domain.lease import Lease
from coordinator.domain.placement import Needed
from protocol.ids import NodeAddress
from protocol.models.model import ModelShape
from protocol.serving import CACHE_BYTES, LONGEST

PERIOD_S = 300.0  # Between two times that nodes' answers are counted.
ANSWER_PASSES = 5
PROMISED_AT_ONCE = 16  # Answers that a node computes together; the next one waits.
SILENCE_S = 3.0  # From a node that has begun to answer; then another one goes on.
FIRST_SILENCE_S = 30.0  # Before its first token, while it reads the prompt and others' answers go on.
MAX_WAITING = 64  # Requests of a model that wait for a node.
CHECK_FIRST, CHECK_EVERY = 3, 10  # The first answers of a node are checked, then one in so many, by lot.
PROBE_S = 120.0  # A node that nobody has asked for so long is asked whether it answers: only then it was ready.
_FLOAT32 = 4
_LOADING = 1.25  # The model with what reading it takes for a moment.
_BASE_BYTES = 900 << 20  # Python, PyTorch, transformers.
_CARD_BYTES = 600 << 20
_CACHED_ANSWERS = 64  # Whose pages are kept, as far as CACHE_BYTES go.


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
    """What the node of a lease did until a moment of the coordinator's clock; ``leaves``: digests of its answers."""

    lease: Lease
    usage: NodeUsage
    leaves: tuple[bytes, ...]
    until: float


class Served(msgspec.Struct, frozen=True):
    """What a deployment has done.

    Attributes:
        checked: answers that were drawn again, of which ``wrong`` were not the model's.
        nodes: the same by node.
    """

    answers: int = 0
    prompt: int = 0
    tokens: int = 0
    checked: int = 0
    wrong: int = 0
    nodes: dict[NodeAddress, tuple[int, int]] = {}

    def looked_at(self, node: NodeAddress, wrong: bool) -> "Served":
        """With one more answer that was drawn again."""
        checked, found = self.nodes.get(node, (0, 0))
        nodes = self.nodes | {node: (checked + 1, found + wrong)}
        return msgspec.structs.replace(self, checked=self.checked + 1, wrong=self.wrong + wrong, nodes=nodes)

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


def pot(parameters: int, rate: int, usages: Sequence[NodeUsage], room: int) -> int:
    """What a period of all nodes is worth, and ``room`` at the most."""
    total = sum(operations(parameters, usage) for usage in usages)
    return max(0, min(pricing.price(total, rate, 0), room))


def hour(parameters: int, rate: int) -> int:
    """The price of an hour of a ready node that nobody asks."""
    return worth(parameters, rate, NodeUsage(ready=pricing.HOUR))


def context_of(shape: ModelShape, wanted: int | None) -> int:
    """Tokens of a prompt with its answer."""
    return min(wanted or LONGEST, LONGEST, shape.max_positions)


def needed(shape: ModelShape, context: int) -> Needed:
    """Memory that a node needs to hold the whole model and answer, as the placement counts it: of one stage."""
    weights = _FLOAT32 * shape.parameters
    token = 2 * shape.layers * shape.kv_heads * shape.head_dim * _FLOAT32
    cache = max(context * token, min(CACHE_BYTES, _CACHED_ANSWERS * context * token))
    main = int(weights * _LOADING) + cache + _BASE_BYTES
    return {
        "main": (main,),
        "card": (weights + cache + _CARD_BYTES,),
        "beside": (int(weights * _LOADING) + _BASE_BYTES,),
    }


class Replica(msgspec.Struct, frozen=True):
    """A node that could take a request.

    Attributes:
        answering: answers under way there.
        silent: it has let an answer wait, and has said nothing since.
        tried: it has failed at this request before.
    """

    lease: str
    answering: int
    silent: bool
    tried: bool


def chosen(replicas: Sequence[Replica]) -> str | None:
    """Who takes a request: who has the fewest; None: it has to wait, for room or for somebody who answers."""
    able = [one for one in replicas if not one.silent and not one.tried and one.answering < PROMISED_AT_ONCE]
    return min(able, key=lambda one: (one.answering, one.lease)).lease if able else None


def is_drawn(checked: int, lot: int) -> bool:
    """Whether an answer is checked. ``checked``: of the node so far; ``lot``: a number that nobody foresaw."""
    return checked < CHECK_FIRST or lot % CHECK_EVERY == 0


Ending = Literal["", "hours", "budget"]


def ending(now: float, deadline: float, spent: int, escrow: int) -> Ending:
    """Why a deployment ends by itself now; empty: it goes on."""
    return "hours" if now >= deadline else "budget" if spent >= escrow else ""
