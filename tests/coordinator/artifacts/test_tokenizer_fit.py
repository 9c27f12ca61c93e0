"""Tokenizer and model belong together: what does not fit, or ends no document, is said with the price."""

from pathlib import Path

import msgspec
import pytest

from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.model_files import ModelFiles
from protocol.ids import Digest
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.rest.api import Quote
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import spec
from tests.support.special_tokens import KNOWN, Known, written

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ODD = Known(("<a>", "<b>"), "<b>", {})


async def quoted(tmp_path: Path, known: Known, end: str | None = None, **config: object) -> Quote:
    bench = Bench()
    for number in range(1, 5):
        await bench.enter(number)
    store = DiskArtifacts(tmp_path / "artifacts")
    bench.parts.jobs._model_files = ModelFiles(store)
    file: Digest = await store.put_file(written(known, tmp_path / "tokenizer"))
    weights = "0" * 64 if "vocab_size" in config else None
    job: JobSpec = msgspec.structs.replace(
        spec(),
        model=ModelSpec(config=LLAMA | config, weights=weights),
        tokenizer=TokenizerSpec("file", file=file, end=end),
    )
    return await bench.parts.jobs.quote(job)


@pytest.mark.parametrize("name", KNOWN)
async def test_tokenizers_that_everybody_has_raise_no_doubt(name: str, tmp_path: Path) -> None:
    quote = await quoted(tmp_path, KNOWN[name])
    assert quote.problems == ()
    assert not [reason for reason in quote.reasons if "document" in reason]


async def test_a_quote_says_that_no_document_would_end(tmp_path: Path) -> None:
    quote = await quoted(tmp_path, ODD)
    (reason,) = [reason for reason in quote.reasons if "document" in reason]
    assert "they run into each other" in reason
    assert "tokenizer.end" in reason
    assert "'<a>', '<b>'" in reason
    assert not [reason for reason in (await quoted(tmp_path, ODD, "<b>")).reasons if "document" in reason]


async def test_an_end_that_is_no_token_is_a_problem(tmp_path: Path) -> None:
    (problem,) = (await quoted(tmp_path, ODD, "</s>")).problems
    assert "tokenizer.end '</s>' is no token of the tokenizer" in problem


async def test_a_tokenizer_with_more_tokens_than_the_weights_have_is_refused(tmp_path: Path) -> None:
    count = KNOWN["qwen 2.5"].make().get_vocab_size(with_added_tokens=True)
    assert (await quoted(tmp_path, KNOWN["qwen 2.5"], vocab_size=count)).problems == ()
    assert (await quoted(tmp_path, KNOWN["qwen 2.5"], vocab_size=count + 10)).problems == ()
    (problem,) = (await quoted(tmp_path, KNOWN["qwen 2.5"], vocab_size=count - 1)).problems
    assert f"vocabulary of {count - 1}, the tokenizer has {count:,}" in problem
