"""The two lessons as a reader types them: ledger, coordinator and nodes in terminals of their own, every command in its order.

What is changed: ports, which another test may have, a job of a tenth of the tokens, and the sandbox of the lender's computer.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from solders.keypair import Keypair

from tests.support.addresses import free_port

ROOT = Path(__file__).parents[2]
LESSONS = ROOT / "docs" / "tutorials"
STAYS = ("cottage ledger serve", "cottage serve", "cottage node run")
ELSEWHERE = ("make ", "source ", "python -m installer.image.build")  # Every test runs in what these make.
PATIENCE_S = 400.0

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def blocks(lesson: str, kind: str) -> list[str]:
    """Blocks of code of one language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", (LESSONS / lesson).read_text(), re.DOTALL | re.MULTILINE)


def lines(lesson: str) -> list[str]:
    """What the reader of a lesson types."""
    typed = [line for block in blocks(lesson, "console") for line in block.splitlines()]
    return [line for line in typed if not line.startswith(ELSEWHERE)]


class Desk:
    """A reader's terminals, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.coordinator = free_port()
        home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "share"), "COLUMNS": "160"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, **home, "PATH": path, "COTTAGE_SERVER": f"http://127.0.0.1:{self.coordinator}"}
        self.words = {"8470": str(self.coordinator), "8899": str(free_port())}
        self.programs: list[asyncio.subprocess.Process] = []

    def changed(self, line: str) -> str:
        """A line with this desk's ports, and with what stands where the lesson has a capital word."""
        line = re.sub(r"\b(?:8470|8899|[A-Z]{3,})\b", lambda found: self.words.get(found[0], found[0]), line)
        if line.startswith("cottage serve"):
            line += f" --port {self.coordinator}"
        if line.startswith("cottage node run") and "--sandbox" not in line:
            line += " --sandbox process --loopback --threads 1"
        return line

    async def type(self, line: str, answer: str = "") -> tuple[int, str]:
        """Run a command to its end and answer what it asks, twice; its status, and all that it said."""
        process = await self._begin(line, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        async with asyncio.timeout(PATIENCE_S):
            said, _ = await process.communicate(f"{answer}\n{answer}\n".encode())
        return process.returncode or 0, said.decode(errors="replace")

    async def leave_open(self, line: str, shown: str) -> None:
        """Start a program that stays, and wait until it says ``shown``."""
        log = self.folder / f"terminal-{len(self.programs)}.log"
        with log.open("wb") as out:
            process = await self._begin(line, asyncio.subprocess.DEVNULL, out.fileno())
        self.programs.append(process)
        async with asyncio.timeout(PATIENCE_S):
            while process.returncode is None and shown not in log.read_text(errors="replace"):
                await asyncio.sleep(0.1)
        assert process.returncode is None, log.read_text(errors="replace")

    async def _begin(self, line: str, asked: int, out: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            f"exec {self.changed(line)}" if line.startswith("cottage") else self.changed(line),
            cwd=self.folder,
            env=self.env,
            stdin=asked,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def close(self) -> list[int]:
        """Ctrl-C to each program, the last one first; their statuses."""
        for program in reversed(self.programs):
            if program.returncode is None:
                program.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(program.wait(), 60.0)
            except TimeoutError:
                program.kill()
                await program.wait()
        return [program.returncode or 0 for program in self.programs]


@asynccontextmanager
async def desk_in(folder: Path) -> AsyncIterator[Desk]:
    desk = Desk(folder)
    try:
        yield desk
    finally:
        await desk.close()


async def learn_to_train(desk: Desk) -> None:
    """The first lesson."""
    (document,) = blocks("train-your-first-model.md", "yaml")
    assert "tokens: 200000" in document
    (desk.folder / "job.yaml").write_text(document.replace("tokens: 200000", "tokens: 20000"))
    for line in lines("train-your-first-model.md"):
        if line.startswith(STAYS):
            await desk.leave_open(
                line, "connected to" if "node run" in line else "serving" if "ledger" not in line else ""
            )
            continue
        status, said = await desk.type(line)
        assert status == 0, f"{line}: {said}"
        if line == "cottage jobs":
            found = re.search(r"\b[0-9a-f]{8,32}\b", said)
            assert found, said
            desk.words["JOB"] = found[0]
    assert "settled" in (await desk.type("cottage show JOB"))[1]
    (example,) = blocks("train-your-first-model.md", "python")
    (desk.folder / "example.py").write_text(example)
    status, said = await desk.type(f"{sys.executable} example.py")
    assert (status, "def main" in said) == (0, True), said


async def learn_to_lend(desk: Desk) -> None:
    """The second one, on the same network."""
    desk.words["ADDRESS"] = str(Keypair().pubkey())
    said: dict[str, str] = {}
    for line in lines("lend-your-gpu.md"):
        if line.startswith(STAYS):
            await desk.leave_open(line, "connected to")
            continue
        status, said[line] = await desk.type(line, "a passphrase of the reader")
        if line.startswith("cottage node send"):  # No job came by.
            assert (status, "nothing" in said[line].lower()) == (1, True), said[line]
        elif line != "cottage node selftest":  # It counts what this machine lacks: a card, a relay.
            assert status == 0, f"{line}: {said[line]}"
    assert "coordinator" in said["cottage node selftest"]
    assert len(re.findall(r"[a-z]+", said["cottage node words"])) >= 24
    assert (desk.folder / "cottage-backup.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_who_types_what_the_lessons_say_has_a_model_checks_the_money_and_lends(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        await learn_to_train(desk)
        await learn_to_lend(desk)
        assert await desk.close() == [0] * len(desk.programs), "Ctrl-C ends each in order"
