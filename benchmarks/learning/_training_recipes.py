"""The rows of the training tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

How = Literal["together", "alone", "rounds", "gradients", "timed", "slowest", "ddp", "flower"]


@dataclass(frozen=True)
class Recipe:
    """One row: how replicas learn together.

    Attributes:
        training: what differs from ``TrainingSpec``'s defaults; ``inner_steps`` is the period of rounds.
        learning: part of the learning rate that is everybody's; a replica's batch is a quarter of all replicas' together.
        lost: share of contributions that never arrive.
        scratch: a row of the tables without a warm start, too.
    """

    name: str
    how: How
    training: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    lost: float = 0.0
    learning: float = 1.0
    scratch: bool = False


_LEAN = {"memory": "lean", "precision": "bf16"}


def _diloco(steps: int, codec: str, momentum: float = 0.9, rate: float = 0.7, **more: Any) -> dict[str, Any]:
    return {
        "inner_steps": steps,
        "pseudo_gradient": codec,
        "outer_learning_rate": rate,
        "outer_momentum": momentum,
        **more,
    }


def _growing(shortest: int, longest: int, codec: str, momentum: float) -> dict[str, Any]:
    return _diloco(longest, codec, momentum, period="growing", shortest_period=shortest)


RECIPES = (
    Recipe("together", "together", note="DDP: gradients of all, float32, every step", scratch=True),
    Recipe("torch DDP", "ddp", note="torch over gloo, four processes"),
    Recipe("Flower", "flower", {"inner_steps": 50}, "FedAvg, H=50, float32 weights"),
    Recipe("alone", "alone", note="one worker, a quarter of the tokens"),
    Recipe("int4 gradients", "gradients", note="4-bit blocks of 256, levels that are squares, every step"),
    Recipe("H=20 int4", "rounds", _diloco(20, "int4", 0.5), "DiLoCo, 4-bit blocks of 64"),
    Recipe("H=20 int4 slower", "rounds", _diloco(20, "int4", 0.6, 0.8), "half the learning rate", learning=0.5),
    Recipe(
        "H=20 int4 milder", "rounds", _diloco(20, "int4", 0.6, 0.8), "two thirds of the learning rate", learning=0.65
    ),
    Recipe(
        "H=50 int4 milder", "rounds", _diloco(50, "int4", 0.6, 0.8), "two thirds of the learning rate", learning=0.65
    ),
    Recipe("together slower", "together", note="DDP with half the learning rate", learning=0.5),
    Recipe("H=20 int4 .3", "rounds", _diloco(20, "int4", 0.3, 0.9), "the same, outer rate 0.9 and momentum 0.3"),
    Recipe(
        "H=20 int4 feedback", "rounds", _diloco(20, "int4", 0.5, error_feedback=1.0), "the same with error feedback"
    ),
    Recipe("150x", "rounds", _diloco(6, "coarse", 0.5), "H=6, coarse, error feedback"),
    Recipe("H=50 int4", "rounds", _diloco(50, "int4", 0.6, 0.8), "DiLoCo, 4-bit blocks of 64", scratch=True),
    Recipe("H=50 int4 .5", "rounds", _diloco(50, "int4", 0.5), "the same with outer rate 0.7 and momentum 0.5"),
    Recipe("H=50 int4 .9", "rounds", _diloco(50, "int4"), "the same with an outer momentum of 0.9"),
    Recipe("400x", "rounds", _diloco(15, "coarse", 0.5), "H=15, coarse, error feedback"),
    Recipe("400x growing", "rounds", _growing(9, 30, "coarse", 0.5), "the same bytes, H from 9 to 30", scratch=True),
    Recipe("1000x", "rounds", _diloco(20, "coarser", 0.5), "H=20, coarser, error feedback"),
    Recipe("H=20 int4 shards", "rounds", _diloco(20, "int4", 0.5, exchange="shards"), "H=20 int4, by shards"),
    Recipe("H=15 int8 shards", "rounds", _diloco(15, "int8", 0.5, exchange="shards"), "H=15 int8, by shards"),
    Recipe("H=15 int8", "rounds", _diloco(15, "int8", 0.5), "8-bit blocks of 64"),
    Recipe("400x shards", "rounds", _diloco(15, "coarse", 0.5, exchange="shards"), "400x, by shards"),
    Recipe("1000x shards", "rounds", _diloco(20, "coarser", 0.5, exchange="shards"), "1000x, by shards"),
    Recipe("a quarter lost", "rounds", _diloco(20, "int4", 0.5), "H=20 int4; one upload in four never arrives", 0.25),
    Recipe("400x a quarter lost", "rounds", _diloco(15, "coarse", 0.5), "one upload in four never arrives", 0.25),
    Recipe(
        "400x without feedback",
        "rounds",
        _diloco(15, "coarse", 0.5, error_feedback=0.0),
        "what error feedback is worth",
    ),
    Recipe("H=15 fp32", "rounds", _diloco(15, "fp32", 0.5), "what coarse costs"),
    Recipe("averaging H=50", "rounds", _diloco(50, "int4", 0.0, 1.0, outer="averaging"), "no outer momentum"),
    Recipe(
        "streaming", "rounds", _diloco(5, "int4", 0.5, outer="streaming"), "a quarter of the layers every 5 steps, int4"
    ),
    Recipe("sparseloco H=20", "rounds", _diloco(20, "int4", 0.0, 1.0, outer="sparseloco"), "3 % of the values, 2 bits"),
    Recipe(
        "sparseloco shards",
        "rounds",
        _diloco(20, "int4", 0.0, 1.0, outer="sparseloco", exchange="shards"),
        "the same, by shards",
    ),
    Recipe("H=50 int4 growing", "rounds", _growing(40, 110, "int4", 0.5), "as many rounds as H=50", scratch=True),
    Recipe(
        "timed",
        "timed",
        _diloco(20, "int4", 0.5),
        "speeds 1, 0.8, 0.5, 0.25; rounds of equal time, H=20 of the fastest",
    ),
    Recipe("slowest", "slowest", _diloco(20, "int4", 0.5), "the same; everybody waits for the slowest"),
    Recipe("together Muon", "together", {"optimizer": "muon"}, "DDP with Muon"),
    Recipe("H=20 Muon", "rounds", _diloco(20, "int4", 0.5, optimizer="muon"), "H=20, int4, Muon inside"),
    Recipe("H=50 Muon", "rounds", _diloco(50, "int4", 0.5, optimizer="muon"), "H=50, int4, Muon inside"),
    Recipe("400x Muon", "rounds", _diloco(15, "coarse", 0.5, optimizer="muon"), "H=15, coarse, Muon inside"),
    Recipe("400x lean", "rounds", _diloco(15, "coarse", 0.5, **_LEAN), "400x with stages that are kept lean"),
    Recipe("400x Muon lean", "rounds", _diloco(15, "coarse", 0.5, optimizer="muon", **_LEAN), "the same, Muon inside"),
)
