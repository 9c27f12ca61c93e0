"""The sheet for withdrawing: what leaves the wallet, what it costs and what arrives, and only then the sending."""

from PySide6.QtCore import QLocale, QTimer
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLineEdit, QPushButton, QVBoxLayout, QWidget

from desktop.answers import WalletWithdrawal
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.fields import MAX_LINE
from desktop.gui.model import read
from desktop.gui.sentences import exact_money
from desktop.gui.widgets import Rows, Text
from desktop.gui.withdrawwords import WithdrawWords
from ledger.money import UNIT

SEND_PATIENCE_MS = 90_000  # The ledger confirms within sixty seconds, or says that it has not.
TYPING_MS = 400  # Whoever types goes on within that.
MIN_ADDRESS = 32
UNKNOWN = "–"
_NOTHING = WalletWithdrawal("", 0, 0)


class WithdrawSheet(QDialog):
    """Looks up what it costs whenever a field has changed; "Send" can be pressed once just that would work."""

    def __init__(self, calls: Calls, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._calls, self._cost, self._words = calls, _NOTHING, WithdrawWords(self)
        self._asked: tuple[str, str] | None = None  # What is being looked up; None: nothing.
        self._held: int | None = None
        self._sending = False
        self._typing = QTimer(self, singleShot=True, interval=TYPING_MS)
        self._typing.timeout.connect(self._look)
        self.setWindowTitle(self.tr("Withdraw"))
        self.setMinimumWidth(460)
        column = QVBoxLayout(self)
        column.setSpacing(8)
        self.wallet = Text(dim=True)
        column.addWidget(self.wallet)
        self.target = self._line(column, self.tr("To the address"), self.tr("a Solana wallet address"), MAX_LINE)
        self.amount = self._line(column, self.tr("Amount"), self.tr("all"), 24)
        self.rows = Rows()
        for key, caption in (
            ("leaves", self.tr("Leaves this wallet")),
            ("fee", self.tr("Fee")),
            ("arrives", self.tr("Arrives")),
        ):
            self.rows.add(key, caption)
        column.addLayout(self.rows)
        self.said = Text()
        column.addWidget(self.said)
        column.addStretch()
        column.addWidget(self._buttons())
        self._forget()
        self._look()

    def _line(self, column: QVBoxLayout, caption: str, hint: str, longest: int) -> QLineEdit:
        label, line = Text(), QLineEdit()
        label.say(caption)
        label.setBuddy(line)
        line.setPlaceholderText(hint)
        line.setAccessibleName(caption)
        line.setMaxLength(longest)
        line.textEdited.connect(lambda _: self._changed())
        column.addWidget(label)
        column.addWidget(line)
        return line

    def _buttons(self) -> QWidget:
        buttons = QDialogButtonBox()
        self.send = QPushButton(self.tr("&Send"))
        self.send.setProperty("role", "main")
        self.cancel = QPushButton(self.tr("&Close"))
        for one in (self.send, self.cancel):
            one.setAutoDefault(False)  # Return in a field sends nothing.
        buttons.addButton(self.cancel, QDialogButtonBox.ButtonRole.RejectRole)
        buttons.addButton(self.send, QDialogButtonBox.ButtonRole.ActionRole)
        self.send.clicked.connect(self._send)
        buttons.rejected.connect(self.reject)
        return buttons

    # --- what it costs --------------------------------------------------------------------------------------------------

    def _fields(self) -> tuple[str, str]:
        return self.target.text().strip(), self.amount.text().strip().replace(QLocale().decimalPoint(), ".")

    def _changed(self) -> None:
        self._forget()
        self._typing.start()

    def _forget(self, said: str = "") -> None:
        """Nothing is known of what stands in the fields."""
        self._cost = _NOTHING
        self.rows.set_values(leaves=UNKNOWN, fee=UNKNOWN, arrives=UNKNOWN)
        self.said.say(said or self.tr("It takes no SOL: the fee is taken out of the amount, and shown here before."))
        self._judge()

    def _judge(self) -> None:
        ready = self._cost.arrives > 0 and self._cost.denied is None and not self._cost.signature
        self.send.setEnabled(ready and not self._sending)
        for line in (self.target, self.amount):
            line.setEnabled(not self._sending)
        if self._held is None:
            self.wallet.say(self.tr("From the wallet on this computer to another one of yours."))
        else:
            text = self.tr("From the wallet on this computer, which holds {0} tokens, to another one of yours.")
            self.wallet.say(text.format(exact_money(self._held)))

    def _look(self) -> None:
        """Ask what it costs; one question at a time, the last fields win."""
        if self._asked is not None or self._sending:
            return
        self._asked = target, amount = self._fields()
        if target:
            self.said.say(self.tr("Looking up what it costs…"))
        self._calls.post(
            "withdraw", {"target": target, "amount": amount}, self._looked, self._not_looked, SEND_PATIENCE_MS
        )

    def _looked(self, body: bytes) -> None:
        try:
            cost = read(body, WalletWithdrawal)
        except AnswerError as error:
            self._not_looked(str(error))
            return
        asked, self._asked = self._asked, None
        if cost.held:
            self._held = cost.held
        if asked != self._fields():
            self._look()
        elif cost.denied is not None:
            unfinished = cost.denied.reason == "no address" and len(self._fields()[0]) < MIN_ADDRESS
            self._forget("" if unfinished else self._words.said(cost.denied))
        else:
            self._show(cost)

    def _not_looked(self, text: str) -> None:
        self._asked = None
        self._forget(text)

    def _show(self, cost: WalletWithdrawal) -> None:
        self._cost = cost
        self.rows.set_values(
            leaves=exact_money(cost.amount), fee=exact_money(cost.fee), arrives=exact_money(cost.arrives)
        )
        if cost.opens:
            self.said.say(
                self.tr("The address has no account for this token yet; making one is part of the fee, this once.")
            )
        else:
            self.said.say(self.tr("Look at the address once more: what is sent cannot be called back."))
        self._judge()

    # --- sending --------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        target, cost = self.target.text().strip(), self._cost
        # Not "all": more may have come in since it was shown.
        exact = f"{cost.amount // UNIT}.{cost.amount % UNIT:06d}"
        self._sending = True
        self._typing.stop()
        self._judge()
        self.said.say(self.tr("Sending; the ledger confirms within a minute…"))
        order = {"target": target, "amount": exact, "send": True, "fee": cost.fee}
        self._calls.post("withdraw", order, self._sent, self._failed, SEND_PATIENCE_MS)

    def _failed(self, text: str) -> None:
        self._sending = False
        self._forget(text)

    def _sent(self, body: bytes) -> None:
        try:
            done = read(body, WalletWithdrawal)
        except AnswerError as error:
            self._failed(str(error))
            return
        if done.denied is not None:
            self._failed(self._words.said(done.denied))
            if done.denied.reason == "changed":
                self._typing.start()  # The new fee is shown.
            return
        self._sending, self._cost, self._held = False, done, done.held
        text = self.tr("{0} have arrived. Receipt: {1}")
        self.said.say(text.format(exact_money(done.arrives), done.signature))
        self._judge()
