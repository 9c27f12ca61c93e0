"""Models that answer: real folders in real processes, several requests at a time."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from coordinator.domain.serving import ServedFiles
from coordinator.errors import InvalidError, PromptTooLongError, TookTooLongError, UnavailableError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import TrainerTools
from coordinator.services.serving.engines import Engines
from protocol.ids import Digest
from protocol.serving import (
    AnsweredReport,
    CheckCommand,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    GenerateCommand,
    ProveCommand,
    Sampling,
    TextReport,
)
from tests.coordinator.serving.small_model import pack_into, small_model

MEMORY_MB = 8_192
LONGEST = 64  # Positions of the small model.
SECONDS = 120.0
GREEDY = Sampling(temperature=0)
HALF = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("served") / "made")


class Hall:
    """Engines over a folder of artifacts, of which each begin is noted."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.artifacts = DiskArtifacts(folder / "artifacts")
        self.scratch = folder / "scratch"
        self.tools = TrainerTools(self.artifacts, self.scratch, SECONDS, MEMORY_MB)
        self.begun: list[Digest] = []
        self.processes: list[asyncio.subprocess.Process] = []
        self.engines = Engines(self._start, **settings)

    @asynccontextmanager
    async def _start(self, held: ServedFiles) -> AsyncIterator[asyncio.subprocess.Process]:
        self.begun.append(held.archive)
        async with self.tools.served(held) as process:
            self.processes.append(process)
            yield process

    async def archive(self, folder: Path, path: Path) -> Digest:
        return await pack_into(self.artifacts, folder, path)

    async def said(
        self, archive: Digest, command: GenerateCommand, seconds: float = SECONDS
    ) -> tuple[str, AnsweredReport]:
        *texts, end = [report async for report in self.engines.generate(archive, command, seconds)]
        assert isinstance(end, AnsweredReport)
        return "".join(report.text for report in texts if isinstance(report, TextReport)), end


def ask(prompt: str, **more: Any) -> GenerateCommand:
    return GenerateCommand("1", prompt, **more)


def likeliest(folder: Path, prompt: str, tokens: int) -> str:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    made = model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


