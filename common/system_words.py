"""What the operating system refuses, in words for people: no numbers, no names of Python's classes."""

import errno
import os
import re
import socket

_WORDS = {
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "it is a folder: name a file",
    errno.ENOTDIR: "a part of its path is a file, no folder: name another place",
    errno.EACCES: "this user may not: change its rights, or choose another",
    errno.EPERM: "this user may not: change its rights, or choose another",
    errno.EEXIST: "it is there already: choose another name",
    errno.ENOSPC: "the disk is full: make room on it",
    errno.EDQUOT: "this user's share of the disk is full: make room on it",
    errno.EROFS: "the disk can only be read: choose another place",
    errno.EFBIG: "the file would become larger than the system allows",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
    errno.ELOOP: "its links lead round in a circle: name another place",
    errno.ENOMEM: "there is not enough memory: end other programs, or raise the limit (ulimit -v)",
    errno.EIO: "the disk fails to read or write: look at its health, or choose another",
    errno.ENFILE: "too many files are open on this machine: end other programs",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
    errno.EADDRINUSE: "another program listens there: end it, or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one of its own, such as 127.0.0.1",
    errno.ECONNREFUSED: "nobody listens there",
}
# By SQLite's result codes (sqlite.org/rescode.html). The window's program is built without the module that names them.
_DATABASE = {
    13: _WORDS[errno.ENOSPC],
    8: "its file can only be read: change its rights, or choose another place",
    14: "its file cannot be opened or made: see whether it is a folder, and who may write there",
    26: "its file is no database: choose another",
    11: "its file is damaged: take the last copy of it",
    5: "another program uses its file: end that",
    10: "the disk can no longer be read or written, or is full",
}
_BOUND = re.compile(r"bind on address \('([^']*)', (\d+)")


def reason(error: BaseException) -> str:
    """Why, without the file that it was about; of an error that is not the system's, its own text."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start:,}: write it anew as UTF-8"
    if _is_of_a_database(error):
        return _DATABASE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF) or str(error)
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    if isinstance(error, socket.gaierror):
        return "no machine of that name is known"
    if error.errno == errno.ENOENT and _is_nowhere():
        return "the folder that this was started in is gone: change to another one (cd)"
    if error.errno == errno.EEXIST and error.filename is not None and not os.path.exists(error.filename):
        return "it is a link that leads nowhere: mend it, or name another place"
    return _WORDS.get(error.errno) or os.strerror(error.errno)


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def in_words(error: BaseException) -> str:
    """The same, behind the file or the port that it was about, where the error says."""
    if _is_of_a_database(error):
        return f"a database cannot be used: {reason(error)}"
    if not isinstance(error, OSError):
        return reason(error)
    if bound := _BOUND.search(error.strerror or ""):
        return f"port {bound[2]} of {bound[1]} cannot be listened on: {reason(error)}"
    return reason(error) if error.filename is None else f"{_name(error.filename)}: {reason(error)}"


def _is_of_a_database(error: BaseException) -> bool:
    return any((kind.__module__, kind.__name__) == ("sqlite3", "Error") for kind in type(error).__mro__)


def _name(file: object) -> str:
    return os.fsdecode(file) if isinstance(file, str | bytes | os.PathLike) else str(file)
