"""The cards of a computer that lends several, as a menu of the tray: each with a tick, which asks for the other way."""

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from desktop.answers import CardView
from desktop.gui.model import Snapshot, plain


class CardsMenu(QMenu):
    """There only where several are lent."""

    asked = Signal(str, bool)
    """Which card is to be lent, or not any more."""

    def __init__(self) -> None:
        super().__init__()
        self.setTitle(self.tr("Graphics &cards"))
        self._shown: tuple[CardView, ...] = ()
        self.menuAction().setVisible(False)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the cards of ``snapshot``; a menu that is open is left alone while they stay as they are."""
        cards = snapshot.status.cards if snapshot.status is not None else ()
        self.menuAction().setVisible(len(cards) > 1)
        if [(card.gpu, card.name, card.on) for card in cards] == [(c.gpu, c.name, c.on) for c in self._shown]:
            return
        self._shown = cards
        self.clear()
        for card in cards:
            self._row(card)

    def _row(self, card: CardView) -> None:
        action = QAction(plain(card.name, 60).replace("&", "&&"), self)
        action.setCheckable(True)
        action.setChecked(card.on)
        action.triggered.connect(lambda _: self._ask(action, card))
        self.addAction(action)

    def _ask(self, action: QAction, card: CardView) -> None:
        action.setChecked(card.on)  # Only what the agent says moves it.
        self.asked.emit(card.gpu, not card.on)
