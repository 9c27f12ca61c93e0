"""Several elements of one submitter in one container, one after the other: a loop in the shell of their own image.

::

    agent                                       the container's shell
      a mark, and what to run (two lines)  ->   runs it; ends what it has left; empties /tmp and shared memory
                                           <-   what it printed, then the mark, its exit code, and whether anything is left

What an element reads and leaves is laid in and taken out between two runs, as where each has a container of its own. The loop is
in the hands of whoever it runs: an element can forge the end of the next one. Both are the same submitter's, and what counts is
agreed on by several owners (decision 87).
"""

import asyncio
import contextlib
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from desktop.agent.sandbox.base import MAX_LOG_BYTES

_FOLDERS = ("/tmp", "/dev/shm", "/dev/mqueue")  # noqa: S108 - the container's own
_PLACES = " ".join(f"{folder}/{names}" for folder in _FOLDERS for names in ("*", ".[!.]*", "..?*"))
# A variable that the image has by one of these names would reach elements with the shell's value, so no image has such names.
# ``kill`` is the shell's own: it spares itself and the first process. ``rm`` and ``chmod`` are the image's, if it has them.
# Segments and queues of System V are lines below a heading, and nothing that each image has can remove them.
LOOP: Final = rf"""
while IFS= read -r _cottage_mark && IFS= read -r _cottage_work; do
  (eval "$_cottage_work") </dev/null 2>&1
  _cottage_code=$?
  kill -s KILL -- -1 2>/dev/null
  for _cottage_try in rm chmod look; do
    _cottage_left=
    for _cottage_one in {_PLACES}; do
      if [ -e "$_cottage_one" ] || [ -h "$_cottage_one" ]; then _cottage_left=' left'; break; fi
    done
    if [ -z "$_cottage_left" ]; then break; fi
    if [ $_cottage_try = chmod ]; then chmod -R u+rwX {_PLACES}; fi
    if [ $_cottage_try != look ]; then rm -rf {_PLACES}; fi
  done 2>/dev/null
  for _cottage_one in /proc/sysvipc/*; do
    if {{ IFS= read -r _cottage_try && IFS= read -r _cottage_try; }} <"$_cottage_one"; then _cottage_left=' left'; fi
  done 2>/dev/null
  printf '\n%s %s%s\n' "$_cottage_mark" "$_cottage_code" "$_cottage_left"
done
"""
SHELL: Final = ("sh", "-c", LOOP)
MAX_WORK: Final = 16 << 10  # A shell reads its line byte by byte.
PIECE: Final = 64 << 10
_MARK_BYTES: Final = 16
_ENDED = re.compile(rb"(\d{1,3})( left)?\n")


@dataclass(frozen=True)
class BatchedEnd:
    """An element's exit code, and the last that it printed. ``code`` None: its whole container has ended.

    ``left``: something of it is still there, so the next element needs another container.
    """

    code: int | None
    said: str = ""
    left: bool = False


def work_of(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What a shell runs for an element; None: it cannot be said in a line, so the element has a container of its own."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    line = f"export {' '.join(variables)}; exec {shlex.join(command)}"
    if "\n" in line or "\r" in line or len(line.encode()) > MAX_WORK:
        return None
    return line


class BatchShell:
    """The agent's end of one such loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the streams of a container that runs ``SHELL``."""
        self._reader, self._writer = reader, writer
        self._mark = b""
        self._heard = bytearray()
        self._reading: asyncio.Future[BatchedEnd] | None = None
        self.begun = 0

    async def begin(self, work: str) -> None:
        """Have it run an element; what has gone is told by ``ended``."""
        self._mark = secrets.token_hex(_MARK_BYTES).encode()
        self._heard.clear()
        self.begun += 1
        with contextlib.suppress(ConnectionError):
            self._writer.write(self._mark + b"\n" + work.encode() + b"\n")
            await self._writer.drain()
        self._reading = asyncio.ensure_future(self._read())

    async def ended(self, patience: float) -> BatchedEnd | None:
        """How the element ended; None where it has not within ``patience`` seconds."""
        assert self._reading is not None
        await asyncio.wait((self._reading,), timeout=patience)
        return self._reading.result() if self._reading.done() else None

    def close(self) -> None:
        """Let it end."""
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()

    async def _read(self) -> BatchedEnd:
        sign = b"\n" + self._mark + b" "
        while True:
            try:
                piece = await self._reader.read(PIECE)
            except (ConnectionError, ValueError):
                return BatchedEnd(None)
            if not piece:
                return BatchedEnd(None)
            self._heard += piece
            at = self._heard.rfind(sign)
            if at >= 0 and (code := _ENDED.fullmatch(self._heard, at + len(sign))):
                said = bytes(self._heard[:at]).decode(errors="replace")
                return BatchedEnd(int(code[1]), said, left=code[2] is not None)
            del self._heard[:-MAX_LOG_BYTES]
