"""Embeddings: those that transformers' own hidden states have, whatever is computed beside them, and checked alike."""

import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from protocol.job.job import TokenizerSpec
from protocol.serving import (
    AnsweredReport,
    CancelCommand,
    CheckedReport,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    EngineReport,
    GenerateCommand,
    RefusedReport,
    Sampling,
)
from tests.trainer.export.test_text_part import KINDS, whole
from tests.trainer.serve.answering import Asking, end_of
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from tests.trainer.small import FAMILY_CONFIGS
from trainer.data.prepare import make_tokenizer
from trainer.serve.embeddings import FURTHEST, PASS, REPORT_BYTES, TOLERANCE, TextEmbedder, distance
from trainer.serve.engine import Engine

ROUNDING = 2e-5  # Between vectors of length 1.
TEXTS = ("Say:", "A lemon is yellow.", "x", "Once upon a time there was a king. " * 9, "A lemon is yellow.")


@pytest.fixture
async def asking(folder: Path) -> AsyncIterator[tuple[Asking, Engine]]:  # noqa: F811
    asking = Asking()
    async with Engine(folder, 1, asking.say) as engine:
        yield asking, engine


def made_of(said: Sequence[EngineReport]) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """How many tokens the texts have, and their vectors."""
    parts = [one for one in said if isinstance(one, EmbeddedReport)]
    counts = tuple(count for one in parts for count in one.tokens)
    return counts, tuple(vector for one in parts for vector in one.vectors)


def vectors_of(vectors: Sequence[bytes]) -> Tensor:
    return torch.tensor([struct.unpack(f"<{len(one) // 4}f", one) for one in vectors])


