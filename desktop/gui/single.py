"""One window for each home folder: a second start brings the first one forward and ends."""

from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from desktop.gui.peer import SocketName

CALL_TIMEOUT_MS = 1000  # A window that does not take a call within a second would not come forward either.


class OnlyOne(QObject):
    """Holds the folder ``home`` for this window; ``called`` says that somebody tried to open another."""

    called = Signal()

    def __init__(self, home: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._way = SocketName(home / "window.sock")  # Open as long as Qt knows its server by that name.
        name = self._way.name
        self._lock = QLockFile(str(home / "window.lock"))
        self._lock.setStaleLockTime(0)  # Stale is only what a dead process left, however old.
        self.is_first = self._lock.tryLock(0)
        if self.is_first:
            self._server = QLocalServer(self)
            self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
            QLocalServer.removeServer(name)
            self._server.listen(name)
            self._server.newConnection.connect(self._take)
        else:
            caller = QLocalSocket()
            caller.connectToServer(name)
            caller.waitForConnected(CALL_TIMEOUT_MS)

    def let_go(self) -> None:
        """Another may open from now on."""
        self._lock.unlock()

    def _take(self) -> None:
        while self._server.hasPendingConnections():
            caller = self._server.nextPendingConnection()
            caller.abort()
            caller.deleteLater()
        self.called.emit()
