"""A stage that is kept lean: exact weights in two halves, moments in 8 bits, and a whole that learns, replays and is small."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from protocol.audit import AskState, AskTrace, BisectQuery, StateAnswer, TraceAnswer
from protocol.job.job import LoraSpec, ModelSpec, TrainingSpec
from protocol.models.model import resolve
from tests.trainer.audit.test_replay import auditor, command
from tests.trainer.small import FAMILY_CONFIGS, commit_round, config_of, pipeline, training
from tests.trainer.worker.test_memory import Peak, held_bytes
from trainer.data.data import TokenFile
from trainer.errors import CodecError, WeightsError
from trainer.stage import stage as stages
from trainer.stage.eight_bits import BLOCK, Spelling, chance, pack, packed_size, tables, unpack
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.storage import joined, lean_parameters
from trainer.worker.checkpoint import read_moments, write_moments
from trainer.worker.dispute_player import DisputePlayer

CPU = torch.device("cpu")
WHOLE = Cut(0, 3, True, True)
SPELLINGS: tuple[Spelling, ...] = ("signed", "unsigned", "linear")


def lean(**changes: Any) -> TrainingSpec:
    return training(**{"memory": "lean", "precision": "bf16"} | changes)


def read_back(values: Tensor, spelling: Spelling, key: int = 1) -> Tensor:
    return unpack(*pack(values, spelling, chance(0, values.numel(), key, CPU)), tables(CPU)[spelling])


# --- weights ----------------------------------------------------------------------------------------------------------


def test_two_halves_are_the_float32_to_the_last_bit() -> None:
    bits = torch.randint(-(2**31), 2**31, (1 << 16,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    values = bits.view(torch.float32)
    values = torch.cat([values[values.isfinite()], torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 3.0e38])])
    halves = lean_parameters(values)
    assert torch.equal(joined(halves).view(torch.int32), values.view(torch.int32))
    upper = halves[: len(values)].view(torch.bfloat16).float()
    usual = values.abs() < 1e38
    assert bool(((upper - values).abs()[usual] <= values.abs()[usual] * 2**-8 + 1e-40).all()), "rounded to the nearest"


def test_layers_compute_with_the_upper_halves_and_no_copy_of_them() -> None:
    stage = Stage(config_of(), WHOLE, lean())
    for slot, weight in zip(stage.slots, stage.module.parameters(), strict=True):
        assert weight.dtype is torch.bfloat16
        assert weight.untyped_storage().data_ptr() == stage.parameters.untyped_storage().data_ptr()
        values = stage.values()[slot.start : slot.start + slot.count]
        assert int((weight.flatten() != values.bfloat16()).sum()) <= 1 + slot.count // 1000, "all but ties"
        assert weight.grad is not None
        assert weight.grad.untyped_storage().data_ptr() == stage.gradients.untyped_storage().data_ptr()


# --- moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spelling", "error"), [("signed", 0.125), ("unsigned", 0.0625)])
def test_a_small_float_is_near_each_value_and_their_mean_nearer(spelling: Spelling, error: float) -> None:
    values = torch.randn(1 << 14, generator=torch.Generator().manual_seed(2))
    values = values.abs() if spelling == "unsigned" else values
    found = torch.stack([read_back(values, spelling, key) for key in range(400)])
    within = values.abs() > values.view(-1, BLOCK).abs().amax(1).repeat_interleave(BLOCK) * 2.0**-14
    assert bool(((found[0] - values).abs() <= error * values.abs())[within].all())
    bias = (found.mean(0) - values).abs() / values.abs()
    assert float(bias[within].max()) < error / 4, "up and down as often as the value is near to either"


def test_equal_steps_are_of_the_largest_of_a_block() -> None:
    values = torch.randn(1 << 14, generator=torch.Generator().manual_seed(3))
    largest = values.view(-1, BLOCK).abs().amax(1).repeat_interleave(BLOCK)
    assert bool(((read_back(values, "linear") - values).abs() <= largest / 127 * 1.001).all())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_nothing_stays_nothing_and_the_largest_stays_itself(spelling: Spelling) -> None:
    values = torch.zeros(2 * BLOCK)
    values[BLOCK + 5] = 3.7
    found = read_back(values, spelling)
    assert torch.equal(found[:BLOCK], values[:BLOCK])
    assert float(found[BLOCK + 5]) == pytest.approx(3.7, rel=1e-6)
    assert bool((found[BLOCK:] >= 0).all())
    assert float(found[BLOCK:].sum()) == pytest.approx(3.7, rel=0.01)


def test_a_root_that_is_divided_by_is_never_nothing_beside_something() -> None:
    values = torch.full((BLOCK,), 1e-12)
    values[0] = 1.0
    assert float(read_back(values, "unsigned").min()) > 0


def test_a_moving_average_keeps_moving() -> None:
    """To the nearest it would stay: a step of 0.95 changes the root by 2.5 %, half of what its spelling tells apart."""
    root = torch.ones(1 << 12)
    for step in range(60):
        root = read_back((root.square() * 0.95 + 0.05 * 0.01).sqrt(), "unsigned", step)
    due = (0.95**60 + (1 - 0.95**60) * 0.01) ** 0.5
    assert float(root.mean()) == pytest.approx(due, rel=0.05)


def test_chance_is_of_the_place_not_of_the_piece() -> None:
    whole = chance(0, 1000, 7, CPU)
    assert torch.equal(whole[128:700], chance(128, 572, 7, CPU))
    assert not torch.equal(whole, chance(0, 1000, 8, CPU))
    high = [((whole >> bit) & 1).float().mean() for bit in (0, 5, 15, 19)]
    assert all(0.4 < float(share) < 0.6 for share in high)


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(5)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_every_family_learns_as_with_float32(family: str, optimizer: str, tokens: TokenFile) -> None:
    spec = {"learning_rate": 2e-3, "optimizer": optimizer, "activations": "int8"}
    lines = [pipeline(family, 2, tokens, made(**spec)) for made in (training, lean)]
    begun = torch.cat([stage.values().clone() for stage in lines[0].stages])
    wide, narrow = ([line.step(step, 16) for step in range(16)] for line in lines)
    assert narrow == pytest.approx(wide, abs=0.05)
    ways = [torch.cat([stage.values() for stage in line.stages]) - begun for line in lines]
    alike = torch.nn.functional.cosine_similarity(*ways, dim=0)
    assert float(alike) > 0.9, "sixteen steps of both lead to the same place"


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_cut_changes_no_bit(family: str, tokens: TokenFile) -> None:
    one, three = (pipeline(family, cuts, tokens, lean(activations="fp32")) for cuts in (1, 3))
    for step in range(2):  # From then on moments are rounded by other chances.
        assert one.step(step, 10) == three.step(step, 10)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_a_loss_in_parts_is_the_loss_and_has_its_gradients(
    family: str, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.from_numpy(tokens.sample(7, 0, 0, 4)[0])
    found = []
    for part in (1 << 24, 5 * 300):
        monkeypatch.setattr(stages, "LEAN_LOGITS", part)
        stage = Stage(config_of(family), WHOLE, lean())
        stage.backward(stage.summed_loss(rows[:, :-1], rows[:, 1:]))
        found.append((stage.summed_loss(rows[:, :-1], rows[:, 1:]), stage.gradients.float()))
    plain = stage.loss(stage.forward(rows[:, :-1]), rows[:, 1:])
    assert float(found[0][0]) == float(plain)
    assert float(found[1][0]) == pytest.approx(float(plain), rel=1e-3)
    apart = torch.linalg.vector_norm(found[0][1] - found[1][1]) / torch.linalg.vector_norm(found[0][1])
    assert float(apart) < 0.01


def test_not_all_logits_are_there_at_once(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.from_numpy(tokens.sample(7, 0, 0, 4)[0])
    most = []
    for part in (1 << 24, 4 * 300):
        monkeypatch.setattr(stages, "LEAN_LOGITS", part)
        stage = Stage(config_of(), WHOLE, lean())
        with Peak(4 * 300) as peak:
            stage.backward(stage.summed_loss(rows[:, :-1], rows[:, 1:]))
        most.append(peak.most)
    logits = 4 * rows[:, 1:].numel() * 300
    assert most[0] - most[1] > logits


@pytest.mark.parametrize(("optimizer", "bytes_each"), [("adamw", 8.125), ("muon", 7.4)])
def test_a_stage_holds_eight_bytes_a_parameter(optimizer: str, bytes_each: float) -> None:
    config = resolve_wide()
    stage = Stage(config, WHOLE, lean(optimizer=optimizer))
    assert held_bytes(stage) == pytest.approx(bytes_each * stage.size, rel=0.03)
    assert stage.layout.bytes <= 6.13 * stage.size


def resolve_wide() -> dict[str, Any]:
    width = {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 300}
    return resolve(ModelSpec(config=FAMILY_CONFIGS["llama"] | width), 300)


def test_a_card_never_makes_float32_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "CACHED", 1 << 13)  # As a part of a large stage.
    stage = Stage(resolve_wide(), WHOLE, lean())
    stage.gradients.fill_(0.5)
    with Peak(1024) as peak:
        stage.adam_step(0.1)
    assert 0 < peak.most < 12 * 4 * (1 << 13)


def test_what_is_frozen_takes_two_bytes(tmp_path: Path) -> None:
    config = resolve_wide()
    whole = Stage(config, WHOLE, training())
    values = {s.name: whole.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in whole.slots}
    save_file(values, tmp_path / "model.safetensors")
    stage = Stage(config, WHOLE, lean(lora=LoraSpec(rank=8)), tmp_path / "model.safetensors")
    learnt, frozen = stage.shape.stage_learns(0, 3, True, True, stage.training.lora)
    assert held_bytes(stage) == pytest.approx(8.2 * learnt + 2 * frozen, rel=0.03)


# --- states -----------------------------------------------------------------------------------------------------------


def stepped(**changes: Any) -> Stage:
    stage = Stage(config_of(), Cut(0, 1, True, False), lean(**changes))
    for step in range(3):
        stage.gradients.normal_(generator=torch.Generator().manual_seed(step))
        stage.adam_step(0.01)
    return stage


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_state_comes_back_and_goes_on_alike(optimizer: str) -> None:
    stage = stepped(optimizer=optimizer)
    kept = stage.state()
    again = Stage(config_of(), stage.cut, stage.training, initialise=False)
    again.restore(kept)
    for one in (stage, again):
        one.gradients.normal_(generator=torch.Generator().manual_seed(9))
        one.adam_step(0.01)
    assert stage.state_digest() == again.state_digest() != kept.digest()
    assert torch.equal(stage.values(), again.state().values())


def test_moments_travel_as_they_are_kept() -> None:
    stage = stepped()
    data = write_moments(stage, 7)
    assert read_moments(data, stage, stage.values(), 7).digest() == stage.state_digest()
    assert len(data) < 2.2 * stage.size + 500


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0])
def test_moments_that_no_optimizer_makes_are_refused(scale: float) -> None:
    stage = stepped()
    state = stage.state()
    state.second_moment[-4:] = torch.tensor([scale]).view(torch.uint8)
    with pytest.raises(WeightsError, match="scale of the second moment"):
        read_moments(write_moments(state, 7), stage, stage.values(), 7)
    with pytest.raises(CodecError, match=r"this stage has"):
        stage.state_of(stage.values(), torch.zeros(packed_size(BLOCK), dtype=torch.uint8))


def test_a_state_of_another_storage_is_refused() -> None:
    wide = Stage(config_of(), Cut(0, 1, True, False), training())
    with pytest.raises(CodecError):
        stepped().restore(wide.state())


def test_what_is_decoded_is_near_what_float32_would_keep(tokens: TokenFile) -> None:
    found = []
    for made in (training, lean):
        line = pipeline("llama", 1, tokens, made(precision="bf16", optimizer="muon"))
        for step in range(5):
            line.step(step, 20)
        stage = line.stages[0]
        found.append(stage.decoded(stage.state()))
    for wide, narrow in zip(*found, strict=True):
        assert float(torch.linalg.vector_norm(wide - narrow) / torch.linalg.vector_norm(wide)) < 0.1


# --- audits -----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_honest_step_matches_and_a_changed_bit_does_not(
    optimizer: str, stage: int, folder: Path, tokens: TokenFile
) -> None:
    spec = lean(optimizer=optimizer, clip_norm=0.5)
    done = commit_round(pipeline("llama", 3, tokens, spec), stage, 3, 10)
    for step in range(3):
        report = auditor(folder, spec).judge(command(done, step), done.opening(step))
        assert report.verdict == "match", report.detail
    opening = bytearray(done.opening(1))
    opening[-1] ^= 1
    assert auditor(folder, spec).judge(command(done, 1), bytes(opening)).verdict != "match"


def test_an_opening_takes_less_than_a_third_of_float32s(tokens: TokenFile) -> None:
    sizes = []
    for made in (training, lean):
        line = pipeline("llama", 1, tokens, made())
        done = commit_round(line, 0, 3, 10)
        sizes.append(len(done.opening(1)) / line.stages[0].size)
    assert sizes[1] < 0.6 * sizes[0]


# --- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "fp32"}, "set precision to bf16"),
        ({"outer": "dgc", "precision": "bf16"}, "outer to diloco"),
        ({"outer": "demo", "precision": "bf16"}, "outer to diloco"),
        ({"subspace": 8, "precision": "bf16"}, "leave subspace out"),
    ],
)
def test_what_cannot_be_lean_is_refused_with_a_way_out(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert({"memory": "lean"} | changes, TrainingSpec)


# --- a card with room for one -----------------------------------------------------------------------------------------


@pytest.fixture
def as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "makes_room", property(lambda stage: stage.training.memory == "lean"))


@pytest.mark.usefixtures("as_on_a_card")
def test_a_stage_that_is_away_holds_nothing_and_comes_back_as_it_was(tokens: TokenFile) -> None:
    line = pipeline("llama", 1, tokens, lean())
    twin = pipeline("llama", 1, tokens, lean())
    for step in range(4):
        if step == 2:
            with line.stages[0].away():
                assert held_bytes(line.stages[0]) < 0.1 * held_bytes(twin.stages[0])
        assert line.step(step, 10) == twin.step(step, 10)
    assert line.stages[0].state_digest() == twin.stages[0].state_digest()


@pytest.mark.usefixtures("as_on_a_card")
def test_a_dispute_leaves_no_second_stage_behind(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, lean(commit_every=3)), 1, 3, 12)
    player = DisputePlayer(auditor(folder, done.spec), command(done, 2), done.opening(2))
    answers = [
        player.answer(BisectQuery("d" * 32, command(done, 2), ask))[0].answer for ask in (AskState(1), AskTrace(1))
    ]
    assert isinstance(answers[0], StateAnswer)
    assert isinstance(answers[1], TraceAnswer)
    assert answers[0].chain != answers[0].state
    assert held_bytes(player._stage) < 5000
