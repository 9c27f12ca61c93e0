"""What a model refuses, as whoever asked is told."""

from coordinator.errors import CottageError, InvalidError, PromptTooLongError, UnavailableError
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
