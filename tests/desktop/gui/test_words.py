"""The window in two languages: nothing is missing, nothing is stale, and the German window says what the English one says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from string import Formatter
from xml.etree import ElementTree

import pytest
from PySide6.QtCore import QLocale, QTranslator
from PySide6.QtWidgets import QApplication

from desktop.gui.language import FOLDER, LANGUAGES
from installer.desktop import translations
from tests.desktop.gui.conftest import ROOT

CATALOGUES = sorted(FOLDER.glob("cottage_*.ts"))


def pairs(catalogue: Path) -> list[tuple[str, str]]:
    root = ElementTree.parse(catalogue).getroot()
    return [(m.findtext("source") or "", m.findtext("translation") or "") for m in root.iter("message")]


def test_every_language_but_english_has_a_catalogue() -> None:
    assert [file.stem.removeprefix("cottage_") for file in CATALOGUES] == [name for name in LANGUAGES if name != "en"]


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda file: file.stem)
def test_no_text_of_the_window_lacks_a_translation(catalogue: Path, tmp_path: Path) -> None:
    fresh = tmp_path / catalogue.name
    shutil.copy(catalogue, fresh)
    translations.update(fresh)
    assert translations.missing(fresh) == []
    assert sorted(pairs(fresh)) == sorted(pairs(catalogue))


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda file: file.stem)
def test_the_compiled_catalogue_is_that_of_the_sources(app: QApplication, catalogue: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.qm"
    translations.compile_to(catalogue, fresh)
    compiled, anew = QTranslator(), QTranslator()
    assert compiled.load(str(catalogue.with_suffix(".qm")))
    assert anew.load(str(fresh))
    for context in ElementTree.parse(catalogue).getroot().iter("context"):
        name = context.findtext("name") or ""
        for message in context.iter("message"):
            source = message.findtext("source") or ""
            assert compiled.translate(name, source) == anew.translate(name, source) == message.findtext("translation")


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda file: file.stem)
def test_translations_keep_places_for_values_and_give_each_key_once(catalogue: Path) -> None:
    def fields(text: str) -> list[tuple[str | None, str | None]]:
        return sorted((name, spec) for _, name, spec, _ in Formatter().parse(text) if name is not None)

    for source, translation in pairs(catalogue):
        assert fields(source) == fields(translation), source
        assert len(re.findall(r"&\w", source)) == len(re.findall(r"&\w", translation)), source


def test_no_text_is_shown_past_the_catalogues() -> None:
    """A label, title or tooltip with a literal in the sources would stay English."""
    shown = re.compile(r"""\.(?:say|setText|setWindowTitle|setToolTip|addAction)\(\s*f?["'][^"'{]*[A-Za-z]{3}""")
    for file in sorted((ROOT / "desktop" / "gui").rglob("*.py")):
        assert shown.findall(file.read_text()) == [], file.name


def test_the_window_speaks_german_where_its_owner_does(app: QApplication) -> None:
    code = (
        "from desktop.gui.app import application; from desktop.gui.model import AgentPhase, Snapshot;"
        "from desktop.gui.sentences import Sentences, money; from PySide6.QtWidgets import QDialogButtonBox;"
        "app = application(['cottage'], 'de'); s = Sentences().describe(Snapshot(AgentPhase.OFF));"
        "b = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel);"
        "print(s.headline, '|', money(1_240_000), '|', b.buttons()[0].text())"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "Das Verleihen ist aus. | 1,24 | Abbrechen", done.stderr


def test_amounts_are_written_as_people_here_write_them(app: QApplication) -> None:
    from desktop.gui.sentences import money

    before = QLocale()
    try:
        QLocale.setDefault(QLocale("de"))
        assert [money(units) for units in (0, 1_240_000, 620_000, 31_000, 12)] == [
            "0,00",
            "1,24",
            "0,62",
            "0,0310",
            "0,000012",
        ]
    finally:
        QLocale.setDefault(before)
