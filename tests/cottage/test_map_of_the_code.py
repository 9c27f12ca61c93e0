"""The map of the code (docs/explanation/architecture.md) has every folder of it, and no other one."""

import re

from tests.test_banned_calls import ROOMS, ROOT

PAGE = ROOT / "docs/explanation/architecture.md"
_FOLDER = re.compile(r"(?<![\w/])([\w-]+)/(?![\w/])")


def rows(text: str) -> dict[str, set[str]]:
    """What the map names in each folder that has a row."""
    _, first, _, second, *_ = text.partition("## The rooms")[2].split("```")
    found: dict[str, set[str]] = {}
    here = ""
    for line in (first + second).splitlines():
        head = re.match(r"([\w/-]+)/\s", line)
        here = head[1] if head else here
        if here:
            found.setdefault(here, set()).update(_FOLDER.findall(line[head.end() if head else 0 :]))
    return found


def test_each_folder_of_code_two_levels_deep_is_on_the_map() -> None:
    known = rows(PAGE.read_text("utf-8"))
    folders = {file.parent.relative_to(ROOT) for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    inner = sorted(folder for folder in folders if 2 <= len(folder.parts) <= 3)
    assert len(inner) > 60
    assert set(ROOMS) <= known.keys()
    missing = [str(one) for one in inner if not any(one.name in known.get(str(above), ()) for above in one.parents)]
    assert missing == []


def test_each_folder_on_the_map_is_there() -> None:
    gone = [
        f"{above}/{name}"
        for above, names in rows(PAGE.read_text("utf-8")).items()
        for name in names
        if not any(folder.name == name for folder in (ROOT / above).rglob(name))
    ]
    assert gone == []


def test_a_row_goes_on_below_it() -> None:
    text = "## The rooms\n\n```\na/   words  b/ c/ (e/: more)\n     d/\n```\n\nand\n\n```\na/b/   x/\n```\n"
    assert rows(text) == {"a": {"b", "c", "d", "e"}, "a/b": {"x"}}
