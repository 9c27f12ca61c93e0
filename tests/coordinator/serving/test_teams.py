"""Cuts, teams and blame: what is decided about replicas of several nodes."""

import asyncio
from itertools import pairwise

import pytest

from coordinator.domain import serving as rules
from coordinator.domain import teams
from coordinator.domain.lease import Lease
from coordinator.domain.network import NetworkMap
from coordinator.domain.placement import MEGABYTE, Candidate
from coordinator.domain.serving import Blame, CountedPeriod, HeldModel, Join, NodeUsage
from coordinator.domain.teams import TeamWishes
from coordinator.services.serving.sketches import AnswerSketches
from protocol.job.job import ModelSpec, ServedWeights
from protocol.models.model import KEEPS_EMBEDDING, inspect_config, resolve
from protocol.network import NetworkReport, PeerMeasure
from protocol.serving import BoundarySketches, SketchReport
from protocol.task import Layers
from tests.support.clock import VirtualClock
from tests.support.published_configs import SMOLLM2_135M

SHAPE = inspect_config(resolve(ModelSpec("tiny-llama"), 2048))  # Of four layers.
SMOL = SMOLLM2_135M | {"max_position_embeddings": 8192, "tie_word_embeddings": True}
CONTEXT = 1024
MODEL = HeldModel(SHAPE, CONTEXT)
HALF, QUARTER, WHOLE = 1_150, 1_050, 1_300  # MB that hold so much of it.

KEYS = (b"a", b"b", b"c")


def node(name: str, memory_mb: int = HALF, flops: float = 1e9, owner: str = "") -> Candidate:
    return Candidate(name, owner or f"owner of {name}", memory_mb, flops, "cpu")


def lease(name: str, stage: int, replica: int, state: str = "ready") -> Lease:
    return Lease(name, "job", f"node {name}", "owner", 1, stage, replica, 0.0, state)


def held(found: object) -> dict[int, str]:
    assert isinstance(found, tuple)
    return {stage: candidate.node for stage, candidate in found[1].items()}


def test_a_cut_is_even_by_parameters_and_keeps_every_layer() -> None:
    for stages in range(1, SHAPE.layers + 1):
        cut = teams.cut_for(SHAPE, stages)
        assert cut is not None
        assert (cut[0].first, cut[-1].last) == (0, SHAPE.layers)
        assert all(one.last == other.first and one.last > one.first for one, other in pairwise(cut))
        parts = [rules.stage_parameters(SHAPE, cut, stage) for stage in range(stages)]
        assert sum(parts) == SHAPE.parameters
        assert max(parts) - min(parts) <= SHAPE.layer_parameters + SHAPE.embedding_parameters
    assert teams.cut_for(SHAPE, SHAPE.layers + 1) is None
    assert teams.cut_for(SHAPE, 2, [1, 2]) is None
    assert teams.cut_for(SHAPE, 2, [1, 3]) == (Layers(0, 1), Layers(1, 4))


def test_a_matrix_that_is_embedding_and_head_is_paid_once_and_held_wherever_it_is_needed() -> None:
    config = resolve(ModelSpec(config=SMOL, weights="0" * 64), SMOL["vocab_size"])
    tied, apart = inspect_config(config), inspect_config(config | {KEEPS_EMBEDDING: False})
    matrix = SMOL["vocab_size"] * SMOL["hidden_size"]
    assert (tied.distinct_parameters, apart.distinct_parameters) == (134_515_008, 134_515_008 + matrix)
    for stages in (1, 2, 3):
        cut = teams.cut_for(tied, stages)
        assert cut == teams.cut_for(apart, stages)
        assert cut is not None
        paid = [rules.stage_parameters(tied, cut, stage) for stage in range(stages)]
        assert sum(paid) == tied.distinct_parameters
        assert paid[-1] >= matrix, "who draws multiplies by it; who looks rows up does not"
        held, copies = (rules.needed(HeldModel(one, CONTEXT), cut) for one in (tied, apart))
        saved = [more - less for more, less in zip(copies["card"], held["card"], strict=True)]
        assert saved == ([4 * matrix] if stages == 1 else [0] * stages), "first and last stage have a copy each"


