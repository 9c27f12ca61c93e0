"""What a day brings, in the first run: a range in words, in tokens or a currency, and the question what a kWh costs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QLocale, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from common.token_worth import TokenWorth
from desktop.answers import SelfTestStep
from desktop.gui.app import Desktop
from desktop.gui.checkwords import CheckWords
from desktop.gui.pages.power_price import PowerPriceRow
from desktop.gui.sentences import in_currency
from tests.desktop.gui.conftest import OpenDesktop
from tests.desktop.gui.support import agent, documents, listener, save_picture, status, wait_for

Orders = list[tuple[str, Any]]

RANGE = {"low": "820000", "high": "2400000", "power": "600000"}
EURO = {"currency": "EUR", "worth": "500000"}


@pytest.mark.parametrize(
    ("code", "detail", "said"),
    [
        (
            "some",
            RANGE,
            "Between 0.82 tokens and 2.40 tokens a day of 24 hours, after up to 0.60 tokens for electricity",
        ),
        (
            "some",
            RANGE | EURO,
            "Between 0.41\u00a0EUR and 1.20\u00a0EUR a day of 24 hours, after up to 0.30\u00a0EUR for electricity",
        ),
        (
            "some",
            RANGE | {"power": "0"},
            "Between 0.82 tokens and 2.40 tokens a day of 24 hours, before electricity",
        ),
        (
            "no rate",
            RANGE | {"power": "0"},
            "Between 0.82 tokens and 2.40 tokens a day of 24 hours, before electricity: "
            "Settings, Money, takes what a token is worth",
        ),
        ("below power", {"low": "-5", "high": "x"}, "–"),
    ],
)
def test_the_range_is_told_in_the_owners_money(app: QApplication, code: str, detail: dict[str, str], said: str) -> None:
    QLocale.setDefault(QLocale("en"))
    assert CheckWords(app).said(SelfTestStep("earnings", "good", code, "", detail)) == said


def test_a_loss_is_told_as_one(app: QApplication) -> None:
    QLocale.setDefault(QLocale("en"))
    assert in_currency(-3_000_000, TokenWorth("USD", 500_000)) == "-1.50\u00a0USD"


def test_a_kwh_is_asked_for_in_the_desktops_currency_and_told_once(app: QApplication) -> None:
    row, told = PowerPriceRow(0), []
    row.given.connect(lambda *given: told.append(given))
    assert row.currency.text() == QLocale.system().currencySymbol(QLocale.CurrencySymbolFormat.CurrencyIsoCode)
    row.currency.setText("eur")
    row.currency.editingFinished.emit()
    assert told == [], "without an amount nothing is said"
    row.amount.setText("0,31")
    row.amount.editingFinished.emit()
    row.amount.editingFinished.emit()
    assert told == [("0.31", "EUR")]


def found(code: str, detail: dict[str, str]) -> bytes:
    step = {"name": "earnings", "state": "good", "code": code, "text": "a range", "detail": detail}
    return json.dumps({"checks": [{"name": "gpu", "state": "good"}, step], "can_lend": True}).encode()


def test_the_first_run_asks_what_a_kwh_costs_beside_the_forecast(first_run: Callable[..., Desktop], home: Path) -> None:
    docs, orders = documents(selftest=found("some", RANGE | {"power": "0"})), Orders()
    docs["status"] = status(on=False, state="off")
    with listener(home / "agent.sock", agent(docs, orders)):
        welcome = first_run().window.welcome
        assert not welcome.power.isVisible()
        wait_for(welcome.power.isVisible, "the question")
        save_picture(welcome.window(), "first_run_kwh")
        welcome.power.currency.setText("EUR")
        welcome.power.amount.setFocus()
        QTest.keyClicks(welcome.power.amount, "0.31")
        docs["selftest"] = found("some", RANGE | EURO)
        QTest.keyClick(welcome.power.amount, Qt.Key.Key_Return)
        wait_for(lambda: ("settings", {"electricity": "0.31", "currency": "EUR"}) in orders, "the setting")
        wait_for(lambda: "EUR for electricity" in welcome.lines["earnings"].text.text(), "the forecast anew")
        save_picture(welcome.window(), "first_run_kwh_given")


# --- what was earned --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worth", [None, EURO])
def test_what_was_earned_is_told_in_tokens_and_in_the_owners_currency(
    open_desktop: OpenDesktop, home: Path, worth: dict[str, str] | None
) -> None:
    docs, orders = documents(), Orders()
    told = None if worth is None else {"currency": "EUR", "millionths": int(worth["worth"])}
    docs["status"] = status(worth=told, electricity=310_000, currency="EUR" if worth else "")
    with listener(home / "agent.sock", agent(docs, orders)):
        desktop = open_desktop()
        card, page = desktop.window.home.earnings, desktop.window.earnings
        wait_for(lambda: card.number("today").text() == "1.24", "the sums")
        if worth is None:
            assert card.unit.text() == "In tokens."
            assert "0.31 tokens a kWh" in page.power.text()
            assert "about" not in page.total.text()
        else:
            assert card.unit.text() == "In tokens: today about 0.62 EUR, all time about 76.62 EUR."
            assert "0.31 EUR a kWh" in page.power.text()
            page.refresh()
            wait_for(lambda: "(about " in page.total.text(), "the sum in euros")
            save_picture(desktop.window, "home_in_euros")
