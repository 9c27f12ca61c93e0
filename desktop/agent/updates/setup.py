"""Windows: a fetched installer that puts the new version in this one's place (``installer/desktop/windows/cottage.nsi``).

It lays the new version beside the old one, ends what runs, lets the new agent show that it answers, and starts what ran: the new
version, or the old one again. What it is told stands in its environment, which no path has to be quoted for.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.system_words import reason
from desktop.agent.base.config import Home
from desktop.agent.errors import UpdateError
from desktop.agent.updates.fetch import Stated, is_whole

HOME, STAYS = "COTTAGE_SETUP_HOME", "COTTAGE_SETUP_STAYS"  # As in cottage.nsi.
if sys.platform == "win32":
    _APART = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _APART = 0  # Only tests start one elsewhere.


@dataclass(frozen=True)
class SetupFile:
    """An installer on the disk, and what its manifest says of it."""

    file: Path
    package: Stated

    def start(self, home: Home, *, stays: bool) -> None:
        """Start it apart from this process, which it will end.

        Args:
            stays: the agent that it starts afterwards rests while lending is off.
        Raises:
            UpdateError: it is no longer the file that was fetched, or cannot be started.
        """
        given = {HOME: str(home.path), STAYS: "--stay" if stays else ""}
        try:
            if not is_whole(self.file, self.package):
                raise UpdateError(f"{self.file} is not the file that was fetched any more")
            subprocess.Popen(
                (str(self.file), "/S"),
                env=os.environ | given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                creationflags=_APART,
            )
        except OSError as error:
            raise UpdateError(f"{self.file} cannot be started: {reason(error)}") from error
