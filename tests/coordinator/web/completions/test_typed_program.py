"""The program of "Use a model from your programs", typed as it stands there, beside a model that really runs."""

import asyncio
import re
import secrets
import sys
from pathlib import Path

import pytest

from tests.coordinator.web.conftest import House

PAGE = Path(__file__).parents[4] / "docs/how-to/use-a-model.md"


async def test_the_program_of_the_page_is_answered_by_a_real_model(
    house: House, answering: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By lot, this model ends some answers after a character or two.
    monkeypatch.setattr(secrets, "randbits", lambda _bits: 7)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = program.replace("http://127.0.0.1:8470", house.url).replace('"JOB"', repr(answering))
    (tmp_path / "program.py").write_text(program)
    running = await asyncio.create_subprocess_exec(
        sys.executable, str(tmp_path / "program.py"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complaint = await running.communicate()
    assert running.returncode == 0, complaint.decode()
    assert len(said.decode(errors="replace").strip()) > 3
