"""A snapshot in words: what is going on, and why or what comes next."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from PySide6.QtCore import QDateTime, QLocale, QObject

from common.token_worth import TokenWorth
from desktop.answers import LendingReason, Task
from desktop.gui.engine.words import EngineWords
from desktop.gui.model import AgentPhase, Snapshot, Status, plain
from ledger.money import show


class Mood(Enum):
    """What a glance must tell; each has a shape of its own besides its colour."""

    LENDING = "lending"
    WAITING = "waiting"
    PAUSED = "paused"
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
            case AgentPhase.OFF if snapshot.detail:
                return Sentence(Mood.TROUBLE, self.tr("The agent does not run."), plain(snapshot.detail))
            case AgentPhase.OFF:
                return self._off()
            case AgentPhase.STARTING if not snapshot.wanted:
                return Sentence(Mood.WAITING, self.tr("One moment."), self.tr("Cottage's agent is starting."))
            case AgentPhase.STARTING:
                return self._getting_ready()
            case AgentPhase.STOPPING:
                return self._stopping()
            case AgentPhase.TROUBLE:
                return Sentence(Mood.TROUBLE, self.tr("The agent needs your attention."), plain(snapshot.detail))
            case AgentPhase.RUNNING:
                assert snapshot.status is not None
                return self._running(snapshot.status)

    def _off(self) -> Sentence:
        return Sentence(Mood.OFF, self.tr("Lending is off."), self.tr("This computer is all yours."))

    def _running(self, status: Status) -> Sentence:
        reason = plain(status.reason)
        if status.trouble:
            headline = self.tr("Jobs cannot run here yet.") if status.on else self.tr("Lending has stopped.")
            return Sentence(
                Mood.TROUBLE, headline, self.trouble(status.trouble_cause, status.trouble_detail, status.trouble)
            )
        if not status.on:
            return self._off() if status.state == "off" else self._stopping()
        match status.state:
            case "off" | "starting":
                return self._getting_ready()
            case "connecting":
                fallback = self.tr("Trying to reach {0}.").format(plain(status.coordinator, 100))
                return Sentence(Mood.WAITING, self.tr("Not connected."), reason or fallback)
            case "refused":
                return Sentence(
                    Mood.TROUBLE, self.tr("The coordinator refuses this computer."), sentence(status.reason)
                )
            case "stopping":
                return self._stopping()
            case "away":
                return self._paused(status)
            case "online" if status.lending_state == "finishing":
                then = self.tr("What runs is completed; then lending stops.")
                if status.renews:
                    then = self.tr("What runs is completed; then the agent begins anew and lends again.")
                return Sentence(Mood.LENDING, self.tr("Finishing."), then)
            case "online" if status.lending_state == "paused":
                return self._paused(status)
            case "online":
                return self._online(status)

    def trouble(self, cause: str, told: Mapping[str, str], text: str) -> str:
        """Why it cannot lend; ``cause`` and ``told`` as the agent says, ``text`` in its own words."""
        detail = {name: plain(value, 300) for name, value in told.items()}
        again = self.tr(
            "No other job is taken until you switch lending on again. Another time within {0} days costs {1} % of this "
            "computer's stake."
        ).format(detail.get("days", ""), detail.get("percent", ""))
        match cause:
            case "unanswered":
                what = self.tr(
                    "This computer did not show a piece of its work when an audit asked for it: that round is not paid."
                )
                return f"{what} {again}"
            case "tampered":
                what = self.tr("Somebody reached into a job on this computer: {0}.").format(detail.get("what", ""))
                return f"{what} {again}"
            case "no engine":
                why = EngineWords(self).purpose()
                then = self.tr("Lending goes on by itself once it answers.")
                return f"{self.engine(detail)} {why} {then}"
            case "no image":
                return self.tr("The image that jobs run in is not here yet. Lending goes on by itself once it is.")
            case "failures":
                return self.tr("{0} jobs in a row failed before their first step; the last one: {1}.").format(
                    detail.get("jobs", ""), detail.get("what", "")
                )
            case _:
                return sentence(text)

    def engine(self, detail: Mapping[str, str]) -> str:
        """What of the Docker engine is missing; ``detail``: as the agent says."""
        why = detail.get("why", "")
        if why == "elsewhere":
            return self.tr("The engine that DOCKER_HOST names does not answer: {0}.").format(detail.get("address", ""))
        missing = EngineWords(self).missing(why)
        if platform.system() == "Linux":
            return missing
        return f"{missing} {self.tr('Install Docker Desktop and start it.')}"

    def _getting_ready(self) -> Sentence:
        reason = self.tr(
            "The agent checks its sandbox and measures this computer. The first time takes about a minute."
        )
        return Sentence(Mood.WAITING, self.tr("Getting ready."), reason)

    def _stopping(self) -> Sentence:
        reason = self.tr("The agent hands over what it has done; what was verified is paid.")
        return Sentence(Mood.WAITING, self.tr("Stopping."), reason)

    def _paused(self, status: Status) -> Sentence:
        if not status.reasons:
            return Sentence(Mood.PAUSED, self.tr("Paused."), plain(status.lending or status.reason))
        first = status.reasons[0]
        headline = self.tr("Paused.")
        if first.until is not None:
            headline = self.tr("Paused until {0}.").format(moment(first.until))
        kept = "" if status.lending_state == "away" else self.tr("The job waits a moment, nothing is lost.")
        return Sentence(Mood.PAUSED, headline, f"{self._cause(first)} {kept}".strip())

    def _cause(self, reason: LendingReason) -> str:
        """Why, and what ends it."""
        detail = plain(reason.detail, 60)
        match reason.cause:
            case "owner":
                return self.tr("You asked for a pause. It goes on by itself.")
            case "game":
                return self.tr("{0} is running. It goes on a minute after that ends.").format(detail)
            case "in use":
                return self.tr("Somebody is at the computer. It goes on when nobody is.")
            case "idle unknown":
                return self.tr(
                    "This system does not tell whether somebody is here. Settings, When: lend while I work, too."
                )
            case "battery":
                return self.tr("The computer runs on battery. It goes on when mains are back.")
            case "hours":
                return self.tr("These are not your lending hours.")
            case "temperature":
                return self.tr("The GPU is at {0} °C. It goes on when it has cooled down.").format(detail)
            case "vram":
                return self.tr("Your own programs use {0} GB of the GPU's memory.").format(detail)
            case "metered":
                return self.tr("The network costs by the byte.")
            case "cap":
                return self.tr("This month's data is used up. Settings, How much: the monthly cap.")
            case "disk":
                return self.tr("Only {0} GB are free on the disk.").format(detail)
            case _:
                return detail

    def _online(self, status: Status) -> Sentence:
        live = status.live
        if not live:
            return Sentence(
                Mood.WAITING, self.tr("Waiting for a job."), self.tr("Connected. Nobody needs this computer right now.")
            )
        job = plain(live[0].job_name, 60)
        if live[0].shown is not None:
            headline = self.tr("Showing its work on “{0}” once more.").format(job)
            return Sentence(Mood.LENDING, headline, self._task_state(live[0]) + ".")
        if live[0].loads:
            reason = self.tr("Your computer reads this model into its memory, and answers with it then.")
            return Sentence(Mood.WAITING, self.tr("Loading “{0}”.").format(job), reason)
        if live[0].state != "running":
            reason = self.tr("Fetching its files and starting it.")
            if live[0].fetched is not None:
                reason = self.tr("Fetching its files: {0} are here.").format(f"{100 * live[0].fetched:.0f} %")
            return Sentence(Mood.WAITING, self.tr("Preparing “{0}”.").format(job), reason)
        if live[0].stage is None:
            reason = self.tr("A spare for this job: it steps in when another computer leaves.")
            return Sentence(Mood.WAITING, self.tr("Standing by for “{0}”.").format(job), reason)
        more = len(live) - 1
        if live[0].serves:
            return self._answering(live[0], job, more)
        reason = self.tr("Your computer is training a part of this model.")
        if more:
            reason = self.tr(
                "Your computer is training a part of this model. Other tasks that it works on: {0}."
            ).format(more)
        return Sentence(Mood.LENDING, self.tr("Lending to “{0}”.").format(job), reason)

    def _answering(self, task: Task, job: str, more: int) -> Sentence:
        """A model that is asked; ``more``: other tasks."""
        if task.stages > 1 and task.stage is not None:
            reason = self.tr("Your computer holds part {0} of {1} of this model, and answers together with others.")
            reason = reason.format(task.stage + 1, task.stages)
            if task.waits:
                headline = self.tr("Waiting for the others of “{0}”.").format(job)
                reason = self.tr(
                    "Your computer is ready and waits for the other computers that hold this model with it."
                    " Nothing is earned meanwhile."
                )
                return Sentence(Mood.WAITING, headline, reason)
            if more:
                reason += " " + self.tr("Other tasks that it works on: {0}.").format(more)
            return Sentence(Mood.LENDING, self.tr("Answering for “{0}”.").format(job), reason)
        reason = self.tr("Your computer holds this model and answers with it.")
        if more:
            reason = self.tr(
                "Your computer holds this model and answers with it. Other tasks that it works on: {0}."
            ).format(more)
        return Sentence(Mood.LENDING, self.tr("Answering for “{0}”.").format(job), reason)

    def place(self, task: Task) -> str:
        """What of the job is this computer's."""
        if task.serves and task.stages > 1 and task.stage is not None:
            return self.tr("Part {0} of {1} of the model").format(task.stage + 1, task.stages)
        if task.serves:
            return self.tr("The whole model")
        if task.stage is None:
            return self.tr("Spare")
        return self.tr("Part {0} of the model").format(task.stage + 1)

    def state_of(self, task: Task) -> str:
        """What the task is doing, with the reason where it has failed."""
        words = self._task_state(task)
        return f"{words}: {plain(task.reason)}" if task.reason else words

    def _task_state(self, task: Task) -> str:
        match task.state:
            case "fetching" | "starting" | "running" if task.shown is not None:
                return self.tr("Back after a crash: shows the work of round {0}, so that it is paid").format(
                    task.shown + 1
                )
            case "fetching" if task.fetched is not None:
                return self.tr("Fetching its files, {0}").format(f"{100 * task.fetched:.0f} %")
            case "fetching":
                return self.tr("Fetching its files")
            case "starting" | "running" if task.loads:
                return self.tr("Loading the model")
            case "starting":
                return self.tr("Starting")
            case "running" if task.waits:
                return self.tr("Ready, waits for the others")
            case "running" if task.serves:
                return self.tr("Answering")
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
        if task.share is not None and task.is_live:
            parts.append(self.tr("{0} of the job done").format(f"{100 * task.share:.0f} %"))
        return " · ".join(parts) or "–"

    def detail(self, task: Task) -> str:
        """The exact figures, for whoever knows what they mean."""
        parts = []
        if task.stage is not None:
            first = 1 if task.serves else 0  # Places of a job that trains are counted from 0.
            place = self.tr("Stage {0}, replica {1}")
            parts.append(place.format(task.stage + first, (task.replica or 0) + first))
        if task.step is not None:
            parts.append(self.tr("step {0}").format(task.step))
        if task.loss is not None:
            parts.append(self.tr("loss {0:.3f}").format(task.loss))
        return " · ".join(parts)

    def glance(self, mood: Mood) -> str:
        """One or two words of our own, for places that may read markup in a text from elsewhere."""
        match mood:
            case Mood.LENDING:
                return self.tr("lending")
            case Mood.WAITING:
                return self.tr("waiting")
            case Mood.PAUSED:
                return self.tr("paused")
            case Mood.OFF:
                return self.tr("off")
            case Mood.TROUBLE:
                return self.tr("needs your attention")


