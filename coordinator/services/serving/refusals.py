"""What a model refuses, as whoever asked is told."""

from coordinator.domain.job import JobState
from coordinator.errors import ConflictError, CottageError, InvalidError, PromptTooLongError, UnavailableError
from protocol.serving import RefusedReport

_FIELDS = {
    "bad-schema": "response_format",
    "bad-text": "input",
    "bad-tools": "tools",
    "no-embeddings": "model",
    "no-template": "messages",
    "no-tools": "tools",
}
"""What a refusal is about, by its code."""


def error_of(report: RefusedReport) -> CottageError:
    """The error that a refusal means."""
    if report.code == "failed":
        return UnavailableError("the model failed at this request: try again, or tell the coordinator's operator")
    if report.code == "too-long":
        return PromptTooLongError(report.detail, "prompt")
    if report.code == "long-text":
        return PromptTooLongError(report.detail, "input")
    return InvalidError(report.detail, _FIELDS.get(report.code, "prompt"))


def closed(job: str, state: JobState | None = None) -> ConflictError:
    """Why a deployment takes no requests, and what to do; ``state`` None: it has just stopped taking any."""
    match state:
        case JobState.CREATED:
            why = "waits for its escrow: fund it first"
        case JobState.PAUSED:
            why = "is paused: resume it first"
        case JobState.SETTLED | JobState.CANCELLED | JobState.FAILED | JobState.VERIFYING:
            why = f"is over ({state}): deploy the model again"
        case _:
            why = "takes no requests any more: it is being paused or stopped"
    return ConflictError(f"deployment {job} {why}", "model")
