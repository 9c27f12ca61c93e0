"""Unix sockets in deep folders: the kernel takes paths of 107 bytes, home folders may be longer."""

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

# sizeof(sockaddr_un.sun_path), less the closing zero.
MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107
BACKLOG = 16


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for ``path`` that fits a socket address, valid inside the context.

    Raises:
        OSError: the folder does not exist.
    """
    if sys.platform == "win32":
        raise NotImplementedError("desktop.agent.app.owner_socket has a pipe there")
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    if sys.platform == "darwin":  # Which has no way to a socket through an open folder.
        raise OSError(errno.ENAMETOOLONG, f"longer than {MAX_PATH_BYTES} bytes: name a folder nearer to /", str(path))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path, mode: int) -> socket.socket:
    """A listening, non-blocking socket at ``path`` with permissions ``mode``; a stale one there is replaced.

    Raises:
        OSError: the folder does not exist or is not writable.
    """
    if sys.platform == "win32":
        raise NotImplementedError("desktop.agent.app.owner_socket has a pipe there")
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(path) as name:
            server.bind(name)
        path.chmod(mode)
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError:
        server.close()
        raise
    return server
