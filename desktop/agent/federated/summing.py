"""A node's part in the secure sums of a federated job's rounds: its worker's update leaves it under masks alone.

The worker has no key and no line, so it hands its update to the agent, which takes part in the sum (``protocol.secure_sum``):
keys, shares, masks and signatures are made here, and the masked update is stored with the coordinator. A round that was begun,
and so counted, has one sum; each answer is given once, so no two vectors are ever under the same masks.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping

from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import Payload, SmallPayload
from desktop.agent.errors import UnwantedError, WorkerError
from protocol.artifacts import summand_answer
from protocol.federated.sums import (
    BoxesOfAll,
    KeysOfAll,
    SignedByAll,
    SumAnswer,
    SumAsked,
    SumBegins,
    SummandsOfAll,
    SumSaid,
    SumStep,
    VectorStored,
    terms_of,
)
from protocol.identity import NodeKey
from protocol.node import Assign
from protocol.secure_sum import SecureSumError, SumOwner
from protocol.task import TaskReport
from protocol.worker import SumVector

Say = Callable[[TaskReport, bool], Awaitable[None]]
Store = Callable[[Payload, str, str, bool], Awaitable[None]]
Boxes = Mapping[str, bytes]


class OwnersSums:
    """Of one lease: one round's sum at a time."""

    def __init__(self, assign: Assign, key: NodeKey, store: Store, say: Say) -> None:
        """``store``, ``say``: as ``Outside.upload`` and ``Outside.report``."""
        self._assign, self._key, self._store, self._say = assign, key, store, say
        self._round = (-1, -1)
        self._owner: SumOwner | None = None
        self._asked: set[type[SumAsked]] = set()
        self._boxes: asyncio.Future[Boxes] | None = None

    def begins(self, epoch: int, number: int) -> None:
        """A round begins, which was counted; the sum of an earlier one is over."""
        if (epoch, number) <= self._round:
            return
        self._round, self._owner = (epoch, number), None
        self._asked.clear()
        if self._boxes is not None:
            self._boxes.cancel()
        self._boxes = asyncio.get_running_loop().create_future()

    async def step(self, step: SumStep) -> None:
        """Answer what the coordinator asks; what was asked before, or of another round, needs no answer.

        Raises:
            WorkerError: it asks for what no honest coordinator does; nothing more is said in this lease.
        """
        if (step.epoch, step.round) != self._round or type(step.body) in self._asked:
            return
        self._asked.add(type(step.body))
        try:
            answer = self._answer(step.body)
        except SecureSumError as error:
            raise WorkerError(f"the sum of round {step.round + 1} is given up: {error}") from error
        if answer is not None:
            await self._say(SumSaid(*self._round, answer), True)

    def _answer(self, asked: SumAsked) -> SumAnswer | None:
        if isinstance(asked, SumBegins):
            spec = self._assign.spec.federated
            assert spec is not None
            self._owner = SumOwner(terms_of(self._assign.job, spec, *self._round, asked.length), self._key)
            return self._owner.keys()
        if self._owner is None or self._boxes is None:
            raise SecureSumError("it was not begun")
        match asked:
            case KeysOfAll(told=told):
                return self._owner.share(told)
            case BoxesOfAll(boxes=boxes):
                self._boxes.set_result(boxes)
                return None
            case SummandsOfAll(summands=summands):
                return self._owner.sign(summands)
            case SignedByAll(signed=signed):
                return self._owner.show(signed)

    async def vector(self, message: SumVector, update: Payload) -> None:
        """Mask the worker's update once all others' boxes are here, and store it; nothing where its round is over.

        Raises:
            WorkerError: it cannot be masked, or is no update of this job. ArtifactError: it cannot be stored.
        """
        if (message.epoch, message.round) != self._round or self._boxes is None:
            return
        of_round, boxes = self._round, self._boxes
        await asyncio.wait([boxes])
        if boxes.cancelled() or self._owner is None:
            return
        owner = self._owner
        try:
            masked = await asyncio.to_thread(lambda: owner.mask(boxes.result(), update.read()))
        except SecureSumError as error:
            raise WorkerError(f"the update of round {message.round + 1} is not masked: {error}") from error
        digest = await asyncio.to_thread(lambda: hashlib.sha256(masked.values).hexdigest())
        try:
            await self._store(SmallPayload(masked.values), digest, summand_answer(*of_round), True)
        except UnwantedError as error:
            LOG.info("%s", error)
            return
        await self._say(SumSaid(*of_round, VectorStored(self._key.address, digest)), True)
