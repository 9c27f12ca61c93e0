"""A card with too little main memory beside it gets fewer layers, or none."""

import msgspec
import pytest

from coordinator.domain.placement import MEGABYTE, Candidate, NoPlacementError, choose, needed
from coordinator.domain.placement.layers import within_main_memory
from protocol.job.job import TrainingSpec
from protocol.models.model import inspect_config
from protocol.task import Layers
from tests.support.published_configs import LLAMA_3_2_1B

SHAPE = inspect_config(LLAMA_3_2_1B)
LEAN = TrainingSpec(sequence=512, batch=8, micro_batches=8, memory="lean", precision="bf16", pseudo_gradient="coarse")
CARD = Candidate("card", "owner", 24_000, 1e13, "cuda", card=True)
WHOLE = [Layers(0, SHAPE.layers)]


def beside(megabytes: int | None, name: str = "card") -> Candidate:
    return msgspec.structs.replace(CARD, node=name, owner=name, beside_mb=megabytes)


def test_a_billion_parameters_fit_a_card_only_with_main_memory_beside_it() -> None:
    least = needed(SHAPE, LEAN, WHOLE)
    assert least["card"][0] < 24_000 * MEGABYTE
    enough = least["beside"][0] // MEGABYTE + 1
    assert beside(enough).holds(least, 0)
    assert not beside(enough // 2).holds(least, 0)
    assert beside(None).holds(least, 0), "an older agent has not told"
    assert choose(SHAPE, LEAN, [beside(enough)], 1, 1).layers == (Layers(0, SHAPE.layers),)
    with pytest.raises(NoPlacementError, match="needs about"):
        choose(SHAPE, LEAN, [beside(enough // 4)], 1, 1)


def test_two_cards_share_what_the_memory_beside_one_does_not_hold() -> None:
    half = needed(SHAPE, LEAN, WHOLE)["beside"][0] // MEGABYTE * 3 // 4
    plan = choose(SHAPE, LEAN, [beside(half, "a"), beside(half, "b")], None, None)
    assert len(plan.layers) == 2
    least = needed(SHAPE, LEAN, plan.layers)
    assert all(beside(half).holds(least, stage) for stage in range(2))


def test_without_room_for_a_layer_beside_it_a_card_is_no_use() -> None:
    assert within_main_memory(beside(100), SHAPE, LEAN).memory_mb == 0
    assert within_main_memory(beside(None), SHAPE, LEAN) == beside(None)
    processor = msgspec.structs.replace(beside(100), card=False)
    assert within_main_memory(processor, SHAPE, LEAN) == processor
