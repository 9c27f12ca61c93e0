"""One window for each home folder: a second start brings the first one forward and ends."""

from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, QTimer, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from desktop.gui.peer import SocketName

CALL_TIMEOUT_MS = 1000  # A window that does not take a call within a second would not come forward either.
MAX_WORD = 8192  # Bytes; an invitation has a hundred.


class OnlyOne(QObject):
    """Holds the folder ``home`` for this window; ``called`` says that somebody tried to open another."""

    called = Signal(str)
    """The link that it was opened with, or nothing."""

    def __init__(self, home: Path, link: str = "", parent: QObject | None = None) -> None:
        """``link``: what another window, where there is one, is told."""
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
            if caller.waitForConnected(CALL_TIMEOUT_MS):
                caller.write(link.encode()[:MAX_WORD])
                caller.disconnectFromServer()  # Once it is written.
                if caller.state() is not QLocalSocket.LocalSocketState.UnconnectedState:
                    caller.waitForDisconnected(CALL_TIMEOUT_MS)

    def let_go(self) -> None:
        """Another may open from now on."""
        self._lock.unlock()

    def _take(self) -> None:
        while self._server.hasPendingConnections():
            caller = _Caller(self._server.nextPendingConnection(), self)
            caller.said.connect(self.called)
            caller.listen()


class _Caller(QObject):
    """Another start of the program: what it says until it hangs up, or a second has passed."""

    said = Signal(str)

    def __init__(self, socket: QLocalSocket, parent: QObject) -> None:
        super().__init__(parent)
        self._socket: QLocalSocket | None = socket
        socket.setParent(self)
        socket.setReadBufferSize(MAX_WORD + 1)

    def listen(self) -> None:
        """``said`` follows, once."""
        if (socket := self._socket) is None:
            return
        socket.disconnected.connect(self._end)
        QTimer.singleShot(CALL_TIMEOUT_MS, self, self._end)
        if socket.state() is QLocalSocket.LocalSocketState.UnconnectedState:
            self._end()

    def _end(self) -> None:
        if (socket := self._socket) is None:
            return
        self._socket = None
        word = bytes(socket.readAll().data()) if socket.bytesAvailable() else b""
        socket.abort()
        self.said.emit(word.decode(errors="replace") if len(word) <= MAX_WORD else "")
        self.deleteLater()
