"""Trying a model: text from the newest checkpoint, one request at a time for the whole coordinator, in a process with limits."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from coordinator.errors import UnavailableError
from coordinator.services.accounts.budgets import MAX_TRIALS, MAX_TRIALS_EACH, LaneBudget
from coordinator.services.artifacts.checkpoints import Checkpoints
from protocol.rest.api import TrialRequest

SECONDS = 120.0  # For loading the model and all its tokens; the last of those that wait does so MAX_TRIALS times as long at most.


class Generator(Protocol):
    """Runs a model somewhere else: the coordinator never imports torch."""

    def generate(self, archive: str, request: TrialRequest, seconds: float) -> AsyncIterator[Mapping[str, Any]]:
        """Pieces of text as they come, then how it ended."""


class Trials:
    """A queue of one."""

    def __init__(self, checkpoints: Checkpoints, generator: Generator | None) -> None:
        self._checkpoints = checkpoints
        self._generator = generator
        self._turn = asyncio.Lock()
        self._lane = LaneBudget("trials of models", MAX_TRIALS_EACH, MAX_TRIALS, SECONDS / 2)

    async def generate(self, job: str, round_: int | None, request: TrialRequest) -> AsyncIterator[Mapping[str, Any]]:
        """``{"waiting": n}`` while others are before it, then what the model says: ``{"text": ...}``, last ``{"done": ...}``.

        Args:
            round_: of the checkpoint; None: the newest.
        Raises:
            NotFoundError: there is no such job or checkpoint, or weights that it started from: they were random, or are not kept
                any more.
            UnavailableError: this machine cannot run models. InvalidError: the model cannot read the prompt.
            TooManyError: too many wait, of the job's account or of all.
        """
        if self._generator is None:
            raise UnavailableError("this coordinator cannot try models")
        stored, _, point = await self._checkpoints.point(job, round_)
        with self._lane.enter(stored.account_id):
            if self._turn.locked():
                yield {"waiting": len(self._lane) - 1}
            async with self._turn:
                yield {"checkpoint": point.base.done}
                if request.start:
                    archive = await self._checkpoints.start(job)
                else:
                    archive = await self._checkpoints.model(job, point.base.done)
                async with aclosing(self._generator.generate(archive, request, SECONDS)) as pieces:  # type: ignore[type-var]
                    async for piece in pieces:
                        yield piece
