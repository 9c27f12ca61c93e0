"""The first page: the switch, why it does what it does, the job, what was earned, the device and its gauges."""

from PySide6.QtCore import QLocale, Qt, Signal
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from desktop.answers import GpuMeter, Meters, UpdateView
from desktop.gui.charts import Gauge, ProgressLine, Reading
from desktop.gui.engine.mend import MendRow
from desktop.gui.looks.first_payment import FirstPaymentCard
from desktop.gui.looks.picture import LentPicture
from desktop.gui.model import AgentPhase, Snapshot, Status, plain
from desktop.gui.pages.cards import CardsCard
from desktop.gui.pages.money import EarningsCard
from desktop.gui.pause_menu import PauseMenu
from desktop.gui.sentences import Mood, Sentences
from desktop.gui.widgets import Card, FlowBox, MoodMark, Rows, Switch, Text, button

UNKNOWN = "–"
ROOMY = 500  # Pixels, from which on a button fits beside the switch and its sentence.
LINE_MBIT = 100.0  # A full gauge of the connection where its owner sets no limit.
COLD = 20.0  # Degrees at which a gauge of warmth is empty; it is full at its limit and a quarter.


class HomePage(QWidget):
    """Shows snapshots."""

    toggle_asked = Signal()
    update_asked = Signal()
    restart_asked = Signal()
    mend_asked = Signal(str, str)

    def __init__(self) -> None:
        super().__init__()
        self._words = Sentences(self)
        self._status: Status | None = None
        self.setMinimumSize(1, 1)  # Or a scroll area takes wrapped texts for as tall as they are when narrow.
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(12)
        self.first_payment, self.earnings, self.cards = FirstPaymentCard(), EarningsCard(), CardsCard()
        for card in (
            self._update_card(),
            self.first_payment,
            self._switch_card(),
            self.cards,
            self.earnings,
            self._meters_card(),
            self._computer_card(),
        ):
            column.addWidget(card)
        column.addStretch()

    def _switch_card(self) -> Card:
        card, row, texts = Card(), QHBoxLayout(), QVBoxLayout()
        self.switch = Switch(self.tr("Lend this computer"))
        self.switch.clicked.connect(lambda _: self.toggle_asked.emit())
        self.mark, self.headline, self.reason = MoodMark(), Text(size=5, bold=True), Text(dim=True)
        self.pauses = PauseMenu(self)
        self.pause = QPushButton(self.tr("&Pause"))
        self.pause.setMenu(self.pauses)
        self.pause.setAccessibleName(self.tr("Pause lending, or finish and stop"))
        row.setSpacing(16)
        texts.setSpacing(4)
        texts.addWidget(self.headline)
        texts.addWidget(self.reason)
        self.anew = button(self.tr("End it and start it &again"), self.restart_asked.emit, "link")
        self.anew.hide()
        texts.addWidget(self.anew, 0, Qt.AlignmentFlag.AlignLeft)
        self.mend = MendRow()
        self.mend.asked.connect(self.mend_asked)
        texts.addWidget(self.mend)
        row.addWidget(self.switch)
        row.addLayout(texts, 1)
        row.addWidget(self.mark, 0, Qt.AlignmentFlag.AlignTop)
        card.body.addLayout(row)
        self.progress, self.task = ProgressLine(self.tr("How far the job is")), Text(dim=True)
        card.body.addWidget(self.progress)
        card.body.addWidget(self.task)
        self._beside, self._below = row, card.body
        return card

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        """The sentence keeps its room: in a narrow window one can pause below it."""
        super().resizeEvent(event)
        if self.width() < ROOMY:
            self._below.addWidget(self.pause, 0, Qt.AlignmentFlag.AlignLeft)
        else:
            self._beside.insertWidget(2, self.pause)

    def _update_card(self) -> Card:
        self.update_card, row = Card(), QHBoxLayout()
        self.update_text = Text()
        self.restart = button(self.tr("&Restart to update"), self.update_asked.emit)
        row.addWidget(self.update_text, 1)
        row.addWidget(self.restart)
        self.update_card.body.addLayout(row)
        self.update_card.setVisible(False)
        return self.update_card

    def _meters_card(self) -> Card:
        self.meters, head, texts = Card(), QHBoxLayout(), QVBoxLayout()
        self.picture = LentPicture(self.tr("Picture of a graphics card"), self.tr("Picture of a processor"))
        self.device, self.lent = Text(size=2, bold=True), Text(dim=True)
        texts.setSpacing(2)
        texts.addStretch()
        texts.addWidget(self.device)
        texts.addWidget(self.lent)
        texts.addStretch()
        head.setSpacing(16)
        head.addWidget(self.picture)
        head.addLayout(texts, 1)
        self.gauges = {
            "load": Gauge(self.tr("Load")),
            "memory": Gauge(self.tr("Memory lent")),
            "heat": Gauge(self.tr("Temperature")),
            "power": Gauge(self.tr("Power")),
            "line": Gauge(self.tr("Internet")),
        }
        self.meters.body.addLayout(head)
        self.meters.body.addWidget(FlowBox(list(self.gauges.values()), 0))
        return self.meters

    def _computer_card(self) -> Card:
        card = Card(self.tr("This computer"))
        self.computer = Rows()
        for key, caption in (
            ("name", self.tr("Name")),
            ("address", self.tr("Address")),
            ("payout", self.tr("Paid into")),
            ("coordinator", self.tr("Works for")),
        ):
            self.computer.add(key, caption)
        self.copy = QPushButton(self.tr("&Copy address"))
        self.copy.setAccessibleName(self.tr("Copy this computer's address"))
        self.copy.clicked.connect(self._copy_address)
        row = QHBoxLayout()
        row.addLayout(self.computer, 1)
        row.addWidget(self.copy, 0, Qt.AlignmentFlag.AlignBottom)
        card.body.addLayout(row)
        return card

    # --- what is shown --------------------------------------------------------------------------------------------------

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show all of ``snapshot``."""
        sentence = self._words.describe(snapshot)
        self.mark.set_mood(sentence.mood)
        self._announce(sentence.headline)
        self.headline.say(sentence.headline)
        self.reason.say(sentence.reason)
        self.switch.setChecked(snapshot.is_on)
        self.switch.setAccessibleDescription(f"{sentence.headline} {sentence.reason}")
        self.anew.setVisible(snapshot.phase is AgentPhase.TROUBLE)
        status = snapshot.status
        self.mend.offer(*("", "") if status is None else (status.trouble_cause, status.trouble_detail.get("why", "")))
        self.pauses.show_snapshot(snapshot)
        self.pause.setVisible(self.pauses.isEnabled())
        self._status = snapshot.status or self._status
        self._show_task(snapshot.status)
        self._show_meters(snapshot.status, sentence.mood is Mood.LENDING)
        self.earnings.show_status(self._status)
        self.cards.show_cards(() if self._status is None else self._status.cards, snapshot.is_on)
        self._show_known(self._status)
        if snapshot.status is not None:
            self._show_update(snapshot.status.update)

    def _show_update(self, update: UpdateView) -> None:
        """A card only where its owner has something to do."""
        version = plain(update.version, 40)
        texts = {
            "ready": self.tr("Version {0} is ready. What runs is handed over first."),
            "apt": self.tr("Version {0} is there. The system's updates install it: apt-get install cottage"),
            "by hand": self.tr("Version {0} is there. Install it as you installed this one."),
            "installed": self.tr(
                "Version {0} is installed. It begins once no job runs here, or now: what runs is handed over."
            ),
        }
        self.update_card.setVisible(update.stage in texts)
        self.update_text.say(texts.get(update.stage, "").format(version))
        self.restart.setVisible(update.stage in ("ready", "installed"))

    def say(self, text: str) -> None:
        """Why what was asked for cannot be done, until the next change."""
        self.reason.say(text)

    def _announce(self, headline: str) -> None:
        """Have a screen reader say a new state at once, wherever its user is."""
        if QAccessible.isActive() and headline != self.headline.text():
            QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(self.headline, headline))

    def _show_task(self, status: Status | None) -> None:
        tasks = (status.live or status.tasks[-1:]) if status else ()
        self.task.setVisible(bool(tasks))
        share = tasks[0].share if tasks and tasks[0].is_live else None
        self.progress.setVisible(share is not None)
        self.progress.show_share(share or 0.0)
        if not tasks or status is None:
            return
        task, words = tasks[0], self._words
        parts = [words.place(task), words.state_of(task), words.progress(task)]
        if task.is_live and status.meters is not None:
            parts.append(
                self.tr("{0} MB/s").format(QLocale().toString((status.meters.up + status.meters.down) / 1e6, "f", 1))
            )
        self.task.say(" · ".join(part for part in parts if part != UNKNOWN), self.tr("Job"))
        self.task.setToolTip(words.detail(task))
        self.task.setAccessibleDescription(words.detail(task))

    def _show_meters(self, status: Status | None, works: bool) -> None:
        meters = status.meters if status is not None else None
        self.meters.setVisible(meters is not None)
        if meters is None or status is None:
            return
        profile = status.profile
        said = [self.tr("{0} GB of memory for jobs").format(_gb(profile.memory_mb / 1024))]
        gpu = next((gpu for gpu in meters.gpus if gpu.uuid == status.gpu), None) if status.gpu else None
        lent = {card.gpu for card in status.cards} | {status.gpu}
        if idle := [plain(other.name, 60) for other in meters.gpus if gpu is not None and other.uuid not in lent]:
            said.append(self.tr("not lent: {0}").format(", ".join(idle)))
        self.device.say(profile.device)
        self.lent.say(" · ".join(said))
        self.picture.show_device(gpu is not None or profile.kind == "cuda", works)
        for name in ("heat", "power"):
            self.gauges[name].setVisible(gpu is not None)
        rate = (meters.up + meters.down) * 8 / 1e6
        text = QLocale().toString(rate, "f", 1 if rate < 10 else 0)
        self.gauges["line"].show_reading(Reading(rate / max(LINE_MBIT, rate), text, self.tr("Mbit/s")))
        if gpu is not None:
            self._show_gpu(gpu, status)
        else:
            self._show_processor(meters, status)

    def _show_gpu(self, gpu: GpuMeter, status: Status) -> None:
        load = gpu.percent
        self.gauges["load"].show_reading(Reading((load or 0) / 100, UNKNOWN if load is None else f"{load} %"))
        used, most = (gpu.used_mb or 0) / 1024, gpu.memory_mb / 1024
        lent = status.profile.memory_mb / 1024
        of = self.tr("of {0} GB").format(_gb(lent))
        self.gauges["memory"].show_reading(
            Reading(used / most if most else 0, _gb(used), of, lent / most if most else None)
        )
        limit, full = status.max_celsius, status.max_celsius * 1.25
        if gpu.celsius is not None and limit:
            share, mark = (gpu.celsius - COLD) / (full - COLD), (limit - COLD) / (full - COLD)
            self.gauges["heat"].show_reading(
                Reading(share, f"{gpu.celsius} °C", self.tr("limit {0} °C").format(limit), mark)
            )
        cap = status.watts or gpu.power_cap
        if gpu.watts is not None and cap:
            said = self.tr("cap {0} W").format(f"{cap:.0f}")
            self.gauges["power"].show_reading(Reading(gpu.watts / (cap * 1.15), f"{gpu.watts:.0f} W", said, 1 / 1.15))

    def _show_processor(self, meters: Meters, status: Status) -> None:
        load = meters.processor
        self.gauges["load"].show_reading(Reading((load or 0) / 100, UNKNOWN if load is None else f"{load:.0f} %"))
        held, lent = (meters.jobs_mb or 0) / 1024, (status.memory_mb or 1) / 1024
        of = self.tr("of {0} GB").format(_gb(lent))
        self.gauges["memory"].show_reading(Reading(held / lent / 1.05, _gb(held), of, 1 / 1.05))

    def _show_known(self, status: Status | None) -> None:
        """Name and address stay where the agent has ended: they are still true."""
        self.copy.setEnabled(status is not None)
        if status is None:
            self.computer.set_values(**dict.fromkeys(("name", "address", "payout", "coordinator"), UNKNOWN))
            return
        self.computer.set_values(
            name=status.name or UNKNOWN,
            address=status.node,
            payout=self.tr("its own address") if status.payout == status.node else status.payout,
            coordinator=status.coordinator or UNKNOWN,
        )

    def _copy_address(self) -> None:
        if self._status is not None:
            QGuiApplication.clipboard().setText(self._status.node)


def _gb(value: float) -> str:
    return QLocale().toString(value, "f", 1 if value < 100 else 0)
