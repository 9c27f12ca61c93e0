"""The cards of a computer that lends several: each with its own switch, its state and what it does."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from desktop.answers import CardView
from desktop.gui.model import plain
from desktop.gui.widgets import Card, Switch, Text

SWITCH = (64, 36)  # Smaller than the one of the whole computer.


class CardsCard(Card):
    """Shown only where there are several."""

    asked = Signal(str, bool)
    """Which card is to be lent, or not any more."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[CardRow] = []
        self.hide()

    def show_cards(self, cards: tuple[CardView, ...], on: bool) -> None:
        """Show these; ``on``: the switch of the whole computer."""
        self.setVisible(len(cards) > 1)
        while len(self.rows) < len(cards):
            self.rows.append(row := CardRow())
            row.asked.connect(self.asked)
            self.body.addWidget(row)
        for number, row in enumerate(self.rows):
            row.setVisible(number < len(cards))
        for row, card in zip(self.rows, cards, strict=False):
            row.show_card(card, on)


class CardRow(QWidget):
    """One of them."""

    asked = Signal(str, bool)

    def __init__(self) -> None:
        super().__init__()
        self._card: CardView | None = None
        row, texts = QHBoxLayout(self), QVBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(12)
        texts.setSpacing(2)
        self.switch, self.name, self.state = Switch(self.tr("Lend this graphics card")), Text(bold=True), Text(dim=True)
        self.switch.setFixedSize(*SWITCH)
        self.switch.clicked.connect(lambda _: self._ask())
        texts.addWidget(self.name)
        texts.addWidget(self.state)
        row.addWidget(self.switch, 0, Qt.AlignmentFlag.AlignTop)
        row.addLayout(texts, 1)

    def show_card(self, card: CardView, on: bool) -> None:
        """Show this one."""
        self._card = card
        self.switch.setChecked(card.on)
        name = plain(card.name, 60)
        self.switch.setAccessibleName(self.tr("Lend {0}").format(name))
        self.name.say(name)
        self.state.say(self._sentence(card, on))
        self.switch.setAccessibleDescription(self.state.text())

    def _sentence(self, card: CardView, on: bool) -> str:
        if card.trouble:
            return plain(card.trouble, 200)
        if not card.on:
            return self.tr("Switched off. The others go on.")
        if not on:
            return self.tr("It is lent when lending is on.")
        texts = {
            "starting": self.tr("It is being measured."),
            "connecting": self.tr("It waits for the network."),
            "online": self.tr("It is lent; no job needs it now."),
            "away": self.tr("It steps aside for now."),
            "refused": self.tr("The network does not take it now."),
            "stopping": self.tr("It hands over what it has."),
        }
        if card.state == "online" and card.jobs:
            return self.tr("{0} jobs use it.").format(card.jobs) if card.jobs > 1 else self.tr("A job uses it.")
        return texts.get(card.state, self.tr("It hands over what it has."))

    def _ask(self) -> None:
        if self._card is not None:
            self.asked.emit(self._card.gpu, not self._card.on)
