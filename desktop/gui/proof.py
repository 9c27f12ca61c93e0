"""Checks a coordinator's word against the ledger: runs ``cottage ledger check`` as a process and says in words what came out."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QObject, QProcess, QTimer, Signal

from common.untrusted_text import View
from desktop.gui.errors import AnswerError
from desktop.gui.model import plain, read

PATIENCE_S = 180  # A job of some hundred rounds takes one; the ledger's endpoint is asked for each of them.
MAX_BYTES = 8 << 20
EXIT_UNTRUE, EXIT_UNREACHABLE, EXIT_UNCHECKED = 1, 3, 4
RESTORE = "restore"
MAX_NAMED = 4  # Of what was lost; the command names all of it.
_COMMAND = ("cottage", "ledger", "check")


class ProofVerdict(View, frozen=True):
    """One check, as the command tells it; ``verdict``: pass, fail or note."""

    check: str
    subject: str
    verdict: str
    detail: str


class ProofCheck(QObject):
    """One check at a time. ``said`` follows each ``begin``, with the job that it is about and a sentence."""

    said = Signal(str, str)

    def __init__(self, program: Sequence[str] | None = None, parent: QObject | None = None) -> None:
        """``program``: what stands for ``cottage ledger check``; None: as this program was started."""
        super().__init__(parent)
        self._program = tuple(program or proof_program())
        self._job = ""
        self._out = bytearray()
        self._process = QProcess(self)
        self._process.readyReadStandardOutput.connect(self._read)
        self._process.finished.connect(self._finished)
        self._process.errorOccurred.connect(self._broken)
        self._late = QTimer(self, singleShot=True, interval=PATIENCE_S * 1000)
        self._late.timeout.connect(self._too_late)
        if (app := QCoreApplication.instance()) is not None:
            app.aboutToQuit.connect(self.stop)

    @property
    def is_running(self) -> bool:
        """A check is under way."""
        return self._process.state() is not QProcess.ProcessState.NotRunning

    def begin(self, job: str, command: str) -> None:
        """Check ``job`` by the agent's ``command``, of which only the words behind ``cottage ledger check`` are used."""
        words = _words(command)
        if self.is_running or not words:
            return
        self._job = job
        self._out.clear()
        self._late.start()
        self._process.start(self._program[0], [*self._program[1:], *words, "--json"])

    def stop(self) -> None:
        """End it without a word."""
        self._job = ""
        self._late.stop()
        if self.is_running:
            self._process.kill()
            self._process.waitForFinished(2000)

    def _read(self) -> None:
        self._out += self._process.readAllStandardOutput().data()
        if len(self._out) > MAX_BYTES:
            self._process.kill()

    def _broken(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            self._tell(self.tr("The check cannot be started: {0}.").format(plain(self._process.errorString(), 200)))

    def _too_late(self) -> None:
        job, self._job = self._job, ""
        self._process.kill()
        self.said.emit(job, self.tr("The check took longer than {0} minutes and was ended.").format(PATIENCE_S // 60))

    def _finished(self, code: int, status: QProcess.ExitStatus) -> None:
        self._read()
        errors = bytes(self._process.readAllStandardError().data()).decode("utf-8", "replace").strip()
        if status is QProcess.ExitStatus.CrashExit:
            self._tell(self.tr("The check ended without a word."))
        elif code in (0, EXIT_UNTRUE, EXIT_UNCHECKED):
            self._tell(self._found(bytes(self._out), code))
        else:
            last = plain(errors.splitlines()[-1] if errors else "", 300)
            self._tell(self.tr("It cannot be checked now: {0}").format(last))

    def _found(self, output: bytes, code: int) -> str:
        try:
            verdicts = read(output, list[ProofVerdict])
        except AnswerError:
            return self.tr("What the check says cannot be understood: is it of another version?")
        false = [one for one in verdicts if one.verdict == "fail"]
        held, notes = (sum(one.verdict == verdict for one in verdicts) for verdict in ("pass", "note"))
        if false:
            what = f"{plain(false[0].check, 60)}, {plain(false[0].subject, 60)}: {plain(false[0].detail, 200)}"
            return self.tr("✕ Not true: {0}. The ledger shows something else than the coordinator says.").format(what)
        if code == EXIT_UNTRUE or not held:
            return self.tr("What the check says cannot be understood: is it of another version?")
        missing = [one for one in verdicts if (one.check, one.verdict) == (RESTORE, "note")]
        if missing or code == EXIT_UNCHECKED:
            what = "; ".join(f"{plain(one.subject, 60)}: {plain(one.detail, 200)}" for one in missing[:MAX_NAMED])
            text = self.tr("{0} checks hold. Not everything could be checked, since the coordinator was restored.")
            return text.format(held) + f" {what}".rstrip()
        text = self.tr("✓ {0} checks hold: the ledger shows what the coordinator says of this job.").format(held)
        if notes:
            text += " " + self.tr("{0} more cannot be seen on the ledger alone; the command names them.").format(notes)
        return text

    def _tell(self, text: str) -> None:
        self._late.stop()
        job, self._job = self._job, ""
        if job:
            self.said.emit(job, text)


def proof_program() -> tuple[str, ...]:
    """``cottage ledger check``: by the agent's executable of a bundle, or as a module of this Python."""
    if getattr(sys, "frozen", False):
        program = Path(sys.executable)
        return (str(program.with_name("cottage-agent" + program.suffix)), *_COMMAND[1:])
    return (sys.executable, "-m", *_COMMAND)


def _words(command: str) -> list[str]:
    """The words behind ``cottage ledger check``; none where it is another command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words[3:] if tuple(words[:3]) == _COMMAND else []
