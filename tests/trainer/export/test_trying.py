"""Trying a model: a real folder, a real process, text that comes in pieces and is the same for the same request."""

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import InvalidError, TookTooLongError, UnavailableError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import TrainerTools, _pack
from protocol.job.job import TokenizerSpec
from protocol.rest.api import TrialRequest
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of
from tests.trainer.worker.test_checkpoints import TEXT, checkpoints
from trainer.data.prepare import prepare
from trainer.export.assemble import assemble
from trainer.formats.source import Dataset

MEMORY_MB = 8_192
LONGEST = 64  # Positions of the small model.


async def said(
    tools: TrainerTools, archive: str, request: TrialRequest, seconds: float = 120.0
) -> list[dict[str, Any]]:
    return [dict(piece) async for piece in tools.generate(archive, request, seconds)]


async def test_a_model_continues_a_prompt_in_pieces_and_within_its_limits(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    prepare(
        Dataset.of(tmp_path / "text", "text"),
        TokenizerSpec(vocabulary=VOCABULARY),
        None,
        0.1,
        SEQUENCE,
        tmp_path / "job",
    )
    folder = tmp_path / "model"
    assemble(checkpoints(tmp_path, "llama"), config_of(), tmp_path / "job" / "tokenizer.json", folder, {})
    _pack(folder, tmp_path / "model.zip")
    artifacts = DiskArtifacts(tmp_path / "artifacts")
    archive = await artifacts.put_file(tmp_path / "model.zip")
    tools = TrainerTools(artifacts, tmp_path / "scratch", 120.0, MEMORY_MB)

    request = TrialRequest("def function_", tokens=12, seed=3)
    pieces = await said(tools, archive, request)
    *texts, end = pieces
    assert "".join(piece["text"] for piece in texts)
    assert end["done"] in ("length", "end")
    assert 1 <= end["tokens"] <= 12
    assert await said(tools, archive, request) == pieces, "the same request gives the same text"

    greedy = TrialRequest("def function_", tokens=400, temperature=0)
    assert (await said(tools, archive, greedy))[-1]["tokens"] < LONGEST, "no further than the model can read"
    with pytest.raises(InvalidError, match=rf"give 1 to {LONGEST - 1}"):
        await said(tools, archive, TrialRequest("def function_ " * 60))
    with pytest.raises(TookTooLongError, match=r"took longer than 0\.01 s, .*: ask for fewer tokens"):
        await said(tools, archive, request, 0.01)
    with pytest.raises(InvalidError, match="has no chat template"):
        await said(tools, archive, TrialRequest("hello", chat=True))
    assert not list((tmp_path / "scratch").iterdir()), "nothing is left on the disk"

    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}def {{ m.content }}{% endfor %}{% if add_generation_prompt %}_{% endif %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    _pack(folder, tmp_path / "chat.zip")
    talking = await artifacts.put_file(tmp_path / "chat.zip")
    asked = await said(tools, talking, TrialRequest("function", tokens=12, seed=3, chat=True))
    assert asked == pieces, "in its template it is the same text"


async def test_without_torch_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.services.artifacts.models.find_spec", lambda _name: None)
    tools = TrainerTools(DiskArtifacts(tmp_path / "artifacts"), tmp_path / "scratch", 120.0, MEMORY_MB)
    with pytest.raises(UnavailableError, match="PyTorch is not installed beside the coordinator"):
        await said(tools, "0" * 64, TrialRequest("x"))
