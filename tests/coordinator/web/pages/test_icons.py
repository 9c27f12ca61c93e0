"""Every picture that a page names is in the sheet of pictures."""

import ast
import re
from pathlib import Path

import coordinator.web
from coordinator.domain.job import JobState
from coordinator.web.pages.render import EVENT_ICONS

WEB = Path(coordinator.web.__file__).parent


def test_no_button_names_a_picture_that_is_not_there() -> None:
    known = set(re.findall(r'id="([a-z-]+)"', (WEB / "static" / "icons.svg").read_text("utf-8")))
    named = {
        (page.name, name)
        for page in (WEB / "templates").glob("*.html")
        for name in re.findall(r'icon\("([a-z-]+)"\)', page.read_text("utf-8"))
    }
    assert len(named) > 20
    assert {(page, name) for page, name in named if name not in known} == set()


def noted(code: str) -> set[str]:
    """Kinds of events that a module writes into timelines."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    notes = [call.args[0] for call in calls if getattr(call.func, "attr", "") == "note" and len(call.args) == 2]
    rows = [call.args[2] for call in calls if getattr(call.func, "id", "") == "EventRecord"]
    words = [
        word
        for kind in (*notes, *rows)
        for word in ([kind.body, kind.orelse] if isinstance(kind, ast.IfExp) else [kind])
    ]
    return {word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)}


def test_each_kind_of_event_has_a_picture_of_its_own_choice() -> None:
    kinds = {str(state) for state in JobState}
    for module in WEB.parent.rglob("*.py"):
        kinds |= noted(module.read_text("utf-8"))
    assert len(kinds) > 40
    assert kinds - EVENT_ICONS.keys() == set()
    assert set(EVENT_ICONS.values()) <= set(
        re.findall(r'id="([a-z-]+)"', (WEB / "static/icons.svg").read_text("utf-8"))
    )
