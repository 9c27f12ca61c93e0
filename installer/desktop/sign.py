"""``python -m installer.desktop.sign``: the signed manifest that installed programs look for.

::

    ... key release.key                        make the key, once; keep it off the web server and off every build machine
    ... manifest --key release.key --number 7 --minimum 0.1.0 \\
        Cottage-0.2.0-linux-x86_64.tar.gz Cottage-Setup-0.2.0.exe > update.json

The manifest and the packages lie side by side on the web server. A build follows it with ``installer.desktop.build --release
release.json``, where that file has ``key`` (which ``key`` prints) and ``url`` (of the manifest). The number must grow with
every manifest; sign one anew before it expires, though there be nothing new.
"""

import argparse
import gzip
import hashlib
import re
import sys
import time
from pathlib import Path

from common.errors import TransportError
from common.options import whole
from desktop.agent.updates.manifest import MANIFEST, Package, UpdateManifest, parts
from protocol.codec import MessageError, convert
from protocol.identity import NodeKey

DAYS = 30  # A program that is held back by somebody notices within this time.
_NAME = re.compile(r"^Cottage-(\d+\.\d+\.\d+)-([a-z0-9]+-[a-z0-9_]+)\.tar\.gz$|^Cottage-Setup-(\d+\.\d+\.\d+)\.exe$")
_SETUP = "windows-amd64"
_CHUNK = 1 << 20


def main() -> int:
    """Make a key, or sign; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = parser.add_subparsers(required=True, metavar="WORD")
    key = words.add_parser("key", help="make a key, and print its public half")
    key.add_argument("file", type=Path)
    key.set_defaults(run=_key)
    made = words.add_parser("manifest", help="print a signed manifest of packages of one version")
    made.add_argument("--key", type=Path, required=True, help="the file that `key` made")
    made.add_argument("--number", type=whole, required=True, help="greater than that of the manifest before")
    made.add_argument("--minimum", required=True, help="the oldest version that may update itself to this one")
    made.add_argument("--days", type=whole, default=DAYS, help=f"until it expires ({DAYS})")
    made.add_argument("packages", type=Path, nargs="+")
    made.set_defaults(run=_manifest)
    options = parser.parse_args()
    try:
        return int(options.run(options))
    except (MessageError, TransportError, OSError, ValueError) as error:
        sys.stderr.write(f"sign: {error}\n")
        return 1


def _key(options: argparse.Namespace) -> int:
    key = NodeKey.generate()
    key.save(options.file)
    sys.stdout.write(f"{key.address}\n")
    return 0


def _manifest(options: argparse.Namespace) -> int:
    found = [described(package) for package in options.packages]
    versions = {version for version, _ in found}
    if len(versions) != 1:
        raise ValueError(f"packages of several versions, {', '.join(sorted(versions))}: one manifest has one")
    expires = int(time.time()) + options.days * 86_400
    manifest = manifest_of(options.number, versions.pop(), options.minimum, expires, [package for _, package in found])
    sys.stdout.buffer.write(MANIFEST.sign(manifest, NodeKey.load(options.key)) + b"\n")
    return 0


def manifest_of(number: int, version: str, minimum: str, expires: int, packages: list[Package]) -> UpdateManifest:
    """A manifest within its bounds; raises MessageError or ValueError."""
    given = {"number": number, "version": version, "minimum": minimum, "expires": expires, "packages": packages}
    manifest: UpdateManifest = convert(given, UpdateManifest)
    if parts(minimum) > parts(version):
        raise ValueError(f"--minimum {minimum} is above the version {version} itself: nobody could follow")
    return manifest


def described(package: Path) -> tuple[str, Package]:
    """Version and description of a file; raises ValueError where it is not named as ``installer.desktop.build`` names it."""
    match = _NAME.match(package.name)
    if match is None:
        raise ValueError(f"{package}: not named like Cottage-0.2.0-linux-x86_64.tar.gz or Cottage-Setup-0.2.0.exe")
    with package.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    version, platform, of_setup = match.groups()
    size = package.stat().st_size
    given = {"platform": platform or _SETUP, "file": package.name, "sha256": digest, "size": size}
    bounded: Package = convert(given | {"unpacked": size if of_setup else _unpacked(package)}, Package)
    return version or of_setup, bounded


def _unpacked(package: Path) -> int:
    unpacked = 0
    with gzip.open(package) as plain:
        while chunk := plain.read(_CHUNK):
            unpacked += len(chunk)
    return unpacked


if __name__ == "__main__":
    sys.exit(main())
