"""From conversations to a model that answers in their way, in one process: what is not learnt stays unlearnt."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.job.job import DatasetSpec, JobSpec, ModelSpec
from protocol.models.model import resolve
from tests.support.chat_templates import small_tokenizer
from tests.trainer.data.test_conversations import made
from tests.trainer.small import LLAMA, training
from trainer.data.marks import UNLEARNT
from trainer.export.single_process import train_single

SEQUENCE = 64


def rows() -> list[dict[str, Any]]:
    """Questions are noise, and each answer is the same."""
    chance = np.random.default_rng(1)
    asked = [" ".join(map(str, chance.integers(0, 10_000, 4))) for _ in range(200)]
    talks = ([{"role": "user", "content": one}, {"role": "assistant", "content": "So it is."}] for one in asked)
    return [{"messages": talk} for talk in talks]


@pytest.mark.parametrize("learn", ["answers", "all"])
def test_answers_are_learnt_and_questions_only_where_that_is_asked_for(learn: str, tmp_path: Path) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    manifest = made(tmp_path / "tokenizer.json", rows(), tmp_path / "job", learn=learn)
    config = resolve(ModelSpec(config=LLAMA), manifest.vocabulary)
    (tmp_path / "job" / "config.json").write_bytes(msgspec.json.encode(config))
    spec = training(sequence=SEQUENCE, tokens=80 * 4 * SEQUENCE, learning_rate=1e-2, sampling="epochs")
    job = JobSpec("talks", ModelSpec(config=LLAMA), 1, DatasetSpec("0" * 64), training=spec)  # type: ignore[arg-type]
    found = train_single(job, tmp_path / "job", 1, 1, lambda _: None)
    held = np.fromfile(tmp_path / "job" / "heldout.bin", "<u4")
    assert (held & UNLEARNT == 0).any()
    assert found["loss_before"] > 5
    if learn == "answers":
        assert found["loss_after"] < 0.05, "the same answer each time"
    else:
        assert found["loss_after"] > 0.5, "numbers that nobody can foretell"