async def test_one_process_answers_many_at_a_time_and_each_as_if_it_were_alone(folder: Path, tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    archive = await hall.archive(folder, tmp_path / "model.zip")
    drawn = ask("def function_", tokens=12, sampling=Sampling(seed=3, top_k=40))
    alone = await hall.said(archive, drawn)
    asked = [drawn, *(ask(f"def f{n}", tokens=10 + n, sampling=GREEDY) for n in range(8)), drawn]
    answers = await asyncio.gather(*(hall.said(archive, command) for command in asked))
    assert answers[0][0] == answers[-1][0] == alone[0]
    for command, (text, end) in zip(asked[1:-1], answers[1:-1], strict=True):
        expected = likeliest(folder, command.prompt, command.tokens or 0)
        assert text.rstrip(HALF) == expected.rstrip(HALF)  # The last token may be a part of a character.
        assert (end.reason, end.tokens) == ("length", command.tokens)
    other = await hall.said(archive, ask("def function_", tokens=12, sampling=Sampling(seed=4, top_k=40)))
    assert other[0] != alone[0]
    assert hall.begun == [archive], "one process for all of them"
    await hall.engines.close()
    assert not list(hall.scratch.iterdir()), "nothing is left on the disk"
    assert all(process.returncode is not None for process in hall.processes)


@pytest.mark.long
async def test_an_answer_keeps_to_its_limits(folder: Path, tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    archive = await hall.archive(folder, tmp_path / "model.zip")
    prompt = "def function_"
    whole, end = await hall.said(archive, ask(prompt, sampling=GREEDY))
    assert (end.prompt + end.tokens, end.reason) == (LONGEST, "length"), "no further than the model can read"
    stop = whole[4:7]
    text, end = await hall.said(archive, ask(prompt, sampling=GREEDY, stops=("never", stop)))
    assert (text, end.reason) == (whole[: whole.index(stop)], "stop")
    chat = GenerateCommand("1", messages=({"role": "user", "content": "function"},), tokens=12, sampling=GREEDY)
    assert whole.startswith((await hall.said(archive, chat))[0] or "?"), "in its template it is the same text"
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    text, _ = await hall.said(archive, ask("def ", sampling=GREEDY, schema=schema))
    assert json.loads(text)["a"] in (1, 2)
    with pytest.raises(InvalidError, match="the schema cannot be kept to") as refused:
        await hall.said(archive, ask("def ", schema={"type": "colour"}))
    assert refused.value.field == "response_format"
    with pytest.raises(PromptTooLongError, match=rf"give 1 to {LONGEST - 1}"):
        await hall.said(archive, ask("def function_ " * 60))
    odd = ({"role": "user", "content": "Hi"}, {"role": "user", "content": 3})
    with pytest.raises(InvalidError, match="message 2, has something else than text"):
        await hall.said(archive, GenerateCommand("1", messages=odd))
    with pytest.raises(InvalidError, match="no messages with role and content: give at least one"):
        await hall.said(archive, GenerateCommand("1", messages=({"content": "Hi"},)))
    with pytest.raises(TookTooLongError, match=r"took longer than 0\.01 s, .*: ask for fewer tokens"):
        await hall.said(archive, ask(prompt), 0.01)
    await hall.engines.close()


@pytest.mark.long
async def test_a_model_is_checked_as_it_is_held_by_a_process_of_its_own(folder: Path, tmp_path: Path) -> None:
    hall, command = Hall(tmp_path), EmbedCommand("1", ("def f",))
    archive = await hall.archive(folder, tmp_path / "model.zip")
    parts = [report async for report in hall.engines.generate(archive, command, SECONDS)]
    (made,) = [one for one in parts if isinstance(one, EmbeddedReport)]
    check = CheckEmbeddingsCommand("1", command, made.tokens, made.vectors)
    assert not (await hall.engines.check(ServedFiles(archive), check, SECONDS)).wrong
    assert "away from this model's" in (await hall.engines.check(ServedFiles(archive, "nf4"), check, SECONDS)).wrong
    assert len(hall.processes) == 2
    await hall.engines.close()


async def test_texts_become_embeddings_which_are_checked(folder: Path, tmp_path: Path) -> None:
    hall, command = Hall(tmp_path), EmbedCommand("1", ("def f", "def ", "def f"))
    archive = await hall.archive(folder, tmp_path / "model.zip")
    *parts, end = [report async for report in hall.engines.generate(archive, command, SECONDS)]
    made = [one for one in parts if isinstance(one, EmbeddedReport)]
    vectors, counts = (tuple(each for one in made for each in getattr(one, kind)) for kind in ("vectors", "tokens"))
    assert isinstance(end, AnsweredReport)
    assert (len(vectors), end.prompt, vectors[0]) == (3, sum(counts), vectors[2])
    for forged, wrong in ((vectors, False), ((*vectors[:2], vectors[1]), True)):
        check = CheckEmbeddingsCommand("1", command, counts, forged)
        assert bool((await hall.engines.check(ServedFiles(archive), check, SECONDS)).wrong) is wrong
    for texts, kind, words in (
        (("def ", ""), InvalidError, "text 2 of 2 has 0 tokens"),
        (("def " * 200,), PromptTooLongError, f"give 1 to {LONGEST}"),
    ):
        with pytest.raises(kind, match=words) as refused:
            await anext(hall.engines.generate(archive, EmbedCommand("1", texts), SECONDS))
        assert refused.value.field == "input"
    lie = CheckCommand("1", GenerateCommand("1", "def", tokens=2), (5, 6), "moo", "length", None)
    proven = await hall.engines.prove(ServedFiles(archive), ProveCommand("1", lie, "0" * 64), SECONDS)
    assert (proven.wrong, bool(proven.env_class)) == ("the text is not what its tokens say", True)
    await hall.engines.close()


@pytest.mark.long
async def test_a_model_without_a_template_continues_texts_only(folder: Path, tmp_path: Path) -> None:
    hall, bare = Hall(tmp_path), tmp_path / "bare"
    bare.mkdir()
    for path in folder.iterdir():
        os.link(path, bare / path.name)
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (bare / "tokenizer_config.json").unlink()
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    archive = await hall.archive(bare, tmp_path / "bare.zip")
    with pytest.raises(InvalidError, match="has no chat template: have it continue the text, without chat"):
        await hall.said(archive, GenerateCommand("1", messages=({"role": "user", "content": "Hi"},)))
    assert (await hall.said(archive, ask("def ", tokens=3)))[1].tokens == 3
    await hall.engines.close()


@pytest.mark.long
async def test_whoever_stops_listening_ends_the_answer(folder: Path, tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    archive = await hall.archive(folder, tmp_path / "model.zip")
    long = hall.engines.generate(archive, ask("def ", sampling=GREEDY), SECONDS)
    await anext(long)
    await long.aclose()
    (engine,) = hall.engines._running.values()
    assert (engine.held, engine._answers) == (0, {})
    assert (await hall.said(archive, ask("def ", tokens=3)))[1].tokens == 3
    await hall.engines.close()


@pytest.mark.long
async def test_a_model_that_nobody_asks_makes_room_for_another(folder: Path, tmp_path: Path) -> None:
    hall = Hall(tmp_path, most=1)
    first = await hall.archive(folder, tmp_path / "first.zip")
    (tmp_path / "twin").mkdir()
    for path in folder.iterdir():
        os.link(path, tmp_path / "twin" / path.name)
    (tmp_path / "twin" / "README.md").unlink(missing_ok=True)
    (tmp_path / "twin" / "README.md").write_text("another")
    second = await hall.archive(tmp_path / "twin", tmp_path / "second.zip")
    holding = hall.engines.generate(first, ask("def ", sampling=GREEDY), SECONDS)
    await anext(holding)
    assert (hall.engines.before(first), hall.engines.before(second)) == (0, 1)
    waiting = asyncio.create_task(hall.said(second, ask("def ", tokens=3)))
    await asyncio.sleep(0.1)
    assert hall.engines.before(second) == 2
    assert not waiting.done(), "one is held, and there is room for one"
    await holding.aclose()
    assert (await waiting)[1].tokens == 3
    assert hall.begun == [first, second]
    assert hall.processes[0].returncode is not None
    assert hall.engines.before(first) == 0, "nobody holds the other one any more"
    await hall.engines.close()


@pytest.mark.long
async def test_a_model_goes_when_it_was_not_asked_for_a_while(folder: Path, tmp_path: Path) -> None:
    hall = Hall(tmp_path, idle_s=0.2)
    archive = await hall.archive(folder, tmp_path / "model.zip")
    await hall.said(archive, ask("def ", tokens=3))
    async with asyncio.timeout(SECONDS):
        await hall.processes[0].wait()
        while hall.engines._running:
            await asyncio.sleep(0.01)
    await hall.said(archive, ask("def ", tokens=3))
    assert hall.begun == [archive] * 2
    await hall.engines.close()


@pytest.mark.long
async def test_a_process_that_dies_is_told_and_the_next_request_has_another(folder: Path, tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    archive = await hall.archive(folder, tmp_path / "model.zip")
    under_way = hall.engines.generate(archive, ask("def ", sampling=GREEDY), SECONDS)
    await anext(under_way)
    hall.processes[0].send_signal(signal.SIGKILL)
    with pytest.raises(UnavailableError, match="running the model needs more memory than there is for it here"):
        async for _ in under_way:
            pass
    assert (await hall.said(archive, ask("def ", tokens=3)))[1].tokens == 3
    assert hall.begun == [archive] * 2
    await hall.engines.close()


@pytest.mark.long
async def test_a_folder_that_is_no_model_is_told(folder: Path, tmp_path: Path) -> None:
    hall, broken = Hall(tmp_path), tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    archive = await hall.archive(broken, tmp_path / "broken.zip")
    with pytest.raises(UnavailableError, match="running the model failed, and the coordinator's log says why"):
        await hall.said(archive, ask("def "))
    await hall.engines.close()


async def test_without_torch_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.services.artifacts.models.find_spec", lambda _name: None)
    hall = Hall(tmp_path)
    with pytest.raises(UnavailableError, match="PyTorch is not installed beside the coordinator"):
        await hall.said(Digest("0" * 64), ask("x"))
