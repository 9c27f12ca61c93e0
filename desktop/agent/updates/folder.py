"""Versions side by side in one folder, and a link that names the one in use.

::

    ~/.local/opt/cottage -> cottage-versions/0.2.0      what starts, menus and the service name
    ~/.local/opt/cottage-versions/0.2.0  0.1.0          the one in use and the one before it
    ~/.local/opt/cottage-versions/previous -> 0.1.0     to go back to
"""

import contextlib
import gzip
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from common.system_words import reason
from desktop.agent.errors import UpdateError
from desktop.layout import LINK, PREVIOUS

AGENT = "cottage-agent"
MAX_FILES = 20_000  # The bundle has 400.


@dataclass(frozen=True)
class InstallationFolder:
    """An installation that can replace itself; ``versions`` is its folder of versions."""

    versions: Path

    @property
    def link(self) -> Path:
        """What everything else names."""
        return self.versions.with_name(LINK)

    @property
    def current(self) -> Path:
        """The folder of the version in use."""
        return self.link.resolve()

    @property
    def previous(self) -> Path | None:
        """The folder of the version before it, where it is kept."""
        found = self.versions / PREVIOUS
        return found.resolve() if found.exists() else None

    def of(self, version: str) -> Path:
        """The folder of one version."""
        return self.versions / version

    def unpack(self, package: Path, version: str, unpacked: int) -> Path:
        """Lay out a package whose hash was checked; what lay there of an earlier try goes.

        Args:
            unpacked: bytes that its tar has; not one more is read.
        Raises:
            UpdateError: it is no such package, is larger than it says, reaches outside of its folder, or the disk is full.
        """
        draft, target = self.versions / f".{version}.new", self.of(version)
        shutil.rmtree(draft, ignore_errors=True)
        try:
            with gzip.open(package) as plain:
                bounded = cast(IO[bytes], _Bounded(plain, unpacked))  # Of which tarfile only reads.
                self._extract(bounded, draft)
            if not os.access(draft / AGENT, os.X_OK):
                raise UpdateError(f"the package of version {version} has no {AGENT}")
            _sync(draft)
            if target.exists():
                shutil.rmtree(target)
            draft.rename(target)
        except (OSError, EOFError, tarfile.TarError, ValueError) as error:
            raise UpdateError(f"version {version} cannot be unpacked in {self.versions}: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return target

    def _extract(self, source: IO[bytes], target: Path) -> None:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_FILES:
                    raise ValueError(f"it has more than {MAX_FILES:,} files")
                archive.extract(member, target, filter="data")

    def switch(self, version: str) -> None:
        """Let the link name ``version``, at once or not at all; the one before is kept to go back to.

        Raises:
            UpdateError: it is not there, or the folder cannot be written.
        """
        if not os.access(self.of(version) / AGENT, os.X_OK):
            raise UpdateError(f"version {version} is not in {self.versions}")
        before = self.current.name
        try:
            if before != version:
                _point(self.versions / PREVIOUS, before)
            _point(self.link, f"{self.versions.name}/{version}")
        except OSError as error:
            raise UpdateError(f"{self.link} cannot be changed: {reason(error)}") from error

    def back(self) -> str:
        """Let the link name the version before; returns which that is. Raises UpdateError where none is kept."""
        if self.previous is None:
            raise UpdateError(f"no earlier version is kept in {self.versions}")
        version = self.previous.name
        self.switch(version)
        return version

    def tidy(self, keep: frozenset[str] = frozenset()) -> None:
        """Remove versions other than the one in use, the one before it and ``keep``."""
        kept = {self.current.name, self.previous.name if self.previous else "", PREVIOUS, *keep}
        for entry in self.versions.iterdir():
            if entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)


class _Bounded:
    """A stream that ends with an error where it is longer than it may be."""

    def __init__(self, source: gzip.GzipFile, limit: int) -> None:
        self._source, self._left = source, limit

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; raises ValueError past the limit."""
        data = self._source.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it is larger than its manifest says")
        return data


def _point(link: Path, target: str) -> None:
    draft = link.with_name(f".{link.name}.new")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    draft.symlink_to(target)
    draft.replace(link)
    _sync_folder(link.parent)


def _sync(tree: Path) -> None:
    """On the disk before the link names it."""
    for folder, _, files in os.walk(tree):
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        _sync_folder(Path(folder))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
