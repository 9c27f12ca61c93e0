"""The reference of the REST interface as a page, made from the OpenAPI document: readable without scripts."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from aiohttp import web
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from coordinator.web.auth import public
from coordinator.web.pages.render import Renderer

CODES = (
    ("not_found", 404, "There is nothing of this name, or it is another account's."),
    ("invalid", 422, "A value is out of its bounds; field says which one."),
    ("context_length_exceeded", 422, "A prompt is longer than the model can read; detail says how long it may be."),
    ("key_reused", 422, "The idempotency key was that of another request: make a new one."),
    ("no_chat_template", 422, "Messages, for a model that has no chat template: have it go on with a text."),
    (
        "took_too_long",
        422,
        "It would take more time than there is for it, the next time too: detail says what takes less.",
    ),
    ("in_progress", 409, "The same request is being carried out: wait, then send it again."),
    ("conflict", 409, "Not possible as things are now, such as a wrong offset."),
    ("illegal_transition", 409, "The job's state does not allow it."),
    ("gone", 410, "Nobody waits for it, or not any more."),
    ("length_required", 411, "Say how long the body is: send Content-Length."),
    ("too_large", 413, "More bytes than are taken; detail says how many are."),
    ("funds", 402, "The wallet or the escrow does not cover it."),
    ("unauthorised", 401, "Nobody is signed in, or the key is not valid."),
    ("forbidden", 403, "The key lacks a scope, or the request comes from another site."),
    ("too_many", 429, "Too many requests: Retry-After says how many seconds to wait."),
    ("full", 507, "There is no room for more of it, yours or everybody's: Retry-After says when to come back."),
    ("unavailable", 503, "Not now: try again in a moment."),
    ("unable", 503, "It was tried and failed, or cannot be done here at all: asking again as it is would not help."),
    ("store_away", 503, "The database does not answer: nothing was changed; Retry-After says when to try again."),
    ("checksum", 460, "Bytes of an upload have another digest than was said: send them again."),
    ("tus_version", 412, "Tus-Resumable names another version than 1.0.0."),
    ("media_type", 415, "Content-Type is not one that is taken here."),
    ("http", 400, "HTTP itself says what is wrong, such as a method that a path does not have."),
    ("internal", 500, "A fault of the coordinator; its log has it."),
)
_SCHEMA = "#/components/schemas/"


class Reference:
    """The page; ``show`` gives it the document."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._document: Callable[[], Mapping[str, Any]] = dict

    def show(self, document: Callable[[], Mapping[str, Any]]) -> None:
        """Take the document that is drawn."""
        self._document = document

    @cached_property
    def _values(self) -> dict[str, Any]:
        document = self._document()
        named = {tag["name"]: tag for tag in document["tags"]}
        groups: dict[str, list[dict[str, Any]]] = {name: [] for name in named}
        for path, methods in document["paths"].items():
            for method, told in methods.items():
                groups[told["tags"][0]].append(_operation(method, path, told))
        schemas = document["components"]["schemas"]
        return {
            "document": document,
            "about": Markup(MarkdownIt("js-default").render(document["info"]["description"])),  # noqa: S704 - our own text
            "groups": [(named[name], found) for name, found in groups.items()],
            "codes": CODES,
            "types": [
                (name, _fields(schema), schema.get("description", "")) for name, schema in sorted(schemas.items())
            ],
        }

    def register(self, app: web.Application) -> None:
        """Add the page to ``app``."""
        app.router.add_get("/docs/api", self.page)

    @public
    async def page(self, request: web.Request) -> web.Response:
        """GET /docs/api."""
        return self._renderer.page(request, "reference.html", **self._values)


def _operation(method: str, path: str, told: Mapping[str, Any]) -> dict[str, Any]:
    body = told.get("requestBody", {}).get("content", {})
    return {
        "method": method.upper(),
        "path": path,
        "operationId": told["operationId"],
        "summary": told["summary"],
        "parameters": told.get("parameters", []),
        "body": [(media, _kind(part["schema"])) for media, part in body.items()],
        "answers": [
            (status, answer["description"], _first(answer.get("content", {})))
            for status, answer in told["responses"].items()
        ],
    }


def _first(content: Mapping[str, Any]) -> Markup:
    for part in content.values():
        return _kind(part["schema"])
    return Markup()


def _fields(schema: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    if "enum" in schema:
        return [("one of", escape(", ".join(map(str, schema["enum"]))))]
    return [(name, _kind(part)) for name, part in schema.get("properties", {}).items()]


def _kind(schema: Mapping[str, Any]) -> Markup:
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_SCHEMA)
        return Markup('<a href="#type-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(_kind(part) for part in schema["anyOf"])
    if "enum" in schema:
        return escape("one of " + ", ".join(map(str, schema["enum"])))
    if schema.get("type") == "array":
        inner = schema.get("items")
        return Markup("list of ") + _kind(inner) if isinstance(inner, Mapping) else Markup("list")
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("exclusiveMaximum", "below"),
        )
        if key in schema
    ]
    return escape(" ".join([str(schema.get("type", "anything")), *bounds]))
