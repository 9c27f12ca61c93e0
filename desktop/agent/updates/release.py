"""Which build this is, how it was installed, and whose updates it follows.

``release.json`` stands beside this module in builds that were given one (``installer.desktop.build --release``): the version, the
public key of whoever releases it, and where its manifest is. A source tree has none, and looks for no updates.
"""

import os
import platform
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from yarl import URL

from common.errors import UrlError
from common.urls import is_loopback, parse_url
from desktop.agent.errors import UpdateError
from desktop.agent.updates.folder import InstallationFolder
from desktop.layout import VERSIONS
from protocol.codec import MessageError, decode_json

FILE = "release.json"
PACKAGE = "cottage"

Way = Literal["folder", "deb", "setup", "other"]
UNINSTALLER = "uninstall.exe"  # What NSIS leaves beside the program (installer/desktop/windows/cottage.nsi).


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``key``: base58 of 32 bytes; ``url``: of the manifest. Both empty: this build follows no updates."""

    version: Annotated[str, Meta(max_length=40)] = ""
    key: Annotated[str, Meta(max_length=44)] = ""
    url: Annotated[str, Meta(max_length=2000)] = ""

    @property
    def follows(self) -> bool:
        """It knows whose updates to take, and where they are."""
        return bool(self.key and self.url and self.version)


def this_release() -> Release:
    """Of this program.

    Raises:
        UpdateError: its file is damaged.
    """
    file = resources.files(__package__).joinpath(FILE)
    if not file.is_file():
        return Release()
    try:
        release: Release = decode_json(file.read_bytes(), Release)
    except (OSError, MessageError) as error:
        raise UpdateError(f"this installation is damaged, {FILE} cannot be read: {error}") from error
    return release


def version() -> str:
    """Of this program."""
    try:
        return this_release().version or metadata.version(PACKAGE)
    except (metadata.PackageNotFoundError, UpdateError):
        return "from source"


def checked_url(text: str) -> URL:
    """The address of a manifest; raises UpdateError where others on the way could change what it says."""
    try:
        url = parse_url(text)
    except UrlError as error:
        raise UpdateError(f"updates are only fetched over https: {error}") from error
    if url.scheme == "http" and not is_loopback(url.raw_host or ""):
        raise UpdateError(f"updates are only fetched over https, not from {text!r}")
    return url


def platform_name() -> str:
    """Such as ``linux-x86_64``."""
    system = {"win32": "windows", "darwin": "macos"}.get(sys.platform, sys.platform)
    return f"{system}-{platform.machine().lower()}"


def installation(program: Path | None = None) -> tuple[Way, InstallationFolder | None]:
    """How the running program came here: ``folder`` can replace itself, ``setup`` is replaced by an installer, ``deb`` is apt's,
    ``other`` is its owner's.

    ``program``: the executable, this one by default.
    """
    if program is None:
        if not getattr(sys, "frozen", False):
            return "other", None
        program = Path(sys.executable)
    program = program.resolve()
    versions = program.parent.parent
    if versions.name == VERSIONS and os.access(versions, os.W_OK):
        return "folder", InstallationFolder(versions)
    if sys.platform == "win32" and program.with_name(UNINSTALLER).exists():
        return "setup", None
    if program.is_relative_to("/opt/cottage"):
        return "deb", None
    return "other", None
