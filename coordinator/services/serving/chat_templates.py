"""The chat template of a model that is to answer: told with the price where nobody could chat with it, and refused.

A template is tried in a process of its own, and prices cost nothing: a few are tried at a time, whoever asks. A price does not
wait for a turn; the deployment does when it is made, where its account and all others have a bound.
"""

import asyncio
import hashlib
from dataclasses import dataclass

import msgspec

from coordinator.errors import CottageError, InvalidError
from coordinator.services.artifacts.base_models import BaseModels
from coordinator.services.artifacts.models import ModelWorkshop
from protocol.job.job import JobSpec, TokenizerSpec

MAX_REMEMBERED = 200  # Templates: a form asks often.
MAX_AT_ONCE = 2  # Processes.


@dataclass
class _Trial:
    task: asyncio.Task[str]
    begun: bool  # It has its turn, or has it at once.
    asking: int = 0  # Once nobody is left it ends.


class ChatTemplates:
    """Has templates tried."""

    def __init__(self, models: ModelWorkshop, origins: BaseModels) -> None:
        self._models = models
        self._base_models = origins
        self._faults: dict[bytes, str] = {}  # Hash of a tokenizer's settings -> what is wrong with them.
        self._trials: dict[bytes, _Trial] = {}  # By the same.
        self._turn = asyncio.Semaphore(MAX_AT_ONCE)

    async def check(self, tokenizer: TokenizerSpec, job: str | None = None, *, waits: bool = True) -> None:
        """Refuse a template with which nobody could be answered.

        Args:
            job: the one that has made the model.
            waits: until others are done with theirs; else it is taken as good meanwhile.
        Raises:
            InvalidError: why, and what to do. UnavailableError: the tool failed.
        """
        if not (fault := await self._fault(tokenizer, waits)):
            return
        if job is None:
            raise InvalidError(
                f"{fault}; mend it, or leave it out: then the model continues texts", "tokenizer.settings"
            )
        way = f"`cottage download {job}`, mend it in tokenizer_config.json, and deploy the folder"
        raise InvalidError(f"{fault}; {way}", "model.from_job")

    async def problem(self, spec: JobSpec) -> str:
        """What ``check`` would say of a document's model; empty: nothing, or nobody knows yet."""
        if spec.serve is None:
            return ""
        job = spec.model.from_job
        try:
            tokenizer = spec.tokenizer if job is None else await self._base_models.tokenizer(spec.model)
            await self.check(tokenizer, job, waits=False)
        except InvalidError as error:
            return error.detail
        except CottageError:
            return ""  # There is no such job, or the tool is away: it is told where the deployment is made.
        return ""

    async def _fault(self, tokenizer: TokenizerSpec, waits: bool) -> str:
        key = hashlib.sha256(msgspec.json.encode(tokenizer.settings)).digest()
        if key in self._faults:
            return self._faults[key]
        trial = self._trials.get(key)
        free = not self._turn.locked() and sum(one.begun for one in self._trials.values()) < MAX_AT_ONCE
        if not waits and not (free if trial is None else trial.begun):
            return ""
        if trial is None:
            trial = _Trial(asyncio.create_task(self._try(key, tokenizer), name="chat template"), free)
            self._trials[key] = trial
        trial.asking += 1
        try:
            return await asyncio.shield(trial.task)
        finally:
            trial.asking -= 1
            if not trial.asking:
                trial.task.cancel()
                self._trials.pop(key, None)

    async def _try(self, key: bytes, tokenizer: TokenizerSpec) -> str:
        async with self._turn:
            self._trials[key].begun = True
            fault = await self._models.template_fault(tokenizer)
        while len(self._faults) >= MAX_REMEMBERED:
            self._faults.pop(next(iter(self._faults)), None)
        self._faults[key] = fault
        return fault
