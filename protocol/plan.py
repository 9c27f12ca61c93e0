"""Who does what in a round."""

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.ids import Count, NodeAddress, ReplicaIndex, StageIndex

MAX_STAGES = 64  # A pipeline of more has a bubble longer than its work on any micro-batch count we allow.
MAX_REPLICAS = 256
MAX_MEMBERS = 4096


class Layers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decoder layers ``first <= i < last``; stage 0 has the embedding too, the last stage the norm and the head."""

    first: Annotated[int, Meta(ge=0, le=10_000)]
    last: Annotated[int, Meta(ge=0, le=10_000)]


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stage: StageIndex
    replica: ReplicaIndex
    node: NodeAddress


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who does what in a round. ``layers[s]`` belongs to stage ``s``. Replica numbers need not be contiguous."""

    epoch: Count
    layers: Annotated[tuple[Layers, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)]

    def node_of(self, stage: int, replica: int) -> str | None:
        """The node at this place, or ``None`` where the plan has nobody."""
        return next((m.node for m in self.members if m.stage == stage and m.replica == replica), None)

    def replicas(self) -> tuple[int, ...]:
        """The replicas of this plan, in order."""
        return tuple(sorted({m.replica for m in self.members}))
