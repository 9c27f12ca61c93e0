"""``python -m installer.desktop.translations``: bring the catalogues up to date with the window's texts, and compile them.

The texts of the sources are English; ``assets/translations/cottage_LANGUAGE.ts`` has them in other languages (Qt Linguist opens
it), ``.qm`` is what the window loads. A text that a catalogue lacks ends this with exit code 1.
"""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import PySide6

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "desktop" / "gui"
FOLDER = ROOT / "assets" / "translations"
TOOLS = Path(PySide6.__file__).parent


def main() -> int:
    """Update and compile every catalogue; the exit code."""
    lacking = 0
    for catalogue in sorted(FOLDER.glob("cottage_*.ts")):
        update(catalogue)
        compile_to(catalogue, catalogue.with_suffix(".qm"))
        for text in missing(catalogue):
            lacking += 1
            sys.stderr.write(f"{catalogue.name} lacks: {text}\n")
    return 1 if lacking else 0


def update(catalogue: Path) -> None:
    """Take over the texts of the sources; what they no longer have goes."""
    sources = [str(file) for file in sorted(SOURCES.rglob("*.py"))]
    _run("lupdate", *sources, "-no-obsolete", "-locations", "none", "-ts", str(catalogue))


def compile_to(catalogue: Path, target: Path) -> None:
    """As the window loads it."""
    _run("lrelease", str(catalogue), "-qm", str(target))


def missing(catalogue: Path) -> list[str]:
    """Texts that the catalogue does not have in its language."""
    found = []
    for message in ElementTree.parse(catalogue).getroot().iter("message"):  # noqa: S314 - a file of ours
        translation = message.find("translation")
        if translation is None or translation.get("type") == "unfinished" or not translation.text:
            found.append(message.findtext("source") or "")
    return found


def _run(tool: str, *arguments: str) -> None:
    done = subprocess.run((str(TOOLS / tool), *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} failed: {done.stderr or done.stdout}")


if __name__ == "__main__":
    sys.exit(main())
