"""A snapshot in words: what is going on, and why or what comes next."""

from dataclasses import dataclass
from enum import Enum

from PySide6.QtCore import QObject

from desktop.gui.model import Phase, Snapshot, Status, Task, plain


class Mood(Enum):
    """What a glance must tell; each has a shape of its own besides its colour."""

    LENDING = "lending"
    WAITING = "waiting"
    OFF = "off"
    TROUBLE = "trouble"


@dataclass(frozen=True)
class Sentence:
    """``headline``: the state, one sentence. ``reason``: why, or what happens next."""

    mood: Mood
    headline: str
    reason: str


class Sentences(QObject):
    """The words; a QObject, so that Qt's own tools find them for translation."""

    def describe(self, snapshot: Snapshot) -> Sentence:
        """What the window says of ``snapshot``."""
        match snapshot.phase:
            case Phase.OFF if snapshot.detail:
                return Sentence(Mood.TROUBLE, self.tr("The agent does not run."), plain(snapshot.detail))
            case Phase.OFF:
                reason = self.tr("No agent runs on this computer: it is all yours.")
                return Sentence(Mood.OFF, self.tr("Lending is off."), reason)
            case Phase.STARTING:
                reason = self.tr(
                    "The agent checks its sandbox and measures this computer. The first time takes about a minute."
                )
                return Sentence(Mood.WAITING, self.tr("Getting ready."), reason)
            case Phase.STOPPING:
                return Sentence(
                    Mood.WAITING, self.tr("Stopping."), self.tr("The agent hands over what it has done and ends.")
                )
            case Phase.TROUBLE:
                return Sentence(Mood.TROUBLE, self.tr("The agent needs your attention."), plain(snapshot.detail))
            case Phase.RUNNING:
                assert snapshot.status is not None
                return self._running(snapshot.status)

    def _running(self, status: Status) -> Sentence:
        reason = plain(status.reason)
        match status.state:
            case "starting" | "connecting":
                fallback = self.tr("Trying to reach {0}.").format(plain(status.coordinator, 100))
                return Sentence(Mood.WAITING, self.tr("Not connected."), reason or fallback)
            case "refused":
                return Sentence(Mood.TROUBLE, self.tr("The coordinator refuses this computer."), reason)
            case "stopping":
                return Sentence(
                    Mood.WAITING, self.tr("Stopping."), self.tr("The agent hands over what it has done and ends.")
                )
            case "away":
                return Sentence(Mood.WAITING, self.tr("Paused."), reason)
            case "online" if status.lending_state == "finishing":
                return Sentence(
                    Mood.LENDING, self.tr("Finishing."), self.tr("What runs is completed; then lending stops.")
                )
            case "online" if status.lending_state == "paused":
                return Sentence(Mood.WAITING, self.tr("Paused."), plain(status.lending))
            case "online":
                return self._online(status)

    def _online(self, status: Status) -> Sentence:
        live = status.live
        if not live:
            return Sentence(
                Mood.WAITING, self.tr("Waiting for a job."), self.tr("Connected. Nobody needs this computer right now.")
            )
        job = plain(live[0].job_name, 60)
        if live[0].state != "running":
            return Sentence(
                Mood.WAITING, self.tr("Preparing “{0}”.").format(job), self.tr("Fetching its files and starting it.")
            )
        if live[0].stage is None:
            reason = self.tr("A spare for this job: it steps in when another computer leaves.")
            return Sentence(Mood.WAITING, self.tr("Standing by for “{0}”.").format(job), reason)
        more = len(live) - 1
        reason = self.tr("Your computer is training a part of this model.")
        if more:
            reason = self.tr(
                "Your computer is training a part of this model. Other tasks that it works on: {0}."
            ).format(more)
        return Sentence(Mood.LENDING, self.tr("Lending to “{0}”.").format(job), reason)

    def place(self, task: Task) -> str:
        """Where in the job this computer stands."""
        if task.stage is None:
            return self.tr("Spare")
        return self.tr("Stage {0}, replica {1}").format(task.stage, task.replica)

    def state_of(self, task: Task) -> str:
        """What the task is doing, with the reason where it has failed."""
        words = self._task_state(task)
        return f"{words}: {plain(task.reason)}" if task.reason else words

    def _task_state(self, task: Task) -> str:
        match task.state:
            case "fetching":
                return self.tr("Fetching its files")
            case "starting":
                return self.tr("Starting")
            case "running":
                return self.tr("Running")
            case "ended":
                return self.tr("Ended")
            case "failed":
                return self.tr("Failed")

    def progress(self, task: Task) -> str:
        """How far the task is, or a dash."""
        parts = []
        if task.round is not None:
            parts.append(self.tr("Round {0}").format(task.round))
        if task.step is not None:
            parts.append(self.tr("step {0}").format(task.step))
        if task.loss is not None:
            parts.append(self.tr("loss {0:.3f}").format(task.loss))
        return " · ".join(parts) or "–"

    def glance(self, mood: Mood) -> str:
        """One or two words of our own, for places that may read markup in a text from elsewhere."""
        match mood:
            case Mood.LENDING:
                return self.tr("lending")
            case Mood.WAITING:
                return self.tr("waiting")
            case Mood.OFF:
                return self.tr("off")
            case Mood.TROUBLE:
                return self.tr("needs your attention")
