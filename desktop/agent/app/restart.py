"""From one version to the next: the new one must start on this home and answer before the link names it.

The process stays the same one, so that a service manager, or the window that follows it, sees a long start and nothing else.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from common.system_words import reason
from desktop.agent.app import status
from desktop.agent.base.config import Home
from desktop.agent.base.log import LOG
from desktop.agent.errors import AgentError, UpdateError
from desktop.agent.updates.folder import AGENT, InstallationFolder
from desktop.agent.updates.keeper import mark_failed
from desktop.agent.updates.setup import SetupFile

TRIAL = "--trial"
ANSWER_S = 90.0  # Five seconds on a quiet computer.
END_S = 30.0
ASK_EVERY_S = 0.2


def replace_self(folder: InstallationFolder, version: str, home: Home, arguments: Sequence[str]) -> NoReturn:
    """Become ``version``, or this one again where that does not start; never returns. The home must not be locked.

    Args:
        arguments: of this program, which the next one gets too.
    """
    program = sys.executable
    try:
        trouble = why_not(str(folder.of(version) / AGENT), version, home, arguments)
        if not trouble:
            folder.switch(version)
            program = str(folder.link / AGENT)
        else:
            LOG.error("version %s does not start here, so this one goes on: %s", version, trouble)
            mark_failed(home, version)
    except UpdateError as error:
        LOG.error("the update to %s was not made: %s", version, error)
    os.execv(program, [program, *arguments])  # noqa: S606 - a program of ours, without a shell


def install(setup: SetupFile, version: str, home: Home, arguments: Sequence[str], *, stays: bool) -> None:
    """Windows: have ``version`` installed in this one's place, after this process has ended; where that fails, begin anew.

    The version counts as one that does not start here until it does: it is not tried again unasked.
    """
    try:
        mark_failed(home, version)
        setup.start(home, stays=stays)
    except UpdateError as error:
        LOG.error("the update to %s was not made: %s", version, error)
        begin_anew(arguments)


def begin_anew(arguments: Sequence[str]) -> NoReturn:
    """Become what lies in this program's place now; never returns. The home must not be locked."""
    # A Python has to be told again what it runs.
    words = arguments if getattr(sys, "frozen", False) else sys.orig_argv[1:]
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - a program of ours, without a shell


def why_not(program: str, version: str, home: Home, arguments: Sequence[str]) -> str:
    """Start ``program`` on probation; "" where it answers as ``version`` and ends when asked, else what it did instead."""
    asked: list[int] = []  # To end; only noted, so that no moment is left in which the new version could be forgotten.
    previous = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        process = subprocess.Popen([program, *arguments, TRIAL], start_new_session=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        signal.signal(signal.SIGTERM, previous)
        return f"{program}: {reason(error)}"
    try:
        return _judged(process, version, home, asked) or _ended(process, home)
    finally:
        if sys.platform == "win32":
            process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        signal.signal(signal.SIGTERM, previous)
        if asked:
            raise SystemExit(128 + asked[0])


def _judged(process: subprocess.Popen[bytes], version: str, home: Home, asked: Sequence[int]) -> str:
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until and not asked:
        if (code := process.poll()) is not None:
            return f"it ended with exit code {code}"
        try:
            told = asyncio.run(status.ask(_on_trial(home)))
        except AgentError:
            time.sleep(ASK_EVERY_S)
            continue
        return "" if told.update.running == version else f"it says that it is version {told.update.running!r}"
    return f"it has not answered for {ANSWER_S:.0f} s"


def _ended(process: subprocess.Popen[bytes], home: Home) -> str:
    if sys.platform == "win32":  # Which has no signal that a process could answer in its own way.
        with contextlib.suppress(AgentError):
            asyncio.run(status.ask_leave(_on_trial(home)))
    else:
        process.terminate()
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        return f"it does not end within {END_S:.0f} s"
    return f"it ended with exit code {code} when it was asked to" if code else ""


def _on_trial(home: Home) -> Path:
    """Where a version on probation answers."""
    return Home(home.path, trial=True).socket