def test_as_few_nodes_as_hold_it_and_as_many_as_are_asked_for() -> None:
    four = [node(name) for name in "abcd"]
    assert len(held(teams.first_team(MODEL, [*four, node("e", WHOLE)], None, TeamWishes()))) == 1
    assert len(held(teams.first_team(MODEL, four, None, TeamWishes()))) == 2
    assert len(held(teams.first_team(MODEL, four, 3, TeamWishes()))) == 3
    assert teams.first_team(MODEL, four[:1], None, TeamWishes()) is None
    assert teams.first_team(MODEL, four, 5, TeamWishes()) is None
    small = [node(name, QUARTER) for name in "abcd"]
    assert len(held(teams.first_team(MODEL, small, None, TeamWishes()))) == 4


def test_where_an_even_cut_fits_nobody_it_follows_the_memory() -> None:
    unequal = [node("small", QUARTER), node("large", 1_250)]
    found = teams.first_team(MODEL, unequal, 2, TeamWishes())
    assert found is not None
    assert found[0] in ((Layers(0, 1), Layers(1, 4)), (Layers(0, 3), Layers(3, 4)))
    needed = rules.needed(MODEL, found[0])
    assert all(candidate.holds(needed, stage) for stage, candidate in found[1].items())


def test_a_model_that_two_nodes_hold_as_float32_fits_one_in_fewer_bits() -> None:
    shape = inspect_config(resolve(ModelSpec("qwen2.5-0.5b"), 49_152))
    kinds: tuple[ServedWeights, ...] = ("float32", "int8", "nf4")
    held_so = [HeldModel(shape, 1024, kind) for kind in kinds]
    whole = [rules.needed(one, (Layers(0, shape.layers),)) for one in held_so]
    for where in ("main", "card", "beside"):
        assert whole[0][where][0] > whole[1][where][0] > whole[2][where][0]
    two = [node(name, whole[2]["main"][0] // MEGABYTE + 1) for name in "ab"]
    found = [teams.first_team(one, two, None, TeamWishes()) for one in held_so]
    assert [len(held(one)) for one in found] == [2, 2, 1]


def test_near_nodes_come_first_then_quick_ones_and_who_was_of_a_broken_replica_last() -> None:
    needed = rules.needed(MODEL, (Layers(0, 2), Layers(2, 4)))
    network = NetworkMap()
    near = NetworkReport(peers=(PeerMeasure("near", "host/host", 0.005, 0.0, 0, 0),))
    network.learn("quick", near, 0.0)
    free = [node("quick", flops=9e9), node("near"), node("far", flops=8e9)]
    for wishes, expected in (
        (TeamWishes(network=network), {"quick", "near"}),
        (TeamWishes(), {"quick", "far"}),
        (TeamWishes(broken={"quick": 1}), {"near", "far"}),
        (TeamWishes(owners=frozenset({"owner of far"})), {"quick", "near"}),
        (TeamWishes(network=network, apart={frozenset({"quick", "near"})}), {"quick", "far"}),
    ):
        found = teams.team(needed, (0, 1), free, (), wishes)
        assert found is not None
        assert {candidate.node for candidate in found.values()} == expected
    assert teams.team(needed, (1,), free[:2], ("near",), TeamWishes(apart={frozenset({"quick", "near"})})) is not None
    assert teams.team(needed, (1,), free[:1], ("near",), TeamWishes(apart={frozenset({"quick", "near"})})) is None


def test_a_replica_is_joined_once_it_is_whole_and_anew_after_each_change() -> None:
    one, two = lease("a", 0, 0), lease("b", 1, 0)
    assert rules.joined(2, 4, {}, [one, lease("b", 1, 0, "starting")]) == (4, {})
    epoch, joins = rules.joined(2, 4, {}, [two, one])
    assert (epoch, joins) == (5, {0: Join(5, ("a", "b"))})
    assert rules.joined(2, epoch, joins, [one, two]) == (5, joins), "nothing has changed"
    assert rules.joined(2, epoch, joins, [one]) == (5, {})
    assert rules.joined(2, epoch, joins, [one, lease("c", 1, 0)]) == (6, {0: Join(6, ("a", "c"))})
    assert rules.joined(1, epoch, {}, [one]) == (5, {}), "a node alone is not told who it is"


@pytest.mark.parametrize(
    ("seats", "stages", "silent", "expected"),
    [
        (1, (), (), Blame(guilty=(0,))),
        (3, (1,), (), Blame(guilty=(1,))),
        (3, (1,), (1,), Blame(silent=(1,))),
        (3, (0,), (), Blame(guilty=(0,))),
        (3, (2,), (), Blame(apart=(0, 2))),
        (2, (1,), (), Blame(apart=(0, 1))),
        (3, (2, 1), (), Blame(apart=(1, 2))),
        (3, (), (), Blame()),
        (3, (), (0, 2), Blame(silent=(0, 2))),
        (3, (7,), (), Blame()),
    ],
)
def test_blame_is_of_whom_the_check_names_and_mild_where_words_may_be_lost(
    seats: int, stages: tuple[int, ...], silent: tuple[int, ...], expected: Blame
) -> None:
    assert rules.blame(seats, stages, silent) == expected


def test_a_seat_has_one_share_of_a_period_whoever_holds_it() -> None:
    periods = [
        CountedPeriod(f"{number}", (lease(f"a{number}", 0, replica),), NodeUsage(1, 0, 1), (b"x",), 0.0)
        for number, replica in enumerate((0, 1, 0, 0, 1))
    ]
    assert [[one.home for one in wave] for wave in rules.waves(periods)] == [["0", "1"], ["2", "4"], ["3"]]


async def test_sketches_are_kept_in_bounds_from_whom_they_are_expected_and_late_ones_are_waited_for() -> None:
    clock = VirtualClock()
    book, seats = AnswerSketches(clock), [lease("a", 0, 0), lease("b", 1, 0), lease("c", 2, 0)]
    layers = (Layers(0, 1), Layers(1, 3), Layers(3, 4))
    book.expect("one", seats, KEYS, 10)
    book.take("a", SketchReport("one", "sent", 0, b"12345678" * 10))
    book.take("b", SketchReport("one", "got", 0, b"abcdefgh" * 8))
    kept = book.kept
    for who, report in (
        ("a", SketchReport("one", "got", 0, b"12345678")),  # Nobody sends to the first stage.
        ("c", SketchReport("one", "sent", 0, b"12345678")),
        ("a", SketchReport("one", "sent", 0, b"87654321")),  # It has said so already.
        ("stranger", SketchReport("one", "got", 0, b"12345678")),
        ("b", SketchReport("other", "sent", 0, b"12345678")),
        ("b", SketchReport("one", "sent", 0, b"12345678" * 11)),  # Of more tokens than there can be.
        ("b", SketchReport("one", "sent", 0, b"123")),
        ("b", SketchReport("one", "sent", 2, b"12345678")),  # It leaves out the first ones.
    ):
        book.take(who, report)
        assert book.kept == kept
    waiting = asyncio.create_task(book.boundaries("one", layers, clock.now() + 5.0))
    await clock.advance(2.0)
    book.take("b", SketchReport("one", "sent", 0, b"ABCDEFGH" * 10))
    await clock.advance(2.0)
    assert not waiting.done()
    await clock.advance(2.0)
    boundaries, silent = await waiting
    assert boundaries == (
        BoundarySketches(1, 0, b"12345678" * 10, b"abcdefgh" * 8, *KEYS[:2]),
        BoundarySketches(3, 0, b"ABCDEFGH" * 10, b"", *KEYS[1:]),
    )
    assert silent == (1, 2), "one says nothing, and one less than the others"
    assert book.kept == 0
    book.expect("two", seats[:2], KEYS[:2], 10)
    book.take("a", SketchReport("two", "sent", 0, b"12345678"))
    book.drop("two")
    assert book.kept == 0
    assert await book.boundaries("two", layers[:2], clock.now() + 5.0) == ((), ())
