"""A card with too little main memory beside it gets fewer layers, or none."""

import msgspec
import pytest

from coordinator.domain.placement import MEGABYTE, Candidate, NoPlacementError, choose, needed
from coordinator.domain.placement.layers import beside_of, most_layers
from protocol.job.job import LoraSpec, TrainingSpec
from protocol.models.boundary_bytes import recorded_bytes
from protocol.models.model import inspect_config
from protocol.task import Layers
from tests.support.published_configs import LLAMA_3_1_8B, LLAMA_3_2_1B

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
    with pytest.raises(NoPlacementError, match=r"MB of main memory beside graphics cards.*lend more memory"):
        choose(SHAPE, LEAN, [beside(enough // 4)], 1, 1)


@pytest.mark.parametrize(("sequence", "megabytes", "cards"), [(2048, 11_500, 1), (512, 7_600, 1), (2048, 7_600, 2)])
def test_eight_billion_parameters_with_an_adapter_beside_them_fit_cards_of_homes(
    sequence: int, megabytes: int, cards: int
) -> None:
    """QLoRA: a card of 12 GB, one of 8 GB with short sequences, two of 8 GB in stages. As it came it fits none of them."""
    shape = inspect_config(LLAMA_3_1_8B)
    assert 8.0e9 < shape.parameters < 8.1e9
    short = msgspec.structs.replace(LEAN, sequence=sequence, batch=1, micro_batches=1)
    lent = [msgspec.structs.replace(beside(16_000, f"card {n}"), memory_mb=megabytes) for n in range(cards)]
    narrow, wide = (msgspec.structs.replace(short, lora=LoraSpec(rank=16, quantize=one)) for one in ("nf4", "none"))
    assert len(choose(shape, narrow, lent, cards, 1).layers) == cards
    with pytest.raises(NoPlacementError):
        choose(shape, wide, lent, cards, 1)


def test_two_cards_share_what_the_memory_beside_one_does_not_hold() -> None:
    half = needed(SHAPE, LEAN, WHOLE)["beside"][0] // MEGABYTE * 3 // 4
    plan = choose(SHAPE, LEAN, [beside(half, "a"), beside(half, "b")], None, None)
    assert len(plan.layers) == 2
    least = needed(SHAPE, LEAN, plan.layers)
    assert all(beside(half).holds(least, stage) for stage in range(2))


def test_without_room_for_a_layer_beside_it_a_card_is_no_use() -> None:
    memory = 24_000 * MEGABYTE
    assert most_layers(SHAPE, LEAN, 1, 0, memory, True, 100 * MEGABYTE) == 0
    assert most_layers(SHAPE, LEAN, 1, 0, memory, True, None) == SHAPE.layers
    assert most_layers(SHAPE, LEAN, 2, 0, 20 * memory, False, 100 * MEGABYTE) > 0, "no card"


def test_a_pipeline_needs_room_for_what_crossed_and_one_stage_does_not() -> None:
    whole, half = needed(SHAPE, LEAN, WHOLE), needed(SHAPE, LEAN, [Layers(0, 8), Layers(8, 16)])
    crossed = 3 * LEAN.inner_steps * recorded_bytes(SHAPE, LEAN, LEAN.batch * LEAN.sequence)
    assert whole["beside"][0] < half["beside"][0] + half["beside"][1] - 2 * crossed + 10**9
    assert half["beside"][0] > crossed


def test_beside_a_lean_card_as_much_is_planned_as_a_worker_was_seen_to_hold() -> None:
    """``python -m benchmarks.learning.beside_card``: 21.9 bytes a parameter at most."""
    each = (beside_of(SHAPE, LEAN, 2 * 10**9, 1) - beside_of(SHAPE, LEAN, 10**9, 1)) / 1e9
    assert 21.9 / 1.1 < each < 21.9
