"""A key comes back through the window."""

import json

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from desktop.gui.pages.identity import RestoreSheet
from tests.desktop.gui.support import wait_for
from tests.desktop.gui.test_pages import TARGET, Opened, opened

__all__ = ["opened"]


def test_a_backup_or_the_words_are_sent_once_there_is_something_to_send(opened: Opened) -> None:
    opened.docs["restore"] = json.dumps({"file": "", "address": TARGET}).encode()
    sheet = RestoreSheet(opened.desktop.notices._calls, opened.window)
    sheet.show()
    assert not sheet.file.isEnabled()
    assert not sheet.by_words.isEnabled()
    QTest.keyClicks(sheet.passphrase, "correct horse")
    assert sheet.file.isEnabled()
    sheet.bring("/media/stick/cottage-key.cottage")
    wait_for(lambda: TARGET in sheet.said.accessibleName(), "the answer")
    assert sheet.passphrase.text() == ""
    QTest.keyClicks(sheet.words, "abandon ability")
    QTest.mouseClick(sheet.by_words, Qt.MouseButton.LeftButton)
    wait_for(lambda: not sheet.words.toPlainText(), "the second answer")
    assert opened.ordered("restore") == [
        {"file": "/media/stick/cottage-key.cottage", "passphrase": "correct horse"},
        {"words": "abandon ability"},
    ]
    sheet.close()


def test_why_a_key_does_not_come_back_is_said_and_the_words_stay_to_be_mended(opened: Opened) -> None:
    opened.docs["POST restore"] = None  # type: ignore[assignment]
    opened.docs["restore"] = None  # type: ignore[assignment]
    sheet = RestoreSheet(opened.desktop.notices._calls, opened.window)
    sheet.show()
    QTest.keyClicks(sheet.words, "abandon")
    QTest.mouseClick(sheet.by_words, Qt.MouseButton.LeftButton)
    wait_for(lambda: sheet.said.text() == "the agent of this test cannot do that", "the reason")
    assert sheet.words.toPlainText() == "abandon"
    sheet.close()
