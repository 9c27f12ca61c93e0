"""What an agent keeps for its owner: earnings and what has happened."""

from dataclasses import dataclass, field

from desktop.agent.base.activity import Activity
from desktop.agent.base.config import Home
from desktop.agent.coordinator.cache_contents import CacheContents
from desktop.agent.earnings.earnings import EarningsFile


@dataclass(frozen=True)
class EarningRecords:
    """Both files of one home; ``cache``: what this process has cached, which ends with it."""

    earnings: EarningsFile
    activity: Activity
    cache: CacheContents = field(default_factory=CacheContents, repr=False)

    @classmethod
    def at(cls, home: Home) -> "EarningRecords":
        """Open them, or make them."""
        return cls(EarningsFile(home.earnings), Activity(home.activity))

    def close(self) -> None:
        """Close both."""
        self.earnings.close()
        self.activity.close()
