"""What asks for something beside a page: explanations and fields in a column, closed by a row of buttons."""

from PySide6.QtWidgets import QDialog, QHBoxLayout, QVBoxLayout, QWidget

from desktop.gui.widgets import Text


class Sheet(QDialog):
    """An empty one; parts are added from above to below."""

    def __init__(self, parent: QWidget | None, title: str, width: int = 420) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setMinimumWidth(width)
        self._column = QVBoxLayout(self)

    def _explain(self, text: str) -> Text:
        label = Text(dim=True)
        label.say(text)
        self._column.addWidget(label)
        return label

    def _end(self, *buttons: QWidget) -> None:
        row = QHBoxLayout()
        row.addStretch()
        for part in buttons:
            row.addWidget(part)
        self._column.addLayout(row)
