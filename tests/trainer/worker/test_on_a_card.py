"""What a member does with a stage on a card between and after its steps: nothing of two devices meets, and little is waited for.

Each path names who may make the processor wait, and how often. The card is that of ``tests.trainer.card``.
"""

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from protocol.boundary import Kind, Position
from protocol.job.job import LoraSpec, TrainingSpec
from tests.trainer.audit.test_replay import TOTAL, command
from tests.trainer.card import NAME, asked, card
from tests.trainer.outer.test_private_updates import Silence
from tests.trainer.outer.test_summed import spec_of
from tests.trainer.small import ENV, commit_round, config_of, pipeline, training, write_marked
from tests.trainer.stage.test_preferences import asked as preferring
from tests.trainer.stage.test_preferences import packed
from trainer.audit.replay import OpeningReplayer
from trainer.data.data import TokenFile, heldout_parts
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import outer_step, outer_step_of_results
from trainer.outer.inner_update import update
from trainer.outer.shards import reduce_shard
from trainer.outer.summed import SummedTerms, summand
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss
from trainer.transfer import fetched
from trainer.worker.checkpoint import moments_pieces, read_checkpoint, read_moments, write_checkpoint
from trainer.worker.opening_service import OpeningService
from trainer.worker.outbox import WorkerOutbox

WHOLE = Cut(0, 3, True, True)
LEAN: dict[str, Any] = {"memory": "lean", "precision": "bf16"}
CHECK, NUMBERS = "trainer/stage/stage.py:adam_step", "trainer/transfer.py:numbers"


def stepped(spec: TrainingSpec, tokens: TokenFile, replica: int = 0, number: int = 0, device: str = NAME) -> Stage:
    """A stage after one step."""
    stage = Stage(config_of(), WHOLE, spec, device=device)
    windows, _ = tokens.sample(spec.seed, number, replica, spec.batch)
    accumulate(stage, Position(0, 1), windows, Recorded({}))
    update(stage, Position(0, 1), Recorded({}), number, 10)
    return stage


@pytest.mark.parametrize("kind", [{}, LEAN | {"commit_every": 2, "optimizer": "muon"}], ids=str)
@pytest.mark.parametrize("stage", [0, 1])
def test_a_committed_segment_runs_again_there_bit_for_bit(
    stage: int, kind: dict[str, Any], folder: Path, tokens: TokenFile
) -> None:
    spec = training(activations="int8", **kind)
    with card() as counted:
        done = commit_round(pipeline("llama", 2, tokens, spec, device=NAME), stage, 2, TOTAL)
        auditor = OpeningReplayer(config_of(), spec, folder / "train.bin", None, ENV, NAME)
        counted.clear()
        report = auditor.judge(command(done, 1), done.opening(1))
        assert report.verdict == "match", report.detail
        again = spec.commit_every
        losses = {NUMBERS: again} if stage else {}
        assert asked(counted) == {CHECK: again} | losses, "each step's check of gradients, and losses of the last stage"
        other = command(done, 1, first_step=done.trace.first_step + 1)
        assert auditor.judge(other, done.opening(1)).verdict == "mismatch", "those were other samples"


@pytest.mark.parametrize(
    "kind",
    [
        {"outer": "diloco", "pseudo_gradient": "coarse", "outer_momentum": 0.5},
        LEAN | {"outer": "diloco", "pseudo_gradient": "coarse", "outer_momentum": 0.5},
        {"outer": "sparseloco", "outer_momentum": 0.0},
        {"outer": "averaging"},
        {"outer": "streaming"},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 4])
