"""Signatures of the systems that packages are for; what has no key is left unsigned, and a sentence names the key.

===================================  ================================================================================
COTTAGE_AUTHENTICODE                 a PKCS #12 file with certificate and key, for Windows
COTTAGE_AUTHENTICODE_PASSWORD        its password
COTTAGE_TIMESTAMP                    a server of RFC 3161, so that a signature outlives its certificate
COTTAGE_APPLE_IDENTITY               "Developer ID Application: ..." in the keychain, for macOS
COTTAGE_APPLE_PROFILE                what ``xcrun notarytool store-credentials`` has kept, for Apple to look at the image
===================================  ================================================================================

Windows' files are signed by ``signtool`` there and by ``osslsigncode`` elsewhere.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

KEY, PASSWORD, TIMESTAMP = "COTTAGE_AUTHENTICODE", "COTTAGE_AUTHENTICODE_PASSWORD", "COTTAGE_TIMESTAMP"
IDENTITY, PROFILE = "COTTAGE_APPLE_IDENTITY", "COTTAGE_APPLE_PROFILE"


class SigningError(Exception):
    """A key is named, and nothing could be signed with it."""


def authenticode(*files: Path) -> bool:
    """Sign programs for Windows in their places; False, and a sentence, without a key.

    Raises:
        SigningError: the signature could not be made.
    """
    key = os.environ.get(KEY, "")
    if not key:
        return _unsigned(files, KEY)
    if not Path(key).is_file():
        raise SigningError(f"{KEY} names {key}, which is no file: name the certificate's PKCS #12 file")
    for file in files:
        # Elsewhere ``signtool`` is a program of NSS.
        _signtool(file, key) if os.name == "nt" else _osslsigncode(file, key)
    return True


def apple_app(app: Path, entitlements: Path) -> bool:
    """Sign an application folder for macOS with the hardened runtime; False, and a sentence, without an identity.

    Raises:
        SigningError: as ``authenticode``.
    """
    identity = os.environ.get(IDENTITY, "")
    if not identity:
        return _unsigned([app], IDENTITY)
    rules = ("--force", "--deep", "--options", "runtime", "--timestamp", "--entitlements", str(entitlements))
    _run(("codesign", *rules, "--sign", identity, str(app)))
    _run(("codesign", "--verify", "--deep", "--strict", str(app)))
    return True


def notarised(image: Path) -> bool:
    """Have Apple look at a disk image, and put its answer into it; False, and a sentence, without a profile.

    Raises:
        SigningError: Apple refuses it.
    """
    profile = os.environ.get(PROFILE, "")
    if not profile:
        return _unsigned([image], PROFILE)
    _run(("xcrun", "notarytool", "submit", str(image), "--keychain-profile", profile, "--wait"))
    _run(("xcrun", "stapler", "staple", str(image)))
    return True


def _unsigned(files: Sequence[Path], name: str) -> bool:
    sys.stdout.write(f"not signed: {', '.join(file.name for file in files)}: {name} is not set\n")
    return False


def _signtool(file: Path, key: str) -> None:
    server = os.environ.get(TIMESTAMP, "")
    stamped = ("/tr", server, "/td", "sha256") if server else ()
    password = ("/p", os.environ.get(PASSWORD, ""))
    _run(("signtool", "sign", "/fd", "sha256", "/f", key, *password, *stamped, str(file)))


def _osslsigncode(file: Path, key: str) -> None:
    """The password goes by a file: a command line is everybody's to read."""
    server = os.environ.get(TIMESTAMP, "")
    stamped = ("-ts", server) if server else ()
    with tempfile.TemporaryDirectory() as folder:
        password, signed = Path(folder) / "password", Path(folder) / file.name
        password.touch(mode=0o600)
        password.write_text(os.environ.get(PASSWORD, ""), encoding="utf-8")
        named = ("-pkcs12", key, "-readpass", str(password), "-h", "sha256", "-n", "Cottage")
        _run(("osslsigncode", "sign", *named, *stamped, "-in", str(file), "-out", str(signed)))
        shutil.copyfile(signed, file)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SigningError(f"{command[0]} is not installed: it makes the signature that a key is named for") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it said nothing"]
        raise SigningError(f"{command[0]} {command[1]} failed: {said[0]}")