@torch.no_grad()
def expected(folder: Path, rows: Sequence[Sequence[int]]) -> Tensor:  # noqa: F811
    """By transformers alone, one text after the other."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    means = [
        model(torch.tensor([row]), output_hidden_states=True).hidden_states[-1][0].double().mean(0) for row in rows
    ]
    return torch.stack([mean / mean.norm() for mean in means]).float()


def with_model(folder: Path, out: Path, family: str) -> Path:  # noqa: F811
    """The tokenizer of a folder beside a model of another family, which reads 1,024 tokens."""
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    more = {"vocab_size": 300, "pad_token_id": None, "eos_token_id": 256, "bos_token_id": None}
    long = {"n_positions": 1024} if family == "gpt2" else {"max_position_embeddings": 1024}
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(FAMILY_CONFIGS[family] | more | long)))
    model.save_pretrained(out)
    return out


@pytest.mark.one_in(5)
@pytest.mark.parametrize("family", sorted(FAMILY_CONFIGS))
async def test_they_are_the_means_of_the_last_hidden_states(family: str, tmp_path: Path, folder: Path) -> None:  # noqa: F811
    here, asking = with_model(folder, tmp_path / "model", family), Asking()
    texts = (*TEXTS, "Say it: " * 90)  # The last one takes several passes.
    tokenizer: Any = AutoTokenizer.from_pretrained(here)
    rows = [tokenizer(text)["input_ids"] for text in texts]
    assert len(rows[-1]) > PASS
    async with Engine(here, 1, asking.say) as engine:
        said = (await asking.over(engine, EmbedCommand("1", texts)))["1"]
    counts, vectors = made_of(said)
    assert counts == tuple(map(len, rows))
    assert end_of(said) == AnsweredReport("1", "stop", sum(counts), 0)
    found = vectors_of(vectors)
    assert float((found - expected(here, rows)).norm(dim=1).max()) < ROUNDING
    assert torch.allclose(found.norm(dim=1), torch.ones(len(texts)), atol=1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
async def test_models_that_see_have_them_of_texts(kind: str, tmp_path: Path) -> None:
    model, asking = whole(kind, tmp_path).float(), Asking()
    made = make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(()))
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path)
    async with Engine(tmp_path, 1, asking.say) as engine:
        _, vectors = made_of((await asking.over(engine, EmbedCommand("1", TEXTS[:3])))["1"])
    with torch.no_grad():
        states = model(torch.tensor([made.encode(TEXTS[1]).ids]), output_hidden_states=True).hidden_states[-1]
    mean = states[0].mean(0)
    assert distance(mean / mean.norm(), vectors[1]) < ROUNDING


async def test_tokens_are_taken_in_place_of_their_text(asking: tuple[Asking, Engine]) -> None:
    tokens = tuple(asking[1]._requests.tokenizer.encode(TEXTS[1]).ids)
    said = await asking[0].over(asking[1], EmbedCommand("1", (TEXTS[1], tokens)))
    counts, vectors = made_of(said["1"])
    assert counts == (18, 18)
    assert distance(vectors_of(vectors)[0], vectors[1]) < ROUNDING


async def test_several_requests_take_turns_beside_an_answer(asking: tuple[Asking, Engine]) -> None:
    answer = GenerateCommand("answer", "Say:", tokens=40, sampling=Sampling(seed=1))
    alone = (await asking[0].over(asking[1], answer))["answer"]
    order: list[str] = []
    say = asking[0].say
    asking[1]._embeddings._say = lambda report: (order.append(getattr(report, "id", "")), say(report))[1]
    long = EmbedCommand("long", ("Say it: " * 40,) * 12)
    said = await asking[0].over(asking[1], long, EmbedCommand("short", ("Say:",)), answer)
    assert order.index("short") < 3, "the short one does not wait for the long one's end"
    assert len(made_of(said["long"])[1]) == 12
    assert [one for one in said["answer"] if not isinstance(one, AnsweredReport)]
    assert end_of(said["answer"]) == end_of(alone)


async def test_nobody_computes_on_for_who_has_gone(asking: tuple[Asking, Engine]) -> None:
    texts = ("Say it: " * 40,) * 40
    asking[1].ask(EmbedCommand("gone", texts))
    await asking[0].until(lambda said: bool(said.get("gone")))
    asking[1].ask(CancelCommand("gone"))
    told = len(asking[0].said["gone"])
    assert told < len(texts)
    await asking[0].over(asking[1], EmbedCommand("next", ("Say:",)))
    assert len(asking[0].said["gone"]) == told


@pytest.mark.parametrize(
    ("texts", "code", "detail"),
    [
        (("Say:", ""), "bad-text", "text 2 of 2 has 0 tokens: give 1 to 512"),
        (("x" * 513,), "long-text", "text 1 of 1 has 513 tokens: give 1 to 512"),
        (("Say:", (3, 300)), "bad-text", "text 2 of 2 has the token 300, and this model knows 300"),
    ],
)
async def test_texts_that_a_model_cannot_read_are_refused(
    asking: tuple[Asking, Engine], texts: Any, code: str, detail: str
) -> None:
    (refused,) = (await asking[0].over(asking[1], EmbedCommand("1", texts)))["1"]
    assert refused == RefusedReport("1", code, detail)


def test_a_batch_is_a_pass_and_fits_into_a_report() -> None:
    embedder = TextEmbedder.__new__(TextEmbedder)
    embedder._most = REPORT_BYTES // (4 * 4096)
    assert embedder.batch([[1] * 100] * 9) == PASS // 100
    assert embedder.batch([[1] * 10, [1] * 300]) == 1, "what is filled up counts"
    assert embedder.batch([[1] * 900, [1]]) == 1
    assert embedder.batch([[1]] * 600) == embedder._most == 8


async def checked(asking: tuple[Asking, Engine], check: CheckEmbeddingsCommand) -> CheckedReport:
    (found,) = (await asking[0].over(asking[1], check))[check.id]
    assert isinstance(found, CheckedReport)
    return found


async def test_honest_ones_are_right_and_each_lie_is_found(asking: tuple[Asking, Engine]) -> None:
    command = EmbedCommand("1", TEXTS)
    counts, vectors = made_of((await asking[0].over(asking[1], command))["1"])
    one = msgspec.structs.replace(command, texts=TEXTS[3:4])
    honest = await checked(asking, CheckEmbeddingsCommand("one", one, counts[3:4], vectors[3:4]))
    assert honest.wrong == "", "alone, and it was made in company"
    assert honest.worst < ROUNDING
    check = CheckEmbeddingsCommand("check", command, counts, vectors)
    assert (await checked(asking, check)).wrong == ""
    swapped = (vectors[1], vectors[0], *vectors[2:])
    longer = struct.pack("<64f", *([2.0] * 64))
    for forged, words in (
        (msgspec.structs.replace(check, vectors=swapped), "the embedding of text 1 of 5 is "),
        (msgspec.structs.replace(check, vectors=(*vectors[:4], longer)), "the embedding of text 5 of 5 is 2.0000 away"),
        (msgspec.structs.replace(check, vectors=(*vectors[:4], b"")), "the embedding of text 5 of 5 is 2.0000 away"),
        (msgspec.structs.replace(check, vectors=vectors[:4]), "5 texts have 4 embeddings"),
        (msgspec.structs.replace(check, tokens=(400, *counts[1:])), "text 1 of 5 has 4 tokens, not 400"),
        (msgspec.structs.replace(check, asked=EmbedCommand("1", ("",))), "this request cannot have embeddings: text 1"),
    ):
        found = await checked(asking, forged)
        assert found.wrong.startswith(words), found
        assert found.worst > TOLERANCE
    numberless = struct.pack("<f", float("nan")) * (len(vectors[0]) // 4)
    assert distance(torch.ones(len(vectors[0]) // 4), numberless) == FURTHEST


async def test_weights_in_eight_bits_are_another_model(folder: Path) -> None:  # noqa: F811
    held = load_file(folder / "model.safetensors")
    few = {}
    for name, one in held.items():
        scale = one.abs().amax(-1, keepdim=True) / 127
        few[name] = (one / scale).round() * scale if one.dim() == 2 and "proj" in name else one
    honest, cheating = Asking(), Asking()
    command = EmbedCommand("1", TEXTS)
    async with (
        Engine(folder, 1, honest.say, weights=held) as checker,
        Engine(folder, 1, cheating.say, weights=few) as other,
    ):
        said = (await cheating.over(other, command))["1"]
        found = await checked((honest, checker), CheckEmbeddingsCommand("check", command, *made_of(said)))
    assert "away from this model's" in found.wrong


async def test_a_machine_that_fails_says_so_of_both(
    asking: tuple[Asking, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(TextEmbedder, "vectors", fail)
    command = EmbedCommand("1", ("Say:",))
    said = await asking[0].over(asking[1], command, CheckEmbeddingsCommand("2", command, (4,), (b"",)))
    assert [one for (one,) in said.values()] == [
        RefusedReport(name, "failed", "MemoryError: no memory is left") for name in ("1", "2")
    ]
