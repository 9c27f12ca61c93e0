"""``cottage serve --cells`` as processes of one PostgreSQL: all serve, and those that are left carry a dead one's cells.

Who would part the jobs otherwise is told so, and ends.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.cli import EXIT_DATA, EXIT_LEDGER, EXIT_USAGE, main
from tests.coordinator.conftest import until
from tests.coordinator.test_serve import ledger_url as ledger_url
from tests.coordinator.test_serve import start
from tests.coordinator.test_standby import answers
from tests.ledger.served import served
from tests.support.addresses import free_port
from tests.support.databases import Postgres, needs_postgres

CELLS = 3
ENDS_S = 10.0
UP = "cottage_database_up 1"


@dataclass
class Serving:
    """A coordinator at a port of its own."""

    process: asyncio.subprocess.Process
    url: str

    async def reaches_all(self) -> bool:
        """Whether it is ready, and leads to whoever carries each cell: these show the figures of it, which are not a front's."""
        if (await answers(self.url, "/readyz"))[0] != 200:
            return False
        figures = [await answers(self.url, f"/metrics?cell={cell + 1}") for cell in range(CELLS)]
        return all(status == 200 and UP in text for status, text in figures)


@dataclass
class Houses:
    """Coordinators over one data folder, ledger and database. ``made``: all that were started."""

    words: Sequence[str]
    made: list[asyncio.subprocess.Process]

    async def comes(self, *words: str) -> Serving:
        """One more."""
        port = free_port()
        self.made.append(process := await start(*self.words, *words, "--port", str(port)))
        return Serving(process, f"http://127.0.0.1:{port}")

    async def refused(self, *words: str, status: int = EXIT_DATA) -> str:
        """What one more says that ends by itself, as whoever cannot use what is there; on one line."""
        process = (await self.comes(*words)).process
        _, said = await process.communicate()
        assert process.returncode == status, said.decode()
        assert b"serving on" not in said
        return " ".join(said.decode().split())


@pytest.fixture
async def houses(tmp_path: Path, postgres: Postgres, ledger_url: str) -> AsyncIterator[Houses]:
    words = ["--data", str(tmp_path / "data"), "--ledger-url", ledger_url, "--database-url", postgres.url()]
    found = Houses([*words, "--open", "--no-own-auditor"], [])
    yield found
    for process in found.made:
        if process.returncode is None:
            process.kill()
            await process.wait()


@needs_postgres
async def test_processes_carry_cells_and_go_on_when_one_is_killed_stopped_or_ended(
    houses: Houses, tmp_path: Path
) -> None:
    first, second, third = [await houses.comes("--cells", str(CELLS)) for _ in range(3)]
    for one in (first, second, third):
        await until(one.reaches_all)
        assert (await answers(one.url, "/api/v1/network"))[0] == 200
    receiving = {folder.name for folder in (tmp_path / "data" / "artifacts").glob("incoming*")}
    assert receiving == {"incoming", "incoming-1", "incoming-2"}, "none empties what another one receives"
    for words in ((), ("--cells", "2")):
        said = await houses.refused(*words)
        assert "carries jobs in 3 cells" in said
        assert "say --cells 3; or end all coordinators" in said
        assert "Traceback" not in said
    with served(tmp_path) as other:
        said = await houses.refused("--cells", str(CELLS), "--ledger-url", other.start())
    assert "name an endpoint of the same chain with --ledger-url" in said
    said = await houses.refused("--cells", str(CELLS), "--ledger-url", "http://127.0.0.1:9", status=EXIT_LEDGER)
    assert "http://127.0.0.1:9 cannot be used" in said
    for one in (first, second, third):
        assert await one.reaches_all()
    first.process.kill()
    await first.process.wait()
    for one in (second, third):
        await until(one.reaches_all)
    second.process.send_signal(signal.SIGSTOP)
    await until(third.reaches_all)
    second.process.send_signal(signal.SIGCONT)
    for one in (second, third):
        await until(one.reaches_all)
    third.process.send_signal(signal.SIGTERM)
    _, log = await asyncio.wait_for(third.process.communicate(), ENDS_S)
    assert third.process.returncode == 0, log.decode()
    await until(second.reaches_all)
    second.process.send_signal(signal.SIGTERM)
    _, log = await asyncio.wait_for(second.process.communicate(), ENDS_S)
    assert "has taken cell" in log.decode(), "it stood still, and has found so"
    assert "ERROR" not in log.decode(), "nothing has to be mended"


def test_several_cells_need_a_database_that_several_processes_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--data", str(tmp_path), "--ledger-url", "http://127.0.0.1:9", "--cells", "3"]
    for more in ([], ["--database-url", f"sqlite+aiosqlite:///{tmp_path / 'c.db'}"]):
        assert main([*words, *more]) == EXIT_USAGE
        said = " ".join(capsys.readouterr().err.split())
        assert "--cells 3 needs --database-url with a PostgreSQL" in said