def sentence(text: str) -> str:
    """The agent's words, which may be a part of a sentence, as a whole one."""
    told = plain(text)
    return told[:1].upper() + told[1:] + ("" if told.endswith((".", "!", "?", "…", ":")) else ".") if told else ""


def moment(unix_s: float) -> str:
    """A time of day, with the day where it is another, as people here write it."""
    then, now = QDateTime.fromSecsSinceEpoch(int(unix_s)), QDateTime.currentDateTime()
    clock = QLocale().toString(then.time(), QLocale.FormatType.ShortFormat)
    if then.date() == now.date():
        return clock
    if abs(now.date().daysTo(then.date())) < 7:
        return f"{QLocale().toString(then.date(), 'ddd')} {clock}"
    return f"{QLocale().toString(then.date(), QLocale.FormatType.ShortFormat)} {clock}"


def exact_money(units: int) -> str:
    """Millionths of the token to the last one, as people here write an amount."""
    return show(units).replace(".", QLocale().decimalPoint())


def in_currency(units: int, worth: TokenWorth) -> str:
    """Millionths of the token in the owner's currency, as ``0.75 EUR``."""
    return f"{QLocale().toString(worth.in_currency(units) / 1e6, 'f', 2)}\u00a0{worth.currency}"


def money(units: int) -> str:
    """Millionths of the token as people here write an amount: two decimals, more where it is small."""
    value = abs(units) / 1e6
    places = 2 if value >= 0.1 or not units else 4 if value >= 0.001 else 6
    return QLocale().toString(units / 1e6, "f", places)
