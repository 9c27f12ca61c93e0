"""One model with several adapters: each request has the answer that peft's merged model gives alone."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from coordinator.services.artifacts.model_archives import pack
from protocol.serving import (
    BoundarySketches,
    CheckedReport,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    GenerateCommand,
    RefusedReport,
    Sampling,
)
from tests.trainer.serve.answering import GREEDY, Asking, Reports, check_of, tokens_of
from tests.trainer.serve.drawn_adapters import draw_adapter, likeliest, merged, without_changes
from tests.trainer.serve.stages.ring import CUTS, Ring, ring
from tests.trainer.serve.test_calls import with_template
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.errors import WeightsError
from trainer.serve import engine as engine_module
from trainer.serve.adapters import AdapterFiles, AdapterRows, rows_of
from trainer.serve.engine import Engine

PROMPT, TOKENS = "A quick brown fox", 24
LONG = "There was a fox who was quick and brown, and it jumped over a dog that was lazy. " * 2
"""More than a hundred tokens, which are pages that a prompt may share with one that begins alike."""


@dataclass(frozen=True)
class AdaptedModel:
    """A model, two adapters of it with other ranks and targets, and peft's merged models: that of 0 is the model itself."""

    model: Path
    adapters: tuple[Path, ...]
    merged: tuple[Path, ...]

    @property
    def files(self) -> list[AdapterFiles]:
        return [AdapterFiles.of_folder(one) for one in self.adapters]


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptedModel:  # noqa: F811
    here = tmp_path_factory.mktemp("adapted")
    first = draw_adapter(folder, here / "first", 1, 4, ("q_proj", "v_proj", "down_proj"))
    second = draw_adapter(folder, here / "second", 2, 9, ("q_proj", "k_proj", "o_proj", "up_proj"), rslora=True)
    whole = [merged(folder, one, here / f"{one.name}-merged") for one in (first, second)]
    return AdaptedModel(folder, (first, second), (folder, *whole))


def asked(adapter: int, prompt: str = PROMPT, **more: Any) -> GenerateCommand:
    command = GenerateCommand(f"of {adapter}", prompt, tokens=TOKENS, sampling=GREEDY, adapter=adapter)
    return msgspec.structs.replace(command, **more)


def alone(made: AdaptedModel, prompt: str = PROMPT) -> list[tuple[int, ...]]:
    """What each of the merged models says."""
    found = [likeliest(one, prompt, TOKENS) for one in made.merged]
    assert len(set(found)) == len(found), "else nothing tells them apart"
    return found


def stages_of(made: AdaptedModel, **more: Any) -> Any:
    return ring(made.model, 2, delay=0.01, adapters=dict.fromkeys(range(2), made.files), **more)


async def of_engine(folder: Path, commands: Sequence[Any], adapters: Sequence[AdapterFiles] = ()) -> Reports:  # noqa: F811
    asking = Asking()
    async with Engine(folder, 1, asking.say, context=256, adapters=adapters) as engine:
        return await asking.over(engine, *commands)


