"""What a kWh costs this owner: asked once, beside the forecast that takes it off."""

from PySide6.QtCore import QLocale, Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QSizePolicy, QWidget

from desktop.gui.widgets import Text


class PowerPriceRow(QWidget):
    """An amount and its currency, which is the desktop's until its owner writes another."""

    given = Signal(str, str)

    def __init__(self, indent: int) -> None:
        super().__init__()
        self.label, self.amount, self.currency = Text(dim=True), QLineEdit(), QLineEdit()
        self.label.say(self.tr("What a kWh costs you:"))
        self.label.setWordWrap(False)
        self.label.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.label.setBuddy(self.amount)
        self.amount.setPlaceholderText(QLocale().toString(0.3, "f", 2))
        self.amount.setMaxLength(12)
        self.amount.setFixedWidth(80)
        self.amount.setAccessibleName(self.tr("What a kWh costs you"))
        self.currency.setText(QLocale.system().currencySymbol(QLocale.CurrencySymbolFormat.CurrencyIsoCode))
        self.currency.setPlaceholderText(self.tr("tokens"))
        self.currency.setMaxLength(3)
        self.currency.setFixedWidth(75)
        self.currency.setAccessibleName(self.tr("The currency, as three letters"))
        for field in (self.amount, self.currency):
            field.editingFinished.connect(self._give)
        row = QHBoxLayout(self)
        row.setContentsMargins(indent, 0, 0, 0)
        for part in (self.label, self.amount, self.currency):
            row.addWidget(part)
        row.addStretch()
        self._last = ("", self.currency.text())

    def _give(self) -> None:
        now = self.amount.text().strip().replace(",", "."), self.currency.text().strip().upper()
        if now[0] and now != self._last:
            self._last = now
            self.given.emit(*now)
