"""Gauges, bars and the week's hours, drawn from the palette; each tells a screen reader in words what it shows."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QAccessible,
    QAccessibleValueChangeEvent,
    QColor,
    QFocusEvent,
    QFont,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from desktop.gui.theme import Theme, theme_of

DAY = 24
WEEK = 7 * DAY


@dataclass(frozen=True)
class Reading:
    """What a gauge shows: ``share`` of the scale, the value as text, and what the owner allows, as text and share."""

    share: float
    text: str
    limit_text: str = ""
    limit: float | None = None


class Gauge(QWidget):
    """An arc with the value in it; past the owner's limit it turns red and says so with a mark."""

    def __init__(self, name: str) -> None:
        """``name``: what is measured."""
        super().__init__()
        self._name, self._reading = name, Reading(0.0, "–")
        self.setMinimumSize(104, 124)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(name)

    @property
    def is_over(self) -> bool:
        """The value is past the limit."""
        return self._reading.limit is not None and self._reading.share > self._reading.limit

    def show_reading(self, reading: Reading) -> None:
        """Draw another value."""
        if reading != self._reading:
            self._reading = reading
            self.setAccessibleDescription(f"{reading.text} {reading.limit_text}".strip())
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(128, 124)

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, reading = theme_of(self.palette()), self._reading
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        side = 88.0
        box = QRectF((self.width() - side) / 2, 6, side, side)
        self._arc(painter, box, QColor(theme.line), 1.0)
        colour = QColor(theme.trouble if self.is_over else theme.gauge)
        self._arc(painter, box, colour, min(1.0, max(0.0, reading.share)))
        if reading.limit is not None:
            self._tick(painter, box, QColor(theme.text), min(1.0, reading.limit))
        middle = box.adjusted(0, -6, 0, -6)
        _write(painter, middle, reading.text, QColor(theme.text), self.font(), 3, bold=True)
        under = QRectF(0, box.top() + 54, self.width(), 18)
        over = f"! {reading.limit_text}" if self.is_over else reading.limit_text
        _write(painter, under, over, QColor(theme.trouble if self.is_over else theme.dim), self.font(), -2)
        _write(painter, QRectF(0, side + 10, self.width(), 20), self._name, QColor(theme.dim), self.font(), -1)

    def _arc(self, painter: QPainter, box: QRectF, colour: QColor, share: float) -> None:
        if share <= 0.004:
            return
        painter.setPen(QPen(colour, 8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
        painter.drawArc(box, 225 * 16, int(-270 * 16 * share))

    def _tick(self, painter: QPainter, box: QRectF, colour: QColor, share: float) -> None:
        painter.save()
        painter.translate(box.center())
        painter.rotate(-135 + 270 * share)
        painter.setPen(QPen(colour, 2))
        painter.drawLine(QPointF(0, -box.height() / 2 - 5), QPointF(0, -box.height() / 2 + 5))
        painter.restore()


class ProgressLine(QWidget):
    """How far a job is; hidden where that is not known."""

    def __init__(self, name: str, earns: bool = True) -> None:
        """``name``: what goes on; ``earns``: it is paid, so it is green."""
        super().__init__()
        self._share, self._earns = 0.0, earns
        self.setFixedHeight(8)
        self.setAccessibleName(name)

    def show_share(self, share: float) -> None:
        """Between 0 and 1."""
        if (share := min(1.0, max(0.0, share))) == self._share:
            return
        self._share = share
        self.setAccessibleDescription(f"{self._share:.0%}")
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = theme_of(self.palette())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.line))
        painter.drawRoundedRect(QRectF(self.rect()), 4, 4)
        painter.setBrush(QColor(theme.lending if self._earns else theme.brand))
        painter.drawRoundedRect(QRectF(0, 0, max(8.0, self.width() * self._share), 8), 4, 4)


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its value, and the value as text."""

    label: str
    value: int
    text: str


class Bars(QWidget):
    """A bar for each day; the pointer or the arrow keys pick one, Enter or a click asks for it."""

    picked = Signal(int)
    """Number of the bar that was asked for."""

    def __init__(self, name: str) -> None:
        """``name``: what the bars are."""
        super().__init__()
        self._bars: tuple[Bar, ...] = ()
        self._at = -1
        self.setMinimumHeight(92)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(name)

    def show_bars(self, bars: Sequence[Bar]) -> None:
        """Draw others."""
        if tuple(bars) == self._bars:
            return
        self._bars = tuple(bars)
        self._at = min(self._at, len(self._bars) - 1)
        self.setAccessibleDescription(", ".join(f"{bar.label} {bar.text}" for bar in self._bars))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(320, 94)

    def _pick(self, at: int) -> None:
        if at != self._at:
            self._at = at
            if 0 <= at < len(self._bars) and QAccessible.isActive():
                said = f"{self._bars[at].label} {self._bars[at].text}"
                QAccessible.updateAccessibility(QAccessibleValueChangeEvent(self, said))
            self.update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._pick(self._under(event.position().x()))

    def leaveEvent(self, event: QEvent) -> None:
        self._pick(-1)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if (at := self._under(event.position().x())) >= 0:
            self.picked.emit(at)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        last = len(self._bars) - 1
        at = last if self._at < 0 else self._at
        match event.key():
            case Qt.Key.Key_Left:
                self._pick(max(0, at - 1))
            case Qt.Key.Key_Right:
                self._pick(min(last, at + 1))
            case Qt.Key.Key_Return | Qt.Key.Key_Enter | Qt.Key.Key_Space if last >= 0:
                self.picked.emit(at)
            case _:
                super().keyPressEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self._pick(-1)
        super().focusOutEvent(event)

    def _under(self, x: float) -> int:
        return min(len(self._bars) - 1, max(0, int(x / (self.width() / len(self._bars))))) if self._bars else -1

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = theme_of(self.palette())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self.hasFocus():
            painter.setPen(QPen(QColor(theme.brand), 2))
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 8, 8)
        if not self._bars:
            return
        high = self.height() - 40
        step = self.width() / len(self._bars)
        most = max(1, *(bar.value for bar in self._bars), 1)
        every = max(1, -(-len(self._bars) // max(1, int(self.width() // 46))))
        for number, bar in enumerate(self._bars):
            tall = max(3.0, high * bar.value / most)
            wide = min(36.0, step * 0.6)
            box = QRectF(number * step + (step - wide) / 2, 18 + high - tall, wide, tall)
            self._bar(painter, box, theme, number)
            labelled = (len(self._bars) - 1 - number) % every == 0
            wider = QRectF(number * step + step / 2 - 50, 0, 100, 16)
            if labelled:
                _write(painter, wider.translated(0, self.height() - 18), bar.label, QColor(theme.dim), self.font(), -2)
            if number == self._at or (self._at < 0 and bar.value and number == len(self._bars) - 1):
                spot = QRectF(wider.left(), box.top() - 17, wider.width(), 16)
                _write(painter, spot, bar.text, QColor(theme.text), self.font(), -1)

    def _bar(self, painter: QPainter, box: QRectF, theme: Theme, number: int) -> None:
        strong = number in (self._at, len(self._bars) - 1)
        path = QPainterPath()
        path.addRoundedRect(box, 4, 4)
        painter.fillPath(path, QColor(theme.lending if strong else theme.bar))


class HoursGrid(QWidget):
    """The week, an hour a cell: dragging or the space bar turns hours on and off."""

    changed = Signal(str)
    """168 characters of 0 and 1, from Monday 0:00."""

    LEFT, TOP = 34, 18

    def __init__(self, name: str, days: Sequence[str], words: tuple[str, str]) -> None:
        """``days``: seven short names; ``words``: for lending and not lending, told to a screen reader."""
        super().__init__()
        self._days, self._words = tuple(days), words
        self._hours = ["1"] * WEEK
        self._at, self._paints = 0, ""
        self.setMinimumSize(260, 7 * 18 + self.TOP)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(name)
        self._tell()

    def hours(self) -> str:
        """As ``changed`` gives them."""
        return "".join(self._hours)

    def show_hours(self, hours: str) -> None:
        """Draw others, without a signal."""
        if len(hours) == WEEK and hours != self.hours():
            self._hours = list(hours)
            self._tell()
            self.update()

    def _tell(self) -> None:
        day, hour = divmod(self._at, DAY)
        said = self._words[0] if self._hours[self._at] == "1" else self._words[1]
        self.setAccessibleDescription(f"{self._days[day]} {hour}:00 {said}")

    def _cell(self, point: QPointF) -> int:
        wide = (self.width() - self.LEFT) / DAY
        hour = int(min(DAY - 1, max(0, (point.x() - self.LEFT) / wide)))
        day = int(min(6, max(0, (point.y() - self.TOP) / 18)))
        return day * DAY + hour

    def _set(self, at: int, value: str) -> None:
        self._at = at
        self._hours[at] = value
        self._tell()
        self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        at = self._cell(event.position())
        self._paints = "0" if self._hours[at] == "1" else "1"
        self._set(at, self._paints)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._paints:
            self._set(self._cell(event.position()), self._paints)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._paints:
            self._paints = ""
            self.changed.emit(self.hours())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        moves = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_Up: -DAY, Qt.Key.Key_Down: DAY}
        if event.key() in moves:
            self._at = (self._at + moves[Qt.Key(event.key())]) % WEEK
            self._tell()
            self.update()
        elif event.key() == Qt.Key.Key_Space:
            self._set(self._at, "0" if self._hours[self._at] == "1" else "1")
            self.changed.emit(self.hours())
        else:
            super().keyPressEvent(event)

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            day, hour = divmod(self._cell(QPointF(event.pos())), DAY)
            QToolTip.showText(event.globalPos(), f"{self._days[day]} {hour}:00–{hour + 1}:00", self)
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = theme_of(self.palette())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        wide = (self.width() - self.LEFT) / DAY
        for hour in range(0, DAY, 6):
            spot = QRectF(self.LEFT + hour * wide - 4, 0, 6 * wide, 16)
            _write(painter, spot, str(hour), QColor(theme.dim), self.font(), -2, left=True)
        for at, value in enumerate(self._hours):
            day, hour = divmod(at, DAY)
            box = QRectF(self.LEFT + hour * wide, self.TOP + day * 18, wide - 2, 16)
            painter.setPen(QPen(QColor(theme.line), 1))
            painter.setBrush(QColor(theme.lending) if value == "1" else Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), 3, 3)
            if at == self._at and self.hasFocus():
                painter.setPen(QPen(QColor(theme.brand), 2))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawRoundedRect(box.adjusted(-1, -1, 1, 1), 3, 3)
        for day, name in enumerate(self._days):
            spot = QRectF(0, self.TOP + day * 18, self.LEFT - 4, 16)
            _write(painter, spot, name, QColor(theme.dim), self.font(), -1, left=True)


def _write(
    painter: QPainter,
    box: QRectF,
    text: str,
    colour: QColor,
    font: QFont,
    size: int,
    bold: bool = False,
    left: bool = False,
) -> None:
    """``size``: points more than ``font``."""
    chosen = QFont(font)
    chosen.setPointSizeF(max(6.0, font.pointSizeF() + size))
    chosen.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    painter.setFont(chosen)
    painter.setPen(colour)
    where = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter if left else Qt.AlignmentFlag.AlignCenter
    painter.drawText(box, where, text)
