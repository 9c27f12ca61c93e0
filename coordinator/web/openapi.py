"""The OpenAPI 3.1 document, generated from the route table and the msgspec types: it cannot say what the code does not do."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from coordinator.web.auth import access_of
from coordinator.web.auth.gate import SESSION_COOKIE
from coordinator.web.http import COMPLETION, PROBLEM
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from protocol.ids import ID_PATTERN
from protocol.rest.api import Problem
from protocol.rest.completions import ApiError, told

EVENTS = "text/event-stream"
CHECKSUM_MISMATCH = 460  # Of tus 1.0.0; no status of HTTP.
_REFERENCE = "#/components/schemas/{name}"
_PARAMETERS = {
    "audit": "Audit, as 32 hexadecimal digits.",
    "any_job": "Id of a job of any account: 32 hexadecimal digits.",
    "job": "Id of a job: 32 hexadecimal digits.",
    "model": "Id of the job that made it; ID@3 after three rounds, ID@start what it started from.",
    "upload": "Id of an upload: 32 hexadecimal digits.",
    "digest": "SHA-256 of an artifact: 64 hexadecimal digits.",
    "round": "A round of the job, counted from 0.",
    "index": "An element's place in its list, from 0.",
    "stage": "A stage of the model, counted from 0.",
    "node": "Address of a node, in base58.",
    "name": "Name of a file, as the records say.",
    "key": "Id of an API key: 12 hexadecimal digits.",
    "invitation": "Id of an invitation: 12 hexadecimal digits.",
    "session": "Id of a session: 64 hexadecimal digits.",
    "private": "Id of a private session: 32 hexadecimal digits.",
}
_SCHEMAS = {
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "model": {"type": "string", "pattern": "^[0-9a-f]{32}(@(start|[0-9]{1,9}))?$"},
    "round": {"type": "integer", "minimum": 0},
    "index": {"type": "integer", "minimum": 0, "maximum": 9999},
    "key": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
    "invitation": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
    "session": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "stage": {"type": "integer", "minimum": 0},
    "name": {"type": "string", "pattern": "^[a-z]+(\\.[a-z]+)?$"},
    "node": {"type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{32,44}$"},
}
_ID = {"type": "string", "pattern": ID_PATTERN}
TAGS = {
    "quote": "What a job would take and cost.",
    "choices": "The same with one thing changed.",
    "checks": "Datasets looked through, row by row.",
    "compare": "Jobs side by side.",
    "jobs": "Jobs from their submission to their model.",
    "completions": "Finished models, for programs that speak OpenAI's API.",
    "uploads": "Datasets, weights, tokenizers and container images on their way in.",
    "images": "Container images that an account has pushed.",
    "artifacts": "Files under their SHA-256; nodes use them.",
    "network": "The network as a whole.",
    "nodes": "Machines that are lent.",
    "relays": "Relays between homes.",
    "ledger": "Where the money is.",
    "disputes": "Steps that two computers differ in.",
    "account": "Keys, and what was done with an account.",
    "invitations": "To lend, for one machine each, where the network asks for them.",
    "notices": "Where an account is told of its jobs.",
    "admin": "What an operator sees and orders; needs the scope operate.",
    "service": "The coordinator itself.",
}
ABOUT = """\
Amounts are integers in millionths of the token; times are Unix seconds.

**Errors** are `application/problem+json` (RFC 9457). `code` is stable; `detail` names the value and the way out,
`field` the place.

**Lists** come in pages. The header `Link` with `rel="next"` is the address of the next page; without it there is none.

**Versions.** The path names the version. Within `v1` nothing is taken away and nothing changes its meaning; fields, routes, codes
and event kinds are added, and a reader must pass over what it does not know. What replaces a route stands beside it for a year,
and the old one says so with the headers `Deprecation` and `Sunset` (RFC 9745, RFC 8594).\
"""


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The whole document, as plain data.

    Args:
        routes: every route of the interface.
        version: of the product, for ``info``.
    """
    types = _types(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    used = {tag for methods in paths.values() for operation in methods.values() for tag in operation["tags"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Cottage coordinator",
            "version": version,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": tag, "description": TAGS.get(tag, "")} for tag in (*TAGS, *sorted(used - set(TAGS))) if tag in used
        ],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "node": {"type": "http", "scheme": "bearer", "description": "The token of a node's Welcome message."},
                "key": {"type": "http", "scheme": "bearer", "description": "An API key of an account."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": SESSION_COOKIE,
                    "description": "A signed-in browser.",
                },
            },
        },
    }


