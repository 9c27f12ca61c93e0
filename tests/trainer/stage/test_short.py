"""Lean states in short form: what a segment's end is rounded to, and what an opening then says of it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import zstandard
from safetensors.torch import load, save

from protocol.job.job import ModelSpec, TrainingSpec
from protocol.models.model import resolve
from tests.trainer.audit.test_replay import auditor, command
from tests.trainer.small import ENV, Committed, commit_round, config_of, cuts, pipeline, training
from trainer.audit.replay import OpeningReplayer
from trainer.audit.shown_state import read_state, show_state
from trainer.data.data import TokenFile
from trainer.files.tensors import bytes_of, file_in_pieces
from trainer.stage.eight_bits import BLOCK, Spelling, chance, coarsen, pack, tables, unpack
from trainer.stage.model import Cut
from trainer.stage.short import LEVELS, ShortValues, shortened, way
from trainer.stage.stage import Stage

CPU = torch.device("cpu")
STAGE, STEPS, SEGMENT = 1, 4, 2
LARGER = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def lean(**changes: Any) -> TrainingSpec:
    return training(**{"memory": "lean", "precision": "bf16", "commit_every": SEGMENT} | changes)


def done(folder: Path, tokens: TokenFile, **changes: Any) -> Committed:
    """A round of two segments."""
    return commit_round(pipeline("llama", 2, tokens, lean(**changes)), STAGE, STEPS, 20, first_step=4)


def drawn(count: int, key: int = 7) -> torch.Tensor:
    return chance(0, count, key, CPU)


# --- rounding ---------------------------------------------------------------------------------------------------------


def test_values_are_said_in_whole_units_from_the_anchor_and_moved_by_less_than_one() -> None:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(64 * BLOCK, generator=generator)
    moves = torch.randn(64 * BLOCK, generator=generator) * torch.logspace(-6, 1, 64).repeat_interleave(BLOCK)
    values = base + moves
    codes, units = shortened(values, base, drawn(len(values)))
    assert int(codes.abs().max()) == LEVELS
    assert torch.equal(units, units.bfloat16().float()), "a unit is a bf16"
    short = ShortValues(base, codes, units.bfloat16())
    assert torch.equal(short.values(), base + way(codes, units))
    off = (short.values() - values).view(-1, BLOCK).abs().amax(dim=1)
    assert bool((off <= units * 1.001 + 1e-6).all())


def test_rounding_by_chance_moves_nothing_on_average() -> None:
    base, values = torch.zeros(BLOCK), torch.linspace(-1.0, 1.0, BLOCK)
    total = torch.zeros(BLOCK)
    for key in range(4000):
        total += way(*shortened(values, base, drawn(BLOCK, key)))
    assert float((total / 4000 - values).abs().max()) < 0.005, "a fourteenth of a unit"


@pytest.mark.parametrize(("spelling", "kept"), [("signed", 2), ("unsigned", 2)])
def test_moments_lose_bits_of_mantissa_and_nothing_on_average(spelling: Spelling, kept: int) -> None:
    values = torch.linspace(0.01, 1.0, 16 * BLOCK)
    codes, scales = pack(values, spelling, drawn(len(values)))
    before, known = unpack(codes, scales, tables(CPU)[spelling]), tables(CPU)[spelling]
    total, seen = torch.zeros_like(before), set[int]()
    for key in range(2000):
        coarse = coarsen(codes, spelling, drawn(len(values), key))
        seen |= set((coarse & 0x7F).tolist())
        total += unpack(coarse, scales, known)
    low = (1 << ({"signed": 3, "unsigned": 4}[spelling] - kept)) - 1
    assert all(code & low == 0 for code in seen)
    assert float(((total / 2000 - before) / before).abs().max()) < 0.02


def test_a_block_that_did_not_move_stays_and_so_does_the_padding() -> None:
    base = torch.randn(2 * BLOCK)
    codes, units = shortened(base.clone(), base, drawn(2 * BLOCK))
    assert not codes.any()
    assert not units.any()
    assert torch.equal(ShortValues(base, codes, units.bfloat16()).values(), base)


# --- states and openings ----------------------------------------------------------------------------------------------


def test_a_state_in_short_form_is_the_state_of_its_stage(folder: Path, tokens: TokenFile) -> None:
    round_of = done(folder, tokens)
    assert isinstance(round_of.after.said, ShortValues)
    again = Stage(config_of(), cuts(3, 2)[STAGE], round_of.spec)
    again.restore(round_of.after)
    assert again.state_digest() == round_of.after.digest() == round_of.trace.leaves[-1].after
    assert torch.equal(again.parameters, round_of.after.parameters)
    assert torch.equal(again.values(), round_of.after.values())
    assert again.state().digest() == round_of.after.digest(), "and it can be kept from there once more"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_state_takes_two_bytes_a_parameter_of_an_opening(optimizer: str) -> None:
    stage = Stage(resolve(ModelSpec(config=LARGER), 300), Cut(0, 2, True, True), lean(optimizer=optimizer))
    anchor = stage.values().clone()
    for step in range(3):
        noise = torch.randn(stage.size, generator=torch.Generator().manual_seed(step))
        stage.gradients.copy_(noise * 1e-3)
        stage.adam_step(1e-3)
    stage.shorten(anchor)
    shown = show_state(stage.state())
    taken = sum(len(part) if isinstance(part, bytes | bytearray) else part.nbytes for part in shown.values())
    assert taken / stage.parameter_count < 2.0
    parsed = load(b"".join(file_in_pieces(shown)))
    assert read_state(parsed, "", stage.layout, 3, anchor).digest() == stage.state_digest()


@pytest.mark.parametrize("step", [0, SEGMENT])
def test_who_has_the_anchor_reads_an_opening_without_it_and_nobody_else_does(
    step: int, folder: Path, tokens: TokenFile
) -> None:
    shown = done(folder, tokens)
    short, whole, anchor = shown.opening(step, anchored=False), shown.opening(step), shown.trace.anchor
    assert len(whole) - len(short) >= 4 * anchor.numel()
    asked = msgspec.structs.replace(command(shown, step), anchor_in="auditor")
    names = {asked.anchor: anchor}

    def having(known: Any) -> OpeningReplayer:
        return OpeningReplayer(config_of(), shown.spec, folder / "train.bin", None, ENV, "cpu", known)

    assert having(names.get).judge(asked, short).verdict == "match"
    offered = auditor(folder, shown.spec)
    assert offered.judge(asked, short).verdict == "malformed"
    offered.offer_anchor(bytes(bytes_of(anchor)))
    assert offered.judge(asked, short).verdict == "match"
    offered.offer_anchor(bytes(bytes_of(anchor + 1)))
    assert offered.judge(asked, short).verdict == "malformed", "another one has another digest"
    report = having(lambda _: anchor + 1).judge(asked, short)
    assert report.verdict == "malformed"
    assert "not the one that the leaf names" in report.detail
    assert offered.judge(command(shown, step), whole).verdict == "match"


@pytest.mark.parametrize("name", ["codes", "units", "first_moment", "second_moment"])
def test_a_part_that_is_cut_bloated_or_another_is_no_opening(name: str, folder: Path, tokens: TokenFile) -> None:
    shown = done(folder, tokens)
    parts = load(shown.opening(SEGMENT))
    for data in (b"\0", bytes(parts[name].numpy())[:-3], zstandard.compress(bytes(1 << 24)), bytes(8)):
        bent = {**parts, name: torch.frombuffer(bytearray(data), dtype=torch.uint8)}
        report = auditor(folder, shown.spec).judge(command(shown, SEGMENT), save(bent))
        assert report.verdict == "malformed", data[:8]


@pytest.mark.parametrize("outer", [{"pseudo_gradient": "coarse"}, {"outer": "streaming", "fragments": 1}])
def test_what_is_carried_is_shown_only_where_it_counts(outer: dict[str, Any], folder: Path, tokens: TokenFile) -> None:
    """Error feedback at the round's end alone; parameters of one's own also where the round begins with them."""
    shown = done(folder, tokens, **outer)
    carried = [any(name.startswith("local.") for name in load(shown.opening(step))) for step in (0, SEGMENT)]
    assert carried == ["outer" in outer, True]
    for step in (0, SEGMENT):
        due = command(shown, step, carried=shown.trace.leaves[-1].carried)
        assert auditor(folder, shown.spec).judge(due, shown.opening(step)).verdict == "match"
