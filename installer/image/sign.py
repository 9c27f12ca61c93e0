"""``python -m installer.image.sign``: the signed statement by which providers' programs know the sandbox image.

::

    docker save cottage-trainer:latest -o cottage-trainer-0.2.0.tar
    ... --key release.key --number 3 --name cottage-trainer:0.2.0 cottage-trainer-0.2.0.tar > image.json

``release.key`` is the key that signs updates (``installer.desktop.sign key``). ``image.json`` and the archive lie beside the
update manifest on the web server; ``installer.desktop.build --statement image.json`` puts the statement into a build, too. The
number must grow with every statement; sign one anew before it expires, though the image be the same.
"""

import argparse
import hashlib
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import msgspec

from common.errors import TransportError
from common.options import whole
from desktop.agent.errors import UnsignedImageError
from desktop.agent.sandbox.statement import SandboxImage, sign
from protocol.codec import MessageError, convert
from protocol.identity import NodeKey

DAYS = 180  # Images change with releases; the update manifest notices sooner that somebody holds releases back.
MAX_JSON = 1 << 20


def main() -> int:
    """Print the statement; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m installer.image.sign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--key", type=Path, required=True, help="the release key's file")
    parser.add_argument("--number", type=whole, required=True, help="greater than that of the statement before")
    parser.add_argument("--name", required=True, help="what it is called, such as cottage-trainer:0.2.0")
    parser.add_argument("--days", type=whole, default=DAYS, help=f"until it expires ({DAYS})")
    parser.add_argument("archive", type=Path, help="as docker save writes it")
    options = parser.parse_args()
    try:
        key = NodeKey.load(options.key)
        image = described(options.archive, options.number, options.name, key.address, int(time.time()), options.days)
        sys.stdout.buffer.write(sign(image, key) + b"\n")
    except (MessageError, TransportError, UnsignedImageError, OSError, ValueError, tarfile.TarError) as error:
        sys.stderr.write(f"sign: {error}\n")
        return 1
    return 0


def described(archive: Path, number: int, name: str, key: str, made: int, days: int) -> SandboxImage:
    """The statement about an archive, within its bounds; raises MessageError or ValueError."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    image: SandboxImage = convert(
        {
            "number": number,
            "name": name,
            "ids": ids(archive),
            "archive": {"file": archive.name, "sha256": digest, "size": archive.stat().st_size},
            "made": made,
            "expires": made + days * 86_400,
            "key": key,
        },
        SandboxImage,
    )
    return image


def ids(archive: Path) -> list[str]:
    """How engines name the one image in ``archive``; raises ValueError where it is not one.

    The digest of its configuration (``manifest.json``, image specification 1.2) and of its manifest, if any (``index.json``).
    """
    found: dict[str, Any] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in ("manifest.json", "index.json") and member.isfile() and member.size <= MAX_JSON:
                file = tar.extractfile(member)
                found[member.name] = msgspec.json.decode(file.read() if file is not None else b"")
    if "manifest.json" not in found:
        raise ValueError(f"{archive}: no archive of docker save")
    try:
        images, indexed = found["manifest.json"], found.get("index.json", {"manifests": []})["manifests"]
        if len(images) != 1 or len(indexed) > 1:
            raise ValueError(f"{archive} holds {max(len(images), len(indexed))} images: save one")
        configuration = str(images[0]["Config"]).rpartition("/")[2].removesuffix(".json")
        return list(dict.fromkeys([f"sha256:{configuration}", *(str(entry["digest"]) for entry in indexed)]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{archive}: no archive of docker save: {error!r}") from error


if __name__ == "__main__":
    sys.exit(main())
