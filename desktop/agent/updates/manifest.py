"""A signed manifest, and whether it may be followed. Pure.

The signature (Ed25519, ``transport.identity``) covers the canonical JSON of the manifest: sorted names, no spaces, integers and
ASCII only, which for these types is RFC 8785. What an attacker who holds the web server, but not the key, could try is in
``judge``: the attacks of The Update Framework's paper (Samuel et al., CCS 2010) on a single role.
"""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from desktop.agent.errors import UpdateError
from transport.errors import TransportError
from transport.identity import NodeKey, verify
from transport.wire.codec import MessageError, decode_json, encode_json

CONTEXT = "cottage/update/1"
MAX_MANIFEST = 64 << 10  # Sixteen packages take 5 KB.
MAX_PACKAGE = 1 << 30  # The bundle has 70 MB; a size beyond this is a mistake or an attack.
MAX_UNPACKED = 4 << 30

Version = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,5})(\.(0|[1-9][0-9]{0,5})){2}$")]
Unix = Annotated[int, Meta(ge=0, lt=2**40)]


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file beside the manifest: a gzipped tar of an installation's folder.

    ``platform``: as ``release.platform_name`` says; ``unpacked``: bytes of the tar.
    """

    platform: Annotated[str, Meta(pattern=r"^[a-z0-9]{1,20}-[a-z0-9_]{1,20}$")]
    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=1, le=MAX_PACKAGE)]
    unpacked: Annotated[int, Meta(ge=1, le=MAX_UNPACKED)]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What there is. ``number`` grows with every manifest; ``minimum``: the oldest version that may follow it by itself."""

    number: Annotated[int, Meta(ge=1, lt=2**53)]
    version: Version
    minimum: Version
    expires: Unix
    packages: Annotated[tuple[Package, ...], Meta(max_length=16)]


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document on the web server. ``signature``: 64 bytes as hexadecimal digits."""

    manifest: Manifest
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}$")]


class Seen(msgspec.Struct, frozen=True):
    """What this home has seen and will not go behind. ``failed``: versions that did not start here."""

    number: int = 0
    version: str = "0.0.0"
    digest: str = ""
    failed: tuple[str, ...] = ()


def canonical(manifest: Manifest) -> bytes:
    """The bytes that are signed."""
    return msgspec.json.encode(manifest, order="sorted")


def sign(manifest: Manifest, key: NodeKey) -> bytes:
    """The document for the web server."""
    return encode_json(Signed(manifest, key.sign(CONTEXT, canonical(manifest)).hex()))


def read(document: bytes, address: str) -> Manifest:
    """The manifest in ``document``, if the key ``address`` (base58) has signed it.

    Raises:
        UpdateError: it is cut off, malformed, or signed by nobody or somebody else.
    """
    try:
        signed: Signed = decode_json(document, Signed, MAX_MANIFEST)
        verify(address, bytes.fromhex(signed.signature), CONTEXT, canonical(signed.manifest))
    except (MessageError, TransportError) as error:
        raise UpdateError(f"the update manifest cannot be believed: {error}") from error
    return signed.manifest


def judge(manifest: Manifest, running: str, platform: str, seen: Seen, now: float) -> Package | None:
    """The package to fetch; None where this version is the newest.

    Raises:
        UpdateError: the manifest is expired, older than one that was seen, another under a known number, names an older version
            than was seen, leaves this platform out, or needs a hand.
    """
    if now >= manifest.expires:
        raise UpdateError(
            f"update manifest {manifest.number} has expired: somebody may be holding back newer ones, or this "
            "computer's clock is wrong"
        )
    if manifest.number < seen.number:
        raise UpdateError(f"update manifest {manifest.number} is older than {seen.number}, which was seen before")
    if manifest.number == seen.number and digest_of(manifest) != seen.digest:
        raise UpdateError(f"there are two update manifests with the number {manifest.number}: neither is believed")
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


def remembered(seen: Seen, manifest: Manifest) -> Seen:
    """``seen`` with a manifest that was judged."""
    newest = max(manifest.version, seen.version, key=parts)
    return msgspec.structs.replace(seen, number=manifest.number, version=newest, digest=digest_of(manifest))


def digest_of(manifest: Manifest) -> str:
    """Names its content."""
    return hashlib.sha256(canonical(manifest)).hexdigest()


def parts(version: str) -> tuple[int, ...]:
    """For comparing versions by their numbers."""
    return tuple(int(part) for part in version.split("."))
