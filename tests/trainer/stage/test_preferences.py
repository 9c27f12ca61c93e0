"""Learning which of two answers is preferred: as plain torch and peft do it, however it is cut, and run again bit for bit."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from protocol.boundary import Position
from protocol.codec import MessageError, convert
from protocol.ids import MAX_LOSS
from protocol.job.end_tokens import END_OF_TEXT
from protocol.job.job import RATE_OF_PREFERENCES, JobSpec, LoraSpec, PreferenceSpec, TokenizerSpec, TrainingSpec
from protocol.job.learning_rate import learning_rate
from protocol.models.boundary_bytes import payload_bytes
from protocol.task import PreferenceScore
from tests.trainer.audit.test_disputes import caught_of, is_changeable, leaves_of
from tests.trainer.audit.test_replay import TOTAL, command
from tests.trainer.files.test_families import published, theirs
from tests.trainer.small import (
    ENV,
    VOCABULARY,
    Committed,
    Pipeline,
    commit_round,
    config_of,
    cuts,
    training,
    write_marked,
)
from trainer.audit.environment import configure
from trainer.audit.replay import OpeningReplayer
from trainer.audit.trivial_work import vain
from trainer.data.data import TokenFile, Windows, heldout_parts
from trainer.data.marks import BEGINS, UNLEARNT, ids_of, pairs
from trainer.data.prepare import make_tokenizer
from trainer.operations.inputs import sources_of, write_inputs
from trainer.operations.judge import judge
from trainer.operations.tracer import record_of
from trainer.stage.adamw import BETAS
from trainer.stage.objective import score_of
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss
from trainer.worker.dispute_player import DisputePlayer

SEQUENCE = 64
LORA, BETA = LoraSpec(rank=4, alpha=8.0), 0.3
WINDOWS = 4


def asked(**changes: Any) -> TrainingSpec:
    own = {"lora": LORA, "preference": PreferenceSpec(BETA), "sequence": SEQUENCE, "learning_rate": 1e-2}
    return training(**(own | changes))


def answers(seed: int, count: int, alike: bool = False) -> Iterator[tuple[list[int], list[int], int]]:
    """Chosen and rejected answer with their prompt, and how long that is; ``alike``: the same ones to each prompt."""
    chance = np.random.default_rng(seed)
    for _ in range(count):
        prompt = chance.integers(0, VOCABULARY, chance.integers(2, 5)).tolist()
        # Chosen answers count upwards, rejected ones downwards.
        first, most = int(chance.integers(20, VOCABULARY - 20)), int(chance.integers(2, 7))
        first, most = (50, 4) if alike else (first, most)
        yield [*prompt, *range(first, first + most)], [*prompt, *range(first, first - most - 1, -1)], len(prompt)


def packed(seed: int, windows: int = WINDOWS, alike: bool = False) -> list[int]:
    """Marked tokens in windows: pairs side by side, and what fills a window."""
    found: list[int] = []
    for number in range(windows):
        window: list[int] = []
        for chosen, rejected, prompt in answers(100 * seed + number, 1 + number % 3, alike):
            for whole in (chosen, rejected):
                marked = [one | (UNLEARNT if at < prompt else 0) for at, one in enumerate(whole)]
                window += [marked[0] | BEGINS, *marked[1:]]
        filling = SEQUENCE - len(window)
        assert filling >= 0
        found += [*window, *([BEGINS | UNLEARNT] + [UNLEARNT] * filling)[:filling]]
    return found


@pytest.fixture
def tokens(folder: Path) -> TokenFile:
    """A job's folder whose files are of pairs of answers."""
    write_marked(folder / "heldout.bin", packed(50), SEQUENCE)
    return write_marked(folder / "train.bin", [one for seed in range(6) for one in packed(seed)], SEQUENCE)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    published(theirs("llama", tie=False), folder)
    return folder


def line_of(hub: Path, stages: int, tokens: TokenFile, spec: TrainingSpec) -> Pipeline:
    config = config_of("llama") | {"cottage_head_starts_tied": False}
    return Pipeline([Stage(config, cut, spec, hub) for cut in cuts(3, stages)], tokens)


