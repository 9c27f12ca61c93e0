"""A picture of what is lent: a graphics card, or a processor where there is none. Drawn in the window's own colours."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from desktop.gui.theme import Theme, theme_of

CARD_WIDE, PROCESSOR_WIDE, HIGH = 132, 66, 72  # Of the drawing, which is shown somewhat smaller.
SCALE = 5 / 6
BLADES = 7
PINS = 6


class LentPicture(QWidget):
    """Its lamp is green while the device works, as everything green here is."""

    def __init__(self, card: str, processor: str) -> None:
        """``card``, ``processor``: what a screen reader calls each picture."""
        super().__init__()
        self._names = {True: card, False: processor}
        self._state = (True, False)
        self.setFixedSize(int(CARD_WIDE * SCALE), int(HIGH * SCALE))
        self.setAccessibleName(card)

    @property
    def shown(self) -> tuple[bool, bool]:
        """Whether it is a graphics card, and whether it works."""
        return self._state

    def show_device(self, is_card: bool, works: bool) -> None:
        """Draw another device, or another state of it."""
        if (is_card, works) != self._state:
            self._state = (is_card, works)
            self.setAccessibleName(self._names[is_card])
            self.setFixedWidth(int((CARD_WIDE if is_card else PROCESSOR_WIDE) * SCALE))
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = theme_of(self.palette())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.scale(SCALE, SCALE)
        is_card, works = self._state
        lamp = QColor(theme.lending if works else theme.off)
        if is_card:
            _draw_card(painter, theme, lamp)
        else:
            _draw_processor(painter, theme, lamp)


def _draw_card(painter: QPainter, theme: Theme, lamp: QColor) -> None:
    edge = QPen(QColor(theme.edge), 1.5)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(theme.waiting))
    for left, wide in ((28, 14), (45, 36)):  # The contacts, in two parts as on a real one.
        painter.drawRoundedRect(QRectF(left, 58, wide, 8), 1.5, 1.5)
    painter.setBrush(QColor(theme.off))
    painter.drawRoundedRect(QRectF(2, 2, 4, 68), 2, 2)
    painter.setPen(edge)
    painter.setBrush(QColor(theme.line))
    painter.drawRoundedRect(QRectF(8, 9, 122, 50), 9, 9)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(theme.brand))
    painter.drawRoundedRect(QRectF(58, 16, 22, 3), 1.5, 1.5)
    painter.setBrush(lamp)
    painter.drawEllipse(QPointF(69, 51), 2.6, 2.6)
    for middle in (QPointF(35, 34), QPointF(103, 34)):
        _draw_fan(painter, middle, theme)


def _draw_fan(painter: QPainter, middle: QPointF, theme: Theme) -> None:
    painter.setPen(QPen(QColor(theme.edge), 1.5))
    painter.setBrush(QColor(theme.ground))
    painter.drawEllipse(middle, 20, 20)
    blade = QPainterPath(QPointF(3, -3))
    blade.cubicTo(QPointF(4, -10), QPointF(9, -15), QPointF(15, -10.5))
    blade.cubicTo(QPointF(12, -8), QPointF(10, -4), QPointF(3, -1))
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(theme.edge))
    for number in range(BLADES):
        painter.save()
        painter.translate(middle)
        painter.rotate(number * 360 / BLADES)
        painter.drawPath(blade)
        painter.restore()
    painter.setBrush(QColor(theme.brand))
    painter.drawEllipse(middle, 4.5, 4.5)


def _draw_processor(painter: QPainter, theme: Theme, lamp: QColor) -> None:
    body = QRectF((PROCESSOR_WIDE - 54) / 2, (HIGH - 54) / 2, 54, 54)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(theme.waiting))
    for number in range(PINS):
        along = 5 + number * 8.2
        for x, y in ((along, -5.0), (along, 54.0)):
            painter.drawRoundedRect(QRectF(body.left() + x, body.top() + y, 3, 5), 1, 1)
            painter.drawRoundedRect(QRectF(body.left() + y, body.top() + x, 5, 3), 1, 1)
    painter.setPen(QPen(QColor(theme.edge), 1.5))
    painter.setBrush(QColor(theme.line))
    painter.drawRoundedRect(body, 8, 8)
    painter.setPen(QPen(QColor(theme.brand), 2))
    painter.setBrush(QColor(theme.ground))
    painter.drawRoundedRect(body.adjusted(13, 13, -13, -13), 4, 4)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(lamp)
    painter.drawEllipse(body.center(), 2.6, 2.6)
