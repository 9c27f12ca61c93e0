"""The project's own documents as pages: ``docs/*.md``, rendered once."""

import re
from dataclasses import dataclass, field
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
# In this order; whatever else is in the folder follows.
_ORDER: Final = ("demo", "lending", "training", "trust", "proofs", "watching", "payments", "ledger", "links")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
_LOCAL = re.compile(r"(?:\./)?([A-Za-z0-9_/-]+)\.md(#.*)?")
SUMMARY_LENGTH = 220


@dataclass(frozen=True)
class Guide:
    """A document: its name in addresses, heading, first sentence, HTML, and the headings below with their anchors."""

    name: str
    title: str
    summary: str
    body: Markup
    headings: tuple[tuple[str, str], ...] = field(default=())


class Guides:
    """Handlers of the documents."""

    def __init__(self, renderer: Renderer, folder: Path = DOCS_FOLDER) -> None:
        self._renderer = renderer
        self._folder = folder
        guides = [_read(path, "") for path in folder.glob("*.md")]
        rank = {name: place for place, name in enumerate(_ORDER)}
        self._guides = sorted(guides, key=lambda guide: (rank.get(guide.name, len(rank)), guide.name))
        self._decisions = [_read(path, "decisions/") for path in sorted((folder / "decisions").glob("*.md"))]
        self._by_name = {guide.name: guide for guide in (*self._guides, *self._decisions)}

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        app.router.add_get("/docs", self.index)
        app.router.add_get("/docs/images/{file}", self.image)
        app.router.add_get("/docs/{name:.+}", self.guide)

    @public
    async def index(self, request: web.Request) -> web.Response:
        """All documents."""
        return self._renderer.page(request, "docs.html", guides=self._guides, decisions=self._decisions)

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


def _read(path: Path, below: str) -> Guide:
    """A document, and its links made to work among the pages. ``below``: the folder it stands in, with a slash."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text())
    title, summary, headings = path.stem, "", []
    for place, token in enumerate(tokens[:-1]):
        for child in token.children or ():
            _point(child, below)
        if token.attrs.pop("style", "") == "text-align:right":  # The pages take no styles but the sheet's own.
            token.attrSet("class", "number")
        words = _words(tokens[place + 1])
        if token.type == "heading_open" and token.tag == "h2":
            token.attrSet("id", _anchor(words))
            headings.append((_anchor(words), words))
        elif token.type == "paragraph_open" and token.level == 0 and not summary:
            summary = words
    if tokens and tokens[0].tag == "h1":
        title = _words(tokens[1])
        del tokens[:3]  # The page has it already: its start, its text, its end.
    html = markdown.renderer.render(tokens, markdown.options, {})
    html = html.replace(
        "<pre>", '<pre tabindex="0" role="region" aria-label="Commands or code">'
    )  # It scrolls sideways.
    html = re.sub(r"<table>(.*?)</table>", _scrolling, html, flags=re.DOTALL)
    return Guide(below + path.stem.casefold(), title, _short(summary), Markup(html), tuple(headings))  # noqa: S704 - html: off


def _scrolling(found: re.Match[str]) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>{found[1]}</table></div>'


def _point(token: Token, below: str) -> None:
    """Make a link to another document one to its page, and a picture's one to the picture."""
    if token.type == "link_open" and (found := _LOCAL.fullmatch(str(token.attrGet("href")))):
        name = found[1].casefold()
        token.attrSet("href", f"/docs/{'' if name.startswith('decisions/') else below}{name}{found[2] or ''}")
    elif token.type == "link_open" and token.attrGet("href") == "decisions":
        token.attrSet("href", "/docs#decisions")
    elif token.type == "image":
        token.attrSet("src", "/docs/" + str(token.attrGet("src")).removeprefix("../"))
        token.attrSet("loading", "lazy")


def _words(token: Token) -> str:
    """The text of an inline token, without its marks."""
    return "".join(" " if child.type == "softbreak" else child.content for child in token.children or ())


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.casefold()).strip("-")


def _short(text: str) -> str:
    first = re.split(r"(?<=[.:;])\s", text, maxsplit=1)[0].rstrip(":;")
    return first if len(first) <= SUMMARY_LENGTH else first[: SUMMARY_LENGTH - 1].rsplit(" ", 1)[0] + " …"
