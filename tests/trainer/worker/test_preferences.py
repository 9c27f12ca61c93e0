"""Workers learn which of two answers is preferred: two stages, two replicas, audits, and one that compares otherwise."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.torch import save_file

from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, PreferenceSpec, TokenizerSpec
from protocol.models.model import resolve
from protocol.models.weights import belongs, weights_name
from protocol.task import Layers, PreferenceScore, RoundApplied, RoundCommit
from tests.support.chat_templates import BOS, EOS, TEMPLATES, small_tokenizer, unmarked
from tests.trainer.data.test_conversations import lines
from tests.trainer.router import MakeRouter, Place
from tests.trainer.small import LLAMA, VOCABULARY, Pipeline, config_of, job, training, write_marked
from tests.trainer.stage.test_preferences import LORA, SEQUENCE, asked, packed
from tests.trainer.worker.drawn import CUTS, TOTAL, TWO_BY_TWO, audit
from trainer.data.data import TokenFile
from trainer.data.prepare import prepare
from trainer.export.single_process import train_single
from trainer.formats.source import Dataset
from trainer.stage.model import Cut
from trainer.stage.stage import Stage

PLACES: list[Place] = [(0, 0), (1, 0), (0, 1), (1, 1)]


def spec_of(folder: Path, **changes: object) -> JobSpec:
    """A job whose folder has pairs of answers, and a model that they are learnt beside."""
    write_marked(folder / "heldout.bin", packed(50), SEQUENCE)
    write_marked(folder / "train.bin", [one for seed in range(6) for one in packed(seed)], SEQUENCE)
    whole = Stage(config_of(), Cut(0, 3, True, True), training())
    values = {s.name: whole.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in whole.slots}
    for index, (first, last) in enumerate(CUTS):
        layers = Layers(first, last)
        names = belongs(values, layers, index == 0, index == 1)
        save_file({name: values[name] for name in names}, folder / weights_name(layers))
    save_file(values, folder / "whole.safetensors")
    plain = msgspec.structs.replace(job(), model=ModelSpec(config=config_of(), weights="0" * 64))
    return msgspec.structs.replace(plain, training=asked(activations="int8", **changes))


async def test_two_by_two_workers_learn_what_is_preferred_and_every_audit_agrees(
    routed: MakeRouter, folder: Path
) -> None:
    spec = spec_of(folder)
    async with routed(spec) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        for round_index in range(2):
            await router.round(TWO_BY_TWO, round_index, 4, TOTAL, validate=round_index == 0)
            for stage in range(2):
                found = {router.of((stage, p), RoundApplied, round=round_index)[0].parameters for p in range(2)}
                assert len(found) == 1, "replicas end a round with the same bits"
        await router.begin(TWO_BY_TWO, 2, 4, 8, TOTAL, validate=True)
        found = [await router.validation(TWO_BY_TWO, number) for number in (0, 2)]
        losses = [one.loss for one in found]
        assert found[0].preference == PreferenceScore(0.0, 0.0), "nothing is preferred yet"
        assert found[1].preference is not None
        assert found[1].preference.accuracy > 0.5
        assert found[1].preference.margin > 0
        assert losses[0] == pytest.approx(np.log(2), abs=1e-9)
        assert losses[1] < losses[0]
        assert (router.of((1, 0), RoundCommit)[0].loss or 1.0) < np.log(2)
        for number, (place, round_index, step) in enumerate(
            [((0, 0), 0, 0), ((1, 0), 0, 2), ((0, 1), 1, 3), ((1, 1), 1, 1)]
        ):
            report = await audit(router, place, round_index, step, name=f"{number}".rjust(32, "0"))
            assert report.verdict == "match", report.detail
            assert not report.detail


async def test_a_worker_that_trains_on_other_samples_is_caught(routed: MakeRouter, folder: Path) -> None:
    async with routed(spec_of(folder)) as router:
        await router.start(TWO_BY_TWO, PLACES, lies={(0, 1): "lazy"})
        await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        assert (await audit(router, (0, 1), 0, 1, auditor=(1, 0))).verdict == "mismatch"
        assert (await audit(router, (1, 1), 0, 1, auditor=(0, 0), name="e" * 32)).verdict == "match"


async def test_the_steps_of_workers_are_those_of_one_process(routed: MakeRouter, folder: Path) -> None:
    spec = msgspec.structs.replace(spec_of(folder), training=asked())
    whole = Stage(config_of(), Cut(0, 3, True, True), spec.training, folder / "whole.safetensors")
    tokens = TokenFile(folder / "train.bin", SEQUENCE, VOCABULARY)
    line = Pipeline([whole], tokens, replica=1)
    losses = [line.step(step, TOTAL) for step in range(4)]
    async with routed(spec) as router:
        await router.start(TWO_BY_TWO, PLACES)
        await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        assert router.of((1, 1), RoundCommit)[0].loss == pytest.approx(sum(losses) / 4, rel=1e-12)


def test_from_rows_to_a_model_that_prefers_in_one_process(tmp_path: Path) -> None:
    """Prompts are noise; each time the same answer is chosen, and the other rejected."""
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    chance = np.random.default_rng(1)
    rows = []
    for _ in range(120):
        prompt = [{"role": "user", "content": " ".join(map(str, chance.integers(0, 10_000, 2)))}]
        said = [[{"role": "assistant", "content": words}] for words in ("So it is.", "No, never.")]
        rows.append({"prompt": prompt, "chosen": said[0], "rejected": said[1]})
    (tmp_path / "data.jsonl").write_bytes(lines(rows))
    settings = {"bos_token": BOS, "eos_token": EOS, "chat_template": unmarked(TEMPLATES["chatml"])}
    tokenizer, out = TokenizerSpec("file", file="0" * 64, settings=settings), tmp_path / "job"
    data = Dataset.of(tmp_path / "data.jsonl")
    manifest = prepare(data, tokenizer, tmp_path / "tokenizer.json", 0.1, 128, out, preference=True)
    longer = LLAMA | {"max_position_embeddings": 128}
    config = resolve(ModelSpec(config=longer), manifest.vocabulary)
    (out / "config.json").write_bytes(msgspec.json.encode(config))
    whole = Stage(config, Cut(0, 3, True, True), training())
    values = {s.name: whole.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in whole.slots}
    save_file(values, out / weights_name(Layers(0, 3)))
    model = ModelSpec(config=longer, weights="0" * 64)
    spec = training(sequence=128, tokens=30 * 4 * 128, learning_rate=1e-2, lora=LORA, preference=PreferenceSpec(0.5))
    found = train_single(JobSpec("told", model, 1, DatasetSpec("0" * 64), training=spec), out, 1, 1, lambda _: None)  # type: ignore[arg-type]
    assert found["loss_before"] == pytest.approx(np.log(2), abs=1e-9)
    assert found["loss_after"] < 0.1 * found["loss_before"]
