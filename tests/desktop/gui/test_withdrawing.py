"""The sheet for withdrawing says what leaves, what it costs and what arrives; "Send" can be pressed where it would work."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from PySide6.QtCore import QLocale, Qt, QTranslator
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from desktop.agent.app.status import DenialReason
from desktop.answers import WithdrawalDenial
from desktop.gui.app import Desktop, wear
from desktop.gui.client import Calls
from desktop.gui.pages.withdraw import UNKNOWN, WithdrawSheet
from desktop.gui.theme import DARK, LIGHT, Theme
from desktop.gui.withdrawwords import WithdrawWords
from installer.desktop import translations
from protocol.rest.withdrawals import WithdrawalReason
from tests.desktop.gui.support import agent, documents, listener, save_picture, wait_for

TARGET = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T"
COST: dict[str, Any] = {
    "target": TARGET,
    "amount": 5_000_000,
    "held": 9_000_000,
    "fee": 307_392,
    "arrives": 4_692_608,
    "opens": True,
    "lamports": 0,
    "signature": "",
    "denied": None,
}
REASONS = sorted({*get_args(WithdrawalReason), *get_args(get_args(DenialReason)[-1])} - {"own sol"})


def denied(reason: str, amount: int = 0, seconds: int = 0, held: int = 9_000_000) -> dict[str, Any]:
    said = {"reason": reason, "text": "in the agent's words", "amount": amount, "seconds": seconds}
    return COST | {"fee": 0, "arrives": 0, "opens": False, "held": held, "denied": said}


class OpenedSheet:
    """A sheet before an agent that answers with ``answer``; the last order is ``orders[-1]``."""

    def __init__(self, home: Path) -> None:
        self.docs, self._all = documents(withdraw=json.dumps(denied("no address")).encode()), list[tuple[str, Any]]()
        self._agent = listener(home / "agent.sock", lambda caller: agent(self.docs, self._all)(caller))
        self._agent.__enter__()
        self.calls = Calls(home / "agent.sock")
        self.sheet = WithdrawSheet(self.calls)
        self.sheet.show()
        self.settle()

    def answer(self, found: dict[str, Any]) -> None:
        self.docs["withdraw"] = json.dumps(found).encode()

    def settle(self) -> None:
        """Everything that was asked has been answered."""
        sheet = self.sheet
        wait_for(lambda: not sheet._typing.isActive() and sheet._asked is None and not sheet._sending, "the answer")

    def type(self, target: str = TARGET, amount: str = "5") -> None:
        for line, text in ((self.sheet.target, target), (self.sheet.amount, amount)):
            line.clear()
            QTest.keyClicks(line, text)
        self.settle()

    @property
    def orders(self) -> list[Any]:
        return [order for name, order in self._all if name == "withdraw"]

    @property
    def rows(self) -> list[str]:
        return [self.sheet.rows.value(key).text().replace("\u200b", "") for key in ("leaves", "fee", "arrives")]

    @property
    def said(self) -> str:
        return self.sheet.said.accessibleName()

    def close(self) -> None:
        wait_for(lambda: not self.calls._now, "the last answer")
        self.sheet.close()
        self.sheet.deleteLater()
        self._agent.__exit__(None, None, None)


@pytest.fixture
def opened(app: QApplication, home: Path) -> Iterator[OpenedSheet]:
    made = OpenedSheet(home)
    yield made
    made.close()


@pytest.fixture
def german(app: QApplication) -> Iterator[None]:
    """The owner's language and way to write numbers."""
    before, words = QLocale(), QTranslator()
    assert words.load(str(translations.FOLDER / "cottage_de.qm"))
    assert app.installTranslator(words)
    QLocale.setDefault(QLocale(QLocale.Language.German, QLocale.Country.Germany))
    yield
    QLocale.setDefault(before)
    app.removeTranslator(words)