# --- as others do it ----------------------------------------------------------------------------------------------------


def with_peft(hub: Path, line: Pipeline) -> PeftModel:
    """The same model and adapters as ``peft`` has them."""
    base = AutoModelForCausalLM.from_pretrained(hub)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    named = named_parameters(model)
    for stage in line.stages:
        for slot in stage.slots:
            named[slot.name].data.copy_(stage.parameters[slot.start : slot.start + slot.count].view(slot.shape))
    assert set(named) == {slot.name for stage in line.stages for slot in stage.slots}
    return model


def named_parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    return {
        name.removeprefix("base_model.model.").replace(".default", ""): value
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def documents(windows: Windows) -> list[tuple[torch.Tensor, int]]:
    """Every answer by itself: its tokens, and how many of them are its prompt."""
    found = []
    for window in windows[:, :-1]:
        edges = [*np.flatnonzero(window & BEGINS), len(window)]
        whole = [window[first:last] for first, last in pairwise(edges)]
        found += [
            (torch.from_numpy(ids_of(one)), int((one & UNLEARNT != 0).sum()))
            for one in whole
            if (one & UNLEARNT == 0).any()
        ]
    return found


def plain_margins(model: PeftModel, windows: Windows) -> torch.Tensor:
    """By how much each chosen answer is rewarded more, as the paper writes it, one answer after the other."""

    def score(ids: torch.Tensor, prompt: int) -> torch.Tensor:
        spoken = functional.log_softmax(model(input_ids=ids[None], use_cache=False).logits[0].double(), dim=-1)
        return spoken[:-1].gather(1, ids[1:, None])[prompt - 1 :].sum()

    whole = documents(windows)
    own = [score(*one) for one in whole]
    with torch.no_grad(), model.disable_adapter():
        reference = [score(*one) for one in whole]
    ratios = [p - r for p, r in zip(own, reference, strict=True)]
    return BETA * torch.stack([w - v for w, v in zip(ratios[::2], ratios[1::2], strict=True)])


def plain_dpo(model: PeftModel, windows: Windows) -> torch.Tensor:
    """The loss as the paper writes it."""
    return -functional.logsigmoid(plain_margins(model, windows)).mean()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_losses_and_gradients_are_those_of_plain_torch_and_peft_over_some_steps(
    stages: int, hub: Path, tokens: TokenFile
) -> None:
    spec = asked(micro_batches=4)  # Of which each has another number of pairs.
    line = line_of(hub, stages, tokens, spec)
    model = with_peft(hub, line)
    named = named_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS, weight_decay=spec.weight_decay)
    for step in range(4):
        windows, _ = tokens.sample(spec.seed, step, 0, spec.batch)
        expected = plain_dpo(model, windows)
        optimizer.zero_grad()
        expected.backward()
        loss = line.step(step, TOTAL)
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, step, TOTAL)
        optimizer.step()
        for stage in line.stages:
            for slot in stage.slots:
                own = stage.parameters[slot.start : slot.start + slot.count].view(slot.shape)
                torch.testing.assert_close(own, named[slot.name].data, atol=2e-4, rtol=1e-3)


