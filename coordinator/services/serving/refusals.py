"""What a model refuses, as whoever asked is told."""

from coordinator.domain.job import JobState
from coordinator.errors import (
    ConflictError,
    CottageError,
    InvalidError,
    NoTemplateError,
    NotFoundError,
    PromptTooLongError,
    UnableError,
)
from protocol.asking import fault_of
from protocol.serving import AskCommand, GenerateCommand, RefusedReport

_FIELDS = {
    "bad-message": "messages",
    "bad-schema": "response_format",
    "bad-text": "input",
    "bad-tools": "tools",
    "no-embeddings": "model",
    "no-tools": "tools",
    "too-many": "max_tokens",
}
"""What a refusal is about, by its code."""


def error_of(report: RefusedReport) -> CottageError:
    """The error that a refusal means."""
    if report.code == "failed":
        return UnableError("the model failed at this request: change it, try again, or tell the coordinator's operator")
    if report.code == "too-long":
        return PromptTooLongError(report.detail, "prompt")
    if report.code == "long-text":
        return PromptTooLongError(report.detail, "input")
    if report.code == "no-template":
        return NoTemplateError(report.detail, "messages")
    return InvalidError(report.detail, _FIELDS.get(report.code, "prompt"))


def check_asked(command: AskCommand, context: int, template: str) -> None:
    """Refuse what no model could answer before one is loaded, or a node waited for; as ``protocol.asking.fault_of``.

    Raises:
        InvalidError: why.
    """
    code, detail = fault_of(command, context, template) if isinstance(command, GenerateCommand) else ("", "")
    if code:
        raise error_of(RefusedReport(command.id, code, detail))


def closed(job: str, state: JobState | None = None) -> ConflictError | NotFoundError:
    """Why a deployment takes no requests, and what to do; ``state`` None: it has just stopped taking any.

    One that is over has no model any more. Any other may take requests later, once its owner has done something.
    """
    match state:
        case JobState.CREATED:
            why = "waits for its escrow: fund it first"
        case JobState.PAUSED:
            why = "is paused: resume it first"
        case JobState.SETTLED | JobState.CANCELLED | JobState.FAILED | JobState.VERIFYING:
            return NotFoundError(f"deployment {job} is over ({state}): deploy the model again", "model")
        case _:
            why = "takes no requests any more: it is being paused or stopped"
    return ConflictError(f"deployment {job} {why}", "model")
