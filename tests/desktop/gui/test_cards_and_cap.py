"""Several cards in one computer, and how a power cap is held, as the window shows them."""

import json
from typing import Any

import pytest
from PySide6.QtWidgets import QComboBox

from desktop.gui.app import wear
from desktop.gui.theme import DARK, LIGHT
from tests.desktop.gui.support import METERS, save_picture, status, wait_for
from tests.desktop.gui.test_pages import Opened, opened, pick, settings_of

__all__ = ["opened"]

FIRST = METERS["gpus"][0]
SECOND = FIRST | {"index": 1, "uuid": "GPU-9f00aa12-1111-2222-3333-444455556666", "celsius": 41, "percent": 0}


def with_settings(opened: Opened, gpus: list[dict[str, Any]], **changes: Any) -> None:
    """The agent's settings document from now on; ``gpu``, ``cards`` and ``watts`` go into the settings, the rest beside them."""
    document = json.loads(opened.docs["settings"])
    for name in ("gpu", "watts", "cards"):
        if name in changes:
            document["settings"][name] = changes.pop(name)
    opened.docs["settings"] = json.dumps(document | {"gpus": gpus} | changes).encode()


def test_one_of_two_cards_of_the_same_name_is_chosen_by_its_identity(opened: Opened) -> None:
    with_settings(opened, [FIRST, SECOND])
    page = settings_of(opened)
    box = page.row("settings", "gpu").control
    assert isinstance(box, QComboBox)
    assert [box.itemText(n) for n in range(box.count())] == [
        "NVIDIA GeForce RTX 4090 (0)",
        "NVIDIA GeForce RTX 4090 (1)",
        "all 2 cards",
        "the processor",
    ]
    pick(box, 1)
    wait_for(lambda: opened.ordered("settings"), "the order")
    assert opened.ordered("settings") == [{"gpu": SECOND["uuid"]}]


def test_a_chosen_card_that_is_gone_is_shown_as_such_and_not_as_another(opened: Opened) -> None:
    with_settings(opened, [FIRST], gpu=SECOND["uuid"])
    box = settings_of(opened).row("settings", "gpu").control
    assert box.currentText() == "a GPU that is not here (GPU-9f00aa12…)"
    assert box.count() == 3


def test_the_gauges_show_the_card_that_is_lent_and_name_the_other(opened: Opened) -> None:
    opened.docs["status"] = status(meters=METERS | {"gpus": [FIRST, SECOND]}, gpu=SECOND["uuid"])
    home = opened.window.home
    wait_for(lambda: "41 °C" in home.gauges["heat"].accessibleDescription(), "the warmth of the second")
    assert home.lent.accessibleName().endswith("not lent: NVIDIA GeForce RTX 4090")
    wait_for(lambda: "41 °C" in opened.desktop.tray.icon.toolTip(), "the same in the tray")


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("driver", "Power cap: the driver keeps the GPU to it."),
        ("pauses", "Power cap: the driver does not let us set it. Jobs pause for moments; on average it is kept."),
        ("not", "The power cap is not in force: the driver does not tell what the GPU draws"),
        ("", None),
    ],
)
def test_how_the_power_cap_is_held_is_one_sentence(opened: Opened, held: str, said: str | None) -> None:
    with_settings(opened, [FIRST], watts=250, cap=held, cap_why="the driver does not tell what the GPU draws")
    page = settings_of(opened)
    assert page.row("settings", "watts").shown == 250
    assert page.cap.isHidden() == (said is None)
    assert said is None or page.cap.accessibleName() == said


BOTH = [
    {"gpu": FIRST["uuid"], "name": FIRST["name"], "node": "a", "on": True, "state": "online", "jobs": 1},
    {"gpu": SECOND["uuid"], "name": "NVIDIA GeForce RTX 3060", "node": "b", "on": False},
]


def test_each_of_several_cards_has_a_switch_of_its_own(opened: Opened) -> None:
    home = opened.window.home
    wait_for(lambda: home.cards.isHidden(), "one card alone needs no second switch")
    assert not opened.desktop.tray.cards.menuAction().isVisible()
    opened.docs["status"] = status(meters=METERS | {"gpus": [FIRST, SECOND]}, gpu=FIRST["uuid"], cards=BOTH)
    wait_for(lambda: home.cards.isVisible(), "the cards")
    first, second = home.cards.rows
    assert [row.switch.isChecked() for row in (first, second)] == [True, False]
    assert first.state.text() == "A job uses it."
    assert second.state.text() == "Switched off. The others go on."
    assert second.switch.accessibleName() == "Lend NVIDIA GeForce RTX 3060"
    assert "not lent" not in home.lent.accessibleName()
    second.switch.click()
    wait_for(lambda: opened.ordered("cards"), "the order")
    first.switch.click()
    wait_for(lambda: len(opened.ordered("cards")) == 2, "the other")
    assert opened.ordered("cards") == [
        {"card": SECOND["uuid"], "on": True},
        {"card": FIRST["uuid"], "on": False},
    ]
    menu = opened.desktop.tray.cards
    assert menu.menuAction().isVisible()
    assert [(row.text(), row.isChecked()) for row in menu.actions()] == [
        ("NVIDIA GeForce RTX 4090", True),
        ("NVIDIA GeForce RTX 3060", False),
    ]
    menu.actions()[1].trigger()
    wait_for(lambda: len(opened.ordered("cards")) == 3, "the order of the tray")
    assert opened.ordered("cards")[-1] == {"card": SECOND["uuid"], "on": True}
    assert not menu.actions()[1].isChecked()
    assert not second.switch.isChecked(), "only what the agent says moves a switch"
    for colours, name in ((LIGHT, "light"), (DARK, "dark")):
        wear(colours)
        save_picture(opened.window, f"several-cards-{name}")
    opened.window.resize(opened.window.minimumSizeHint())
    save_picture(opened.window, "several-cards-small")
    wear(LIGHT)


def test_all_cards_can_be_lent_and_some_are_shown_as_they_are(opened: Opened) -> None:
    with_settings(opened, [FIRST, SECOND])
    box = settings_of(opened).row("settings", "gpu").control
    assert isinstance(box, QComboBox)
    pick(box, 2)
    wait_for(lambda: opened.ordered("settings"), "the order")
    assert box.itemText(2) == "all 2 cards"
    assert opened.ordered("settings") == [{"gpu": f"{FIRST['uuid']},{SECOND['uuid']}"}]
    with_settings(opened, [FIRST, SECOND], gpu=SECOND["uuid"], cards=[FIRST["uuid"]])
    page = settings_of(opened)
    page.refresh()
    wait_for(lambda: page.row("settings", "gpu").control.currentText() == "all 2 cards", "both")