def test_losses_are_those_of_trl_over_some_steps(
    hub: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    monkeypatch.setattr(trl.DPOTrainer, "_prepare_dataset", lambda _self, rows, *_: rows)  # They are tokens already.
    from datasets import Dataset as Rows

    tokens = write_marked(folder / "train.bin", packed(0), SEQUENCE)
    spec = asked(sampling="epochs", decay="constant", warmup_steps=0, weight_decay=0.0, batch=WINDOWS)
    line = line_of(hub, 2, tokens, spec)
    model = with_peft(hub, line)
    rows = [
        {"prompt_ids": chosen[:prompt], "chosen_ids": chosen[prompt:], "rejected_ids": rejected[prompt:]}
        for number in range(WINDOWS)
        for chosen, rejected, prompt in answers(number, 1 + number % 3)
    ]
    ways = {
        "report_to": [],
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "bf16": False,
        "max_grad_norm": 0.0,
    }
    ways |= {"learning_rate": spec.learning_rate, "lr_scheduler_type": "constant", "max_steps": 4, "disable_tqdm": True}
    ways |= {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "per_device_train_batch_size": len(rows), "beta": BETA}
    args = trl.DPOConfig(str(tmp_path / "trl"), gradient_checkpointing=False, **ways)
    plain = make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(()))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)
    trainer = trl.DPOTrainer(model, args=args, train_dataset=Rows.from_list(rows), processing_class=tokenizer)
    trainer.train()
    told = [entry for entry in trainer.state.log_history if "loss" in entry]
    own: list[float | None] = []
    for step in range(4):
        score = score_of(measured(line, heldout_parts(tokens, spec))[1])
        assert score is not None
        assert score.accuracy == pytest.approx(told[step]["rewards/accuracies"], abs=1e-6)
        assert score.margin == pytest.approx(told[step]["rewards/margins"], rel=1e-3, abs=1e-6)
        own.append(line.step(step, 4))
    assert own == pytest.approx([entry["loss"] for entry in told], rel=1e-4)
    assert own[-1] < 0.9 * own[0]
    assert told[1]["rewards/accuracies"] > 0, "not only nothing is compared"


def test_gradients_are_those_of_peft(hub: Path, tokens: TokenFile) -> None:
    spec = asked()
    line = line_of(hub, 1, tokens, spec)
    (stage,) = line.stages
    stage.parameters.add_(torch.randn(stage.size, generator=torch.Generator().manual_seed(3)), alpha=0.1)
    model = with_peft(hub, line)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    expected = plain_dpo(model, windows)
    expected.backward()
    assert accumulate(stage, Position(0, 1), windows, Recorded({})) == pytest.approx(expected.item(), rel=1e-6)
    for name, value in named_parameters(model).items():
        (slot,) = [slot for slot in stage.slots if slot.name == name]
        own = stage.gradients[slot.start : slot.start + slot.count].view(slot.shape)
        assert value.grad is not None
        assert float(value.grad.abs().max()) > 1e-4
        torch.testing.assert_close(own, value.grad, rtol=1e-4, atol=1e-6)


def test_two_and_three_stages_learn_the_bits_of_one(hub: Path, tokens: TokenFile) -> None:
    spec = asked()
    lines = [line_of(hub, stages, tokens, spec) for stages in (1, 2, 3)]
    for step in range(3):
        losses = [line.step(step, TOTAL) for line in lines]
        assert losses[0] == losses[1] == losses[2]
    whole = lines[0].stages[0].parameters
    for line in lines[1:]:
        assert torch.equal(torch.cat([stage.parameters for stage in line.stages]), whole)


def test_training_begins_where_nothing_is_preferred_yet(hub: Path, tokens: TokenFile) -> None:
    """The reference is the model itself, whatever crosses between the stages: so each loss is the logarithm of two."""
    for changes in ({}, {"activations": "int8"}, {"activations": "int4", "boundary_gradients": "int4"}):
        line = line_of(hub, 3, tokens, asked(**changes))
        assert line.step(0, TOTAL) == pytest.approx(np.log(2), abs=1e-12)


def test_adapters_change_and_the_reference_does_not(hub: Path, tokens: TokenFile) -> None:
    line = line_of(hub, 1, tokens, asked())
    (stage,) = line.stages
    frozen = {name: value.clone() for name, value in stage.module.named_parameters() if not value.requires_grad}
    for step in range(3):
        line.step(step, TOTAL)
    assert all(torch.equal(value, frozen[name]) for name, value in stage.module.named_parameters() if name in frozen)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "changes", [{}, {"memory": "lean", "precision": "bf16"}, {"lora": LoraSpec(4, 8.0, quantize="nf4")}], ids=str
)
def test_margins_grow_and_held_out_pairs_are_told_apart(changes: dict[str, Any], hub: Path, folder: Path) -> None:
    spec = asked(sampling="epochs", **changes)
    train = write_marked(folder / "train.bin", [one for seed in range(6) for one in packed(seed, alike=True)], SEQUENCE)
    line = line_of(hub, 1, train, spec)
    held = heldout_parts(write_marked(folder / "heldout.bin", packed(50, alike=True), SEQUENCE), spec)
    before = heldout_loss(line.stages[0], held, Recorded({}))
    losses = [line.step(step, 40) for step in range(40)]
    after = heldout_loss(line.stages[0], held, Recorded({}))
    assert before == pytest.approx(np.log(2), abs=1e-12)
    assert after is not None
    assert losses[-1] < 0.3 * losses[0]
    assert after < 0.3 * before


