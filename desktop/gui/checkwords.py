"""The steps of the self-test in the owner's language."""

from collections.abc import Mapping

from PySide6.QtCore import QObject

from common.token_worth import TokenWorth
from desktop.answers import SelfTestStep
from desktop.gui.model import plain
from desktop.gui.sentences import Sentences, in_currency, money


class CheckWords(QObject):
    """The words; details that only the agent knows stay in its own."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._sentences = Sentences(self)

    def name(self, name: str) -> str:
        """What a step is about."""
        names = {
            "gpu": self.tr("Device"),
            "sandbox": self.tr("Docker"),
            "speed": self.tr("Speed"),
            "disk": self.tr("Disk"),
            "memory": self.tr("Memory"),
            "coordinator": self.tr("Network"),
            "line": self.tr("Internet"),
        }
        return names.get(name, self.tr("Earnings"))

    def said(self, check: SelfTestStep) -> str:
        """What was found."""
        detail, text = {name: plain(value, 60) for name, value in check.detail.items()}, plain(check.text)
        if check.name in ("sandbox", "speed"):
            said = self._of_jobs(detail, text)
        elif check.name in ("coordinator", "line", "earnings"):
            said = self._of_the_network(detail, text)
        else:
            said = self._of_the_machine(detail, text)
        return said.get((check.name, check.code)) or said.get((check.name, "")) or text

    def _of_the_machine(self, detail: Mapping[str, str], text: str) -> dict[tuple[str, str], str]:
        disk = self.tr("{0} GB free, {1} GB for jobs").format(detail.get("free_gb"), detail.get("wanted_gb"))
        memory = self.tr("{0} of {1} MB for jobs").format(detail.get("lent_mb"), detail.get("memory_mb"))
        gone = self.tr("The GPU that you chose is not in this computer; the processor earns far less.")
        none = self.tr("No NVIDIA GPU can be used; the processor earns far less. {0}").format(text)
        return {
            ("gpu", "found"): detail.get("name", text),
            ("gpu", "gone"): gone,
            ("gpu", "other"): self.tr("{0} graphics are not supported yet; the processor earns far less.").format(
                detail.get("maker", "")
            ),
            ("gpu", ""): none,
            ("disk", "full"): self.tr("{0}: make room").format(disk),
            ("disk", ""): disk,
            ("memory", "little"): self.tr("{0} MB are too little for any job").format(detail.get("memory_mb")),
            ("memory", ""): memory,
        }

    def _of_jobs(self, detail: Mapping[str, str], text: str) -> dict[tuple[str, str], str]:
        engine = self._sentences.engine(detail)
        return {
            ("sandbox", "found"): self.tr("Keeps jobs away from your files and your network"),
            ("sandbox", "unprotected"): self.tr("Jobs run with your rights: for a demo only"),
            ("sandbox", "unsafe"): self.tr("Jobs cannot be kept apart safely here: {0}").format(text),
            ("sandbox", "no engine"): engine,
            ("sandbox", "no image"): self.tr("The image that jobs run in is not here yet"),
            ("speed", "measured"): self.tr("{0} GFLOP/s, measured").format(detail.get("gigaflops", "")),
            ("speed", "busy"): self.tr("{0} GFLOP/s while other programs computed: close them and check again").format(
                detail.get("gigaflops", "")
            ),
            ("speed", "not measured"): self.tr("It is measured once jobs can run here"),
        }

    def _of_the_network(self, detail: Mapping[str, str], text: str) -> dict[tuple[str, str], str]:
        here = self.tr("{0} computers are connected, {1} of them work")
        line = self.tr("Up {0}, down {1} Mbit/s")
        up, down = detail.get("up_mbit", "?"), detail.get("down_mbit", "?")
        return {
            ("coordinator", "answers"): here.format(detail.get("online"), detail.get("busy")),
            ("coordinator", "not set"): self.tr("There is none yet: give its address, or an invitation"),
            ("coordinator", "no answer"): self._unanswered(detail.get("why", ""), text),
            ("coordinator", "other key"): self.tr(
                "Another network answers there than that of your invitation. Ask whoever invited you for a new one."
            ),
            ("line", "tested"): line.format(up, down),
            ("line", "no relay"): self.tr("No relay of the network is reached from here"),
            ("line", "waits"): self.tr("It is tested once the network answers"),
            ("line", "not tested"): self.tr("It could not be tested: {0}").format(text),
            ("earnings", "some"): self._range(detail),
            ("earnings", "below power"): self._range(detail),
            ("earnings", "no rate"): self._range(detail, "no rate"),
            ("earnings", "not known"): self.tr("Known once the speed is measured and the network has told its price"),
        }

    def _unanswered(self, why: str, text: str) -> str:
        said = {
            "refused": self.tr("The computer at this address runs no network now"),
            "name": self.tr("There is no computer of this name: look whether the address is spelt right"),
            "late": self.tr(
                "Nobody answered in time: look whether this computer is online, and whether the address is right"
            ),
            "unreached": self.tr("The way there is cut: look whether this computer is online"),
            "certificate": self.tr("Whoever answers there cannot prove the name of the address"),
            "away": self.tr("The network is there, and cannot answer now"),
            "other": self.tr("Something else than a Cottage network answers there"),
            "proxy": self.tr("The proxy on the way lets nothing through: {0}").format(text),
        }
        return said.get(why) or self.tr("Nobody answers there: {0}").format(text)

    def _range(self, detail: Mapping[str, str], code: str = "") -> str:
        try:
            low, high, power = (int(detail[name]) for name in ("low", "high", "power"))
            worth = TokenWorth(detail["currency"], int(detail["worth"])) if "worth" in detail else None
        except (KeyError, ValueError):
            return "–"
        ends = self._amount(low, worth), self._amount(high, worth)
        if code == "no rate":
            text = self.tr(
                "Between {0} and {1} a day of 24 hours, before electricity: Settings, Money, takes what a token is worth"
            )
            return text.format(*ends)
        if not power:
            return self.tr("Between {0} and {1} a day of 24 hours, before electricity").format(*ends)
        text = self.tr("Between {0} and {1} a day of 24 hours, after up to {2} for electricity")
        return text.format(*ends, self._amount(power, worth))

    def _amount(self, units: int, worth: TokenWorth | None) -> str:
        return in_currency(units, worth) if worth is not None else self.tr("{0} tokens").format(money(units))
