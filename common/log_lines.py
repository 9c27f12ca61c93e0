"""Lines of a log that nobody else can forge: each begins with its own time, and holds nothing that a terminal acts on."""

import logging

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


def log_to(handler: logging.Handler, form: str, level: int = logging.INFO) -> None:
    """Send everything of ``level`` and above to one handler."""
    handler.setFormatter(Lines(form))
    logging.basicConfig(level=level, handlers=[handler])
