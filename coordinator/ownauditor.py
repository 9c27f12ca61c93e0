"""The coordinator's own auditor: ``cottage auditor`` as a child process, so that strangers' work is looked at from the first day.

::

    start --ends, whatever the reason--> wait (doubling, from 1 s to a minute) --> start ...
      '--the coordinator ends--> its standard input is closed: it ends, too

A pipe says that the coordinator is gone in whatever way it went: the system closes it after ``kill -9``, too. The child holds a
lock on its folder, so there are never two of one coordinator; one that finds it held is started again later.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from common.clock import Clock, within
from protocol.identity import NodeKey

FOLDER, KEY = "auditor", "node.key"
NICENESS = 10  # Whatever else this machine does comes first, the coordinator before all.
FIRST_TO_GO = b"700"  # Where memory runs out, the system ends this one and not the coordinator (0).
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
SOUND_S = 60.0  # One that has run for so long was no failed start.
STOP_S = 10.0  # Its worker gets two seconds; then it is ended by force.

_NEEDED: Mapping[str, str] = {"torch": "trainer", "transformers": "trainer", "docker": "agent", "filelock": "agent"}
"""Package -> the extra of Cottage that has it."""

LOG = logging.getLogger(__name__)


def lacks() -> str:
    """Why no auditor can run on this machine, and what to install; empty where one can."""
    missing = [package for package in _NEEDED if find_spec(package) is None]
    if not missing:
        return ""
    extras = ",".join(sorted({_NEEDED[package] for package in missing}))
    verb = "is" if len(missing) == 1 else "are"
    return f"{', '.join(missing)} {verb} not installed beside the coordinator: pip install 'cottage[{extras}]'"


class OwnAuditor:
    """One child process, kept alive. ``run`` it as long as the coordinator serves."""

    def __init__(self, data: Path, clock: Clock) -> None:
        """Make its key in a folder of its own under the coordinator's ``data``, at the first start.

        Raises:
            KeyFileError: the key cannot be used.
        """
        self._folder = data / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._clock = clock
        self.address = NodeKey.load_or_generate(self._folder / KEY).address

    async def run(self, url: str) -> None:
        """Start it, and start it again whenever it has ended; ended with its child when it is cancelled.

        Args:
            url: of the coordinator, as this machine reaches it.
        """
        wait = FIRST_WAIT_S
        while True:
            began = self._clock.now()
            try:
                how = f"has ended with status {await self._live(url)}"
            except OSError as error:  # No memory for a process, no room for its files.
                how = f"cannot be started: {error}"
            wait = FIRST_WAIT_S if self._clock.now() - began >= SOUND_S else wait
            LOG.warning("the coordinator's own auditor %s; it is started again in %g s", how, wait)
            await self._clock.sleep(wait)
            wait = min(LONGEST_WAIT_S, 2 * wait)

    async def _live(self, url: str) -> int:
        words = ["auditor", "--coordinator", url, "--data", str(self._folder), "--bound"]
        words += ["--threads", "1", "--gpu", "-1", "--sandbox", "process"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cottage",
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_step_back,
        )
        LOG.info("the coordinator's own auditor is process %d, node %s", process.pid, self.address)
        try:
            return await process.wait()
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await within(STOP_S, process.wait())
            if process.returncode is None:
                process.kill()
                await process.wait()


def _step_back() -> None:
    """Between fork and exec: yield to everybody, in time and in memory."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # There is none but on Linux.
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, FIRST_TO_GO)
        os.close(descriptor)