def test_it_opens_with_what_the_wallet_holds_and_nothing_to_press(opened: OpenedSheet) -> None:
    assert "which holds 9 tokens," in opened.sheet.wallet.text()
    assert opened.rows == [UNKNOWN] * 3
    assert "takes no SOL" in opened.said
    assert not opened.sheet.send.isEnabled()


def test_one_click_sends_what_was_shown(opened: OpenedSheet) -> None:
    opened.answer(COST)
    opened.type()
    assert opened.orders[-1] == {"target": TARGET, "amount": "5"}
    assert opened.rows == ["5", "0.307392", "4.692608"]
    assert "no account for this token yet" in opened.said
    assert opened.sheet.send.isEnabled()
    opened.answer(COST | {"held": 4_000_000, "signature": "5sig"})
    QTest.mouseClick(opened.sheet.send, Qt.MouseButton.LeftButton)
    assert not opened.sheet.send.isEnabled(), "while it is on its way"
    assert not opened.sheet.target.isEnabled()
    opened.settle()
    assert opened.orders[-1] == {"target": TARGET, "amount": "5.000000", "send": True, "fee": 307_392}
    assert opened.said == "4.692608 have arrived. Receipt: 5sig"
    assert "which holds 4 tokens," in opened.sheet.wallet.text()
    assert not opened.sheet.send.isEnabled(), "it has been sent"


def test_without_an_amount_all_of_what_was_shown_is_sent_and_no_more(opened: OpenedSheet) -> None:
    opened.answer(COST | {"amount": 9_000_000, "arrives": 8_692_608})
    opened.type(amount="")
    assert opened.orders[-1] == {"target": TARGET, "amount": ""}
    QTest.mouseClick(opened.sheet.send, Qt.MouseButton.LeftButton)
    opened.settle()
    assert opened.orders[-1]["amount"] == "9.000000"


def test_whoever_changes_a_field_sees_the_new_cost_before_anything_can_be_sent(opened: OpenedSheet) -> None:
    opened.answer(COST)
    opened.type()
    assert opened.sheet.send.isEnabled()
    opened.answer(COST | {"amount": 55_000_000, "arrives": 54_692_608})
    QTest.keyClicks(opened.sheet.amount, "5")
    assert not opened.sheet.send.isEnabled()
    assert opened.rows == [UNKNOWN] * 3
    opened.settle()
    assert opened.rows == ["55", "0.307392", "54.692608"]


def test_return_in_a_field_sends_nothing(opened: OpenedSheet) -> None:
    opened.answer(COST)
    opened.type()
    QTest.keyClick(opened.sheet.amount, Qt.Key.Key_Return)
    assert all("send" not in order for order in opened.orders)
    assert opened.sheet.isVisible()


def test_an_answer_to_what_stood_there_before_is_not_shown(opened: OpenedSheet) -> None:
    opened.sheet._asked = ("another address", "7")
    opened.answer(COST)
    opened.sheet._looked(json.dumps(COST | {"amount": 7_000_000}).encode())
    opened.settle()
    assert opened.rows == ["5", "0.307392", "4.692608"], "it was asked again"
    assert opened.orders[-1] == {"target": "", "amount": ""}


@pytest.mark.parametrize("reason", REASONS)
def test_a_refusal_is_a_sentence_and_nothing_can_be_sent(opened: OpenedSheet, reason: str) -> None:
    opened.answer(denied(reason, 308_392, 7_200))
    opened.type()
    assert not opened.sheet.send.isEnabled()
    assert opened.rows == [UNKNOWN] * 3
    assert opened.said.endswith("."), opened.said
    assert "in the agent's words" not in opened.said


@pytest.mark.parametrize("reason", REASONS)
def test_each_refusal_is_said_in_german(german: None, reason: str) -> None:
    words = WithdrawWords()
    said = words.said(WithdrawalDenial(reason, "in the agent's words", 308_392, 7_200))
    english = {"wallet", "the", "again", "address", "withdraw", "nothing"}
    assert not english & set(said.lower().replace(".", " ").split()), said
    if reason == "too little":
        assert "0,308392" in said


