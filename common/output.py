"""What a command writes may not be taken: the reader of a pipe has gone, or the disk behind a file is full.

``guarded`` stands around every program's ``main`` and is the only place that knows. Below it nobody asks whether a line could be
written: the first that could not ends the program, past every ``except OSError``, and what is still in a buffer goes nowhere.
"""

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TextIO

from common.terminal import say

EXIT_BROKEN_PIPE = 141  # As a shell reports a program that SIGPIPE has ended.
EXIT_NOT_WRITTEN = 1
_GONE = frozenset({errno.EPIPE, errno.ESHUTDOWN, errno.EINVAL if sys.platform == "win32" else errno.EPIPE})


class OutputError(SystemExit):
    """Standard output takes no more. A SystemExit: nothing on the way up takes it for a failure of its own."""


class _Watched(io.RawIOBase):
    """A stream of the system whose refusals end the program, or, of standard error, are nobody's business."""

    def __init__(self, raw: io.RawIOBase, ends: bool) -> None:
        self._raw, self._ends = raw, ends

    def write(self, data: "memoryview | bytes", /) -> int | None:  # type: ignore[override]
        """As the stream below."""
        try:
            return self._raw.write(data)
        except OSError as error:
            _to_nowhere(self._raw.fileno())
            if not self._ends:
                return len(data)
            if error.errno in _GONE:
                raise OutputError(EXIT_BROKEN_PIPE) from error
            said = os.strerror(error.errno or 0)
            say(f"cottage: cannot write the output: {said}", error=True)
            raise OutputError(EXIT_NOT_WRITTEN) from error

    def writable(self) -> bool:
        """It is written to, and nothing else."""
        return True

    def isatty(self) -> bool:
        """As the stream below."""
        return self._raw.isatty()

    def fileno(self) -> int:
        """As the stream below."""
        return self._raw.fileno()


def guarded(main: Callable[[], int]) -> int:
    """Run ``main``; its exit status, or 141 where nobody reads what it writes, or 1 where that cannot be written."""
    _open_what_is_closed()
    with ExitStack() as ends:
        for name in ("stderr", "stdout"):
            _watch(name, ends)
        status = EXIT_NOT_WRITTEN
        try:
            status = main()
            _flush()
        except OutputError as end:
            status = int(str(end.code))
        except SystemExit:
            _flush()  # Of argparse: a help that could not be written was none.
            raise
    return status


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _watch(name: str, ends: ExitStack) -> None:
    """Put ``_Watched`` below a standard stream until the end; one that is not the system's is left alone."""
    stream: TextIO | None = getattr(sys, name)
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # Python's option -u leaves the buffer out.
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.RawIOBase):
        return
    stream.flush()
    below: Any = _Watched(raw, name == "stdout")
    watched = io.TextIOWrapper(
        below if raw is buffer else io.BufferedWriter(below),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    setattr(sys, name, watched)
    ends.callback(setattr, sys, name, stream)
    ends.callback(watched.flush)


def _open_what_is_closed() -> None:
    """Give the numbers 0 to 2 away: the first file that is opened would take one, and get what was meant for a terminal."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _to_nowhere(number)


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
