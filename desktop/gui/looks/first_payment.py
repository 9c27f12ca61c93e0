"""The first payment: a card and a notice, once. Whoever was paid before this window was there is past it."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

import math

from PySide6.QtCore import QEasingCurve, QObject, QPointF, QRectF, QSettings, Qt, QVariantAnimation, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from desktop.gui.looks import motion
from desktop.gui.model import Snapshot
from desktop.gui.sentences import money
from desktop.gui.theme import theme_of
from desktop.gui.widgets import Card, Text, button

KEPT = "moments/first-payment"
AWAITED, OVER = 0, -1  # A positive number is the amount that came, in millionths, while its card stands.
SPARKS = 9
LASTS_MS = 1400


class FirstPayment(QObject):
    """Follows what was paid; what has become of the moment is kept with the window's settings."""

    changed = Signal(int)
    """The amount for the card, 0 where there is none to be shown."""

    def __init__(self, settings: QSettings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._settings = settings
        self._untold: bool | None = None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Look whether it has come."""
        if snapshot.status is None:
            return
        paid = snapshot.status.paid
        if not self._settings.contains(KEPT):
            self._keep(OVER if paid else AWAITED)
        if self._untold is None:
            self._untold = self._kept == AWAITED
        if self._kept == AWAITED and paid:
            self._keep(paid)
        self.changed.emit(max(0, self._kept))

    def tell_once(self) -> bool:
        """Whether the payment that is being told of is the first one; so it is told once."""
        untold, self._untold = self._untold, False
        return bool(untold)

    def words(self, text: str) -> str:
        """The notice; ``text``: what it would say of any payment."""
        return self.tr("Your first payment has arrived. {0}").format(text)

    def close(self) -> None:
        """Its owner has seen the card."""
        self._keep(OVER)
        self.changed.emit(0)

    @property
    def _kept(self) -> int:
        return int(str(self._settings.value(KEPT, AWAITED)))

    def _keep(self, state: int) -> None:
        self._settings.setValue(KEPT, state)


class FirstPaymentCard(Card):
    """A coin, a sentence, and a button that ends it."""

    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        row, texts = QHBoxLayout(), QVBoxLayout()
        self.coin, self.headline, self.text = Coin(), Text(size=5, bold=True), Text(dim=True)
        self.headline.say(self.tr("Your first payment has arrived"))
        self.coin.setAccessibleName(self.tr("A coin with a tick"))
        self.seen = button(self.tr("C&lose"), self.closed.emit)
        texts.setSpacing(4)
        texts.addWidget(self.headline)
        texts.addWidget(self.text)
        texts.addWidget(self.seen, 0, Qt.AlignmentFlag.AlignLeft)
        row.setSpacing(16)
        row.addWidget(self.coin, 0, Qt.AlignmentFlag.AlignTop)
        row.addLayout(texts, 1)
        self.body.addLayout(row)
        self.hide()

    def show_amount(self, units: int) -> None:
        """Be there while ``units``, in millionths, are to be told of."""
        if units:
            said = self.tr("{0} for work that this computer did. The next ones come quietly.")
            self.text.say(said.format(money(units)))
        self.setVisible(bool(units))


class Coin(QWidget):
    """Rises once, with a few sparks, when it is first seen; where no motion is wanted, it lies there."""

    def __init__(self) -> None:
        super().__init__()
        self.setFixedSize(84, 84)
        self._risen = False
        self._share = 1.0
        self.rising = QVariantAnimation(self, startValue=0.0, endValue=1.0, duration=LASTS_MS)
        self.rising.setEasingCurve(QEasingCurve.Type.OutCubic)
        self.rising.valueChanged.connect(self._show_share)

    def _show_share(self, share: float) -> None:
        self._share = share
        self.update()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._risen and motion.is_wanted():
            self._share = 0.0
            self.rising.start()
        self._risen = True

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, share = theme_of(self.palette()), self._share
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(QRectF(self.rect()).center())
        green = QColor(theme.lending)
        painter.setPen(Qt.PenStyle.NoPen)
        for number in range(SPARKS):
            angle, far = math.tau * number / SPARKS - math.pi / 2, 24 + 13 * share
            painter.setBrush(QColor(theme.brand if number % 3 == 0 else theme.bar))
            painter.drawEllipse(QPointF(math.cos(angle) * far, math.sin(angle) * far), 2.4, 2.4)
        size = 0.6 + 0.4 * share
        painter.scale(size, size)
        painter.setBrush(green)
        painter.drawEllipse(QPointF(0, 0), 27, 27)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(QColor(theme.card), 1.6))
        painter.drawEllipse(QPointF(0, 0), 22.5, 22.5)
        line, cap, join = Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin
        painter.setPen(QPen(QColor(theme.card), 4, line, cap, join))
        painter.drawPolyline([QPointF(-9.5, 0.5), QPointF(-3, 7), QPointF(9.5, -7)])