def test_rounds_of_every_method_whole_and_by_shards(count: int, kind: dict[str, Any], tokens: TokenFile) -> None:
    if count > 1 and kind["outer"] == "streaming":
        pytest.skip("streaming exchanges whole fragments")
    spec = training(**kind)
    with card() as counted:
        stage = stepped(spec, tokens)
        state = OuterState.first(fetched(Stage(config_of(), WHOLE, spec).values()), spec)
        method = outer_method(spec, stage.slots, stage.size)
        stage.shorten(state.anchor)
        counted.clear()
        given = method.contribution(state.anchor, stage.said(), method.fresh(state), 0, count)
        if count == 1:
            after, _ = outer_step(method, stage, state, {0: given.data, 1: given.data}, 0)
        else:
            results = {}
            for shard, piece in enumerate(given.pieces):
                shards, free = method.shards(0, count), method.free(0)
                parts = {0: piece, 1: piece}
                results[shard] = reduce_shard(
                    shards, shard, parts, method.combining, shards.take(free, shard), None
                ).data
            after, _ = outer_step_of_results(method, stage, state, results, 0, 2)
        stage.load(method.start(after, given.local, 1))
        assert counted["waited"] == 0, "between rounds a card is waited for by what leaves alone"
        assert torch.equal(fetched(stage.values()), method.start(after, given.local, 1))
        assert not torch.equal(after.anchor, state.anchor)


