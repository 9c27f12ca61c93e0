"""The first run: what this computer can do, where its earnings go, and the switch. Three clicks."""

from collections.abc import Mapping

from PySide6.QtCore import QSettings, Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QHBoxLayout,
    QLineEdit,
    QRadioButton,
    QSizePolicy,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.identity import BackupSheet, RestoreSheet
from desktop.gui.model import Check, SelfTest, Snapshot, plain, read
from desktop.gui.sentences import money
from desktop.gui.widgets import Card, CheckMark, Switch, Text, button

DONE = "welcome/done"
LOOK_MS = 400  # How often the steps of the self-test are asked for.
NAMES = ("gpu", "sandbox", "speed", "disk", "memory", "coordinator", "line", "earnings")


class Welcome(QWidget):
    """Three steps; ``done`` once the switch was flipped, or the owner leaves it for later."""

    done = Signal()
    toggle_asked = Signal()

    def __init__(self, calls: Calls, settings: QSettings) -> None:
        super().__init__()
        self._calls, self._settings = calls, settings
        self._has_agent = self._has_test = False
        self._coordinator = ""
        self.setMinimumSize(1, 1)
        self.steps = QStackedWidget()
        for step in (self._checks_step(), self._wallet_step(), self._switch_step()):
            self.steps.addWidget(step)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.steps)
        column.addStretch()
        self._look = QTimer(self, interval=LOOK_MS)
        self._look.timeout.connect(lambda: self._calls.get("selftest", self._take_test))

    @property
    def is_done(self) -> bool:
        """This owner has been here before."""
        return bool(self._settings.value(DONE, False, bool))

    # --- the steps ------------------------------------------------------------------------------------------------------

    def _checks_step(self) -> QWidget:
        card = self._step(1, self.tr("Welcome to Cottage"), self.tr(
            "Lend this computer while you do not need it, and be paid for the work that was checked. First, what it can do:"
        ))  # fmt: skip
        self.lines = {name: _Line() for name in NAMES}
        for name, line in self.lines.items():
            line.show_check(Check(name), self._name(name), "")
            card.body.addWidget(line)
        self.address = QLineEdit()
        self.address.setPlaceholderText("https://…")
        self.address.setAccessibleName(self.tr("The address of the network to lend to"))
        self.address_label = Text()
        self.address_label.say(self.tr("The address of the network to lend to"))
        self.address.editingFinished.connect(self._set_coordinator)
        self.said = Text(dim=True)
        self.again = button(self.tr("Check &again"), self.begin_test)
        self.first = button(self.tr("&Continue"), self._to_wallet, "main")
        for part in (self.address_label, self.address, self.said, self._row(self.again, self.first)):
            card.body.addWidget(part)
        for part in (self.address_label, self.address):
            part.hide()  # Until the agent says that it has none.
        card.body.addStretch()
        self._judge(SelfTest(()))
        return card

    def _wallet_step(self) -> QWidget:
        card = self._step(2, self.tr("Where shall the earnings go?"), "")
        self.own = QRadioButton(self.tr("Into a &wallet on this computer. It is made already."))
        self.other = QRadioButton(self.tr("To an &address of mine:"))
        self.own.setChecked(True)
        group = QButtonGroup(self)
        group.addButton(self.own)
        group.addButton(self.other)
        self.payout = QLineEdit()
        self.payout.setPlaceholderText(self.tr("a Solana wallet address"))
        self.payout.setAccessibleName(self.tr("The address that is paid"))
        self.payout.setMaxLength(44)
        self.payout.textEdited.connect(lambda _: self.other.setChecked(True))
        never = Text(dim=True)
        never.say(self.tr("Cottage never asks for the secret words of another wallet. Whoever does wants to rob you."))
        self.wallet_said = Text()
        save = button(
            self.tr("Save a &backup of the wallet now…"),
            self._backup,
            "link",
        )
        self.second = button(self.tr("&Continue"), self._to_switch, "main")
        for part in (self.own, self.other, self.payout, never):
            card.body.addWidget(part)
        back = button(self.tr("I &have one from before: bring it back…"), self._bring_back, "link")
        for link in (save, back):
            card.body.addWidget(link, 0, Qt.AlignmentFlag.AlignLeft)
        card.body.addWidget(self.wallet_said)
        card.body.addWidget(self._row(button(self.tr("&Back"), lambda: self._go(0)), self.second))
        card.body.addStretch()
        return card

    def _switch_step(self) -> QWidget:
        card = self._step(3, self.tr("Ready."), self.tr(
            "It lends once nobody has used the computer for five minutes, on mains only, and steps aside for games. All of that"
            " can be changed in the settings."
        ))  # fmt: skip
        row = QHBoxLayout()
        self.switch = Switch(self.tr("Lend this computer"))
        self.switch.clicked.connect(self._flip)
        label = Text(size=4, bold=True)
        label.say(self.tr("Start lending"))
        row.setSpacing(16)
        row.addWidget(self.switch)
        row.addWidget(label, 1)
        card.body.addLayout(row)
        later = button(self.tr("&Later"), self._finish, "link")
        card.body.addWidget(self._row(button(self.tr("&Back"), lambda: self._go(1)), later))
        card.body.addStretch()
        return card

    def _step(self, number: int, title: str, text: str) -> Card:
        card, step, head = Card(), Text(dim=True), Text(size=6, bold=True)
        step.say(self.tr("Step {0} of 3").format(number))
        head.say(title)
        card.body.addWidget(step)
        card.body.addWidget(head)
        if text:
            below = Text(dim=True)
            below.say(text)
            card.body.addWidget(below)
        return card

    def _row(self, *buttons: QWidget) -> QWidget:
        holder, row = QWidget(), QHBoxLayout()
        row.setContentsMargins(0, 8, 0, 0)
        row.addStretch()
        for one in buttons:
            row.addWidget(one)
        holder.setLayout(row)
        return holder

    # --- what happens ---------------------------------------------------------------------------------------------------

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """The agent answers: test what there is, once."""
        status = snapshot.status
        self._has_agent = status is not None
        if status is None or self.is_done:
            return
        self._coordinator = status.coordinator
        for part in (self.address_label, self.address):
            part.setVisible(not status.coordinator or (self.address.hasFocus() and self.address.isModified()))
        if not self._has_test and self.isVisible():
            self.begin_test()

    def begin_test(self) -> None:
        """Test anew."""
        self._has_test = True
        self._look.start()
        self._calls.post("selftest", {}, self._take_test, self.said.say)

    def _take_test(self, body: bytes) -> None:
        try:
            test = read(body, SelfTest)
        except AnswerError as error:
            self.said.say(str(error))
            return
        for check in test.checks:
            if (line := self.lines.get(check.name)) is not None:
                over = check.state not in ("waiting", "running")
                line.show_check(check, self._name(check.name), self._words(check) if over else plain(check.text))
        self._judge(test)
        if not test.running:
            self._look.stop()

    def _judge(self, test: SelfTest) -> None:
        over = bool(test.checks) and not test.running
        self.again.setEnabled(over)
        self.first.setEnabled(over)
        if not over:
            self.said.say(self.tr("Checking; measuring takes about a minute the first time."))
        elif test.can_lend:
            self.said.say(self.tr("This computer can lend."))
        else:
            self.said.say(self.tr("You can go on: it lends as soon as what is marked has been mended."))
        if over and self.steps.currentIndex() == 0 and not self.address.isVisible() and self.isVisible():
            self.first.setFocus()

    def _set_coordinator(self) -> None:
        url = self.address.text().strip()
        if url and url != self._coordinator:
            self._coordinator = url
            self._calls.post("settings", {"coordinator": url}, lambda _: self.begin_test(), self._bad_coordinator)

    def _bad_coordinator(self, text: str) -> None:
        self._coordinator = ""
        self.said.say(text)

    def _to_wallet(self) -> None:
        if not self._coordinator:
            self.said.say(self.tr("The address of the network is missing."))
            self.address.setFocus()
            return
        self._go(1)

    def _to_switch(self) -> None:
        address = self.payout.text().strip() if self.other.isChecked() else ""
        if self.other.isChecked() and not address:
            self.wallet_said.say(self.tr("The address is missing."))
            self.payout.setFocus()
            return
        self.second.setEnabled(False)
        self._calls.post("settings", {"payout": address}, lambda _: self._paid_to(), self._bad_payout)

    def _backup(self) -> None:
        BackupSheet(self._calls, self, self._settings).open()

    def _bring_back(self) -> None:
        RestoreSheet(self._calls, self).open()

    def _paid_to(self) -> None:
        self.second.setEnabled(True)
        self.wallet_said.say("")
        self._go(2)

    def _bad_payout(self, text: str) -> None:
        self.second.setEnabled(True)
        self.wallet_said.say(text)

    def _go(self, step: int) -> None:
        self.steps.setCurrentIndex(step)
        (self.first, self.second, self.switch)[step].setFocus()

    def _flip(self) -> None:
        self.toggle_asked.emit()
        self._finish()

    def _finish(self) -> None:
        self._look.stop()
        self._settings.setValue(DONE, True)
        self.done.emit()

    # --- words ----------------------------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        match name:
            case "gpu":
                return self.tr("Device")
            case "sandbox":
                return self.tr("Docker")
            case "speed":
                return self.tr("Speed")
            case "disk":
                return self.tr("Disk")
            case "memory":
                return self.tr("Memory")
            case "coordinator":
                return self.tr("Network")
            case "line":
                return self.tr("Line")
            case _:
                return self.tr("Earnings")

    def _words(self, check: Check) -> str:
        """What was found, in the owner's language; details that only the agent knows in its own."""
        detail, text = {name: plain(value, 60) for name, value in check.detail.items()}, plain(check.text)
        match check.name, check.code:
            case "gpu", "found":
                return detail.get("name", text)
            case "gpu", code:
                return self._no_gpu(code, text)
            case "sandbox", "found":
                return self.tr("Keeps jobs away from your files and your network")
            case "sandbox", "no engine":
                return self.tr("Docker does not run here: install it, start it, then check again. {0}").format(text)
            case "sandbox", "no image":
                return self.tr("The image that jobs run in is missing. {0}").format(text)
            case "speed", "measured":
                return self.tr("{0} GFLOP/s, measured").format(detail.get("gigaflops", ""))
            case "disk", _:
                return self.tr("{0} GB free, {1} GB for jobs").format(detail.get("free_gb"), detail.get("wanted_gb"))
            case "memory", _:
                return self.tr("{0} of {1} MB for jobs").format(detail.get("lent_mb"), detail.get("memory_mb"))
            case "coordinator", "answers":
                return self.tr("{0} computers are connected, {1} of them work").format(
                    detail.get("online"), detail.get("busy")
                )
            case "line", "tested":
                up, down = detail.get("up_mbit", "?"), detail.get("down_mbit", "?")
                return self.tr("Up {0}, down {1} Mbit/s; router: {2}").format(up, down, detail.get("nat"))
            case "earnings", "some" | "below power":
                return self._range(detail)
            case _:
                return text

    def _no_gpu(self, code: str, text: str) -> str:
        if code == "gone":
            return self.tr("The GPU that you chose is not in this computer; the processor earns far less.")
        return self.tr("No NVIDIA GPU can be used; the processor earns far less. {0}").format(text)

    def _range(self, detail: Mapping[str, str]) -> str:
        try:
            low, high, power = (money(int(detail[name])) for name in ("low", "high", "power"))
        except (KeyError, ValueError):
            return "–"
        text = self.tr("Between {0} and {1} an hour, after {2} for electricity")
        return text.format(low, high, power)


class _Line(QWidget):
    """One step of the self-test."""

    def __init__(self) -> None:
        super().__init__()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(10)
        self.mark, self.name, self.text = CheckMark(), Text(bold=True), Text(dim=True)
        self.name.setFixedWidth(90)
        self.text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        top = Qt.AlignmentFlag.AlignTop
        row.addWidget(self.mark, 0, top)
        row.addWidget(self.name, 0, top)
        row.addWidget(self.text, 1, top)

    def show_check(self, check: Check, name: str, text: str) -> None:
        """Its state, as a sign, and what was found."""
        self.mark.set_state(check.state)
        self.name.say(name)
        self.text.say(text, f"{name}, {check.state}")
