"""The agent at the other end of its socket, or on Windows of its pipe: by what name Qt finds it, and who it is."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

from PySide6.QtNetwork import QLocalSocket


class Peer(NamedTuple):
    """Who listens, as the system notes it: its process (0 where it does not say) and its user, and whether that is ours."""

    pid: int
    user: str
    is_mine: bool


if sys.platform == "win32":
    from desktop import pipes

    def listener(connection: QLocalSocket) -> Peer:
        """Who listens at the other end of an open connection; raises OSError where the system does not say."""
        handle = int(connection.socketDescriptor())
        owner = pipes.owner_of(handle)
        return Peer(pipes.server_of(handle), owner, owner == pipes.user())

    class PipeName:
        """The name by which ``path`` is found."""

        def __init__(self, path: Path) -> None:
            """Take the pipe that stands for the socket ``path``."""
            self.name = pipes.name_of(path)

        def close(self) -> None:
            """Nothing is held."""

    SocketName = PipeName

else:
    import socket
    import struct

    MAX_PATH_BYTES = 106  # What Qt takes as the name of a socket; Linux takes 107.
    if sys.platform == "darwin":
        import errno

        MAX_PATH_BYTES = 103
        _LEVEL, _CREDENTIALS, _PROCESS = 0, 1, 2  # SOL_LOCAL, LOCAL_PEERCRED and LOCAL_PEERPID of sys/un.h.
        _XUCRED = 76  # Bytes of a struct xucred (sys/ucred.h): version, user, sixteen groups and how many they are.

        def _seen(twin: socket.socket) -> tuple[int, int]:
            _, uid = struct.unpack_from("=II", twin.getsockopt(_LEVEL, _CREDENTIALS, _XUCRED))
            (pid,) = struct.unpack("=i", twin.getsockopt(_LEVEL, _PROCESS, 4))
            return pid, uid

    else:

        def _seen(twin: socket.socket) -> tuple[int, int]:
            pid, uid, _ = struct.unpack("3i", twin.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return pid, uid

    def listener(connection: QLocalSocket) -> Peer:
        """Who listens at the other end of an open connection; raises OSError where the system does not say."""
        with socket.socket(fileno=os.dup(connection.socketDescriptor())) as twin:
            pid, uid = _seen(twin)
        return Peer(pid, str(uid), uid == os.getuid())

    class SocketName:
        """The name by which ``path`` is found: through its open folder where the path is longer than Qt takes."""

        def __init__(self, path: Path) -> None:
            """Open the folder where that is needed; raises OSError where there is none."""
            self.name, self._folder = str(path), -1
            if len(os.fsencode(path)) > MAX_PATH_BYTES:
                if sys.platform == "darwin":  # Which has no way to a socket through an open folder.
                    raise OSError(
                        errno.ENAMETOOLONG, f"longer than {MAX_PATH_BYTES} bytes: name a folder nearer to /", str(path)
                    )
                self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
                self.name = f"/proc/self/fd/{self._folder}/{path.name}"

        def close(self) -> None:
            """The name is not needed any more."""
            if self._folder >= 0:
                os.close(self._folder)
