"""A wrong answer of several stages is put on the one that made it; an honest one is on nobody."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from protocol.job.job import ServedWeights
from protocol.serving import BoundarySketches, CheckCommand, CheckedReport, GenerateCommand, Sampling
from protocol.worker import PeerSend
from tests.trainer.serve.answering import Asking, Reports, check_of
from tests.trainer.serve.stages.ring import CUTS, Ring, Sketched, key_of, ring, tensors_of
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from tests.trainer.small import FAMILY_CONFIGS
from trainer.serve import checking
from trainer.serve.engine import Engine
from trainer.serve.stages import draws
from trainer.serve.stages.passes import pack_pass, unpack_pass
from trainer.serve.stages.sketches import sketch_vectors

STAGES = 3
HIDDEN = int(FAMILY_CONFIGS["llama"]["hidden_size"])
SHARP = 1e-6  # Nats: every draw that falls out otherwise is wrong.
ASKED = GenerateCommand("told", "A quick brown fox", tokens=200, sampling=Sampling(seed=4))
Tensors = dict[str, Any]
Recorded = tuple[Reports, Sketched]


@pytest.fixture(scope="module")
def sharp(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A model whose layers have a say: what they change, changes which token is drawn."""
    here = tmp_path_factory.mktemp("sharp")
    for one in folder.iterdir():
        if one.suffix != ".safetensors":
            (here / one.name).write_bytes(one.read_bytes())
    more = {"vocab_size": 300, "max_position_embeddings": 512, "eos_token_id": 256, "initializer_range": 0.3}
    torch.manual_seed(2)
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(FAMILY_CONFIGS["llama"] | more)))
    made.save_pretrained(here)
    return here


def boundaries(sketched: Sketched, cuts: list[tuple[int, int]]) -> tuple[BoundarySketches, ...]:
    """What stages told, as a check is asked."""

    def values(stage: int, side: str) -> bytes:
        return sketched[ASKED.id, stage, side].values if (ASKED.id, stage, side) in sketched else b""

    return tuple(
        BoundarySketches(first, 0, values(stage, "sent"), values(stage + 1, "got"), key_of(stage), key_of(stage + 1))
        for stage, (first, _) in enumerate(cuts[1:])
    )


async def told(here: Ring) -> Recorded:
    found = await here.over(ASKED)
    return found, await here.sketched(ASKED.id)


async def checked(
    folder: Path,  # noqa: F811
    command: CheckCommand,
    held: ServedWeights = "float32",
) -> CheckedReport:
    asking = Asking()
    async with Engine(folder, 1, asking.say, context=256, held=held) as engine:
        said = (await asking.over(engine, command))[command.id][-1]
    assert isinstance(said, CheckedReport), said
    return said


async def recorded(folder: Path, weights: Mapping[int, Tensors] | None = None) -> Recorded:  # noqa: F811
    """What stages say and tell, some of which have other ``weights``."""
    async with ring(folder, STAGES, weights=weights) as here:
        return await told(here)


@pytest.fixture(scope="module")
def honest(sharp: Path) -> Recorded:
    return asyncio.run(recorded(sharp))


@pytest.fixture(scope="module")
def misdrawn(sharp: Path) -> Recorded:
    """Of an answer whose every token is another one than the one that is drawn."""
    drawn = draws.drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "drawn", lambda logits, sampling, place: (drawn(logits, sampling, place) + 1) % 256)
        return asyncio.run(recorded(sharp))


async def judged(
    folder: Path,  # noqa: F811
    record: Recorded,
    held: ServedWeights = "float32",
) -> CheckedReport:
    """What comes of checking an answer of stages."""
    found, sketched = record
    asked = check_of(ASKED, found[ASKED.id])
    return await checked(folder, msgspec.structs.replace(asked, boundaries=boundaries(sketched, CUTS[STAGES])), held)


def off(factor: float) -> Callable[[Tensor], Tensor]:
    """Weights that are off by a share of themselves."""
    chance = torch.Generator().manual_seed(3)
    return lambda value: value * (1 + factor * torch.randn(value.shape, generator=chance))


def int8(value: Tensor) -> Tensor:
    """Weights that went through eight bits, a row at a time."""
    if value.dim() < 2:
        return value
    step = value.abs().amax(1, keepdim=True) / 127
    return (value / step).round() * step


def lied(folder: Path, stage: int, change: Callable[[Tensor], Tensor]) -> dict[int, Tensors]:  # noqa: F811
    """A stage with other weights of its layers."""
    layer = f".layers.{CUTS[STAGES][stage][0]}."
    return {stage: {name: change(value) if layer in name else value for name, value in tensors_of(folder).items()}}


async def test_an_honest_answer_is_right_and_on_nobody(sharp: Path, honest: Recorded) -> None:
    report = await judged(sharp, honest)
    assert (report.wrong, report.stages) == ("", ())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("change", [off(0.01), int8], ids=["1 %", "int8"])
@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_other_weights_are_on_the_stage_that_has_them(
    sharp: Path, monkeypatch: pytest.MonkeyPatch, stage: int, change: Callable[[Tensor], Tensor]
) -> None:
    monkeypatch.setattr(checking, "TOLERANCE", SHARP)
    report = await judged(sharp, await recorded(sharp, lied(sharp, stage, change)))
    assert report.wrong
    assert report.stages == (stage,)


