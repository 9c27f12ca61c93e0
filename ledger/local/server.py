"""HTTP in front of the embedded ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from ledger.local.chain import StoreFailedError
from ledger.local.rpc import INVALID_REQUEST, PARSE_ERROR, Rpc, RpcError

MAX_BODY = 1 << 18  # A transaction is 1,232 bytes; this is room for a batch of a hundred.
MAX_BATCH = 100
INTERNAL_ERROR = -32603

LOG = logging.getLogger(__name__)


class _Request(msgspec.Struct, frozen=True):
    """One JSON-RPC 2.0 request."""

    method: str
    params: list[Any] | None = None
    id: str | int | None = None


def build_app(rpc: Rpc, on_failure: Callable[[], None]) -> web.Application:
    """The HTTP application.

    Args:
        rpc: the methods.
        on_failure: called once the disk has refused a write; it must end the process, so that nobody reads
            what was never stored.
    """

    async def answer(request: web.Request) -> web.Response:
        # Any web page may send text to loopback, but JSON only after asking, which is never granted here.
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="send application/json")
        try:
            document = msgspec.json.decode(await request.read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # The last: brackets without end.
            return _respond(_error(None, RpcError(PARSE_ERROR, f"Parse error: {error}")))
        if not isinstance(document, list):
            return _respond(_answer_one(rpc, document, on_failure))
        if len(document) > MAX_BATCH:
            refusal = RpcError(INVALID_REQUEST, f"{len(document)} requests in a batch, at most {MAX_BATCH}")
            return _respond(_error(None, refusal))
        return _respond([_answer_one(rpc, one, on_failure) for one in document])

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post("/", answer)
    return app


def _answer_one(rpc: Rpc, document: Any, on_failure: Callable[[], None]) -> dict[str, Any]:
    try:
        request = msgspec.convert(document, _Request)
    except msgspec.ValidationError as error:
        return _error(None, RpcError(INVALID_REQUEST, f"Invalid request: {error}"))
    try:
        result = rpc.call(request.method, request.params or [])
    except RpcError as error:
        return _error(request.id, error)
    except StoreFailedError as error:
        LOG.critical("%s", error)
        on_failure()
        return _error(request.id, RpcError(INTERNAL_ERROR, "the ledger cannot write its file and stops"))
    return {"jsonrpc": "2.0", "id": request.id, "result": result}


def _error(request_id: str | int | None, error: RpcError) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "id": request_id, "error": body}


def _respond(document: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
