"""The update manifest, and whether it may be followed. Pure. How it is signed, read and kept:
``protocol.signatures.signed_documents``.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from desktop.agent.errors import UpdateError
from protocol.signatures.signed_documents import DocumentKind, FileName, Number, Sha256, Signature, Unix, digest_of

MAX_MANIFEST = 64 << 10  # Sixteen packages take 5 KB.
MAX_PACKAGE = 1 << 30  # The bundle has 70 MB; a size beyond this is a mistake or an attack.
MAX_UNPACKED = 4 << 30

Version = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,5})(\.(0|[1-9][0-9]{0,5})){2}$")]


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file beside the manifest: a gzipped tar of an installation's folder; for Windows its installer.

    ``platform``: as ``release.platform_name`` says; ``unpacked``: bytes of the tar, or of the installer itself.
    """

    platform: Annotated[str, Meta(pattern=r"^[a-z0-9]{1,20}-[a-z0-9_]{1,20}$")]
    file: FileName
    sha256: Sha256
    size: Annotated[int, Meta(ge=1, le=MAX_PACKAGE)]
    unpacked: Annotated[int, Meta(ge=1, le=MAX_UNPACKED)]


class UpdateManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What there is. ``number`` grows with every manifest; ``minimum``: the oldest version that may follow it by itself."""

    number: Number
    version: Version
    minimum: Version
    expires: Unix
    packages: Annotated[tuple[Package, ...], Meta(max_length=16)]


class SignedManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document on the web server."""

    manifest: UpdateManifest
    signature: Signature


class Seen(msgspec.Struct, frozen=True):
    """What this home has seen and will not go behind. ``failed``: versions that did not start here."""

    number: int = 0
    version: str = "0.0.0"
    digest: str = ""
    failed: tuple[str, ...] = ()


MANIFEST: DocumentKind[UpdateManifest] = DocumentKind(
    context="cottage/update/1",
    envelope=SignedManifest,
    limit=MAX_MANIFEST,
    error=UpdateError,
    noun="update manifest",
    about="",
    expired="somebody may be holding back newer ones, or this computer's clock is wrong",
    server="update",
)


def judge(manifest: UpdateManifest, running: str, platform: str, seen: Seen, now: float) -> Package | None:
    """The package to fetch; None where this version is the newest.

    Raises:
        UpdateError: the manifest is expired, older than one that was seen, another under a known number, names an older version
            than was seen, leaves this platform out, or needs a hand.
    """
    MANIFEST.judge(manifest, seen.number, seen.digest, now)
    known = max(running, seen.version, key=parts)
    if parts(manifest.version) < parts(known):
        raise UpdateError(f"update manifest {manifest.number} would go back from {known} to {manifest.version}")
    if parts(manifest.version) == parts(running):
        return None
    if manifest.version in seen.failed:
        raise UpdateError(f"version {manifest.version} did not start on this computer; the next one is waited for")
    if parts(running) < parts(manifest.minimum):
        raise UpdateError(
            f"version {running} is too old to update itself to {manifest.version} (from {manifest.minimum} on): "
            "install the new package by hand; key and settings stay"
        )
    found = [package for package in manifest.packages if package.platform == platform]
    if not found:
        raise UpdateError(f"version {manifest.version} has no package for {platform}")
    return found[0]


def remembered(seen: Seen, manifest: UpdateManifest) -> Seen:
    """``seen`` with a manifest that was judged."""
    newest = max(manifest.version, seen.version, key=parts)
    return msgspec.structs.replace(seen, number=manifest.number, version=newest, digest=digest_of(manifest))


def parts(version: str) -> tuple[int, ...]:
    """For comparing versions by their numbers."""
    return tuple(int(part) for part in version.split("."))
