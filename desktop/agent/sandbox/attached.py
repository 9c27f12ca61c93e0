"""A container's standard streams as a socket: the way to a worker where its engine runs in a virtual machine.

Docker Desktop (Windows, macOS, some on Linux) mounts files into that machine, but no Unix socket works across. The engine
carries a container's standard input and output on the connection that attached to it, without any network: two threads copy
between that and one end of a pair of sockets, whose other end is read and written like a worker's socket. Each copy waits for
the slower side, so memory stays bounded. Source: Docker Engine API, "Attach to a container".
"""

import contextlib
import socket
import threading
from typing import Any

from docker.utils.socket import STDOUT, SocketError, frames_iter

from desktop.agent.base.log import LOG, printable
from desktop.agent.sandbox.base import MAX_LOG_BYTES

PIECE = 1 << 20  # Bytes that are copied at a time.


class Attached:
    """From ``attach_socket`` of a container that has not started yet, so that nothing it says is missed, until it ends."""

    def __init__(self, stream: Any) -> None:
        """``stream``: what ``attach_socket`` gave, with standard input, output and error."""
        self.end, self._inner = socket.socketpair()
        self._stream = stream
        self._engine = getattr(stream, "_sock", stream)  # The plain socket; on Windows there is only docker's own pipe.
        self._engine.settimeout(None)  # A worker that computes may not read for a long time.
        self._said = bytearray()
        self._threads = [
            threading.Thread(target=copy, name=f"attached-{copy.__name__}", daemon=True)
            for copy in (self._from_worker, self._to_worker)
        ]
        for thread in self._threads:
            thread.start()

    def said(self) -> bytes:
        """The last that the worker said on its standard error; all of it once it has ended."""
        self._threads[0].join(1.0)
        return bytes(self._said)

    def close(self) -> None:
        """Let go; the worker's input ends."""
        for one in (self._inner, self.end):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):  # Whatever the engine's client makes of a stream that is cut.
            self._engine.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._inner.close()
        self.end.close()

    def _from_worker(self) -> None:
        try:
            for number, data in frames_iter(self._engine, tty=False):
                if number == STDOUT:
                    self._inner.sendall(data)
                else:
                    self._said += data
                    del self._said[:-MAX_LOG_BYTES]
        except (OSError, SocketError, ValueError) as error:
            LOG.debug("a worker's output was cut: %s", printable(str(error)))
        with contextlib.suppress(OSError):
            self._inner.shutdown(socket.SHUT_WR)

    def _to_worker(self) -> None:
        try:
            while data := self._inner.recv(PIECE):
                self._engine.sendall(data)
        except (OSError, ValueError) as error:
            LOG.debug("a worker's input was cut: %s", printable(str(error)))
        with contextlib.suppress(Exception):  # As in ``close``.
            self._engine.shutdown(socket.SHUT_WR)
