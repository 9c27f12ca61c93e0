"""The one button beside what keeps jobs from running here, where there is something to press."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from desktop.gui.engine.words import EngineWords
from desktop.gui.widgets import button

WAYS = ("absent", "stopped", "denied", "")


class MendRow(QWidget):
    """Hidden unless there is a way."""

    asked = Signal(str, str)
    """What is missing: no engine or no image; and why."""

    def __init__(self, indent: int = 0) -> None:
        """``indent``: pixels to the left of it."""
        super().__init__()
        self._words, self._missing = EngineWords(self), ("", "")
        self.press = button("", lambda: self.asked.emit(*self._missing))
        column = QVBoxLayout(self)
        column.setContentsMargins(indent, 4, 0, 0)
        column.addWidget(self.press, 0, Qt.AlignmentFlag.AlignLeft)
        self.hide()

    def offer(self, code: str, why: str) -> None:
        """``code``: as the agent calls what is missing; any other, and there is nothing to press."""
        self._missing = (code, why)
        there_is = code == "no image" or (code == "no engine" and why in WAYS)
        self.setVisible(there_is)
        if there_is:
            text = self._words.fetch() if code == "no image" else self._words.button(why)
            self.press.setText(text)
            self.press.setAccessibleName(text.replace("&", "").removesuffix("…"))