def _types(routes: Sequence[Route]) -> list[Any]:
    found: dict[str, Any] = {repr(Problem): Problem, repr(ApiError): ApiError}
    for route in routes:
        for kind in (route.answer, route.body):
            if kind is not None and not isinstance(kind, str):
                found.setdefault(repr(kind), kind)
    return list(found.values())


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {str(route.status): _answer(route, schemas)}
    if route.method == "GET" and route.answer != EVENTS:
        answers["304"] = {"description": "It is what the reader has already, as If-None-Match says."}
    if route.file:
        answers["206"] = {**answers["200"], "description": "The range that was asked for."}
        answers["412"] = {"description": "It is not what If-Match or If-Unmodified-Since say."}
        answers["416"] = {"description": "The file has no such range: Content-Range says how long it is."}
    for status in sorted(route.problems):
        if route.path.startswith(COMPLETION):
            status, content = told(status), _media(ApiError, schemas)
        else:
            content = {PROBLEM: {"schema": schemas[repr(Problem)]}}
        answers[str(status)] = {"description": _phrase(status), "content": content}
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [_tag(route)],
        "responses": answers,
    }
    if parameters := [_path_parameter(name) for name in re.findall(r"{(\w+)}", route.path)] + [
        _parameter(query) for query in route.parameters
    ]:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _media(route.body, schemas)}
        if route.yaml:
            operation["requestBody"]["content"]["application/yaml"] = {"schema": schemas[repr(route.body)]}
    if route.token:
        operation["security"] = [{"node": []}]
    elif not access_of(route.handler).public:
        operation["security"] = [{"key": []}, {"session": []}]
    return operation


def _answer(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    told = _content(_phrase(route.status), route.answer, schemas)
    if route.events:
        told["content"] |= _media(EVENTS, schemas)
    headers = {}
    if route.pager is not None or route.listed:
        headers["Link"] = "Address of the next page, with rel=next; missing on the last."
    if route.method == "GET" and not isinstance(route.answer, str):
        headers["ETag"] = "Send it as If-None-Match to be told whether anything changed."
    if route.status == HTTPStatus.CREATED:
        headers["Location"] = "Address of what was made."
    if headers:
        told["headers"] = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
    return told


def _tag(route: Route) -> str:
    if route.path.startswith(COMPLETION):
        return "completions"
    return route.path.removeprefix("/api/v1/").split("/")[0] if route.path.startswith("/api/v1/") else "service"


def _phrase(status: int) -> str:
    return "Checksum Mismatch" if status == CHECKSUM_MISMATCH else HTTPStatus(status).phrase


def _operation_id(route: Route) -> str:
    words = re.findall(r"[a-z0-9]+", route.path.removeprefix("/api/v1").replace("{", "by ").lower())
    return "_".join([route.method.lower(), *words])


def _content(text: str, kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    return {"description": text} if kind is None else {"description": text, "content": _media(kind, schemas)}


def _media(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if isinstance(kind, str):
        return {kind: {"schema": {"type": "string", "contentMediaType": kind}}}
    return {"application/json": {"schema": schemas[repr(kind)]}}


def _path_parameter(name: str) -> dict[str, Any]:
    schema = _SCHEMAS.get(name, _ID)
    return {"name": name, "in": "path", "required": True, "description": _PARAMETERS[name], "schema": schema}


def _parameter(query: Query) -> dict[str, Any]:
    return {
        "name": query.name,
        "in": "header" if query.header else "query",
        "required": query.required,
        "description": query.text,
        "schema": {"type": query.kind, **query.bounds},
    }
