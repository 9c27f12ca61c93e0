"""Asks the agent over HTTP on its socket, or its pipe. Nothing here waits: every answer and every failure arrives as a signal."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QObject, QTimer, Signal
from PySide6.QtNetwork import QLocalSocket

from desktop.gui.errors import AnswerError, RefusalError
from desktop.gui.model import plain, read_refusal
from desktop.gui.peer import SocketName, listener

MAX_ANSWER_BYTES = 1 << 20  # 64 leases and their links take 60 KB.
MAX_HEAD_BYTES = 16 * 1024  # The agent sends 200 bytes of headers.
ANSWER_TIMEOUT_MS = 3000  # For the whole answer; the agent takes 2 ms, 100 on a machine under full load.
MAX_CALLS = 32  # A page asks three things at once.

_HEAD = b"%s %s HTTP/1.0\r\nHost: agent\r\nAccept: application/json\r\nContent-Length: %d\r\n\r\n"
_ABSENT = (QLocalSocket.LocalSocketError.ServerNotFoundError, QLocalSocket.LocalSocketError.ConnectionRefusedError)


class AgentClient(QObject):
    """One question at a time; ``ask`` while one is under way does nothing."""

    answered = Signal(bytes, int)
    """The body of an answer 200, and the process that gave it, as the kernel says (0 where it cannot)."""
    absent = Signal()
    """Nobody listens on the socket."""
    broken = Signal(str)
    """Somebody listens, but gives no usable answer; the text is a sentence for the owner."""
    refused = Signal(str)
    """The agent understands and cannot do it (status 422); the text says why, in the agent's words."""

    def __init__(self, path: Path, parent: QObject | None = None) -> None:
        """Ask whoever listens on ``path``."""
        super().__init__(parent)
        self._path = path
        self._way: SocketName | None = None
        self._socket: QLocalSocket | None = None
        self._request = b""
        self._received = bytearray()
        self._pid = 0
        self._deadline = QTimer(self, singleShot=True, interval=ANSWER_TIMEOUT_MS)
        self._deadline.timeout.connect(self._too_late)

    def ask(self, target: str = "/v1/status", body: bytes = b"", patience_ms: int = 0) -> None:
        """Ask for ``target``, or send it ``body``; exactly one of the signals follows, within ``patience_ms`` where given."""
        if self._socket is not None:
            return
        method = b"POST" if body else b"GET"
        self._request, self._pid = _HEAD % (method, target.encode("ascii"), len(body)) + body, 0
        self._received.clear()
        self._socket = QLocalSocket(self)
        self._socket.setReadBufferSize(MAX_ANSWER_BYTES)
        self._socket.connected.connect(self._send)
        self._socket.readyRead.connect(self._read)
        self._socket.disconnected.connect(self._finish)
        self._socket.errorOccurred.connect(self._fail)
        self._deadline.start(patience_ms or ANSWER_TIMEOUT_MS)
        try:
            self._way = SocketName(self._path)
        except OSError:
            self._end()
            self.absent.emit()
            return
        self._socket.connectToServer(self._way.name)

    def _send(self) -> None:
        if self._socket is None:
            return
        self._pid, user, is_mine = listener(self._socket)
        if not is_mine:
            self._break(self.tr("Another user's program (user number {0}) answers in its place.").format(user))
            return
        self._socket.write(self._request)

    def _read(self) -> None:
        if self._socket is not None and not self._take(self._socket):
            self._break(self.tr("Its answer is larger than {0:,} bytes.").format(MAX_ANSWER_BYTES))

    def stop(self) -> None:
        """Nobody wants the answer any more."""
        self._end()

    def _take(self, connection: QLocalSocket) -> bool:
        """Keep what has arrived; whether all of it is within the limit."""
        if connection.bytesAvailable():  # Of an agent that died this moment nothing can be read, and Qt would warn.
            self._received += connection.readAll().data()
        return len(self._received) <= MAX_ANSWER_BYTES

    def _finish(self) -> None:
        if self._socket is None:
            return
        self._take(self._socket)
        try:
            body = body_of(bytes(self._received))
        except RefusalError as error:
            self._end()
            self.refused.emit(str(error))
            return
        except AnswerError as error:
            self._break(str(error))
            return
        pid = self._pid
        self._end()
        self.answered.emit(body, pid)

    def _fail(self, error: QLocalSocket.LocalSocketError) -> None:
        if self._socket is None or error is QLocalSocket.LocalSocketError.PeerClosedError:
            return  # The end of an answer; ``disconnected`` follows.
        if error in _ABSENT:
            self._end()
            self.absent.emit()
            return
        self._break(self.tr("Its socket cannot be used: {0}.").format(plain(self._socket.errorString())))

    def _too_late(self) -> None:
        self._break(self.tr("It has not answered for {0} seconds.").format(self._deadline.interval() // 1000))

    def _break(self, text: str) -> None:
        self._end()
        self.broken.emit(text)

    def _end(self) -> None:
        self._deadline.stop()
        if self._socket is not None:
            ended, self._socket = self._socket, None
            ended.abort()
            ended.deleteLater()
        if self._way is not None:
            self._way.close()
            self._way = None


class Calls(QObject):
    """Questions of the pages, one after the other. Whoever asks is told, unless it is gone by then."""

    def __init__(self, path: Path, parent: QObject | None = None) -> None:
        """Ask whoever listens on ``path``."""
        super().__init__(parent)
        self._path = path
        self._waiting: deque[_Call] = deque()
        self._now: _Call | None = None
        self._client = AgentClient(path, self)
        self._client.answered.connect(lambda body, _: self._settle(lambda call: call.done(body)))
        self._client.refused.connect(lambda text: self._settle(lambda call: call.failed(text)))
        self._client.broken.connect(lambda text: self._settle(lambda call: call.failed(text)))
        absent = self.tr("The agent does not run.")
        self._client.absent.connect(lambda: self._settle(lambda call: call.failed(absent)))

    def apart(self, parent: QObject) -> "Calls":
        """Others to the same agent: what takes long does not keep the pages waiting."""
        return Calls(self._path, parent)

    def stop(self) -> None:
        """Tell nobody any more, neither of what was asked nor of what waits."""
        self._waiting.clear()
        self._now = None
        self._client.stop()

    def get(self, target: str, done: Callable[[bytes], None], failed: Callable[[str], None] | None = None) -> None:
        """``done`` gets the document, or ``failed`` a sentence."""
        self._add(_Call(f"/v1/{target}", b"", done, failed or _ignore, 0))

    def post(
        self,
        target: str,
        order: object,
        done: Callable[[bytes], None],
        failed: Callable[[str], None] | None = None,
        patience_ms: int = 0,
    ) -> None:
        """Send ``order`` as JSON; as ``get``."""
        self._add(_Call(f"/v1/{target}", json.dumps(order).encode(), done, failed or _ignore, patience_ms))

    def _add(self, call: "_Call") -> None:
        if len(self._waiting) >= MAX_CALLS:
            call.failed(self.tr("The agent is slow; try again in a moment."))
            return
        self._waiting.append(call)
        self._next()

    def _next(self) -> None:
        if self._now is None and self._waiting:
            self._now = self._waiting.popleft()
            self._client.ask(self._now.target, self._now.body, self._now.patience_ms)

    def _settle(self, tell: "Callable[[_Call], None]") -> None:
        call, self._now = self._now, None
        if call is not None:
            tell(call)
        self._next()


@dataclass(frozen=True)
class _Call:
    target: str
    body: bytes
    done: Callable[[bytes], None]
    failed: Callable[[str], None]
    patience_ms: int


def _ignore(_: str) -> None:
    """The status says soon enough that the agent is gone."""


def body_of(answer: bytes) -> bytes:
    """The body of a complete HTTP answer.

    Raises:
        RefusalError: it has status 422 and says why.
        AnswerError: it is no complete answer with status 200.
    """
    head, mark, body = answer.partition(b"\r\n\r\n")
    if not mark or len(head) > MAX_HEAD_BYTES or not head.startswith((b"HTTP/1.0 ", b"HTTP/1.1 ")):
        raise AnswerError(QCoreApplication.translate("AgentClient", "What answers in its place does not speak HTTP."))
    first, *lines = head.split(b"\r\n")
    if first.split(b" ", 2)[1] == b"422":
        raise RefusalError(read_refusal(body))
    if first.split(b" ", 2)[1] != b"200":
        said = plain(first.decode("latin-1"), 80)
        raise AnswerError(QCoreApplication.translate("AgentClient", "It answers “{0}”.").format(said))
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if headers.get(b"content-length") != str(len(body)).encode():
        raise AnswerError(
            QCoreApplication.translate("AgentClient", "Its answer was cut after {0:,} bytes.").format(len(body))
        )
    return body
