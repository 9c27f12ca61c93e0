"""``python -m installer.desktop.build``: the bundle in build/desktop/cottage, and packages of it beside.

Needs PyInstaller (``pip install -e '.[desktop,agent,installer]'``) and dpkg-deb; makeself for the package that needs no root.
PyInstaller builds for the system that it runs on, from one specification: on Windows, with NSIS, ``--windows`` makes the
installer, on macOS ``--macos`` a disk image.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from common import invitations
from desktop.agent.base.networks import FILE as NETWORK
from desktop.agent.sandbox import statement
from desktop.agent.updates.release import FILE, Release, checked_url, platform_name
from desktop.agent.updates.sandbox_images import FILE as STATEMENT
from installer.desktop import codesign
from protocol.codec import decode_json, encode_json
from protocol.identity import parse_address

ROOT = Path(__file__).resolve().parents[2]
VERSION = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
HERE = Path(__file__).resolve().parent
TEMPLATES = HERE / "debian"
POLICY = "network.cottage.install-engine.policy"  # What the system says when it asks for leave.
PROGRAMS = ("cottage", "cottage-agent")
SIZES = (16, 32, 48, 64, 128, 256, 512)
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)\b")


def main() -> int:
    """Build both; print where they lie and how large they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "desktop", help="the folder (build/desktop)")
    parser.add_argument("--small", action="store_true", help="xz instead of zstd: three minutes for a quarter less")
    parser.add_argument("--run", action="store_true", help="also a .run that installs for one user, without root")
    parser.add_argument("--appimage", action="store_true", help="also one file that runs where it lies")
    parser.add_argument(
        "--release", type=Path, help="JSON with key and url: whose updates this build follows (nobody's)"
    )
    parser.add_argument(
        "--statement", type=Path, help="what `installer.image.sign` said of the sandbox image, for --release's key"
    )
    parser.add_argument(
        "--network",
        default="",
        help="an invitation to the network that this build lends to unless its owner says otherwise",
    )
    parser.add_argument("--windows", action="store_true", help="an installer for Windows instead of Linux packages")
    parser.add_argument("--macos", action="store_true", help="a disk image for macOS instead of Linux packages")
    options = parser.parse_args()
    target = options.to.resolve()
    release = release_of(options.release)
    folder = bundle(target, release, statement_of(options.statement, release), network_of(options.network))
    if options.windows:
        packages = [windows(folder, target)]
    elif options.macos:
        packages = [macos(target)]
    else:
        packages = [debian(folder, target, small=options.small)]
        packages += [portable(folder, target), update_package(folder, target)] if options.run else []
        packages += [appimage(folder, target)] if options.appimage else []
    sys.stdout.write(f"{folder}: {size_of(folder) / 1e6:,.0f} MB\n")
    for package in packages:
        size = size_of(package) if package.is_dir() else package.stat().st_size
        sys.stdout.write(f"{package}: {size / 1e6:,.0f} MB\n")
    return 0


def release_of(file: Path | None) -> Release:
    """What this build says of itself; ``file``: whose updates it follows."""
    given = Release() if file is None else decode_json(file.read_bytes(), Release)
    if given.url:
        checked_url(given.url)
        parse_address(given.key)
    return msgspec.structs.replace(given, version=VERSION)


def statement_of(file: Path | None, release: Release) -> bytes:
    """What this build says of the sandbox image; raises UnsignedImageError where its own key has not signed that."""
    document = b"" if file is None else file.read_bytes()
    if document:
        statement.read(document, release.key)
    return document


def network_of(text: str) -> str:
    """The network of this build as an invitation; empty: none. Raises InvitationError."""
    return invitations.read(text).link if text else ""


