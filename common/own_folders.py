"""The folders that the system has for a user's data, settings and copies; a user without a home is told so."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import platformdirs


class NoHomeError(OSError):
    """Neither HOME nor the system says where this user's files are."""


def data_folder() -> Path:
    """For what must last; raises NoHomeError."""
    return _known(platformdirs.user_data_path)


def settings_folder() -> Path:
    """For settings and keys; raises NoHomeError."""
    return _known(platformdirs.user_config_path)


def cache_folder() -> Path:
    """For what can be made again; raises NoHomeError."""
    return _known(platformdirs.user_cache_path)


def home_folder() -> Path:
    """The user's own; raises NoHomeError."""
    return _known(lambda _name: Path.home())


def _known(place: Callable[[str], Path]) -> Path:
    try:
        return place("cottage")
    except RuntimeError as error:
        raise NoHomeError("this user has no home folder: set HOME to a folder that may be written to") from error


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, that nobody else may read; one that is there is left as it is.

    Raises:
        OSError: it cannot be made; NotADirectoryError where a file has its name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError as error:
        if not path.exists():
            raise  # A link that leads nowhere.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
