"""The second program of a worker's pod: starts the worker, seals what passes between it and the agent, and looks who comes in.

Kubernetes writes all that a container says to a file on its machine, and whoever may attach reads along. So frames are sealed
with a key that comes first over standard input, which is written nowhere. It comes once the agent listens: nothing is lost.

::

    agent -> pod   32 bytes of key, then frames        frame = length (4 bytes) + AES-256-GCM(kind (1 byte) + data)
    pod -> agent   frames                              nonce = direction (1 byte) + a count (11 bytes)

``python3 -c TEXT arguments``: what ``python3`` gets for the worker. It ends with the worker's exit code, or ``REACHED_INTO``
where a process appears that did not come from here: what ``kubectl exec`` or a debugging container starts has no parent in
this pod; or where its input has what the agent did not seal. Needs ``cryptography``, and nothing of Cottage's: its image may be
older than the agent.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY = 32
PIECE = 1 << 16
MAX_FRAME = PIECE + 64
DATA, END, FREEZE, THAW, TAKEN, NOTHING = range(6)
FROM_AGENT, FROM_POD = b"\x00", b"\x01"
LEAK, REACHED_INTO = 97, 98  # The first is the first program's.
LOOK_S = 0.1
HOW = "a command was run in its container"
SPOKEN = "its standard input has what its agent did not say"


class Ended(Exception):
    """Nothing comes any more."""


def exactly(size: int) -> bytes:
    """So many bytes of standard input."""
    parts = []
    while size:
        data = os.read(0, min(size, 1 << 20))
        if not data:
            raise Ended
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


class Seal:
    """One direction."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._cipher, self._direction, self._count = AESGCM(key), direction, 0

    def nonce(self) -> bytes:
        self._count += 1
        return self._direction + self._count.to_bytes(11, "big")

    def seal(self, kind: int, data: bytes) -> bytes:
        sealed = self._cipher.encrypt(self.nonce(), bytes((kind,)) + data, None)
        return len(sealed).to_bytes(4, "big") + sealed

    def open(self, sealed: bytes) -> tuple[int, bytes]:
        plain = self._cipher.decrypt(self.nonce(), sealed, None)
        if not plain:
            raise ValueError("a frame of no kind")
        return plain[0], plain[1:]


assert sys.platform != "win32", "it runs in a container of Linux; what stands above is the agent's, too"


class PodDoor:
    """Between standard streams and one worker."""

    def __init__(self, key: bytes, worker: "subprocess.Popen[bytes]") -> None:
        self.worker = worker
        self.inward, self.outward = Seal(key, FROM_AGENT), Seal(key, FROM_POD)
        self.saying = threading.Lock()
        self.waiting: deque[bytes] = deque()
        self.came = threading.Semaphore(0)
        self.telling = False

    def say(self, kind: int, data: bytes) -> None:
        with self.saying:
            frame = self.outward.seal(kind, data)
            while frame:
                frame = frame[os.write(1, frame) :]

    def hear(self) -> None:
        """Frames of the agent; what it does not want to be read yet waits here, at most the agent's own window."""
        try:
            while True:
                size = int.from_bytes(exactly(4), "big")
                if size > MAX_FRAME:
                    raise ValueError(f"a frame of {size:,} bytes")
                kind, data = self.inward.open(exactly(size))
                if kind == DATA:
                    self.waiting.append(data)
                    self.came.release()
                elif kind in (FREEZE, THAW):
                    os.killpg(self.worker.pid, signal.SIGSTOP if kind == FREEZE else signal.SIGCONT)
                elif kind == NOTHING:
                    self.say(NOTHING, b"")
                else:
                    break
        except (InvalidTag, ValueError):
            self.tell(SPOKEN)
        except (Ended, OSError):
            pass
        self.waiting.append(b"")  # The agent is gone, or has nothing more to say: so the worker's input ends.
        self.came.release()

    def pass_on(self, stream: IO[bytes]) -> None:
        """To the worker, at its own pace."""
        try:
            while True:
                self.came.acquire()
                data = self.waiting.popleft()
                if not data:
                    break
                stream.write(data)
                self.say(TAKEN, len(data).to_bytes(4, "big"))
            stream.close()
        except OSError:
            return  # The worker has ended, or reads no more.

    def bring(self, stream: IO[bytes]) -> None:
        """From the worker."""
        try:
            while data := os.read(stream.fileno(), PIECE):
                self.say(DATA, data)
            self.say(END, b"")
        except OSError:
            return

    def tell(self, how: str) -> None:
        """Somebody reached in: end everything, and say so last."""
        self.telling = True
        self.end()
        os.write(2, f"\n{how}\n".encode())  # The worker may have left a line unfinished.
        os._exit(REACHED_INTO)

    def end(self) -> None:
        """At once."""
        for number in (signal.SIGKILL, signal.SIGCONT):
            try:
                os.killpg(self.worker.pid, number)
            except OSError:
                return


def strangers() -> list[str]:
    """Processes of this pod that nobody here started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # A program may give itself any bytes for a name.
                    parent = file.read().rpartition(b")")[2].split()[1]
            except OSError:
                continue  # It has ended.
            if parent == b"0":
                found.append(name)
    return found


def look(door: PodDoor) -> None:
    """Until somebody comes in."""
    while not strangers():
        time.sleep(LOOK_S)
    door.tell(HOW)


def main() -> None:
    """Wait for the key, then for the worker's end."""
    # PR_SET_DUMPABLE: the worker, who is the same user, opens neither memory nor streams.
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    try:
        key = exactly(KEY)
    except Ended:
        os._exit(1)
    command = [sys.executable, *sys.argv[1:]]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
    assert worker.stdin is not None
    assert worker.stdout is not None
    door = PodDoor(key, worker)
    signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
    stdin, bringing = worker.stdin, threading.Thread(target=door.bring, args=(worker.stdout,), daemon=True)
    runs: list[Callable[[], None]] = [door.hear, lambda: door.pass_on(stdin)]
    if os.getpid() == 1:
        runs.append(lambda: look(door))
    for thread in [bringing, *(threading.Thread(target=run, daemon=True) for run in runs)]:
        thread.start()
    status = 0
    while True:  # As the first process it inherits those whose parents end.
        pid, status = os.wait()
        if pid == worker.pid:
            break
    bringing.join(2.0)
    if door.telling:  # It was ended by who tells why, and ends this program, too.
        time.sleep(2.0)
    code = os.waitstatus_to_exitcode(status)
    if code in (LEAK, REACHED_INTO):
        code = 1  # A job's own word, which would be taken for a cluster's.
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
