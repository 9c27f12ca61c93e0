"""Brings here what jobs lack, one part after the other, after one press: the engine, and then the image."""

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from desktop.gui.client import Calls
from desktop.gui.engine.sheets import EngineSheet, ImageSheet

NO_ENGINE, NO_IMAGE = "no engine", "no image"  # As the agent calls what is missing.


class Equipping(QObject):
    """Owns both sheets. Once the engine has come, the image follows by itself; a failure or a closed sheet ends that."""

    mended = Signal()
    """A part has come: look again."""

    def __init__(self, calls: Calls, window: QWidget) -> None:
        super().__init__(window)
        self.engine, self.image = EngineSheet(window), ImageSheet(calls, window)
        self._goes_on = False
        for sheet in (self.engine, self.image):
            sheet.mended.connect(self._came)
            sheet.rejected.connect(self._stop)

    def plan(self, code: str, why: str) -> str:
        """What ``begin`` would do, for its owner to agree to; empty where there is nothing to do from here."""
        if code == NO_IMAGE:
            return self.image.about.text()
        return self.engine.plan(why) if code == NO_ENGINE else ""

    def ask(self, code: str, why: str) -> None:
        """Show what is missing, with the button that brings it."""
        if code == NO_IMAGE:
            self.image.ask()
        else:
            self.engine.ask(why)

    def begin(self, code: str, why: str) -> None:
        """Bring it at once: its owner has read the plan."""
        if not self.plan(code, why):
            return
        self._goes_on = True
        if code == NO_IMAGE:
            self.image.begin()
        else:
            self.engine.begin(why)

    def follow(self, code: str) -> None:
        """What the agent still misses, as it says now."""
        if self._goes_on and code == NO_IMAGE and not self.image.isVisible() and not self.engine.work.is_running:
            self.image.begin()

    def _came(self) -> None:
        self._goes_on = self.sender() is self.engine
        self.mended.emit()

    def _stop(self) -> None:
        self._goes_on = False
