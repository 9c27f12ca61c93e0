"""A job whose model really runs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from coordinator.services.artifacts.models import TrainerTools
from coordinator.services.serving.engines import Engines
from protocol.ids import Digest
from protocol.serving import AnswerReport, AskCommand
from tests.coordinator.serving.small_model import pack_into, small_model
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.test_life import started


@pytest.fixture
async def answering(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Its id."""
    archive = await pack_into(house.artifacts, small_model(tmp_path / "made"), tmp_path / "model.zip")
    engines = Engines(TrainerTools(house.artifacts, tmp_path / "scratch", 120.0, 8_192).served)

    async def complete(
        _self: Outputs, _job: str, _point: int | Literal["start"] | None, command: AskCommand
    ) -> AsyncIterator[AnswerReport]:
        async for report in engines.generate(Digest(archive), command, 120.0):
            yield report

    monkeypatch.setattr(Outputs, "complete", complete)
    yield await started(house)
    await engines.close()
