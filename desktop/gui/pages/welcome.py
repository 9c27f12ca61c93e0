"""The first run: what this computer can do, and the switch, which installs what is missing. Two clicks."""

from collections.abc import Callable

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

from common import invitations
from desktop.answers import SelfTest, SelfTestStep
from desktop.gui.charts import ProgressLine
from desktop.gui.checkwords import CheckWords
from desktop.gui.client import Calls
from desktop.gui.engine.mend import MendRow
from desktop.gui.errors import AnswerError
from desktop.gui.fields import MAX_LINE
from desktop.gui.model import AgentPhase, SettingsView, Snapshot, plain, read
from desktop.gui.pages.identity import BackupSheet, RestoreSheet
from desktop.gui.pages.invitation import NetworkField
from desktop.gui.pages.power_price import PowerPriceRow
from desktop.gui.widgets import Card, CheckMark, Switch, Text, button

DONE = "welcome/done"
INDENT = 30  # Beside the sign of a line.
NAME_WIDTH = 90
LOOK_MS = 400  # How often the steps of the self-test are asked for.
CHECKS, WALLET, SWITCH = range(3)
NAMES = ("gpu", "sandbox", "speed", "disk", "memory", "coordinator", "line", "earnings")


class WelcomePage(QWidget):
    """Two steps, and the wallet for who wants another; ``done`` once the switch was flipped, or is left for later."""

    done = Signal()
    toggle_asked = Signal()
    restart_asked = Signal()
    mend_asked = Signal(str, str)
    """What of the sandbox is missing: a code of the self-test, and why."""
    mend_agreed = Signal(str, str)
    """The same, to be brought at once: the switch was flipped under the plan."""
    lacks = Signal(str)
    """What of the sandbox a self-test has found missing; a code."""

    def __init__(self, calls: Calls, settings: QSettings, plan: Callable[[str, str], str]) -> None:
        """``plan``: what is done about a missing part, in words; empty: nothing from here."""
        super().__init__()
        self._plan, self._lacking = plan, ("", "")
        self._calls, self._settings, self._words = calls, settings, CheckWords(self)
        self._has_agent = self._has_test = self._anew = self._unreachable = False
        self._choosing = self._has_networks = False
        self._coordinator = ""
        self._test = SelfTest(())
        self.setMinimumSize(1, 1)
        self.steps = QStackedWidget()
        for step in (self._checks_step(), self._wallet_step(), self._switch_step()):
            self.steps.addWidget(step)
        self._judge(self._test)
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
        card = self._step(
            1,
            self.tr("Welcome to Cottage"),
            self.tr(
                "Lend this computer while you do not need it, and be paid for the work that was checked. First, what it can do:"
            ),
        )
        self.lines, self.mend = {name: _Line() for name in NAMES}, MendRow(INDENT)
        self.mend.asked.connect(self.mend_asked)
        self.progress = ProgressLine(self.tr("How far the check is"), earns=False)
        policy = self.progress.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # Nothing moves when it is over.
        self.progress.setSizePolicy(policy)
        card.body.addWidget(self.progress)
        for name, line in self.lines.items():
            line.show_check(SelfTestStep(name), self._words.name(name), "")
            card.body.addWidget(line)
            if name == "sandbox":
                card.body.addWidget(self.mend)
        self.power = PowerPriceRow(INDENT + NAME_WIDTH + 10)
        self.power.given.connect(self._set_power)
        self.power.hide()  # Until there is a forecast that it is taken off.
        card.body.addWidget(self.power)
        self.networks, self.address_label, self.said = NetworkField(), Text(), Text(dim=True)
        self.networks.setAccessibleName(self.tr("The network to lend to: its address, or an invitation"))
        self.address_label.say(self.tr("The network to lend to: its address, or an invitation"))
        self.networks.wanted.connect(self._set_coordinator)
        self.networks.faulty.connect(self.said.say)
        self.address = self.networks.line
        self.another = button(self.tr("Another &network…"), self._choose_network, "link")
        self.again = button(self.tr("Check &again"), self._look_again)
        self.first = button(self.tr("&Continue"), self._to_switch, "main")
        card.body.addWidget(self.another, 0, Qt.AlignmentFlag.AlignLeft)
        for part in (self.address_label, self.networks, self.said, self._row(self.again, self.first)):
            card.body.addWidget(part)
        for part in (self.address_label, self.networks, self.another):
            part.hide()  # Until the agent says that it has none, or that nobody answers there.
        card.body.addStretch()
        return card

    def _wallet_step(self) -> QWidget:
        card = self._step(0, self.tr("Where shall the earnings go?"), "")
        self.own = QRadioButton(self.tr("Into a &wallet on this computer. It is made already."))
        later = Text(dim=True)
        later.say(
            self.tr(
                "This is chosen unless you name another one. From there you send it on with “Withdraw” whenever you like: that "
                "takes no SOL, and the fee, which is taken out of the amount, is shown before."
            )
        )
        self.other = QRadioButton(self.tr("To an &address of mine:"))
        self.own.setChecked(True)
        group = QButtonGroup(self)
        group.addButton(self.own)
        group.addButton(self.other)
        self.payout = QLineEdit()
        self.payout.setPlaceholderText(self.tr("a Solana wallet address"))
        self.payout.setAccessibleName(self.tr("The address that is paid"))
        self.payout.setMaxLength(MAX_LINE)
        self.payout.textEdited.connect(lambda _: self.other.setChecked(True))
        never = Text(dim=True)
        never.say(self.tr("Cottage never asks for the secret words of another wallet. Whoever does wants to rob you."))
        self.wallet_said = Text()
        save = button(
            self.tr("Save a &backup of the wallet now…"),
            self._backup,
            "link",
        )
        self.take = button(self.tr("&Take it"), self._take_wallet, "main")
        for part in (self.own, later, self.other, self.payout, never):
            card.body.addWidget(part)
        back = button(self.tr("I &have one from before: bring it back…"), self._bring_back, "link")
        for link in (save, back):
            card.body.addWidget(link, 0, Qt.AlignmentFlag.AlignLeft)
        card.body.addWidget(self.wallet_said)
        card.body.addWidget(self._row(button(self.tr("&Back"), lambda: self._go(SWITCH)), self.take))
        card.body.addStretch()
        return card

    def _switch_step(self) -> QWidget:
        card = self._step(
            2,
            "",
            self.tr(
                "It lends once nobody has used the computer for five minutes, on mains only, and steps aside for games."
                " All of that can be changed in the settings."
            ),
        )
        self.ready, self.paid_to, self.lacking, self.plan = card.findChildren(Text)[1], Text(), Text(), Text()
        self.still = {name: _Line() for name in NAMES}
        self.wallet = button(self.tr("Another &wallet, or a backup of this one…"), lambda: self._go(WALLET), "link")
        card.body.addWidget(self.paid_to)
        card.body.addWidget(self.wallet, 0, Qt.AlignmentFlag.AlignLeft)
        for part in (self.lacking, *self.still.values(), self.plan):
            card.body.addWidget(part)
            part.hide()
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
        card.body.addWidget(self._row(button(self.tr("&Back"), lambda: self._go(CHECKS)), later))
        card.body.addStretch()
        return card

    def _step(self, number: int, title: str, text: str) -> Card:
        card, step, head = Card(), Text(dim=True), Text(size=6, bold=True)
        step.say(self.tr("Step {0} of 2").format(number))
        step.setVisible(bool(number))
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
        if not self.is_done and snapshot.detail and snapshot.phase in (AgentPhase.OFF, AgentPhase.TROUBLE):
            self._say_trouble(snapshot.detail)
        if status is None or self.is_done:
            return
        self._coordinator = status.coordinator
        self._show_wallet(status.node, status.payout)
        if not self._has_networks:
            self._has_networks = True
            self._calls.get("settings", self._take_networks)
        self._show_address()
        if not self._has_test and self.isVisible():
            self.begin_test()

    def _show_wallet(self, node: str, payout: str) -> None:
        if payout in ("", node):
            own = self.tr(
                "Earnings go into a wallet on this computer, which is made already. “Withdraw” sends them on whenever you like."
            )
            self.paid_to.say(own)
        else:
            self.paid_to.say(self.tr("Earnings go to {0}.").format(plain(payout, 100)))

    def _show_address(self) -> None:
        """Where there is none, where nobody answers at it, and while it is being typed."""
        typed = self.address.hasFocus() and self.address.isModified()
        if self._unreachable and not typed and not self.address.text():
            self.networks.show_address(self._coordinator)
        wanted = not self._coordinator or self._unreachable or self._choosing or typed
        for part in (self.address_label, self.networks):
            part.setVisible(wanted)
        self.another.setVisible(not wanted)

    def _choose_network(self) -> None:
        self._choosing = True
        self._show_address()
        self.networks.show_address(self._coordinator)
        self.address.setFocus()
        self.address.selectAll()

    def _take_networks(self, body: bytes) -> None:
        try:
            self.networks.offer(read(body, SettingsView).networks)
        except AnswerError:
            return  # One can type an address all the same.

    def _say_trouble(self, detail: str) -> None:
        """The agent that tests does not run: why, and a button."""
        self._look.stop()
        self._has_test = False
        for line in self.lines.values():
            line.mark.set_state("waiting")
        self.progress.hide()
        self.said.say(self.tr("Cottage's agent does not run, so nothing can be checked: {0}").format(plain(detail)))
        self.again.setEnabled(True)
        self.first.setEnabled(False)

    def _look_again(self) -> None:
        if self._has_agent:
            self.begin_test()
        else:
            self.said.say(self.tr("Cottage's agent is starting."))
            self.restart_asked.emit()

    def begin_test(self) -> None:
        """Test anew; after the one that runs, where one does."""
        self._anew = self._look.isActive()
        self._has_test = True
        self.first.setEnabled(False)  # At once: what the last test said is old.
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
                line.show_check(
                    check, self._words.name(check.name), self._words.said(check) if over else plain(check.text)
                )
                if check.name == "earnings" and over:
                    self.power.setVisible("low" in check.detail)
                if check.name == "coordinator" and over:
                    self._unreachable = check.state == "bad" and check.code != "not set"
                    self._show_address()
        self._judge(test)
        if not test.running:
            self._look.stop()
            if self._anew:
                self.begin_test()
            else:
                self.lacks.emit(self._lacking[0])

    def _judge(self, test: SelfTest) -> None:
        self._test = test
        over = bool(test.checks) and not test.running
        self.again.setEnabled(over)
        self.first.setEnabled(over)
        done = sum(check.state not in ("waiting", "running") for check in test.checks)
        self.progress.show_share(done / len(NAMES))
        self.progress.setVisible(not over)
        if not over:
            self.said.say(self.tr("Checking; measuring takes about a minute the first time."))
        elif test.can_lend:
            self.said.say(self.tr("This computer can lend."))
        else:
            self.said.say(self.tr("You can go on: it lends as soon as what is marked has been mended."))
        self._say_whether_ready()
        if over and self.steps.currentIndex() == CHECKS and not self.networks.isVisible() and self.isVisible():
            self.first.setFocus()

    def _say_whether_ready(self) -> None:
        """The last step names what still keeps this computer from lending."""
        bad = {check.name: check for check in self._test.checks if check.state == "bad"}
        sandbox = bad.get("sandbox")
        self._lacking = ("", "") if sandbox is None else (sandbox.code, sandbox.detail.get("why", ""))
        self.mend.offer(*self._lacking)
        plan = self._plan(*self._lacking)
        self.plan.say(self.tr("The switch brings what is missing as well. {0}").format(plan) if plan else "")
        self.plan.setVisible(bool(plan))
        if sandbox is not None:
            bad.pop("speed", None)  # It is measured inside the sandbox: the same said twice.
        self.ready.say(self.tr("Almost ready.") if bad else self.tr("Ready."))
        self.lacking.say(self.tr("Lending begins by itself once this has been mended:"))
        self.lacking.setVisible(bool(bad))
        for name, line in self.still.items():
            line.setVisible(name in bad)
            if name in bad:
                line.show_check(bad[name], self._words.name(name), self._words.said(bad[name]))

    def _set_coordinator(self, said: str) -> None:
        if said != self._coordinator:
            self._coordinator = invitations.read(said).url
            self._calls.post("settings", {"coordinator": said}, lambda _: self._joined(), self._bad_coordinator)

    def _set_power(self, amount: str, currency: str) -> None:
        change = {"electricity": amount, "currency": currency}
        self._calls.post("settings", change, lambda _: self.begin_test(), self.said.say)

    def _joined(self) -> None:
        self._choosing = self._has_networks = False
        self.begin_test()

    def _bad_coordinator(self, text: str) -> None:
        self._coordinator = ""
        self.said.say(text)

    def _to_switch(self) -> None:
        if not self._coordinator:
            self.said.say(self.tr("The network to lend to is missing: give its address, or an invitation."))
            self.address.setFocus()
            return
        self._go(SWITCH)

    def _take_wallet(self) -> None:
        address = self.payout.text().strip() if self.other.isChecked() else ""
        if self.other.isChecked() and not address:
            self.wallet_said.say(self.tr("The address is missing."))
            self.payout.setFocus()
            return
        self.take.setEnabled(False)
        self._calls.post("settings", {"payout": address}, lambda _: self._paid_to(), self._bad_payout)

    def _backup(self) -> None:
        BackupSheet(self._calls, self, self._settings).open()

    def _bring_back(self) -> None:
        RestoreSheet(self._calls, self).open()

    def _paid_to(self) -> None:
        self.take.setEnabled(True)
        self.wallet_said.say("")
        self._go(SWITCH)

    def _bad_payout(self, text: str) -> None:
        self.take.setEnabled(True)
        self.wallet_said.say(text)

    def _go(self, step: int) -> None:
        self.steps.setCurrentIndex(step)
        (self.first, self.take, self.switch)[step].setFocus()

    def _flip(self) -> None:
        self.toggle_asked.emit()
        self._finish()
        self.mend_agreed.emit(*self._lacking)

    def _finish(self) -> None:
        self._look.stop()
        self._settings.setValue(DONE, True)
        self.done.emit()


class _Line(QWidget):
    """One step of the self-test."""

    def __init__(self) -> None:
        super().__init__()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(10)
        self.mark, self.name, self.text = CheckMark(), Text(bold=True), Text(dim=True)
        self.name.setFixedWidth(NAME_WIDTH)
        self.text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        top = Qt.AlignmentFlag.AlignTop
        row.addWidget(self.mark, 0, top)
        row.addWidget(self.name, 0, top)
        row.addWidget(self.text, 1, top)

    def show_check(self, check: SelfTestStep, name: str, text: str) -> None:
        """Its state, as a sign, and what was found."""
        self.mark.set_state(check.state)
        self.name.say(name)
        self.text.say(text, f"{name}, {check.state}")
