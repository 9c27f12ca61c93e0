"""Every link of a document leads to a file that there is, and to a heading in it."""

import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text("utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Of a page's headings, as MkDocs and the hosts of repositories make them."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in _HEADING.findall(text):
        plain = unicodedata.normalize("NFKD", re.sub(r"\]\([^)]*\)", "", heading)).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        found.add(next(name for count in range(99) if (name := f"{slug}_{count}" if count else slug) not in found))
    return found


def faults(page: Path) -> list[str]:
    found = []
    for link in _LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:|/", target):
            continue  # Other sites, and routes of the coordinator.
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            found.append(f"{link}: there is no such file")
        elif DOCS in page.parents and DOCS not in file.parents:
            found.append(f"{link}: leads out of the documents, which are a site of their own")
        elif DOCS in page.parents and file.is_dir():
            found.append(f"{link}: is a folder; name its index.md")
        elif anchor and anchor not in anchors(file):
            found.append(f"{link}: {file.name} has no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert faults(page) == []


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One, two\n\n[a](#one-two) [b](#three) [c](gone.md) [d](page.md#one-two) `[e](never.md)`\n")
    assert faults(page) == ["#three: page.md has no such heading", "gone.md: there is no such file"]


def test_every_document_is_found_from_the_readme() -> None:
    seen, due = set[Path](), [ROOT / "README.md"]
    while due:
        page = due.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        due.extend(
            (page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(page)) if ":" not in link
        )
    missing = [str(page.relative_to(ROOT)) for page in sorted(DOCS.rglob("*.md")) if page not in seen]
    assert missing == []


def test_every_page_is_in_the_menu() -> None:
    """What ``make docs`` refuses, known without building anything."""
    menu = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - menu == set(), "add it to nav in mkdocs.yml"
