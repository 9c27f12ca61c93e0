"""A process that is held, and who listens at a socket: by each system's own means. The packages' workflow runs it on all."""

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEventLoop, QObject, QTimer
from PySide6.QtNetwork import QLocalSocket

from desktop.gui.held import Held

WAIT_MS = 20_000
LISTENS = """
    import socket, sys
    server = socket.socket(socket.AF_UNIX)
    server.bind(sys.argv[1])
    server.listen()
    print("listens", flush=True)
    server.accept()[0].recv(1)
"""


@pytest.fixture(scope="module")
def loop() -> QCoreApplication:
    return QCoreApplication.instance() or QCoreApplication([])


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def told(held: Held) -> bool:
    """Whether it says within some seconds that the process has ended."""
    heard: list[bool] = []
    waiting, limit = QEventLoop(), QTimer(singleShot=True)
    held.ended.connect(lambda: (heard.append(True), waiting.quit()))
    limit.timeout.connect(waiting.quit)
    limit.start(WAIT_MS)
    waiting.exec()
    return bool(heard)


@pytest.mark.usefixtures("loop")
def test_the_end_of_a_process_is_told(process: "subprocess.Popen[bytes]") -> None:
    parent = QObject()
    held = Held(process.pid, parent)
    assert process.stdin is not None
    QTimer.singleShot(300, process.stdin.close)
    assert told(held)
    held.close()


@pytest.mark.usefixtures("loop")
def test_it_can_be_killed_and_an_ended_one_is_not_held(process: "subprocess.Popen[bytes]") -> None:
    parent = QObject()
    held = Held(process.pid, parent)
    held.kill()
    assert told(held)
    assert process.wait(10) != 0
    held.kill()  # Nobody is hit.
    held.close()
    with pytest.raises(OSError):
        Held(process.pid, parent)


@pytest.mark.usefixtures("loop")
@pytest.mark.skipif(sys.platform == "win32", reason="tests/desktop/windows has the pipe's owner")
def test_who_listens_at_a_socket_is_known() -> None:
    from desktop.gui.peer import SocketName, listener

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder, "s")
        command = [sys.executable, "-c", textwrap.dedent(LISTENS), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"listens\n"
            name, connection = SocketName(path), QLocalSocket()
            connection.connectToServer(name.name)
            assert connection.waitForConnected(WAIT_MS)
            peer = listener(connection)
            assert (peer.pid, peer.user, peer.is_mine) == (server.pid, str(os.getuid()), True)
            connection.abort()
            name.close()
            server.kill()


@pytest.mark.skipif(sys.platform != "darwin", reason="elsewhere an open folder is a way to it")
def test_a_path_that_no_socket_can_have_is_refused_with_a_way_out() -> None:
    from desktop.gui.peer import SocketName

    with pytest.raises(OSError, match="nearer to /"):
        SocketName(Path("/" + "deep/" * 30, "s"))
