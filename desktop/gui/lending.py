"""The switch: what the owner asked for, what the agent says and whether its process lives, as one stream of snapshots.

STARTING --an answer--> RUNNING: the switch is the agent's, which keeps it and answers while lending is off, too
 ^  toggle   '-------------+--- its process ends by itself: OFF with its last words; without any it is started again
OFF <------ STOPPING <--toggle-- TROUBLE <-- any: an answer that cannot be used
"""

import contextlib
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QElapsedTimer, QObject, QTimer, Signal

from desktop.gui.client import AgentClient
from desktop.gui.errors import AnswerError, StartError, StopError
from desktop.gui.model import AgentPhase, Snapshot, Status, read_status
from desktop.gui.process import AgentProcess

LENDING, LEAVE = "/v1/lending", "/v1/leave"
SEEN_INTERVAL_MS = 1000
# Unusable answers in a row, until an agent that answered before counts as troubled: a busy computer is slow.
MISSES = 3
UNSEEN_INTERVAL_MS = 5000  # In the tray nobody watches numbers move.
REVIVALS, REVIVAL_MS = 3, 600_000  # So often in so long an agent that somebody ended is started again.
STOP_PATIENCE_MS = 40_000  # The agent gives a worker 20 s to hand over what it has.


class Lending(QObject):
    """Follows the agent of one home folder, and starts and stops it."""

    changed = Signal(object)
    """A new ``Snapshot``."""
    refused = Signal(str)
    """The agent cannot do what the owner asked; a sentence."""

    def __init__(self, socket: Path, command: Sequence[str], log: Path, parent: QObject | None = None) -> None:
        """Ask on ``socket``; start the agent by ``command``, with its log in ``log``."""
        super().__init__(parent)
        self.snapshot = Snapshot(AgentPhase.OFF)
        self._command = tuple(command)
        self._stopping = self._answered = self._lost = self._wanted = False
        self._looked = False
        self._anew = False
        self._misses = 0
        self._revived: deque[int] = deque(maxlen=REVIVALS)
        self._clock = QElapsedTimer()
        self._clock.start()
        self._process = AgentProcess(log, lambda: self._orders.ask(LEAVE, b"{}"), self)
        self._process.ended.connect(self._ended)
        self._client = AgentClient(socket, self)
        self._client.answered.connect(self._answer)
        self._client.absent.connect(self._absent)
        self._client.broken.connect(self._broken)
        self._orders = AgentClient(socket, self)
        self._orders.answered.connect(lambda *_: self._client.ask())
        self._orders.broken.connect(self._broken)
        self._orders.refused.connect(self.refused)
        self._timer = QTimer(self, interval=SEEN_INTERVAL_MS)
        self._timer.timeout.connect(self._tick)
        self._patience = QTimer(self, singleShot=True, interval=STOP_PATIENCE_MS)
        self._patience.timeout.connect(self._lost_patience)

    def begin(self) -> None:
        """Look for the agent now and from now on, and start it where there is none."""
        self._timer.start()
        self._client.ask()

    def be_seen(self, seen: bool) -> None:
        """Ask often while somebody looks, rarely while nobody does."""
        self._timer.setInterval(SEEN_INTERVAL_MS if seen else UNSEEN_INTERVAL_MS)
        if seen and self._timer.isActive():
            self._client.ask()

    def toggle(self) -> None:
        """Lend or stop, whichever the switch stands against; an agent that cannot be talked to is ended."""
        if self.snapshot.phase is AgentPhase.STOPPING:
            return
        try:
            if self.snapshot.phase is AgentPhase.OFF:
                self._wanted = True
                self._start()
            elif self.snapshot.phase is AgentPhase.STARTING:
                self._wanted = not self._wanted
                self._show(AgentPhase.STARTING)
            elif self.snapshot.phase is AgentPhase.RUNNING:
                self._order({"on": not self.snapshot.is_on})
            else:
                self._stop()
        except StartError as error:
            self._wanted = False
            self._show(AgentPhase.OFF, detail=str(error))
        except StopError as error:
            self._show(AgentPhase.TROUBLE, detail=str(error))

    def restart(self) -> None:
        """End an agent that does not answer, or that is not to be understood, and start another."""
        try:
            if self._process.pid:
                self._anew = True
                self._process.kill()
            else:
                self._open()
        except StopError as error:
            self._anew = False
            self._show(AgentPhase.TROUBLE, detail=str(error))

    def pause(self, seconds: int) -> None:
        """Ask the agent to pause for so long; 0 ends a pause, and what was to be finished goes on."""
        self._order({"pause_s": seconds} if seconds else {"pause_s": 0, "finish": False})

    def lend_now(self, seconds: int) -> None:
        """Ask the agent to lend for so long although somebody is at the computer."""
        self._order({"here_s": seconds})

    def finish(self) -> None:
        """Ask the agent to complete what runs and then to switch off."""
        self._order({"finish": True})

    def leave(self) -> None:
        """The window ends: an agent that was started for it and lends to nobody ends, too."""
        if self._process.is_ours and not self.snapshot.is_on:
            with contextlib.suppress(StopError):
                self._process.ask_to_stop()

    def _order(self, order: dict[str, object]) -> None:
        self._orders.ask(LENDING, json.dumps(order).encode())

    def _start(self) -> None:
        self._show(AgentPhase.STARTING)
        self._process.start(self._command)

    def _stop(self) -> None:
        self._process.ask_to_stop()
        self._stopping, self._lost = True, False
        self._patience.start()
        self._show(AgentPhase.STOPPING, self.snapshot.status)

    def _tick(self) -> None:
        self._process.tend()
        self._client.ask()

    def _answer(self, body: bytes, pid: int) -> None:
        self._looked = True
        if pid > 0:
            self._process.follow(pid)  # Whoever answers is the agent, even where another process was started after it.
            if self._process.pid != pid:
                return  # It answered with its last breath; ``_ended`` has said so.
        try:
            status = read_status(body)
        except AnswerError as error:
            text = self.tr(
                "Its answer cannot be understood ({0}). If Cottage was updated, stop lending and start again."
            )
            self._broken(text.format(error))
            return
        self._answered, self._lost, self._misses = True, False, 0
        if not self._stopping:
            self._patience.stop()
        if self._wanted:
            self._wanted = False
            if not status.on:
                self._order({"on": True})
                return  # Its answer follows at once.
        self._show(AgentPhase.STOPPING if self._stopping else AgentPhase.RUNNING, status)

    def _absent(self) -> None:
        if not self._looked:
            self._looked = True
            if not self._process.pid and self.snapshot.phase is AgentPhase.OFF:
                self._open()
                return
        if not (self._process.is_ours or self._answered):
            self._process.let_go()  # Some other program listened there for a while.
        if not self._process.pid:
            if self.snapshot.phase is not AgentPhase.OFF:
                self._ended()
            else:
                self._show(AgentPhase.OFF, detail=self.snapshot.detail)
        elif self._lost:
            return
        elif self._stopping or self._answered:
            if not self._patience.isActive():
                self._patience.start()
            self._show(AgentPhase.STOPPING)
        else:
            self._show(AgentPhase.STARTING)

    def _open(self) -> None:
        """The first look found nobody: start the agent, which lends or rests as its owner left it."""
        try:
            self._start()
        except StartError as error:
            self._show(AgentPhase.OFF, detail=str(error))

    def _broken(self, text: str) -> None:
        self._misses += 1
        if self.snapshot.phase is AgentPhase.RUNNING and self._misses < MISSES:
            return
        if not self._stopping:
            self._show(AgentPhase.TROUBLE, detail=text)

    def _ended(self) -> None:
        asked, anew = self._stopping, self._anew or self._is_to_revive()
        self._anew = False
        self._stopping = self._answered = self._lost = self._wanted = False
        self._patience.stop()
        if anew:
            self._open()
        else:
            self._show(AgentPhase.OFF, detail="" if asked else self._process.last_words())

    def _is_to_revive(self) -> bool:
        """Somebody ended an agent of this window that had worked; three times in ten minutes are no accident."""
        if self._stopping or not (self._answered and self._process.crashed) or self._process.reason():
            return False
        now = self._clock.elapsed()
        if len(self._revived) == REVIVALS and now - self._revived[0] < REVIVAL_MS:
            return False
        self._revived.append(now)
        return True

    def _lost_patience(self) -> None:
        self._stopping, self._lost = False, True
        text = self.tr("It has been ending for {0} seconds. Flip the switch to ask it once more.")
        self._show(AgentPhase.TROUBLE, detail=text.format(STOP_PATIENCE_MS // 1000))

    def _show(self, phase: AgentPhase, status: Status | None = None, detail: str = "") -> None:
        snapshot = Snapshot(phase, status, detail, self._wanted)
        if snapshot != self.snapshot:
            self.snapshot = snapshot
            self.changed.emit(snapshot)
