"""Every picture that a page names is in the sheet of pictures."""

import re
from pathlib import Path

import coordinator.web

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
