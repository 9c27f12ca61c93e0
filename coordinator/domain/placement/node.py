"""Words of the placement: who may take a seat, what is known of the lines between them, what a plan is."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from coordinator.domain.network import Line
from protocol.ids import NodeAddress
from protocol.task import Layers

MEGABYTE = 1 << 20


class Candidate(msgspec.Struct, frozen=True):
    """A node that may take a seat.

    Attributes:
        owner: where it is paid.
        floor: the least it works for, for 10^15 operations.
        card: it computes on a graphics card, whose memory this is: it holds what is trained, and not what audits ask for.
        beside_mb: main memory beside a card; None: it has not told.
    """

    node: NodeAddress
    owner: NodeAddress
    memory_mb: int
    flops: float
    env_class: str
    floor: int = 0
    card: bool = False
    beside_mb: int | None = None

    def holds(self, needed: "Needed", stage: int) -> bool:
        """Whether its memory holds a stage."""
        if self.card and self.beside_mb is not None and self.beside_mb * MEGABYTE < needed["beside"][stage]:
            return False
        return self.memory_mb * MEGABYTE >= needed["card" if self.card else "main"][stage]


Needed = Mapping[Literal["main", "card", "beside"], Sequence[int]]
"""Bytes by stage: in main memory without a card, on a card, and in main memory beside one."""


class MeasuredNetwork(Protocol):
    """What was measured between nodes; ``coordinator.domain.network.NetworkMap`` is one."""

    def line(self, node: NodeAddress) -> Line | None:
        """A node's line, where it has told."""
        ...

    def rtt(self, one: NodeAddress, other: NodeAddress) -> float | None:
        """Round trip in seconds between two nodes, where it is known."""
        ...

    def nearest(self, node: NodeAddress) -> str | None:
        """The relay with the shortest way to a node, where it has measured any: nodes that share it are near each other."""
        ...

    def loss(self, one: NodeAddress, other: NodeAddress) -> float:
        """Share of packets lost between two nodes."""
        ...


class Placement(msgspec.Struct, frozen=True):
    """Who sits where, and why.

    Attributes:
        layers: by stage.
        seats: (stage, replica) -> node.
        step_seconds: of an inner step of the slowest replica, as estimated.
        round_seconds: of a round, exchange included.
        limit: what bounds the speed, in words.
        left_out: node -> why it has no seat.
    """

    layers: tuple[Layers, ...]
    seats: dict[tuple[int, int], NodeAddress]
    step_seconds: float = 0.0
    round_seconds: float = 0.0
    limit: str = ""
    left_out: Mapping[NodeAddress, str] = {}


class NoPlacementError(Exception):
    """The network cannot hold the job; the text says what is missing."""
