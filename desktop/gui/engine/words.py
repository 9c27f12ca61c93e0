"""The engine in the owner's language."""

import sys

from PySide6.QtCore import QObject

from desktop.gui.engine.systems import EngineSource


class EngineWords(QObject):
    """One sentence for each thing that can be missing, done or wrong."""

    def missing(self, why: str) -> str:
        """``why``: as ``NoEngineError`` of the agent has it."""
        said = {
            "absent": self.tr("Docker is not installed."),
            "stopped": self.tr("Docker is installed, and does not run."),
            "denied": self.tr("Docker runs, and this user may not use it yet."),
        }
        return said.get(why) or self.tr("Docker does not answer.")

    def button(self, why: str) -> str:
        """What pressing it does."""
        said = {"stopped": self.tr("&Start the engine…"), "denied": self.tr("Let me &use the engine…")}
        return said.get(why) or self.tr("&Install the engine…")

    def fetch(self) -> str:
        """Of the image."""
        return self.tr("&Fetch the image…")

    @property
    def has_packages(self) -> bool:
        """Whether engines come as packages of the system: elsewhere Docker Desktop has an installer of its own."""
        return sys.platform == "linux"

    def open_page(self) -> str:
        """Of how it is installed."""
        return self.tr("&Open the page")

    def plan(self, why: str, source: EngineSource) -> str:
        """What is going to happen, before it does."""
        begins = {
            "stopped": self.tr("Cottage asks for an administrator's leave, starts the engine and lets you use it."),
            "denied": self.tr("Cottage asks for an administrator's leave and lets you use the engine."),
        }
        first = begins.get(why) or self.tr(
            "Cottage asks for an administrator's leave, has the system install its package “{0}”, starts it and lets you use it."
        ).format(source.package)
        then = self.tr("Whoever may use Docker may do whatever an administrator may.")
        return f"{self.purpose()} {first} {then}"

    def purpose(self) -> str:
        """Why it is needed."""
        return self.tr("Jobs run only inside Docker, so that they reach neither your files nor your network.")

    def by_hand(self) -> str:
        """Where there is nobody to ask for leave."""
        ask = self.tr("Cottage cannot ask for an administrator's leave here. Type this in a terminal:")
        return f"{self.purpose()} {ask}"

    def by_hand_later(self) -> str:
        """The same, before anything was pressed."""
        then = self.tr("The switch shows how it is installed here.")
        return f"{self.purpose()} {then}"

    def then_image(self) -> str:
        """What follows the engine."""
        return self.tr("The image that jobs run in is fetched after it.")

    def elsewhere(self) -> str:
        """Where no package is known."""
        look = self.tr("For this system Cottage knows no package of it. This page says how it is installed:")
        if not self.has_packages:
            look = self.tr("Here Docker Desktop is what runs it. This page has its installer:")
        return f"{self.purpose()} {look}"

    def step(self, step: str) -> str:
        """What is being done."""
        said = {
            "leave": self.tr("The system asks for leave, in a window of its own."),
            "packages": self.tr("Installing. It takes some minutes."),
            "service": self.tr("Starting the engine."),
            "user": self.tr("Letting you use it."),
        }
        return said.get(step) or self.tr("Nearly done.")

    def fault(self, fault: str) -> str:
        """What became of it; ``fault``: as ``systems.fault_of`` has it."""
        said = {
            "": self.tr("The engine runs, and you may use it."),
            "cancelled": self.tr("Nothing was changed: leave was not given."),
            "refused": self.tr("Nothing was changed: this system gives nobody leave to do that from here."),
            "network": self.tr(
                "The package could not be fetched: look whether this computer is online, and try again."
            ),
            "packages": self.tr("The package could not be installed. The details say why."),
            "service": self.tr("The engine is installed and does not start. The details say why."),
            "user": self.tr("The engine runs, and could not be opened to you. The details say why."),
            "login": self.tr("The engine runs. Log out and in again: from then on you may use it."),
        }
        return said.get(fault) or self.tr("That did not work. The details say why.")
