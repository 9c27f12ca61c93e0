"""The pages of disputes: all of them, and one with each question that narrowed it down."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from coordinator.services.jobs import ports
from coordinator.web.auth import public
from coordinator.web.ledger import audit_id, job_of
from coordinator.web.pages.ledger import FILTERS, PER_PAGE, number_in
from coordinator.web.pages.render import Renderer, server_of
from protocol.audit import (
    MAX_RECORD_BYTES,
    Ask,
    AskInputs,
    AskOperation,
    AskState,
    AskTrace,
    BisectAnswer,
    InputsAnswer,
    NoAnswer,
    OperationAnswer,
    OperationRecord,
    StateAnswer,
    TraceAnswer,
)
from protocol.codec import MessageError, decode
from protocol.disputes import DisputeEvidence, Side


@dataclass
class DisputeQuestion:
    """A question and what both sides said to it, as the page shows it. ``said``: words, and the digest that is compared."""

    asked: str
    said: dict[Side, tuple[str, str]] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """Whether they agree."""
        if len(self.said) < 2:
            return "unanswered"
        prover, challenger = self.said["prover"], self.said["challenger"]
        return "equal" if prover[1] == challenger[1] else "differs"


class DisputePages:
    """Handlers of the disputes' pages."""

    def __init__(self, books: ports.LedgerPort, renderer: Renderer) -> None:
        self._books = books
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        app.router.add_get("/ledger/disputes", self.disputes)
        app.router.add_get("/ledger/disputes/{audit}", self.dispute)

    @public
    async def disputes(self, request: web.Request) -> web.Response:
        """Disputes of all jobs, in pages."""
        offset, job = number_in(request, "offset") or 0, job_of(request)
        found = list(await self._books.disputes(job, offset, PER_PAGE + 1))
        return self._renderer.page(
            request,
            "disputes.html",
            disputes=found[:PER_PAGE],
            more=offset + PER_PAGE if len(found) > PER_PAGE else None,
            first=offset == 0,
            job=job,
            filters=FILTERS,
        )

    @public
    async def dispute(self, request: web.Request) -> web.Response:
        """One dispute, down to the operation."""
        found = await self._books.dispute(audit_id(request))
        return self._renderer.page(
            request,
            "dispute.html",
            view=found.view,
            evidence=found.evidence,
            questions=[] if found.evidence is None else questions_of(found.evidence),
            operation=None if found.evidence is None else operation_of(found.evidence),
            endings=ENDINGS,
            server=server_of(request),
        )


ENDINGS: Mapping[str, str] = {
    "operation": "the coordinator ran the operation that was left",
    "silence": "a side did not answer in time",
    "malformed": "an answer does not hang together",
    "contradiction": "a side said something else than it had committed to",
    "agreement": "both came to the same",
    "unresolved": "nobody could tell",
    "": "it is being played",
}


def questions_of(evidence: DisputeEvidence) -> list[DisputeQuestion]:
    """What both sides were asked one after another, with what each said."""
    found: list[DisputeQuestion] = []
    for one in evidence.said:
        asked = _asked(one.answer.ask)
        if not found or found[-1].asked != asked or one.side in found[-1].said:
            found.append(DisputeQuestion(asked))
        found[-1].said[one.side] = _said(one.answer)
    return found


def operation_of(evidence: DisputeEvidence) -> OperationRecord | None:
    """The prover's record of the operation that was left, where the dispute came so far."""
    for one in reversed(evidence.said):
        if one.side == "prover" and isinstance(one.answer.answer, OperationAnswer):
            record = _record(one.answer.answer)
            if record is not None and record.index == evidence.index:
                return record
    return None


def _asked(ask: Ask) -> str:
    match ask:
        case AskState(step):
            return f"state after step {step}"
        case AskTrace(step):
            return f"all operations of step {step}"
        case AskOperation(step, index):
            return f"operation {index} of step {step}"
        case AskInputs(step, index):
            return f"inputs of operation {index} of step {step}"


def _said(given: BisectAnswer) -> tuple[str, str]:
    match given.answer:
        case StateAnswer() as state:
            return "", state.chain
        case TraceAnswer() as trace:
            return f"{trace.operations:,} operations", trace.root
        case OperationAnswer() as operation:
            record = _record(operation)
            name = "malformed" if record is None else record.name
            return name, hashlib.sha256(operation.record).hexdigest() if record is None else record.before
        case InputsAnswer() as inputs:
            return "", inputs.artifact
        case NoAnswer(reason):
            return f"no answer: {reason}", ""


def _record(answer: OperationAnswer) -> OperationRecord | None:
    try:
        record: OperationRecord = decode(answer.record, OperationRecord, MAX_RECORD_BYTES)
    except MessageError:
        return None
    return record