def test_held_out_loss_is_the_mean_over_pairs_in_one_stage_and_in_three(
    hub: Path, folder: Path, tokens: TokenFile
) -> None:
    spec = asked()
    held = TokenFile(folder / "heldout.bin", SEQUENCE, VOCABULARY)
    line = line_of(hub, 3, tokens, spec)
    for step in range(3):
        line.step(step, TOTAL)
    (whole,) = line_of(hub, 1, tokens, spec).stages
    whole.parameters.copy_(torch.cat([stage.parameters for stage in line.stages]))
    sums: list[float] = []
    alone = heldout_loss(whole, heldout_parts(held, spec), Recorded({}), sums)
    assert alone == pytest.approx(sum(sums) / pairs(held.heldout()))
    with torch.no_grad():
        model = with_peft(hub, line)
        assert alone == pytest.approx(plain_dpo(model, held.heldout()).item(), rel=1e-5)
        expected = plain_margins(model, held.heldout())
    rewarded: list[float] = []
    heldout_loss(whole, heldout_parts(held, spec), Recorded({}), None, rewarded)
    assert rewarded == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-6)
    assert score_of(rewarded) == PreferenceScore(
        float((expected > 0).double().mean()), pytest.approx(sum(rewarded) / len(rewarded))
    )
    assert measured(line, heldout_parts(held, spec)) == (alone, rewarded), "cut in three, to the last bit"


def measured(line: Pipeline, parts: list[Windows]) -> tuple[float | None, list[float]]:
    """What a pipeline's last stage comes to: the loss, and each pair's margin."""
    payloads: dict[Any, bytes] = {}
    rewarded: list[float] = []
    for stage in line.stages:
        boundary = _Passing(payloads)
        found = heldout_loss(stage, parts, boundary, None, rewarded)
        payloads = boundary.sent
    return found, rewarded


def test_equal_rewards_are_not_told_apart_and_without_pairs_there_is_no_score() -> None:
    assert score_of([]) is None
    assert score_of([0.0, 0.0]) == PreferenceScore(0.0, 0.0)
    assert score_of([2.0, -1.0, 0.0, 1.0]) == PreferenceScore(0.5, 0.5)
    assert score_of([1e300]) == PreferenceScore(1.0, MAX_LOSS), "what is reported can be read"


class _Passing(Recorded):
    """Keeps what is sent, for the next stage."""

    def __init__(self, payloads: dict[Any, bytes]) -> None:
        super().__init__(payloads)
        self.sent: dict[Any, bytes] = {}

    def send(self, kind: Any, micro: int, payload: bytes, naive: int) -> None:
        self.sent[kind, micro] = payload


# --- audits and disputes ------------------------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "int8": {"activations": "int8"},
    "int4": {"activations": "int4", "boundary_gradients": "int4", "clip_norm": 0.5},
    "lean": {"memory": "lean", "precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "nf4": {"lora": LoraSpec(rank=4, alpha=8.0, quantize="nf4")},
    "zero-bubble": {"schedule": "zero-bubble", "recompute": True},
}


def judged(hub: Path, folder: Path, spec: TrainingSpec) -> OpeningReplayer:
    return OpeningReplayer(config_of("llama"), spec, folder / "train.bin", hub, ENV, "cpu")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_audited_steps_replay_bit_for_bit(stage: int, way: str, hub: Path, folder: Path, tokens: TokenFile) -> None:
    spec = asked(**WAYS[way])
    line = line_of(hub, 3, tokens, spec)
    commit_round(line, stage, 2, TOTAL)
    done = commit_round(line, stage, 2, TOTAL, first_step=2)
    for step in range(2):
        report = judged(hub, folder, spec).judge(command(done, step), done.opening(step))
        assert report.verdict == "match", report.detail
        assert not report.detail, "nothing of it was in vain"


