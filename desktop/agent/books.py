"""What an agent keeps for its owner: earnings and what has happened."""

from dataclasses import dataclass

from desktop.agent.activity import Activity
from desktop.agent.config import Home
from desktop.agent.earnings import Earnings


@dataclass(frozen=True)
class Books:
    """Both files of one home."""

    earnings: Earnings
    activity: Activity

    @classmethod
    def at(cls, home: Home) -> "Books":
        """Open them, or make them."""
        return cls(Earnings(home.earnings), Activity(home.activity))

    def close(self) -> None:
        """Close both."""
        self.earnings.close()
        self.activity.close()
