"""The documents for people who use a coordinator as pages: parts of ``docs``, rendered once."""

import posixpath
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from aiohttp import web
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from coordinator.errors import NotFoundError
from coordinator.web.auth import public
from coordinator.web.pages.render import WEB_FOLDER, Renderer

DOCS_FOLDER: Final = WEB_FOLDER / "docs"
# What users are shown, by kind and in this order. What developers read (measurements, decisions, the code's map) is not.
SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "Tutorials": (
        "tutorials/train-your-first-model.md",
        "tutorials/fine-tune.md",
        "tutorials/lend-your-gpu.md",
        "tutorials/*.md",
    ),
    "How to": ("how-to/submit.md", "how-to/lend.md", "how-to/operate.md", "how-to/*.md"),
    "Reference": ("reference/datasets.md", "reference/models.md", "reference/lending.md", "reference/ledger.md"),
    "What stands behind it": ("explanation/trust.md", "explanation/payments.md", "explanation/sandbox.md"),
}
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
_LOCAL = re.compile(r"(?![a-z]+:|/)([^#]+)(#.*)?")
SUMMARY_LENGTH = 220


@dataclass(frozen=True)
class Guide:
    """A document: its name in addresses, kind, heading, first sentence, HTML, and the headings below with their anchors."""

    name: str
    kind: str
    title: str
    summary: str
    body: Markup
    headings: tuple[tuple[str, str], ...] = field(default=())


def shown(folder: Path = DOCS_FOLDER) -> dict[Path, str]:
    """The files that are shown, each with its kind, in their order. A file's stem is its name in addresses."""
    return {
        path: kind
        for kind, patterns in SHOWN.items()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
        if path.stem != "index"
    }


class Guides:
    """Handlers of the documents."""

    def __init__(self, renderer: Renderer, folder: Path = DOCS_FOLDER) -> None:
        self._renderer = renderer
        self._folder = folder
        self._guides = _guides(folder)
        self._by_name = {guide.name: guide for guide in self._guides}

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        app.router.add_get("/docs", self.index)
        app.router.add_get("/docs/images/{file}", self.image)
        app.router.add_get("/docs/{name:.+}", self.guide)

    @public
    async def index(self, request: web.Request) -> web.Response:
        """All documents."""
        return self._renderer.page(request, "docs.html", kinds=list(SHOWN), guides=self._guides)

    @public
    async def guide(self, request: web.Request) -> web.Response:
        """One document."""
        wanted = request.match_info["name"].casefold().removesuffix(".md")
        guide = self._by_name.get(wanted)
        if guide is None:
            raise NotFoundError(f"there is no document {wanted[:60]!r}: the list of documents has all of them")
        return self._renderer.page(request, "guide.html", guide=guide, guides=self._guides)

    @public
    async def image(self, request: web.Request) -> web.StreamResponse:
        """A picture of a document."""
        path = self._folder / "images" / request.match_info["file"]
        if not _FILE.fullmatch(path.name) or not path.is_file():
            raise NotFoundError("there is no such picture: the list of documents has what there is")
        return web.FileResponse(path)


@cache
def _guides(folder: Path) -> tuple[Guide, ...]:
    """All that are shown, in their order."""
    files = shown(folder)
    names = {path.relative_to(folder).as_posix(): path.stem for path in files} | {"reference/rest.md": "api"}
    return tuple(_read(path, kind, path.relative_to(folder).parent.as_posix(), names) for path, kind in files.items())


def _read(path: Path, kind: str, below: str, names: Mapping[str, str]) -> Guide:
    """A document, and its links made to work among the pages.

    Args:
        path: the file.
        kind: what sort of document it is.
        below: the folder that it stands in, relative to all documents.
        names: of each document that is shown, its file relative to all documents and its name in addresses.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text())
    title, summary = path.stem, ""
    headings: list[tuple[str, str]] = []
    for place, token in enumerate(tokens[:-1]):
        _point(token.children or (), below, names)
        if token.attrs.pop("style", "") == "text-align:right":  # The pages take no styles but the sheet's own.
            token.attrSet("class", "number")
        words = _words(tokens[place + 1])
        if token.type == "heading_open" and token.tag in ("h2", "h3"):
            token.attrSet("id", _anchor(words))
            headings.extend([(_anchor(words), words)] if token.tag == "h2" else ())
        elif token.type == "paragraph_open" and token.level == 0 and not summary:
            summary = words
    if tokens and tokens[0].tag == "h1":
        title = _words(tokens[1])
        del tokens[:3]  # The page has it already: its start, its text, its end.
    html = markdown.renderer.render(tokens, markdown.options, {})
    # It scrolls sideways.
    html = html.replace("<pre>", '<pre tabindex="0" role="region" aria-label="Commands or code">')
    html = re.sub(r"<table>(.*?)</table>", _scrolling, html, flags=re.DOTALL)
    return Guide(path.stem, kind, title, _short(summary), Markup(html), tuple(headings))  # noqa: S704 - html: off


def _scrolling(found: re.Match[str]) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>{found[1]}</table></div>'


def _point(tokens: Iterable[Token], below: str, names: Mapping[str, str]) -> None:
    """Make a link to another document one to its page, where it has one, else plain words; and a picture's one to the picture."""
    plain = False
    for token in tokens:
        if token.type == "link_open" and (found := _LOCAL.fullmatch(str(token.attrGet("href")))):
            name = names.get(posixpath.normpath(posixpath.join(below, found[1])))
            plain = name is None
            token.attrSet("href", f"/docs/{name}{found[2] or ''}")
            token.hidden = plain
        elif token.type == "link_close":
            token.hidden, plain = plain, False
        elif token.type == "image":
            token.attrSet("src", "/docs/" + str(token.attrGet("src")).removeprefix("../"))
            token.attrSet("loading", "lazy")


def _words(token: Token) -> str:
    """The text of an inline token, without its marks."""
    return "".join(" " if child.type == "softbreak" else child.content for child in token.children or ())


def _anchor(heading: str) -> str:
    """As MkDocs makes them, so that a link with an anchor holds in both places."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _short(text: str) -> str:
    first = re.split(r"(?<=[.:;])\s", text, maxsplit=1)[0].rstrip(":;")
    return first if len(first) <= SUMMARY_LENGTH else first[: SUMMARY_LENGTH - 1].rsplit(" ", 1)[0] + " …"
