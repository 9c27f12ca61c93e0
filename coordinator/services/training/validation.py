"""What replicas of several owners say of the held-out loss becomes one value, and what follows for who said something else."""

import msgspec

from coordinator.client.text import agreement as in_words
from coordinator.client.text import told_apart
from coordinator.domain.audits import quorum
from coordinator.domain.audits.quorum import QuorumOutcome
from coordinator.domain.rounds.round import Round, results
from coordinator.services.audits import credit
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import listed
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.records import MetricRecord, NodeRecord
from protocol.audit import loss_tolerance
from protocol.rest.api import Agreement
from protocol.task import PreferenceScore


class HeldOut:
    """Weighs the results of the round in flight, on an open desk."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def weigh(self, work: UnitOfWork) -> None:
        """Once all have reported who still can, or the round is over without them: report the loss, and whose word it is.

        A round that is void is done again, and its loss with it.
        """
        current = None if work.run is None else work.run.round
        if current is None or current.weighed or not current.measured:
            return
        if not current.heard and current.phase != "complete":
            return
        outcome = quorum.judge(results(current), loss_tolerance(work.job.spec.training.precision))
        whose = Agreement(outcome.same, outcome.near, outcome.of)
        known = {"validation": outcome.loss, "agreement": whose, "preference": outcome.preference}
        work.change_run(round=msgspec.structs.replace(current, weighed=True, **known))
        when = f"before round {current.number + 1}" if current.steps else "after the last round"
        if outcome.loss is None:
            work.count("heldout_undecided_total")
            said = ", ".join(f"{current.measured[replica].loss:.4f}" for replica in sorted(current.measured))
            work.note("differs", f"the loss on held-out text {when} is not known: computers came to {said}")
        else:
            self._report(work, current, outcome.loss, whose, outcome.preference)
            score = told_apart(outcome.preference)
            beside = f" ({score})" if score else ""
            work.note(
                "validation", f"the loss on held-out text is {outcome.loss:.4f}{beside} {when}, {in_words(whose)}"
            )
        for replica in outcome.differ:
            await self._distrust(work, current, replica, outcome)

    def _report(
        self, work: UnitOfWork, current: Round, loss: float, whose: Agreement, preference: PreferenceScore | None
    ) -> None:
        job = work.job
        first = job.first_validation_loss if job.first_validation_loss is not None else loss
        work.change(validation_loss=loss, first_validation_loss=first, agreement=whose, preference=preference)
        work.measure(
            MetricRecord(job.id, current.number, current.first_step, job.tokens_done, "validation", loss, work.now)
        )

    async def _distrust(self, work: UnitOfWork, current: Round, replica: int, outcome: QuorumOutcome) -> None:
        """Look at a replica's nodes as at newcomers; a vote proves nothing, so it costs neither pay, nor a place, nor a stake.

        It is a fault only where one owner has all of the replica: else somebody has perhaps been given wrong activations.
        """
        work.count("heldout_differs_total")
        seats = [seat for seat in current.seats if seat.replica == replica]
        alone = len({seat.owner or seat.node for seat in seats}) == 1
        await work.hold_shared()
        for seat in seats:
            record = await work.tx.get(NodeRecord, seat.node)
            await work.tx.update(msgspec.structs.replace(record, faults=record.faults + alone))
            await credit.lose(work, seat.node, everywhere=False)
        said, loss = current.measured[replica].loss, outcome.loss
        found = "the same, from something else" if said == loss else f"{said:.9g} instead of {loss:.9g}"
        text = f"{listed([seat.node for seat in seats])}: the loss on held-out text came out as {found}"
        work.note(
            "differs", f"{text}; most of their kind contradict that, which proves nothing, and only raises their rate"
        )
