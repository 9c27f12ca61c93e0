"""What a worker hands over beside its messages: bounded before a byte of it is taken, and in memory only where it is short."""

import asyncio
import json
from collections.abc import Callable, Sequence
from weakref import WeakSet

from desktop.agent.base.budget import ByteBudget
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import BORDER, PIECE, Payload, SmallPayload
from desktop.agent.errors import WorkerProtocolError
from desktop.agent.jobs.spool import Spool, Spooled
from protocol.models.config_values import ModelConfigError
from protocol.models.handed_bytes import HandedBytes
from protocol.models.model import ModelShape, inspect_config
from protocol.task import AuditReport, BisectAnswer, RoundApplied, StepOpened
from protocol.worker import RecordPart, SumVector, WorkerReport, read_exactly

# Reports and records that wait for the disk or the coordinator; the worker's next one waits in the socket.
MAX_HANDED = 64


class HandedOver:
    """Takes what one worker hands over: at most as much of the disk at a time as its owner lends."""

    def __init__(self, spool: Spool, bounds: Callable[[], HandedBytes | None]) -> None:
        """Large payloads go to ``spool``; ``bounds``: what one of this job can come to, where that is known."""
        self._spool = spool
        self._bounds = bounds
        self._budget = ByteBudget(spool.room, MAX_HANDED)
        self._files = WeakSet[Spooled]()

    async def take(
        self, reader: asyncio.StreamReader, message: WorkerReport | RecordPart | SumVector, length: int
    ) -> tuple[Payload, ...] | None:
        """The payload of a message whose frame goes on with it: one part, or a state and its moments.

        It counts until ``give``. None: it is a record for which the disk has no room, and was passed over.

        Raises:
            WorkerProtocolError: no worker of this job may hand that over.
            EOFError: the socket closed.
            OSError: the disk has no room for it.
        """
        if length > BORDER:
            self._check(message, length)
        split = message.split if isinstance(message, WorkerReport) and isinstance(message.body, RoundApplied) else 0
        sizes = (split, length - split) if 0 < split < length else (length,)
        await self._budget.take(length)
        if length <= BORDER:
            return tuple([SmallPayload(await read_exactly(reader, size)) for size in sizes])
        taken = await self._spooled(reader, sizes, passes=isinstance(message, RecordPart))
        if taken is None:
            self.give(length)
        return taken

    def give(self, length: int) -> None:
        """Who took a payload of so many bytes has done with it."""
        self._budget.give(length)

    def watch(self, payload: Payload) -> Payload:
        """Something that the worker is to be handed: its file goes with the rest."""
        if isinstance(payload, Spooled):
            self._files.add(payload)
        return payload

    def close(self) -> None:
        """The worker has gone: delete what nobody has kept, whoever still holds it."""
        for file in list(self._files):
            file.end()

    def _check(self, message: WorkerReport | RecordPart | SumVector, length: int) -> None:
        """Refuse what this job has no use for, or what the owner lends no room for where the task cannot go on without it."""
        bounds = self._bounds()
        match message:
            case WorkerReport(body=RoundApplied()):
                kind, most = "a state", None if bounds is None else bounds.state
            case RecordPart(kind="state"):
                kind, most = "a state", None if bounds is None else bounds.state
            case RecordPart():
                kind, most = "a record", None if bounds is None else bounds.other
            case SumVector():
                kind, most = "an update", None if bounds is None else bounds.state
            case WorkerReport(body=StepOpened() | AuditReport() | BisectAnswer()):
                kind, most = "an artifact", None if bounds is None else bounds.other
            case _:
                raise WorkerProtocolError(f"a {type(message.body).__name__} carries no artifact: {length:,} bytes came")
        if kind != "a record" and length > self._spool.room:
            raise WorkerProtocolError(
                f"the worker hands over {length:,} bytes: the owner lends {self._spool.room:,} of the disk"
            )
        if most is not None and length > most:
            raise WorkerProtocolError(
                f"the worker hands over {kind} of {length:,} bytes: this job's has {most:,} at most"
            )

    async def _spooled(
        self, reader: asyncio.StreamReader, sizes: Sequence[int], *, passes: bool
    ) -> tuple[Spooled, ...] | None:
        """Files of these sizes; ``passes``: None where the disk has no room, once all has been read."""
        left = sum(sizes)
        taken: list[Spooled] = []
        try:
            for size in sizes:
                coming = await asyncio.to_thread(self._spool.begin, size)
                try:
                    for begin in range(0, size, PIECE):
                        data = await read_exactly(reader, min(PIECE, size - begin))
                        left -= len(data)
                        await asyncio.to_thread(coming.write, data)
                    taken.append(coming.finish())
                except BaseException:
                    coming.abandon()
                    raise
                self.watch(taken[-1])
        except OSError as error:
            if not passes:
                raise
            LOG.warning("a record is not kept on the disk: %s", error)
            for begin in range(0, left, PIECE):
                await read_exactly(reader, min(PIECE, left - begin))
            return None
        return tuple(taken)


def shape_in(config: bytes) -> ModelShape | None:
    """The shape of a job's model, by its ``config.json``; None where that has none."""
    try:
        return inspect_config(json.loads(config))
    except (ValueError, TypeError, AttributeError, ModelConfigError, RecursionError):
        return None
