"""Whether a path that somebody named is a file that can be read more than once."""

import stat
from pathlib import Path
from typing import Final

_SAVE: Final = "its content is read more than once: save it as a file, and name that"
_OTHERS: Final = {
    stat.S_IFIFO: f"is a pipe, and {_SAVE}",
    stat.S_IFSOCK: f"is a socket, and {_SAVE}",
    stat.S_IFCHR: f"is a device or a terminal, and {_SAVE}",
    stat.S_IFBLK: f"is a disk, and {_SAVE}",
    stat.S_IFDIR: "is a folder: name one file in it",
}


def irregular(path: Path) -> str:
    """What a path is that is no regular file, and the way out, as the rest of a sentence about it; empty where it is one.

    Nothing is opened: a pipe that nobody writes to would never answer.

    Raises:
        OSError: nothing is there, or it must not be looked at.
    """
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return ""
    return _OTHERS.get(stat.S_IFMT(mode), f"is no regular file, and {_SAVE}")
