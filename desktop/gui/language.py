"""The words of the window in the owner's language: catalogues of Qt Linguist in ``assets/translations``.

``python -m installer.desktop.translations`` brings the catalogues up to date with the sources and compiles them.
"""

from pathlib import Path

from PySide6.QtCore import QLibraryInfo, QLocale, QTranslator
from PySide6.QtWidgets import QApplication

FOLDER = Path(__file__).parents[2] / "assets" / "translations"
LANGUAGES = ("en", "de")


def speak(app: QApplication, language: str) -> None:
    """Speak ``language``, or for ``system`` the first of the desktop's that there is; English where there is none."""
    if language in LANGUAGES:
        QLocale.setDefault(QLocale(language))
    locale = QLocale(language) if language in LANGUAGES else QLocale.system()
    qt = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
    for name, folder in (("qtbase", qt), ("cottage", str(FOLDER))):
        translator = QTranslator(app)
        if translator.load(locale, name, "_", folder):
            app.installTranslator(translator)