def bundle(target: Path, release: Release | None = None, image: bytes = b"", network: str = "") -> Path:
    """The folder with both executables.

    Args:
        image: the signed statement about the sandbox image; none where it is empty.
        network: an invitation, to be lent to unless the owner says otherwise.
    """
    told = target / "work" / FILE
    told.parent.mkdir(parents=True, exist_ok=True)
    told.write_bytes(encode_json(release or release_of(None)))
    (told.parent / STATEMENT).write_bytes(image)
    (told.parent / NETWORK).write_text(network, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "PyInstaller",
        "--noconfirm",
        "--log-level",
        "WARN",
        "--distpath",
        str(target),
        "--workpath",
        str(target / "work"),
        str(HERE / "cottage.spec"),
    ]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"COTTAGE_RELEASE": str(told.parent)})
    return target / "cottage"


def debian(folder: Path, target: Path, *, small: bool = False) -> Path:
    """A Debian package of the bundle."""
    tree = target / "deb"
    shutil.rmtree(tree, ignore_errors=True)
    installed = tree / "opt" / "cottage"
    shutil.copytree(folder, installed, symlinks=True)
    for template, place in (
        ("cottage.desktop", "usr/share/applications/cottage.desktop"),
        ("autostart.desktop", "etc/xdg/autostart/cottage.desktop"),
        ("cottage-agent.service", "usr/lib/systemd/user/cottage-agent.service"),
        (POLICY, f"usr/share/polkit-1/actions/{POLICY}"),
    ):
        _copy(TEMPLATES / template, tree / place, 0o644)
    (installed / "_internal" / "desktop" / "gui" / "engine" / "install-engine.sh").chmod(0o755)
    _icons(tree / "usr" / "share" / "icons")
    programs = tree / "usr" / "bin"
    programs.mkdir(parents=True)
    for name in ("cottage", "cottage-agent"):
        (programs / name).symlink_to(f"/opt/cottage/{name}")
    control = tree / "DEBIAN"
    control.mkdir(mode=0o755)
    text = (TEMPLATES / "control").read_text()
    needs = glibc_of(path for path in installed.rglob("*") if path.is_file() and not path.is_symlink())
    for word, value in {"VERSION": VERSION, "SIZE": str(size_of(tree) // 1024), "GLIBC": needs}.items():
        text = text.replace(f"@{word}@", value)
    (control / "control").write_text(text)
    for script in ("postinst", "prerm", "postrm"):
        _copy(TEMPLATES / script, control / script, 0o755)
    postinst = control / "postinst"
    postinst.write_text(postinst.read_text().replace("@VERSION@", VERSION))
    (control / "conffiles").write_text("/etc/xdg/autostart/cottage.desktop\n")
    package = target / f"cottage_{VERSION}_amd64.deb"
    squeeze = ["-Zxz", "-z6"] if small else ["-Zzstd", "-z3", "--threads-max=2"]
    if not _knows_zstd():
        squeeze = ["-Zxz", "-z1"]
    subprocess.run(["dpkg-deb", "--root-owner-group", *squeeze, "-b", str(tree), str(package)], check=True)
    shutil.rmtree(tree)
    return package


def portable(folder: Path, target: Path, version: str = VERSION) -> Path:
    """A shell archive that installs the bundle in the home folder of who runs it (makeself)."""
    tree = target / "portable"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(folder, tree / "cottage", symlinks=True)
    for script in ("install.sh", "uninstall.sh", "agent.sh"):
        _copy(HERE / "portable" / script, tree / script, 0o755)
    (tree / "VERSION").write_text(f"{version}\n")
    for template in ("cottage.desktop", "autostart.desktop", "cottage-agent.service"):
        _copy(TEMPLATES / template, tree / template, 0o644)
    _icons(tree / "icons")
    package = target / f"Cottage-{version}-x86_64.run"
    command = [
        "makeself",
        "--gzip",
        "--complevel",
        "6",
        "--sha256",
        "--nox11",
        "--tar-quietly",
        "--quiet",
        str(tree),
        str(package),
    ]
    subprocess.run([*command, f"Cottage {version}", "./install.sh"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return package


def update_package(folder: Path, target: Path, version: str = VERSION) -> Path:
    """What an installation of ``portable`` fetches to become this version; ``installer.desktop.sign`` signs it."""
    package = target / f"Cottage-{version}-{platform_name()}.tar.gz"
    with tarfile.open(package, "w:gz", compresslevel=6) as archive:
        archive.add(folder, ".", filter=_nobodys)
        for script in ("uninstall.sh", "agent.sh"):
            archive.add(HERE / "portable" / script, script, filter=_nobodys)
    return package


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def windows(folder: Path, target: Path, version: str = VERSION, *, small: bool = True) -> Path:
    """An installer for Windows of a bundle that was built there (NSIS); ``small``: takes a minute more for a third less."""
    codesign.authenticode(*(file for name in PROGRAMS if (file := folder / f"{name}.exe").exists()))
    package = target / f"Cottage-Setup-{version}.exe"
    values = {"VERSION": version, "PAYLOAD": folder, "OUTPUT": package, "COMPRESS": "/SOLID lzma" if small else "zlib"}
    defined = [f"-D{name}={value}" for name, value in values.items()]
    subprocess.run(["makensis", "-V2", "-WX", *defined, str(HERE / "windows" / "cottage.nsi")], check=True)
    codesign.authenticode(package)
    return package


def macos(target: Path, version: str = VERSION) -> Path:
    """A disk image of the application folder that a build on macOS leaves beside the bundle."""
    signed = codesign.apple_app(target / "Cottage.app", HERE / "macos" / "entitlements.plist")
    package = target / f"Cottage-{version}-{platform_name()}.dmg"
    words = (
        "hdiutil",
        "create",
        "-volname",
        "Cottage",
        "-srcfolder",
        str(target / "Cottage.app"),
        "-ov",
        "-format",
        "UDZO",
    )
    subprocess.run([*words, str(package)], check=True)
    if signed:
        codesign.notarised(package)
    return package


def appimage(folder: Path, target: Path, version: str = VERSION) -> Path:
    """One file that runs where it lies; the folder that it is made of where ``appimagetool`` is not installed."""
    tree = target / "Cottage.AppDir"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(folder, tree / "opt" / "cottage", symlinks=True)
    _icons(tree / "usr" / "share" / "icons")
    entry = (TEMPLATES / "cottage.desktop").read_text().replace("/opt/cottage/cottage ", "cottage ")
    (tree / "cottage.desktop").write_text(entry)
    _copy(ROOT / "assets" / "icons" / "cottage-256.png", tree / "cottage.png", 0o644)
    _copy(HERE / "portable" / "AppRun", tree / "AppRun", 0o755)
    if shutil.which("appimagetool") is None:
        sys.stdout.write(f"{tree.name} is no file yet: appimagetool is not installed\n")
        return tree
    package = target / f"Cottage-{version}-x86_64.AppImage"
    subprocess.run(["appimagetool", "--no-appstream", str(tree), str(package)], check=True)
    return package


def glibc_of(files: Iterable[Path]) -> str:
    """The oldest C library on which all of ``files`` load: the newest version of a symbol that one of them asks for."""
    found = [(2, 28)]  # Of Python's own wheels.
    for file in files:
        with file.open("rb") as source:
            if source.read(4) == b"\x7fELF":
                found += [(int(major), int(minor)) for major, minor in _GLIBC.findall(source.read())]
    return ".".join(map(str, max(found)))


def size_of(folder: Path) -> int:
    """Bytes of all files in it, each once."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _icons(share: Path) -> None:
    icons, theme = ROOT / "assets" / "icons", share / "hicolor"
    for size in SIZES:
        _copy(icons / f"cottage-{size}.png", theme / f"{size}x{size}/apps/cottage.png", 0o644)
    _copy(icons / "cottage.svg", theme / "scalable/apps/cottage.svg", 0o644)


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _knows_zstd() -> bool:
    done = subprocess.run(
        ["dpkg-deb", "--help"], capture_output=True, text=True, check=True, env=os.environ | {"LC_ALL": "C"}
    )
    return "zstd" in done.stdout


if __name__ == "__main__":
    sys.exit(main())