def test_what_a_newer_agent_says_is_shown_in_its_words(app: QApplication) -> None:
    assert WithdrawWords().said(WithdrawalDenial("a new one", "in the agent's words")) == "in the agent's words"


def test_a_fee_that_has_changed_is_looked_up_and_shown(opened: OpenedSheet) -> None:
    opened.answer(COST)
    opened.type()
    opened.answer(denied("changed", 400_000))
    QTest.mouseClick(opened.sheet.send, Qt.MouseButton.LeftButton)
    wait_for(lambda: "The fee is 0.4 now" in opened.said, "the reason")
    opened.answer(COST | {"fee": 400_000, "arrives": 4_600_000})
    opened.settle()
    assert opened.rows == ["5", "0.4", "4.6"]
    assert opened.sheet.send.isEnabled()


def test_what_may_have_been_sent_is_not_called_sent(opened: OpenedSheet) -> None:
    opened.answer(COST)
    opened.type()
    opened.answer(denied("undecided"))
    QTest.mouseClick(opened.sheet.send, Qt.MouseButton.LeftButton)
    opened.settle()
    assert opened.said.startswith("It may have been sent.")
    assert not opened.sheet.send.isEnabled()


def test_an_unfinished_address_is_no_mistake_yet(opened: OpenedSheet) -> None:
    opened.type(TARGET[:20])
    assert "takes no SOL" in opened.said
    opened.type(TARGET + "x")
    assert opened.said.startswith("This is no Solana address.")


def test_an_agent_that_is_away_is_named(opened: OpenedSheet) -> None:
    del opened.docs["withdraw"]
    opened.type()
    assert opened.said == "the agent of this test cannot do that"
    assert not opened.sheet.send.isEnabled()


def test_amounts_are_written_and_read_as_people_here_do(german: None, app: QApplication, home: Path) -> None:
    opened = OpenedSheet(home)
    opened.answer(COST | {"amount": 2_500_000, "arrives": 2_192_608})
    opened.type(amount="2,5")
    assert opened.orders[-1] == {"target": TARGET, "amount": "2.5"}
    assert opened.rows == ["2,5", "0,307392", "2,192608"]
    opened.close()


@pytest.mark.parametrize(("name", "theme"), [("light", LIGHT), ("dark", DARK)])
@pytest.mark.parametrize("language", ["en", "de"])
def test_pictures_of_it(
    request: pytest.FixtureRequest, app: QApplication, home: Path, name: str, theme: Theme, language: str
) -> None:
    if language == "de":
        request.getfixturevalue("german")
    wear(theme)
    opened = OpenedSheet(home)
    try:
        for what, found in (("offer", COST), ("refused", denied("too little", 308_392))):
            opened.answer(found)
            opened.type()
            save_picture(opened.sheet, f"withdraw_{what}_{language}_{name}")
        parts = (opened.sheet.wallet, opened.sheet.said, *(opened.sheet.rows.value(k) for k in ("leaves", "fee")))
        wait_for(lambda: all(part.heightForWidth(part.width()) <= part.height() for part in parts), "no text is cut")
    finally:
        opened.close()
        wear(LIGHT)


def test_the_first_page_and_the_earnings_page_open_it(open_desktop: Callable[..., Desktop], home: Path) -> None:
    docs, orders = documents(withdraw=json.dumps(denied("no address")).encode()), list[tuple[str, Any]]()
    with listener(home / "agent.sock", lambda caller: agent(docs, orders)(caller)):
        desktop = open_desktop()
        wait_for(desktop.window.home.earnings.withdraw.isEnabled, "a status")
        for asked in (desktop.window.home.earnings, desktop.window.earnings):
            asked.withdraw_asked.emit()
            sheet = desktop.window.findChildren(WithdrawSheet)[-1]
            wait_for(lambda sheet=sheet: "holds 9" in sheet.wallet.text(), "what there is")
            sheet.reject()
        desktop.lending._timer.stop()
        wait_for(lambda: not desktop.notices._calls._now, "the last answer")
