"""Answers of nodes are drawn again by a process beside the coordinator, one after the other."""

import logging
from typing import Protocol

from coordinator.domain.job import Job
from coordinator.domain.serving import ServedFiles
from coordinator.errors import CottageError, StoreAwayError
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.services.serving.answers import DrawnAnswer
from coordinator.services.serving.deployments import Deployments
from coordinator.services.serving.homes import Homes
from protocol.job.job import ServeSpec
from protocol.serving import MODEL_ARCHIVE, AnswerCheck, CheckedReport, adapters_of

CHECK_S = 300.0  # For loading the model and one pass.

LOG = logging.getLogger(__name__)


class AnswerDrawer(Protocol):
    """Runs a model somewhere else: the coordinator never imports torch."""

    async def check(self, held: ServedFiles, command: AnswerCheck, seconds: float) -> CheckedReport:
        """Draw an answer again, with the model held so; raises CottageError."""


class AnswerChecks:
    """Takes what was drawn, and follows up what came of it."""

    def __init__(
        self, context: Context, desk: JobDesk, homes: Homes, deployments: Deployments, checker: AnswerDrawer | None
    ) -> None:
        """``checker``: None where this machine cannot run models; then nothing is found out."""
        self._context, self._desk, self._homes, self._deployments = context, desk, homes, deployments
        self._checker = checker

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.check_next()

    async def check_next(self) -> None:
        """Check the answer that waits longest, as soon as one does."""
        drawn = await self._homes.with_sketches(await self._homes.drawn.get())
        try:
            if (report := await self._checked(drawn)) is not None:
                async with self._desk.open(drawn.job) as work:
                    await self._deployments.checked(work, drawn, report)
        except StoreAwayError:
            self._homes.drawn.put_nowait(drawn)
            raise
        self._homes.checked(drawn)
        async with self._desk.open(drawn.job) as work:
            await self._deployments.advance(work)

    async def _checked(self, drawn: DrawnAnswer) -> CheckedReport | None:
        """None: nobody could say. That is this machine's fault, and nobody's pay waits for it."""
        if self._checker is None:
            return None
        try:
            async with self._context.store.transaction() as tx:
                job = await tx.get(Job, drawn.job)
            weights = (job.spec.serve or ServeSpec()).weights
            held = ServedFiles(job.files[MODEL_ARCHIVE], weights, adapters_of(job.files))
            report = await self._checker.check(held, drawn.check, CHECK_S)
        except StoreAwayError:
            raise
        except (CottageError, KeyError) as error:
            LOG.warning("an answer of node %s in job %s is not checked: %s", drawn.seats[0].node, drawn.job, error)
            self._context.metrics.count("answers_unchecked_total")
            return None
        self._context.metrics.count("answers_checked_total")
        return report