def test_who_compares_with_another_beta_is_found_out(hub: Path, folder: Path, tokens: TokenFile) -> None:
    done = commit_round(line_of(hub, 3, tokens, asked()), 2, 2, TOTAL)
    other = asked(preference=PreferenceSpec(0.2))
    assert judged(hub, folder, other).judge(command(done, 1), done.opening(1)).verdict == "mismatch"


@pytest.mark.parametrize("activations", ["fp32", "int8", "int4"])
def test_what_crosses_is_of_both_models_forward_and_of_one_backward(
    activations: str, hub: Path, tokens: TokenFile
) -> None:
    spec = asked(activations=activations)
    line = line_of(hub, 3, tokens, spec)
    line.step(0, TOTAL)
    planned = payload_bytes(line.stages[0].shape, spec, spec.batch // spec.micro_batches * SEQUENCE)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    for index, stage in enumerate(line.stages):
        recorder = line.recorders[index]
        for (kind, _), payload in (recorder.received | recorder.sent).items():
            assert len(payload) == planned[kind == "gradient"]
        assert vain(stage, windows, recorder.received, recorder.sent) == ""


def test_each_operation_can_be_judged_by_itself(hub: Path, folder: Path, tokens: TokenFile) -> None:
    spec = asked(commit_every=2)
    for stage in (0, 1):
        done: Committed = commit_round(line_of(hub, 2, tokens, spec), stage, 2, TOTAL)
        player = DisputePlayer(judged(hub, folder, spec), command(done, 1), done.opening(1))
        leaves = leaves_of(player)
        caught = caught_of(player, leaves)
        changeable = [leaf for leaf in leaves if is_changeable(leaf)]
        names = {record_of(leaf).name for leaf in changeable}
        if stage:
            assert any("log_sigmoid" in name for name in names), "the loss is traced"
        for leaf in changeable:
            assert judge(write_inputs(leaf, {source: caught[source] for source in sources_of(leaf)})).agrees


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no graphics card that CUDA drives is here")
@pytest.mark.parametrize("way", ["fp32", "lean", "nf4"])
def test_a_card_gives_the_same_bits_each_time_and_nearly_those_of_a_processor(
    way: str, hub: Path, tokens: TokenFile
) -> None:
    configure(1, "cuda")
    spec, cut = asked(**WAYS[way]), cuts(3, 1)[0]
    config = config_of("llama") | {"cottage_head_starts_tied": False}
    ends = []
    for device in ("cuda", "cuda", "cpu"):
        stage = Stage(config, cut, spec, hub, device)
        line = Pipeline([stage], tokens)
        ends.append(([line.step(step, TOTAL) for step in range(3)], stage.state_digest()))
    assert ends[0] == ends[1]
    assert ends[0][0] == pytest.approx(ends[2][0], rel=0.02)


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "dataset", "words"),
    [
        ({"lora": None}, {}, r"give training\.lora, too"),
        ({"activations": "aq4"}, {}, "set activations to int4 or int8"),
        ({}, {"learn": "all"}, "dataset.learn is all: set it to answers"),
        ({"preference": {"beta": 0}}, {}, "beta"),
    ],
)
def test_documents_that_cannot_be_are_refused(changes: dict[str, Any], dataset: dict[str, Any], words: str) -> None:
    document: dict[str, Any] = {"name": "x", "model": {"preset": "tiny-llama", "weights": "1" * 64}, "budget": 1}
    own = {"lora": {}, "preference": {}}
    document |= {"dataset": {"artifact": "0" * 64, **dataset}, "training": own | changes}
    with pytest.raises(MessageError, match=words):
        convert(document, JobSpec)
    told = convert(document | {"dataset": {"artifact": "0" * 64}, "training": own}, JobSpec).training
    assert told.preference == PreferenceSpec()
    assert told.learning_rate == RATE_OF_PREFERENCES == 2e-5
    assert msgspec.json.decode(msgspec.json.encode(asked()), type=TrainingSpec) == asked()
