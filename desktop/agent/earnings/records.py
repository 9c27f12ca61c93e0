"""What an agent keeps for its owner: earnings and what has happened."""

from collections.abc import Collection
from dataclasses import dataclass, field

from desktop.agent.base.activity import Activity
from desktop.agent.base.config import Home
from desktop.agent.coordinator.cache_contents import CacheContents
from desktop.agent.earnings.earnings import EarningsFile, together
from desktop.answers import EarningsSummary
from protocol.node import LedgerInfo


@dataclass(frozen=True)
class EarningRecords:
    """Both files of one home; ``cache``: what this process has cached, which ends with it.

    ``beside``: what further cards of the computer have earned, each in its own file, since a job may hold several of them.
    """

    earnings: EarningsFile
    activity: Activity
    cache: CacheContents = field(default_factory=CacheContents, repr=False)
    beside: dict[str, EarningsFile] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, home: Home) -> "EarningRecords":
        """Open them, or make them."""
        found = cls(EarningsFile(home.earnings), Activity(home.activity))
        for file in sorted(home.cards.glob("GPU-*/earnings.db")):
            found.of_card(home.of_card(file.parent.name))
        return found

    def of_card(self, home: Home) -> "EarningRecords":
        """Those of a further card, which are open as long as these are."""
        if home.card not in self.beside:
            self.beside[home.card] = EarningsFile(home.earnings)
        return EarningRecords(self.beside[home.card], self.activity)

    def summary(
        self, now: float = 0.0, working: Collection[str] = (), rpc: str = "", heard: str | None = None
    ) -> EarningsSummary:
        """All that the computer has earned; arguments as of ``EarningsFile.summary``."""
        files = (self.earnings, *self.beside.values())
        return together([file.summary(now, working, rpc, heard) for file in files])

    def ledger(self, coordinator: str) -> LedgerInfo | None:
        """Where a coordinator keeps the money; None for one that has never said."""
        files = (self.earnings, *self.beside.values())
        return next((info for file in files if (info := file.ledger(coordinator)) is not None), None)

    def close(self) -> None:
        """Close all."""
        for file in (self.earnings, *self.beside.values()):
            file.close()
        self.activity.close()