@pytest.mark.parametrize(
    "kind",
    [
        {"outer": "gradients"},
        {"outer": "demo", "learning_rate": 1e-3},
        {"outer": "dgc", "density": 0.01, "learning_rate": 0.1, "clip_norm": 1.0},
    ],
    ids=str,
)
def test_methods_that_exchange_at_every_step(kind: dict[str, Any], tokens: TokenFile) -> None:
    """What goes to all replicas is made in main memory: it is waited for as it leaves."""
    spec = training(**kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    position = Position(0, 1, 0, (1,))
    with card() as counted:
        here, there = (Stage(config_of(), WHOLE, spec, device=device) for device in ("cpu", NAME))
        begun = here.values().clone()
        for stage in (here, there):
            counted.clear()
            accumulate(stage, position, windows, Twin({}))
            update(stage, position, Twin({}), 0, 10)
        own = {NUMBERS: 1 + (spec.clip_norm is not None)} | ({CHECK: 1} if spec.outer == "gradients" else {})
        assert asked(counted) == own
        apart, due = fetched(there.values()) - here.values(), here.values() - begun
        assert float(torch.linalg.vector_norm(apart) / torch.linalg.vector_norm(due)) < 0.05


class Twin(Recorded):
    """A boundary behind which another replica finds the same."""

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        self.payloads["exchange", 1] = payload


@pytest.mark.parametrize("kind", [{}, LEAN, LEAN | {"optimizer": "muon"}], ids=str)
def test_who_joins_goes_on_from_what_was_stored(kind: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**kind)
    with card() as counted:
        stage = stepped(spec, tokens)
        anchor = fetched(stage.values())
        stage.shorten(anchor)
        state, momentum = OuterState.first(anchor, spec), OuterState.first(anchor, spec).momentum.dtype
        counted.clear()
        stored = write_checkpoint(state, stage.slots, 1)
        moments = b"".join(moments_pieces(stage, 1))
        joined = Stage(config_of(), WHOLE, spec, device=NAME)
        found, number = read_checkpoint(stored, joined.slots, joined.size, momentum)
        joined.load(found.anchor)
        joined.restore(read_moments(moments, joined, found.anchor, number))
        assert counted["waited"] == 0
        assert torch.equal(fetched(joined.first_moment), fetched(stage.first_moment))
        assert torch.equal(fetched(joined.values()), anchor)


@pytest.mark.parametrize("quantize", ["none", "nf4"])
def test_adapters_learn_beside_a_frozen_model(quantize: Any, tokens: TokenFile) -> None:
    spec = training(lora=LoraSpec(rank=4, alpha=8.0, quantize=quantize))
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    with card() as counted:
        stages = [Stage(config_of(), WHOLE, spec, device=device) for device in ("cpu", NAME)]
        losses = []
        for stage in stages:
            counted.clear()
            losses.append(accumulate(stage, Position(0, 1), windows, Recorded({})))
            update(stage, Position(0, 1), Recorded({}), 0, 10)
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
        assert asked(counted) == {CHECK: 1, NUMBERS: 1}


@pytest.mark.parametrize("kind", [{}, LEAN], ids=str)
def test_text_that_is_held_out_is_waited_for_once(kind: dict[str, Any], folder: Path, tokens: TokenFile) -> None:
    spec = training(**kind)
    parts = heldout_parts(TokenFile(folder / "heldout.bin", spec.sequence, 300), spec)
    assert len(parts) > 2
    with card() as counted:
        stage = Stage(config_of(), WHOLE, spec, device=NAME)
        counted.clear()
        sums: list[float] = []
        loss = heldout_loss(stage, parts, Recorded({}), sums)
        assert asked(counted) == {NUMBERS: 1}
    assert len(sums) == len(parts)
    assert loss == pytest.approx(heldout_loss(Stage(config_of(), WHOLE, spec), parts, Recorded({})), rel=1e-3)


def test_an_owners_part_of_a_secure_sum_is_what_it_is_without_a_card(tokens: TokenFile) -> None:
    spec = training()
    terms = SummedTerms.of(spec_of(8, clip=0.5), None)
    with card() as counted:
        stage = stepped(spec, tokens)
        anchor = fetched(Stage(config_of(), WHOLE, spec).values())
        method = outer_method(spec, stage.slots, stage.size)
        layout, values = method.layout, fetched(stage.values())  # type: ignore[attr-defined]
        counted.clear()
        steps = summand(anchor, stage.said(), layout, terms, Silence())
        assert counted["waited"] == 0
        assert np.array_equal(steps, summand(anchor, values, layout, terms, Silence()))


def test_stages_of_a_cut_learn_which_answer_is_preferred(tmp_path: Path) -> None:
    spec = preferring()
    marked = [one for seed in range(6) for one in packed(seed)]
    tokens = write_marked(tmp_path / "pairs.bin", marked, spec.sequence)

    def losses(device: str) -> list[float]:
        line = pipeline("llama", 2, tokens, spec, device=device)
        return [line.step(number, 10) for number in range(2)]

    here = losses("cpu")
    with card() as counted:
        assert losses(NAME) == pytest.approx(here, rel=1e-5)
        assert asked(counted) == {CHECK: 2 * 2, NUMBERS: 2}


async def test_a_lean_card_s_round_is_made_once_openings_have_left() -> None:
    outbox, files = WorkerOutbox(asyncio.get_running_loop()), cast(Any, None)
    with card():
        service = OpeningService(Stage(config_of(), WHOLE, training(**LEAN), device=NAME), files, 0, outbox)
        service._answer("a" * 32, lambda: [memoryview(b"bytes of an opening")])
        settled = asyncio.create_task(asyncio.to_thread(service.settle))
        assert await outbox.get() is not None
        await asyncio.sleep(0.05)
        assert not settled.done(), "its pieces are being sent"
        behind = asyncio.create_task(outbox.get())
        await asyncio.wait_for(settled, 30)
        outbox.close()
        assert await behind is None


async def test_an_opening_that_fails_is_not_waited_for() -> None:
    outbox, files = WorkerOutbox(asyncio.get_running_loop()), cast(Any, None)

    def broken() -> list[memoryview]:
        raise MemoryError("no room for an opening")

    with card():
        service = OpeningService(Stage(config_of(), WHOLE, training(**LEAN), device=NAME), files, 0, outbox)
        left = service._answer("a" * 32, broken)
        try:
            assert isinstance(await asyncio.to_thread(left.exception, 30), MemoryError)
            await asyncio.wait_for(asyncio.to_thread(service.settle), 30)
            found = await asyncio.wait_for(outbox.get(), 30)
        finally:
            outbox.close()
    assert found is not None
    assert "no room for an opening" in str(found[0]), "the coordinator hears why"
