"""A front's lines to the coordinators at work, one for each cell; with one cell there is one line, and nothing is added to it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from aiohttp import ClientSession

from coordinator.errors import ElsewhereError, UnavailableError
from coordinator.web.fronts.answering import LedgerFacts
from coordinator.web.fronts.line import WAIT_S, CoordinatorAtWork, LineToWork

T = TypeVar("T")

FIRST = 0
"""The cell that does what is to be done once, and gets what is of none."""
PATIENCE_S = 3.0  # An answer of a cell that is later is left out of what is asked of all, where others have answered.


class LinesToWork:
    """By the numbers of cells."""

    def __init__(self, lines: Sequence[LineToWork]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def http(self) -> ClientSession:
        """What requests go out by."""
        return self._lines[FIRST].http

    @property
    def reached(self) -> tuple[int, ...]:
        """Cells whose coordinator is reached now."""
        return tuple(number for number, line in enumerate(self._lines) if line.is_reached)

    @property
    def is_ready(self) -> bool:
        """Whether some cell is reached, or was a moment ago: while one changes hands, or is lost, the others are led to."""
        return any(line.is_ready for line in self._lines)

    @property
    def reads(self) -> bool:
        """Whether this version may read the database, as far as that was looked at."""
        looked = [line.reads for line in self._lines if line.looked]
        return bool(looked) and all(looked)

    @property
    def facts(self) -> LedgerFacts | None:
        """What is known of the ledger, which all cells share."""
        return next((line.facts for line in self._lines if line.facts is not None), None)

    async def reach(self, cell: int, seconds: float = WAIT_S) -> CoordinatorAtWork:
        """A cell's coordinator, as soon as it is reached.

        Raises:
            UnavailableError: it was not within ``seconds``.
        """
        try:
            return await self._lines[cell].reach(seconds)
        except UnavailableError as error:
            if len(self) == 1:
                raise
            raise UnavailableError(
                f"no coordinator carries cell {cell + 1} of {len(self)} now: another one is about to, come back in a moment"
            ) from error

    async def reach_any(self, seconds: float = WAIT_S) -> tuple[int, ...]:
        """Cells that are reached, as soon as one is.

        Raises:
            UnavailableError: none was within ``seconds``.
        """
        if not self.reached:
            waiting = [asyncio.create_task(line.reach(seconds), name="reach-a-cell") for line in self._lines]
            try:
                for one in asyncio.as_completed(waiting):
                    with suppress(UnavailableError):
                        await one
                        break
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
        if not (reached := self.reached):
            raise UnavailableError("no coordinator carries any cell now: some are about to, come back in a moment")
        return reached

    async def ask(self, kind: type[T], what: str, address: str = "") -> T:
        """What any cell knows, the first one before others.

        Raises:
            ElsewhereError: none says it.
        """
        *lines, last = self._lines
        for line in lines:
            with suppress(ElsewhereError):
                return await line.ask(kind, what, None, address)
        return await last.ask(kind, what, None, address)

    async def ask_all(
        self, kind: type[T], what: str, nodes: tuple[str, ...] | None = None, address: str = ""
    ) -> list[tuple[int, T]]:
        """What each cell knows, by its number. One that does not say it now is left out.

        Raises:
            ElsewhereError: none says it.
        """
        if len(self) == 1:
            return [(FIRST, await self._lines[FIRST].ask(kind, what, nodes, address))]
        asking = [asyncio.create_task(line.ask(kind, what, nodes, address)) for line in self._lines]
        try:
            await asyncio.wait(asking, timeout=PATIENCE_S)
            if not any(map(_says, asking)):
                await asyncio.wait(asking)
            answers = [(number, task.result()) for number, task in enumerate(asking) if _says(task)]
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if not answers:
            raise ElsewhereError("no cell says it")
        return answers


def _says(asking: "asyncio.Task[T]") -> bool:
    """Whether a cell has answered; that it does not say it is no answer, and any other fault is raised with its result."""
    return asking.done() and not isinstance(asking.exception(), ElsewhereError)