@pytest.mark.parametrize("other", [None, "nf4", "float32"])
async def test_a_stage_that_holds_other_bits_than_promised_is_named(
    sharp: Path, monkeypatch: pytest.MonkeyPatch, other: ServedWeights | None
) -> None:
    held: dict[int, ServedWeights] = {0: "int8", 1: other or "int8", 2: "int8"}
    async with ring(sharp, STAGES, held=held) as here:
        record = await told(here)
    if other is not None:
        monkeypatch.setattr(checking, "TOLERANCE", SHARP)
    report = await judged(sharp, record, "int8")
    assert bool(report.wrong) is (other is not None)
    assert report.stages == (() if other is None else (1,))


async def test_draws_that_were_not_made_are_on_the_last_stage(sharp: Path, misdrawn: Recorded) -> None:
    report = await judged(sharp, misdrawn)
    assert "behind the one" in report.wrong
    assert report.stages == (STAGES - 1,)


def doubled(values: bytes) -> bytes:
    return (torch.frombuffer(bytearray(values), dtype=torch.float16) * 2).numpy().tobytes()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("stage", "side", "lie", "stages"),
    [
        (0, "sent", doubled, (0,)),
        (1, "got", doubled, (0, 1)),
        (1, "sent", doubled, (1,)),
        (0, "sent", lambda _: b"", (0,)),
        (2, "got", lambda values: values[:-8], (2,)),
    ],
    ids=["sent", "got", "later", "nothing", "too little"],
)
async def test_sketches_that_lie_are_on_who_told_them(
    sharp: Path,
    honest: Recorded,
    misdrawn: Recorded,
    stage: int,
    side: str,
    lie: Callable[[bytes], bytes],
    stages: tuple[int, ...],
) -> None:
    def lying(record: Recorded) -> Recorded:
        found, sketched = record
        key = (ASKED.id, stage, side)
        return found, sketched | {key: msgspec.structs.replace(sketched[key], values=lie(sketched[key].values))}

    report = await judged(sharp, lying(honest))
    assert (report.wrong, report.stages) == ("", ()), "sketches alone make no answer wrong"
    report = await judged(sharp, lying(misdrawn))
    assert report.wrong
    assert report.stages == stages


async def test_a_text_that_is_not_what_the_tokens_say_is_on_the_first_stage(sharp: Path, honest: Recorded) -> None:
    found, sketched = honest
    asked = check_of(ASKED, found[ASKED.id])
    asked = msgspec.structs.replace(asked, text=asked.text + "!", boundaries=boundaries(sketched, CUTS[STAGES]))
    report = await checked(sharp, asked)
    assert "text" in report.wrong
    assert report.stages == (0,)


async def test_a_state_that_was_changed_on_its_way_is_between_its_neighbours(
    sharp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is the two stages' own, so one of them did it."""

    def change(stage: int, _name: PeerSend, payload: bytes) -> bytes:
        return payload[:-4] + (b"\0\0\0\x41" if stage == 0 else payload[-4:])

    monkeypatch.setattr(checking, "TOLERANCE", SHARP)
    async with ring(sharp, STAGES) as here:
        here.change = change
        record = await told(here)
    report = await judged(sharp, record)
    assert report.wrong
    assert report.stages == (0, 1)


async def test_who_sends_what_its_own_sketches_do_not_see_puts_it_on_nobody_else_alone(
    sharp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = sketch_vectors(ASKED.id, HIDDEN, key_of(0))
    chance = torch.Generator().manual_seed(7)
    unseen = torch.randn(HIDDEN, generator=chance) * 0.3
    unseen -= vectors @ torch.linalg.lstsq(vectors, unseen[:, None]).solution[:, 0]
    assert float((unseen @ vectors).abs().max()) < 1e-5

    def change(stage: int, name: PeerSend, payload: bytes) -> bytes:
        header, states = unpack_pass(payload, HIDDEN) if stage == 0 else (None, None)
        if header is None or states is None or not len(states):
            return payload
        return b"".join(bytes(piece) for piece in pack_pass(header, states + unseen))

    monkeypatch.setattr(checking, "TOLERANCE", SHARP)
    async with ring(sharp, STAGES) as here:
        here.change = change
        record = await told(here)
    report = await judged(sharp, record)
    assert report.wrong
    assert report.stages == (0, 1)


def test_vectors_are_the_same_for_ever_and_of_the_size_that_is_said() -> None:
    vectors = sketch_vectors("abc", 10_000, b"")
    first = [-0.0105147, 0.00216668, -0.00419668, -0.00116765, 0.01547983, 0.01046983, 0.01624934, 0.00515703]
    assert vectors[:2].flatten().tolist() == pytest.approx(first, abs=1e-7)
    assert vectors.square().sum(0).tolist() == pytest.approx([1, 1, 1, 1], abs=0.05)
    assert not torch.equal(vectors, sketch_vectors("abd", 10_000, b""))
    assert not torch.equal(vectors, sketch_vectors("abc", 10_000, b"k"))
