"""What of this machine goes into an image that is made from it: its own Python, the trainer's packages, their libraries."""

import hashlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from packaging.requirements import Requirement

PREFIX = "usr/local"
SITE = "opt/site"
LDD_BATCH = 200  # Files for each run of ldd: the command line stays short.

_STDLIB_LEFT_OUT = {
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "site-packages",
    "dist-packages",
}
_PACKAGES_LEFT_OUT = re.compile(r"(^|/)(tests?|include|share/man)/|\.(a|lib|pyi|h|hpp|cpp|cu)$|^\.\.")
_LIBRARY = re.compile(r"\.so(\.|$)")
_LDD_LINE = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x")


class HostError(Exception):
    """Something that the image needs is not on this machine."""


def distributions(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The installed packages that meet ``requirements``, with everything that they require, by canonical name.

    Raises:
        HostError: one is not installed.
    """
    found: dict[str, metadata.Distribution] = {}
    seen: dict[str, set[str]] = {}
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = {"", *requirement.extras} - seen.setdefault(name, set())
        if not extras:
            continue
        seen[name] |= extras
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise HostError(f"the package {name} is not installed here: pip install -e '.[trainer]'") from None
        for text in found[name].requires or ():
            further = Requirement(text)
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(further)
    return dict(sorted(found.items()))


def digest(packages: dict[str, metadata.Distribution]) -> str:
    """What identifies this Python with these packages, and this recipe."""
    text = [sys.version, sysconfig.get_platform(), Path(__file__).read_text()]
    text += [f"{name}=={package.version}" for name, package in packages.items()]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def write_tree(
    output: BinaryIO, packages: dict[str, metadata.Distribution], beside: Mapping[str, str] | None = None
) -> None:
    """Write the image's root as a tar stream.

    Compiled modules come along: to compile PyTorch's anew at each start takes half a minute.

    Args:
        output: where to.
        packages: of Python.
        beside: path in the image -> a file of this machine that goes there, programs with the libraries that they need.

    Raises:
        HostError: the interpreter or a library cannot be found.
    """
    entries = dict(_interpreter())
    entries.update(_standard_library())
    for package in packages.values():
        entries.update(_package(package))
    entries.update(beside or {})
    programs = {target for target, source in (beside or {}).items() if os.access(source, os.X_OK)}
    programs.add(f"{PREFIX}/bin/{_python_name()}")
    loaded = [source for target, source in entries.items() if _LIBRARY.search(target) or target in programs]
    entries.update(_libraries(loaded))
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:
        for folder in ("tmp", "job", "proc", "sys", "dev", "etc", PREFIX, SITE, "opt/cottage"):
            tar.addfile(_folder(folder))
        _add_text(tar, "etc/passwd", "root:x:0:0::/:/none\njob:x:10001:10001::/tmp:/none\n")
        _add_text(tar, "etc/group", "root:x:0:\njob:x:10001:\n")
        for name in ("python3", "python"):
            link = tarfile.TarInfo(f"{PREFIX}/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, _python_name()
            tar.addfile(link)
        for target, source in sorted(entries.items()):
            info = tar.gettarinfo(os.path.realpath(source), target)
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mode = 0o755 if info.mode & 0o100 else 0o644
            info.type = tarfile.REGTYPE  # Two names of one file on the host are two files here.
            info.size = os.path.getsize(source)
            with open(source, "rb") as file:
                tar.addfile(info, file)


def _python_name() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _interpreter() -> Iterator[tuple[str, str]]:
    binary = os.path.realpath(sys.executable)
    yield f"{PREFIX}/bin/{_python_name()}", binary
    shared = sysconfig.get_config_var("INSTSONAME")
    library = Path(sysconfig.get_config_var("LIBDIR") or "", shared or "")
    if shared and ".so" in shared and library.is_file():
        yield f"{PREFIX}/lib/{shared}", str(library)


def _standard_library() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix}))
    if not (root / "os.py").is_file():
        raise HostError(f"the standard library is not in {root}")
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _STDLIB_LEFT_OUT and not name.startswith("config-")]
        for name in files:
            path = os.path.join(folder, name)
            yield f"{PREFIX}/lib/{_python_name()}/{os.path.relpath(path, root)}", path


def _package(package: metadata.Distribution) -> Iterator[tuple[str, str]]:
    for file in package.files or ():
        path = str(package.locate_file(file))
        if not _PACKAGES_LEFT_OUT.search(str(file)) and os.path.isfile(path):
            yield f"{SITE}/{file}", path


def _libraries(sources: list[str]) -> Iterator[tuple[str, str]]:
    """The system libraries that ``sources`` need, at the paths where the loader looks for them."""
    own = {os.path.realpath(source) for source in sources}
    needed = {"libgcc_s.so.1"}  # Loaded by name when a thread ends.
    for start in range(0, len(sources), LDD_BATCH):
        listing = subprocess.run(
            ["ldd", *sources[start : start + LDD_BATCH]], capture_output=True, text=True, check=False
        ).stdout
        needed |= {match[1] for line in listing.splitlines() if (match := _LDD_LINE.match(line))}
    for library in sorted(needed):
        path = library if library.startswith("/") else _in_default_folder(library)
        if (
            path
            and os.path.realpath(path) not in own
            and not path.startswith((sys.prefix, sys.base_prefix + "/lib/libpython"))
        ):
            yield path.lstrip("/"), path


def _in_default_folder(name: str) -> str | None:
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64"):
        if os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    return None


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    return info


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text.encode()))
