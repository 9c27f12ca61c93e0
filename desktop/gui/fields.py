"""One setting a row: its name, one line of help, and the control, which asks for a change as soon as it is made."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPointF, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLineEdit, QSpinBox, QVBoxLayout, QWidget

from desktop.gui.charts import HoursGrid
from desktop.gui.theme import draw_chevron
from desktop.gui.widgets import Text, Toggle

FIELD_WIDTH = 190  # Of every control that stands beside its name.
ARROW_FROM_EDGE = 14
TEXT_INSET = 6
MAX_LINE = 2000  # Characters that a line takes: what does not belong there is told apart, not cut.
SETTLE_MS = 500  # Somebody who turns a number asks once, for where it comes to rest.
Value = str | int | float | bool | list[str] | None


class SettingRow(QWidget):
    """The row of one setting. ``key``: its name in the agent's document."""

    changed = Signal(str, object)
    """Its key, and the value that the owner wants."""

    def __init__(self, key: str, caption: str, help_text: str, control: QWidget, wide: bool = False) -> None:
        super().__init__()
        self.key, self.control = key, control
        self._before: Value = None
        label, column = Text(), QVBoxLayout(self)
        label.say(caption)
        label.setBuddy(control)
        if not control.accessibleName():
            control.setAccessibleName(caption)
        control.setAccessibleDescription(help_text)
        column.setContentsMargins(0, 4, 0, 4)
        column.setSpacing(2)
        if wide:
            column.addWidget(label)
            column.addWidget(control)
        else:
            line = QHBoxLayout()
            line.setSpacing(12)
            line.addWidget(label, 1)
            line.addWidget(control)
            column.addLayout(line)
        if help_text:
            below = Text(dim=True)
            below.say(help_text)
            column.addWidget(below)

    @property
    def shown(self) -> Value:
        """What the agent said last."""
        return self._before

    def show_value(self, value: Value) -> None:
        """Show what the agent says, without a signal, unless the owner is just changing it."""
        self._before = value
        with QSignalBlocker(self.control):
            self._put(value)

    def _put(self, value: Value) -> None:
        raise NotImplementedError

    def _ask(self, value: Value) -> None:
        if value != self._before:
            self.changed.emit(self.key, value)


class _Number(QSpinBox):
    def wheelEvent(self, event: QWheelEvent) -> None:
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()  # The wheel scrolls the page.

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter, middle = QPainter(self), self.height() / 2
        where = self.width() - ARROW_FROM_EDGE
        for tip, is_more in ((middle - 7, True), (middle + 7, False)):
            is_last = self.value() == (self.maximum() if is_more else self.minimum())
            role = self.palette().ColorRole.Mid if is_last else self.foregroundRole()
            draw_chevron(painter, QPointF(where, tip), self.palette().color(role), is_more)


class _Options(QComboBox):
    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        tip = QPointF(self.width() - ARROW_FROM_EDGE, self.height() / 2 + 2)
        draw_chevron(QPainter(self), tip, self.palette().color(self.foregroundRole()))


class NumberRow(SettingRow):
    """A whole number. ``zero``: what 0 means, where it means something else."""

    def __init__(
        self,
        key: str,
        caption: str,
        help_text: str,
        bounds: tuple[int, int],
        suffix: str = "",
        zero: str = "",
        step: int = 1,
    ) -> None:
        control = _Number()
        super().__init__(key, caption, help_text, control)
        control.setRange(*bounds)
        control.setSingleStep(step)
        control.setSuffix(suffix)
        control.setSpecialValueText(zero)
        control.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        control.setFixedWidth(FIELD_WIDTH)
        control.setKeyboardTracking(False)
        control.lineEdit().setTextMargins(TEXT_INSET, 0, 0, 0)  # A style sheet's padding does not reach it.
        self._number = control
        self._settle = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._settle.timeout.connect(lambda: self._ask(control.value()))
        control.valueChanged.connect(lambda _: self._settle.start())

    def limit(self, most: int) -> None:
        """No more than this computer has."""
        with QSignalBlocker(self.control):
            self._number.setMaximum(max(self._number.minimum(), most))

    def _put(self, value: Value) -> None:
        if isinstance(value, (int, float)) and not self._settle.isActive():
            self._number.setValue(int(value))


class ToggleRow(SettingRow):
    """On or off."""

    def __init__(self, key: str, caption: str, help_text: str) -> None:
        control = Toggle(caption)
        super().__init__(key, caption, help_text, control)
        self._box = control
        control.toggled.connect(self._ask)

    def _put(self, value: Value) -> None:
        self._box.setChecked(bool(value))


class TextRow(SettingRow):
    """A line of text. ``show``, ``read``: between the agent's value and the line; ``read`` raises ValueError.

    ``exact``: what an owner need not know, for whoever points at the line.
    """

    def __init__(
        self,
        key: str,
        caption: str,
        help_text: str,
        hint: str = "",
        show: Callable[[Value], str] = str,
        read: Callable[[str], Value] = str,
        wide: bool = False,
        exact: str = "",
    ) -> None:
        control = QLineEdit()
        super().__init__(key, caption, help_text, control, wide)
        self._line, self._show, self._read = control, show, read
        control.setPlaceholderText(hint)
        control.setToolTip(exact)
        control.setAccessibleDescription(f"{help_text} {exact}".strip())
        control.setMaxLength(MAX_LINE)
        if not wide:
            control.setFixedWidth(FIELD_WIDTH)
        control.editingFinished.connect(self._finished)

    def _finished(self) -> None:
        self._line.setModified(False)
        if self._line.text() != self._show(self._before):
            self._ask(self._read(self._line.text().strip()))

    def _put(self, value: Value) -> None:
        if not (self._line.hasFocus() and self._line.isModified()):
            self._line.setText(self._show(value))


class ChoiceRow(SettingRow):
    """One of several."""

    def __init__(
        self, key: str, caption: str, help_text: str, options: Sequence[tuple[str, Value]] = (), wide: bool = False
    ) -> None:
        control = _Options()
        super().__init__(key, caption, help_text, control, wide)
        self._options = control
        control.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        if not wide:
            control.setFixedWidth(FIELD_WIDTH)
        control.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.offer(options)
        control.activated.connect(lambda number: self._ask(control.itemData(number)))

    def offer(self, options: Sequence[tuple[str, Value]]) -> None:
        """Other options."""
        known = [(self._options.itemText(n), self._options.itemData(n)) for n in range(self._options.count())]
        if known != list(options):
            with QSignalBlocker(self.control):
                self._options.clear()
                for text, value in options:
                    self._options.addItem(text, value)

    def _put(self, value: Value) -> None:
        self._options.setCurrentIndex(max(0, self._options.findData(value)))


class HoursRow(SettingRow):
    """The hours of a week."""

    def __init__(self, key: str, caption: str, help_text: str, days: Sequence[str], words: tuple[str, str]) -> None:
        control = HoursGrid(caption, days, words)
        super().__init__(key, caption, help_text, control, wide=True)
        self._grid = control
        control.changed.connect(self._ask)
        control.setAccessibleDescription("")
        control.show_hours(control.hours())

    def _put(self, value: Value) -> None:
        if isinstance(value, str):
            self._grid.show_hours(value)
