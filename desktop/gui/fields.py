"""One setting a row: its name, one line of help, and the control, which asks for a change as soon as it is made."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from collections.abc import Callable, Sequence

from PySide6.QtCore import QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLineEdit, QSpinBox, QVBoxLayout, QWidget

from desktop.gui.charts import HoursGrid
from desktop.gui.widgets import Text, Toggle

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


class _Options(QComboBox):
    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


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
        control.setMinimumWidth(130)
        control.setKeyboardTracking(False)
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
    """A line of text. ``show``, ``read``: between the agent's value and the line; ``read`` raises ValueError."""

    def __init__(
        self,
        key: str,
        caption: str,
        help_text: str,
        hint: str = "",
        show: Callable[[Value], str] = str,
        read: Callable[[str], Value] = str,
        wide: bool = False,
    ) -> None:
        control = QLineEdit()
        super().__init__(key, caption, help_text, control, wide)
        self._line, self._show, self._read = control, show, read
        control.setPlaceholderText(hint)
        control.setMaxLength(2000)
        if not wide:
            control.setFixedWidth(180)
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

    def __init__(self, key: str, caption: str, help_text: str, options: Sequence[tuple[str, Value]] = ()) -> None:
        control = _Options()
        super().__init__(key, caption, help_text, control)
        self._options = control
        control.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        control.setMinimumWidth(220)
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
