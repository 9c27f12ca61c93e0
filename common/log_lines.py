"""Lines of a log that nobody else can forge: each begins with its own time, and holds nothing that a terminal acts on."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

import msgspec

from common import tracing
from common.untrusted_text import untrusted, untrusted_lines


class Lines(logging.Formatter):
    """Formats as ``logging`` does. A message is one line; of a traceback each further line is indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The message, however many lines it had."""
        record.message = untrusted(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """The whole record."""
        return untrusted_lines(super().format(record)).replace("\n", "\n    ")


_SUBJECTS: ContextVar[Mapping[str, str]] = ContextVar("subjects", default=MappingProxyType({}))


@contextlib.contextmanager
def about(**subjects: str) -> Iterator[None]:
    """What is logged within is about these, such as a job or a node: ``JsonLines`` say so in fields of their own."""
    token = _SUBJECTS.set({**_SUBJECTS.get(), **subjects})
    try:
        yield
    finally:
        _SUBJECTS.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, perhaps ``error`` and subjects.

    ``trace``: the number of the trace that it was said in, where traces are sent.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The whole record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"time": time.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name}
        fields |= {"message": untrusted(record.getMessage()), **_SUBJECTS.get()}
        if trace := tracing.trace_here():
            fields["trace"] = trace
        if record.exc_info:
            fields["error"] = untrusted_lines(self.formatException(record.exc_info))
        return msgspec.json.encode(fields).decode()


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether it is not what a stranger sent that is no HTTP, which has its answer: aiohttp tells each with a traceback.

    Whoever looks for open doors in the internet sends such requests by the thousand.
    """
    error = record.exc_info[1] if record.exc_info else None
    return record.name != "aiohttp.server" or type(error).__module__ != "aiohttp.http_exceptions"


def log_to(handler: logging.Handler, form: str | logging.Formatter, level: int = logging.INFO) -> None:
    """Send everything of ``level`` and above to one handler. Requests that are no HTTP are told from ``DEBUG`` on."""
    if level > logging.DEBUG:
        handler.addFilter(_is_worth_a_line)
    handler.setFormatter(Lines(form) if isinstance(form, str) else form)
    logging.basicConfig(level=level, handlers=[handler])