async def test_requests_of_the_model_and_of_two_adapters_are_one_batch_and_each_is_the_merged_model(
    made: AdaptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[AdapterRows] = []
    chosen = engine_module.choose
    monkeypatch.setattr(engine_module, "choose", lambda rows: (passes.append(rows), chosen(rows)))
    found = await of_engine(made.model, [asked(number) for number in range(3)], made.files)
    assert [tokens_of(found[f"of {number}"]) for number in range(3)] == alone(made)
    together = [dict(rows) for rows in passes if len(rows) == 2]
    assert any(len(rows[1]) == len(rows[2]) == 1 for rows in together if None not in rows.values()), (
        "one pass had a token of each"
    )


async def test_two_stages_answer_as_the_merged_models_and_a_draw_with_a_seed_is_theirs_too(made: AdaptedModel) -> None:
    seeded = [asked(number, sampling=Sampling(seed=4), id=f"seeded {number}") for number in range(3)]
    async with stages_of(made) as here:
        found = await here.over(*(asked(number) for number in range(3)), *seeded)
    assert [tokens_of(found[f"of {number}"]) for number in range(3)] == alone(made)
    for number, command in enumerate(seeded):
        expected = await of_engine(made.merged[number], [msgspec.structs.replace(command, adapter=0)])
        assert tokens_of(found[command.id]) == tokens_of(expected[command.id])


async def test_a_prompt_that_another_adapter_has_read_is_read_anew_and_one_of_its_own_is_not(
    made: AdaptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, asking = alone(made, LONG), Asking()
    found: list[tuple[str, int]] = []
    search = PagedAttentionCache.search_prefix_match

    def noted(cache: PagedAttentionCache, request: str, tokens: list[int]) -> int:
        found.append((request, search(cache, request, tokens)))
        return found[-1][1]

    monkeypatch.setattr(PagedAttentionCache, "search_prefix_match", noted)
    async with Engine(made.model, 1, asking.say, context=512, adapters=made.files) as engine:
        for number in (0, 1, 2, 1, 0):
            said = await asking.over(engine, asked(number, LONG))
            assert tokens_of(said[f"of {number}"]) == expected[number], (
                "in turn, so that each could take the others' pages"
            )
    assert [(request, shared > 100) for request, shared in found] == [
        ("of 0", False),
        ("of 1", False),
        ("of 2", False),
        ("of 1", True),
        ("of 0", True),
    ]
    assert not any(shared for _, shared in found[:3])


async def test_a_check_finds_an_answer_of_the_model_or_of_the_other_adapter(made: AdaptedModel) -> None:
    asking = Asking()
    async with Engine(made.model, 1, asking.say, context=256, adapters=made.files) as engine:
        said = await asking.over(engine, *(asked(number) for number in range(3)))
        for number in range(3):
            for claimed in range(3):
                check = check_of(asked(claimed), said[f"of {number}"])
                [report] = (await asking.over(engine, check))["check"]
                assert isinstance(report, CheckedReport)
                assert (report.wrong == "") == (number == claimed), (number, claimed, report)


async def test_embeddings_are_those_of_the_merged_model_and_others_are_found(made: AdaptedModel) -> None:
    texts, asking = ("a quick fox", LONG, "a lazy dog"), Asking()
    vectors: list[tuple[bytes, ...]] = []
    async with Engine(made.model, 1, asking.say, context=256, adapters=made.files) as engine:
        for number in range(3):
            command = EmbedCommand("texts", texts, number)
            own, other = await embedded(asking, engine, command), (number + 1) % 3
            expected = await of_engine(made.merged[number], [EmbedCommand("texts", texts)])
            assert torch.allclose(numbers(own), numbers(reports_of(expected)), atol=1e-5)
            vectors.append(vectors_of(own))
            for claimed, wrong in ((number, False), (other, True)):
                check = CheckEmbeddingsCommand("check", EmbedCommand("c", texts, claimed), counts(own), vectors_of(own))
                [report] = (await asking.over(engine, check))["check"]
                assert isinstance(report, CheckedReport)
                assert bool(report.wrong) == wrong, report
    assert len(set(vectors)) == 3


async def test_an_adapter_that_is_not_there_is_refused(made: AdaptedModel) -> None:
    commands = [asked(3), EmbedCommand("texts", ("a",), 3)]
    found = await of_engine(made.model, commands, made.files)
    async with stages_of(made) as here:
        staged = await here.over(asked(3))
    for [said] in (found["of 3"], found["texts"], staged["of 3"]):
        assert isinstance(said, RefusedReport)
        assert (said.code, said.detail) == ("unknown-adapter", "adapter 3 is asked for, and this model has 2")


async def test_a_stage_that_leaves_its_adapter_out_is_named(made: AdaptedModel) -> None:
    honest, lying = made.files, [without_changes(one) for one in made.adapters]
    command = asked(1, sampling=Sampling(seed=1))
    for liar in (0, 1):
        beside = {stage: lying if stage == liar else honest for stage in range(2)}
        async with ring(made.model, 2, adapters=beside) as here:
            report = await checked(here, made, command)
        assert report.wrong
        assert report.stages == (liar,)


async def checked(here: Ring, made: AdaptedModel, command: GenerateCommand) -> CheckedReport:
    """What the whole model says of an answer that two stages made."""
    said = (await here.over(command))[command.id]
    sketched = await here.sketched(command.id)
    sent, got = (sketched[command.id, stage, side].values for stage, side in ((0, "sent"), (1, "got")))
    boundary = BoundarySketches(CUTS[2][1][0], 0, sent, got, bytes([0]) * 16, bytes([1]) * 16)
    check = msgspec.structs.replace(check_of(command, said), boundaries=(boundary,))
    [report] = (await of_engine(made.model, [check], made.files))["check"]
    assert isinstance(report, CheckedReport)
    return report


async def test_a_conversation_has_the_adapter_s_own_template_where_it_has_one(
    made: AdaptedModel, tmp_path: Path
) -> None:
    model = with_template(made.model, "{% for m in messages %}<{{ m.content }}>{% endfor %}", tmp_path / "model")
    own = shutil.copytree(made.adapters[0], tmp_path / "own")
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    (own / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    adapters = [AdapterFiles.of_folder(own), AdapterFiles.of_folder(made.adapters[1])]
    talk = ({"role": "user", "content": "Hi"},)
    prompts = {0: "<Hi>", 1: "[Hi]", 2: "<Hi>"}
    chats = [asked(number, "", messages=talk) for number in prompts]
    texts = [asked(number, prompt, id=f"text {number}") for number, prompt in prompts.items()]
    found = await of_engine(model, [*chats, *texts], adapters)
    for number in prompts:
        assert tokens_of(found[f"of {number}"]) == tokens_of(found[f"text {number}"])


def test_an_archive_holds_what_a_folder_does(made: AdaptedModel, tmp_path: Path) -> None:
    for number, folder in enumerate(made.adapters):  # noqa: F402 - the fixture's name
        pack(folder, tmp_path / "adapter.zip")
        packed, plain = AdapterFiles.of_archive(tmp_path / "adapter.zip"), AdapterFiles.of_folder(folder)
        assert packed.spec == plain.spec
        assert packed.spec.rslora == bool(number)
        assert packed.layers == plain.layers
        for stored in plain.layers.values():
            assert all(map(torch.equal, packed.pair(stored), plain.pair(stored)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"r": 5}, "no adapter of rank 5"),
        ({"r": 0}, "describes no adapter"),
        ({"r": None}, "describes no adapter"),
        ({"lora_alpha": "much"}, "describes no adapter"),
    ],
)
async def test_a_description_that_is_not_the_matrices_is_refused(
    made: AdaptedModel, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    broken = shutil.copytree(made.adapters[0], tmp_path / "broken")
    described = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps(described | changed))
    with pytest.raises(WeightsError, match=said):
        await asyncio.to_thread(lambda: Engine(made.model, 1, print, adapters=[AdapterFiles.of_folder(broken)]))


def test_an_adapter_of_another_model_is_refused(made: AdaptedModel) -> None:
    files = made.files[0]
    names = list(files.matrices)
    deeper = {name.replace(".layers.0.", ".layers.7."): files.matrices[name] for name in names}
    wider = {name: torch.zeros(4, 9) if "lora_A" in name else files.matrices[name][...] for name in names}
    lacking = {name: files.matrices[name] for name in names if "layers.1.self_attn.q_proj.lora_B" not in name}
    for matrices, said in ((deeper, "which this model has not"), (wider, "the model's layer from"), (lacking, "lacks")):
        with pytest.raises(WeightsError, match=said):
            Engine(made.model, 1, print, adapters=[AdapterFiles(files.spec, matrices)])


def test_rows_of_a_pass_are_grouped_by_adapter() -> None:
    cpu = torch.device("cpu")
    found = rows_of([(2, 1), (0, 2), (1, 3), (2, 2)], cpu)
    assert [(number, None if places is None else places.tolist()) for number, places in found] == [
        (2, [0, 6, 7]),
        (1, [3, 4, 5]),
    ]
    assert rows_of([(1, 3), (1, 1)], cpu) == ((1, None),)
    assert rows_of([(0, 3)], cpu) == ()


async def embedded(asking: Asking, engine: Engine, command: EmbedCommand) -> list[EmbeddedReport]:
    return reports_of(await asking.over(engine, command))


def reports_of(found: Reports) -> list[EmbeddedReport]:
    return [one for one in found["texts"] if isinstance(one, EmbeddedReport)]


def vectors_of(said: Sequence[EmbeddedReport]) -> tuple[bytes, ...]:
    return tuple(vector for one in said for vector in one.vectors)


def counts(said: Sequence[EmbeddedReport]) -> tuple[int, ...]:
    return tuple(count for one in said for count in one.tokens)


def numbers(said: Sequence[EmbeddedReport]) -> torch.Tensor:
    return torch.frombuffer(bytearray(b"".join(vectors_of(said))), dtype=torch.float32)
