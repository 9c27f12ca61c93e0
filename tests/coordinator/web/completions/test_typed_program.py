"""The program of "Use a model from your programs", typed as it stands there, beside a model that really runs."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from coordinator.services.artifacts.models import TrainerTools
from coordinator.services.serving.engines import Engines
from protocol.ids import Digest
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from tests.coordinator.serving.small_model import pack_into, small_model
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Leavings
from tests.coordinator.web.test_life import started

PAGE = Path(__file__).parents[4] / "docs/how-to/use-a-model.md"


async def test_the_program_of_the_page_is_answered_by_a_real_model(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await pack_into(house.artifacts, small_model(tmp_path / "made"), tmp_path / "model.zip")
    engines = Engines(TrainerTools(house.artifacts, tmp_path / "scratch", 120.0, 8_192).served)

    async def complete(
        _self: Leavings, _job: str, _point: int | Literal["start"] | None, command: GenerateCommand
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        async for report in engines.generate(Digest(archive), command, 120.0):
            yield report

    monkeypatch.setattr(Leavings, "complete", complete)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job = await started(house)
    program = program.replace("http://127.0.0.1:8470", house.url).replace('"JOB"', repr(job))
    (tmp_path / "program.py").write_text(program)
    running = await asyncio.create_subprocess_exec(
        sys.executable, str(tmp_path / "program.py"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complaint = await running.communicate()
    assert running.returncode == 0, complaint.decode()
    assert len(said.decode(errors="replace").strip()) > 3
    await engines.close()
