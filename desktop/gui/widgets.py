"""Small parts of the window: they draw themselves from the palette and tell a screen reader what they show."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QFont, QHideEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QFrame,
    QGridLayout,
    QLabel,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from desktop.gui.looks import motion
from desktop.gui.model import plain
from desktop.gui.sentences import Mood
from desktop.gui.theme import draw_mood, theme_of

RADIUS = 14.0
LONGEST_WORD = 24  # Longer ones may be broken, or a name without spaces would widen the window.
MAX_TEXT = 400  # A sentence around the longest foreign text.
_BREAK = "\N{ZERO WIDTH SPACE}"


class Text(QLabel):
    """A label for any text, also from elsewhere: shown as it is, never as markup, in as many lines as it needs."""

    def __init__(self, size: int = 0, bold: bool = False, dim: bool = False) -> None:
        """``size``: points more than usual."""
        super().__init__()
        self._said: tuple[str, str] | None = None
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWordWrap(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        font = QFont(self.font())
        font.setPointSizeF(font.pointSizeF() + size)
        font.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
        self.setFont(font)
        if dim:
            self.setForegroundRole(self.palette().ColorRole.PlaceholderText)

    def say(self, text: str, caption: str = "") -> None:
        """Show ``text``; a screen reader hears ``caption`` before it."""
        if (text, caption) == self._said:
            return  # Breaking lines anew and telling a screen reader costs more than all else of a second.
        self._said = (text, caption)
        clean = plain(text, MAX_TEXT)
        self.setText(" ".join(_breakable(word) for word in clean.split(" ")))
        self.setAccessibleName(f"{caption}: {clean}" if caption else clean)


def _breakable(word: str) -> str:
    return _BREAK.join(word[start : start + LONGEST_WORD] for start in range(0, len(word), LONGEST_WORD))


def button(text: str, act: Callable[[], object], role: str = "") -> QPushButton:
    """A button; ``role``: main, page or link, "" for an ordinary one."""
    made = QPushButton(text)
    made.setProperty("role", role)
    made.setAccessibleName(text.replace("&", "").removesuffix("…"))
    made.clicked.connect(lambda _: act())
    made.setCursor(Qt.CursorShape.PointingHandCursor)
    return made


class FlowBox(QWidget):
    """Parts side by side, in as many rows as they need to stay whole; a hidden one leaves no hole."""

    def __init__(self, parts: Sequence[QWidget], spacing: int = 4) -> None:
        super().__init__()
        self._parts, self._spacing = tuple(parts), spacing
        for part in parts:
            part.setParent(self)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def sizeHint(self) -> QSize:
        """All in one row."""
        parts = self._shown
        return QSize(self._needed(parts), max((part.sizeHint().height() for part in parts), default=0))

    def minimumSizeHint(self) -> QSize:
        """All below each other."""
        return QSize(max((_whole(part) for part in self._shown), default=0), self.sizeHint().height())

    def heightForWidth(self, width: int) -> int:
        heights = [max((part.sizeHint().height() for part in row), default=0) for row in self._rows(width)]
        return sum(heights) + self._spacing * (len(heights) - 1)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:  # A part has become larger or smaller.
            self.updateGeometry()
            self._place()
        return super().event(event)

    @property
    def _shown(self) -> list[QWidget]:
        return [part for part in self._parts if not part.isHidden()]

    def _needed(self, parts: Sequence[QWidget]) -> int:
        return sum(_whole(part) for part in parts) + self._spacing * (len(parts) - 1)

    def _rows(self, width: int) -> list[list[QWidget]]:
        rows: list[list[QWidget]] = [[]]
        for part in self._shown:
            if rows[-1] and self._needed([*rows[-1], part]) > width:
                rows.append([])
            rows[-1].append(part)
        return rows

    def _place(self) -> None:
        top = 0
        for row in self._rows(self.width()) if self._shown else ():
            height = max(part.sizeHint().height() for part in row)
            left, more = 0, max(0, self.width() - self._needed(row)) // len(row)
            for part in row:
                part.setGeometry(left, top, _whole(part) + more, height)
                left += part.width() + self._spacing
            top += height + self._spacing


def _whole(part: QWidget) -> int:
    return max(part.minimumWidth(), part.minimumSizeHint().width())


class ChoiceButtons(FlowBox):
    """One of a few, side by side."""

    picked = Signal(str)

    def __init__(self, name: str, options: Sequence[tuple[str, str]]) -> None:
        """``options``: text and value of each; the first is picked."""
        buttons = [button(text, partial(self._pick, value), "page") for text, value in options]
        super().__init__(buttons)
        self.setAccessibleName(name)
        self._group = QButtonGroup(self)
        self._values = [value for _, value in options]
        for number, one in enumerate(buttons):
            one.setCheckable(True)
            one.setChecked(number == 0)
            one.setAccessibleName(f"{name}: {options[number][0]}")
            self._group.addButton(one, number)

    def _pick(self, value: str) -> None:
        self.picked.emit(value)

    @property
    def value(self) -> str:
        """What is picked."""
        return self._values[self._group.checkedId()]

    def pick(self, value: str) -> None:
        """Pick without a signal."""
        self._group.button(self._values.index(value)).setChecked(True)


class Switch(QCheckBox):
    """Shows how things stand; a click or the space bar asks for a change, and what comes of it is shown later."""

    def __init__(self, name: str) -> None:
        """``name``: for screen readers."""
        super().__init__()
        self.setAccessibleName(name)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(92, 50)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def hitButton(self, pos: QPoint) -> bool:
        return self.rect().contains(pos)

    def nextCheckState(self) -> None:
        """Stay as it is: only ``setChecked`` moves the switch."""

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = theme_of(self.palette())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        track = QRectF(self.rect()).adjusted(4, 4, -4, -4)
        if self.hasFocus():
            painter.setPen(QPen(QColor(theme.brand), 2))
            ring = track.adjusted(-3, -3, 3, 3)
            painter.drawRoundedRect(ring, ring.height() / 2, ring.height() / 2)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.lending if self.isChecked() else theme.off))
        painter.drawRoundedRect(track, track.height() / 2, track.height() / 2)
        gap = track.height() / 10
        knob = track.height() - 2 * gap
        left = track.right() - knob - gap if self.isChecked() else track.left() + gap
        painter.setBrush(QColor("white"))
        painter.drawEllipse(QRectF(left, track.top() + gap, knob, knob))


class Toggle(Switch):
    """A small switch that moves at once."""

    def sizeHint(self) -> QSize:
        return QSize(52, 30)

    def nextCheckState(self) -> None:
        self.setChecked(not self.isChecked())


class MoodMark(QWidget):
    """The state as a shape; the sentence beside it says it in words."""

    def __init__(self) -> None:
        super().__init__()
        self.setFixedSize(28, 28)
        self._mood = Mood.OFF

    def set_mood(self, mood: Mood) -> None:
        """Draw another state."""
        if mood is not self._mood:
            self._mood = mood
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        draw_mood(painter, QRectF(self.rect()), self._mood, theme_of(self.palette()))


class CheckMark(QWidget):
    """How a step of a test went: a tick, an exclamation mark, a cross; an arc that turns; or a ring for what is to come."""

    TURN_MS, TURN_DEGREES = 50, 18

    def __init__(self) -> None:
        super().__init__()
        self.setFixedSize(20, 20)
        self._state, self._turned = "waiting", 0
        self.turning = QTimer(self, interval=self.TURN_MS)
        self.turning.timeout.connect(self._turn)

    def set_state(self, state: str) -> None:
        """Draw another state: good, warning, bad, running or waiting."""
        if state != self._state:
            self._state = state
            self._turn_or_rest()
            self.update()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._turn_or_rest()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.turning.stop()

    def _turn_or_rest(self) -> None:
        if self._state == "running" and self.isVisible() and motion.is_wanted():
            self.turning.start()
        else:
            self.turning.stop()

    def _turn(self) -> None:
        self._turned = (self._turned + self.TURN_DEGREES) % 360
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = theme_of(self.palette())
        colours = {"good": theme.lending, "warning": theme.waiting, "bad": theme.trouble}
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(0, -2)  # On the line of the name beside it.
        style, cap, join = Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin
        painter.setPen(QPen(QColor(colours.get(self._state, theme.dim)), 2.4, style, cap, join))
        ring = QRectF(self.rect()).adjusted(3.5, 3.5, -3.5, -3.5)
        match self._state:
            case "good":
                painter.drawPolyline([QPointF(4, 10), QPointF(8.5, 14.5), QPointF(16, 5.5)])
            case "warning":
                painter.drawLine(QPointF(10, 4), QPointF(10, 11))
                painter.drawPoint(QPointF(10, 15.5))
            case "bad":
                painter.drawLine(QPointF(5, 5), QPointF(15, 15))
                painter.drawLine(QPointF(15, 5), QPointF(5, 15))
            case "running":
                painter.setPen(QPen(QColor(theme.brand), 2.4, style, cap, join))
                painter.drawArc(ring, (90 - self._turned) * 16, -250 * 16)
            case _:
                painter.setPen(QPen(QColor(theme.edge), 1.6))
                painter.drawEllipse(ring)


class Card(QFrame):
    """A rounded panel with an optional title."""

    def __init__(self, title: str = "") -> None:
        super().__init__()
        self.body = QVBoxLayout(self)
        self.body.setContentsMargins(20, 16, 20, 16)
        self.body.setSpacing(8)
        if title:
            label = Text(bold=True)
            label.say(title)
            self.body.addWidget(label)

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = theme_of(self.palette())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(theme.line))
        painter.setBrush(QColor(theme.card))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS)


class Rows(QGridLayout):
    """Captions on the left, values on the right."""

    def __init__(self) -> None:
        super().__init__()
        self.setColumnStretch(1, 1)
        self.setHorizontalSpacing(16)
        self.setVerticalSpacing(6)
        self._values: dict[str, tuple[str, Text]] = {}

    def add(self, key: str, caption: str) -> Text:
        """A row; its value is set under ``key``."""
        row = len(self._values)
        label, value = Text(dim=True), Text()
        label.say(caption)
        label.setSizePolicy(QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Minimum)
        label.setWordWrap(False)
        label.setAlignment(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.addWidget(label, row, 0)
        self.addWidget(value, row, 1)
        self._values[key] = (caption, value)
        return value

    def value(self, key: str) -> Text:
        """The value under ``key``."""
        return self._values[key][1]

    def set_values(self, **values: str) -> None:
        """Show ``values``; every row is named."""
        for key, (caption, label) in self._values.items():
            label.say(values[key], caption)
