"""Carries files into and out of an element's container, whose image is a stranger's and need not have a single tool.

This text runs in a container of its own, of the sandbox's own image, under every restriction of a job. It has the two volumes
of an element, both in memory: ``/in`` and ``/out``. So what an element reads never lies on the owner's disk in the clear, what it
leaves is read by nobody with more rights than it had, and the agent gets bytes, never a stranger's file to open.

Each request is one line of JSON, its answer another; bytes follow the line that names their ``size``::

    {"do": "put", "path": P, "size": N} + bytes  a file below /in
    {"do": "drop", "path": P}                    takes it away
    {"do": "clear"}                              empties /out
    {"do": "list", "files": N, "bytes": N, "most": N}
                                                 what lies in /out: plain files only, or what is wrong with it. Where it has
                                                 at most ``most`` bytes in all, they follow, and /out is empty: "taken" says so
    {"do": "get", "path": P, "size": N}          one of these, then its bytes

Only the standard library, and nothing of Cottage's: its image may be older than the agent.
"""

import json
import os
import socket
import stat
import sys
from typing import Any, BinaryIO

assert sys.platform != "win32", "it runs in a container of Linux"

PIECE = 1 << 20
MAX_LINE = 1 << 16
MAX_DEPTH = 16
TOO_DEEP = f"it left folders that are nested more than {MAX_DEPTH} deep"


CHANGED = "a file changed after its end"


class ChangedError(Exception):
    """A file is not what it was when it was listed."""


class Porter:
    """Answers one agent about one pair of folders."""

    def __init__(self, inside: str, outside: str, reader: BinaryIO, writer: BinaryIO) -> None:
        self.inside, self.outside = inside, outside
        self.reader, self.writer = reader, writer

    def serve(self) -> None:
        """Until the other end closes."""
        while True:
            line = self.reader.readline(MAX_LINE)
            if not line.endswith(b"\n"):
                return
            asked = json.loads(line)
            try:
                answer = getattr(self, "do_" + asked["do"])(asked)
            except ChangedError:
                answer = {"fault": CHANGED}
            except OSError as error:
                answer = {"fault": os.strerror(error.errno or 0)}
            if answer is not None:
                self.say(answer)

    def say(self, answer: Any) -> None:
        self.writer.write(json.dumps(answer).encode() + b"\n")
        self.writer.flush()

    def do_clear(self, asked: Any) -> Any:
        odd: list[str] = []
        for path, _ in walk(self.outside, odd):
            if odd and odd[-1] == TOO_DEEP:
                return {"fault": TOO_DEEP}
            (os.rmdir if path[-1:] == "/" else os.unlink)(os.path.join(self.outside, path))
        return {}

    def do_drop(self, asked: Any) -> Any:
        path = asked["path"]
        os.unlink(os.path.join(self.inside, path))
        while path := os.path.dirname(path):
            try:
                os.rmdir(os.path.join(self.inside, path))
            except OSError:  # Another file lies there.
                break
        return {}

    def do_put(self, asked: Any) -> Any:
        left, fault, file = asked["size"], None, None
        path = os.path.join(self.inside, asked["path"])
        try:
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            file = open(path, "wb")  # noqa: SIM115 - bytes are read to their end though it cannot be written
        except OSError as error:
            fault = error.strerror
        while left:
            piece = self.reader.read(min(PIECE, left))
            if not piece:
                raise SystemExit(1)
            left -= len(piece)
            try:
                if file is not None and fault is None:
                    file.write(piece)
            except OSError as error:
                fault = error.strerror
        try:
            if file is not None:
                file.close()
                os.chmod(path, 0o444)
        except OSError as error:
            fault = fault or error.strerror
        return {"fault": fault} if fault else {}

    def do_list(self, asked: Any) -> Any:
        odd: list[str] = []
        found, total = [], 0
        for path, status in walk(self.outside, odd):
            if odd:
                return {"fault": odd[0]}
            if path[-1:] == "/":
                continue
            total += status.st_size
            found.append([path, status.st_size])
            if len(found) > asked["files"]:
                return {"fault": f"it left more than {asked['files']:,} files"}
            if total > asked["bytes"]:
                return {"fault": f"it left more than {asked['bytes']:,} bytes"}
        if odd:
            return {"fault": odd[0]}
        free = os.statvfs(self.outside)
        text, contents = json.dumps(found).encode(), []
        taken = total <= asked["most"]
        if taken:
            for path, size in found:
                with self.left(path, size) as file:
                    contents.append(file.read(size + 1))
                if len(contents[-1]) != size:
                    return {"fault": CHANGED}
            if fault := self.do_clear(asked):
                return fault
        self.say({"size": len(text), "full": free.f_bavail == 0 or free.f_ffree == 0, "taken": taken})
        self.writer.write(text + b"".join(contents))
        self.writer.flush()
        return None

    def left(self, path: str, size: int) -> Any:
        """A file below /out, opened; raises ChangedError where it is not what it was."""
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK
        file = open(os.open(os.path.join(self.outside, path), flags), "rb")  # noqa: SIM115 - its caller closes it
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            file.close()
            raise ChangedError
        return file

    def do_get(self, asked: Any) -> Any:
        with self.left(asked["path"], asked["size"]) as file:
            self.say({"size": asked["size"]})
            left = asked["size"]
            while left:
                piece = file.read(min(PIECE, left))
                if not piece:
                    raise SystemExit(1)
                self.writer.write(piece)
                left -= len(piece)
        self.writer.flush()
        return None


def walk(folder: str, odd: list[str], below: str = "") -> Any:
    """What lies in a folder, what is in folders before these, whose names end in a slash; ``odd`` gets what is neither."""
    where = os.path.join(folder, below)
    if below.count("/") > MAX_DEPTH:
        odd.append(TOO_DEEP)
        return
    if below:
        os.chmod(where, 0o700)  # Whoever made it may have locked it.
    for entry in sorted(os.listdir(where)):
        path = os.path.join(below, entry)
        status = os.lstat(os.path.join(folder, path))
        try:
            entry.encode()
        except UnicodeEncodeError:
            odd.append(f"it left a name that is no text: {path!a:.200}")
        if stat.S_ISDIR(status.st_mode):
            yield from walk(folder, odd, path + "/")
            yield path + "/", status
            continue
        if not stat.S_ISREG(status.st_mode):
            kind = "link" if stat.S_ISLNK(status.st_mode) else "pipe, socket or device"
            odd.append(f"it left a {kind} ({path!a:.200}), and only plain files are taken")
        else:
            os.chmod(os.path.join(folder, path), 0o600)
        yield path, status


def main() -> None:
    """``IN OUT SOCKET``, or ``IN OUT -`` for the standard streams."""
    inside, outside, way = sys.argv[1:4]
    if way == "-":
        Porter(inside, outside, sys.stdin.buffer, sys.stdout.buffer).serve()
        return
    door = socket.socket(socket.AF_UNIX)
    door.connect(way)
    Porter(inside, outside, door.makefile("rb"), door.makefile("wb")).serve()


if __name__ == "__main__":
    main()
