"""Pages and their files are packed for the line where the reader takes gzip.

By its length a packed page shows what it repeats, to whoever reads along and can have the browser ask for words of their choice
(BREACH, 2013). So no packed page holds a secret twice the same: the token of its forms is another one each time
(``pages/render.py``), and a new API key is shown in the answer to a form, which is never packed.
"""

from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

LEAST_BYTES: Final = 1_000  # Less fits one packet anyway.
STATIC: Final = "/static/"
_SUFFIXES: Final = (".css", ".js", ".svg")  # What the folder has beside these is packed already.
_ASKS_FOR_A_PART: Final = (hdrs.RANGE, hdrs.IF_NONE_MATCH, hdrs.IF_MODIFIED_SINCE)


@web.middleware
async def pack(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Pack the answer of ``handler`` where it is text and something is gained."""
    response = await handler(request)
    if request.method != hdrs.METH_GET or response.status not in (200, 404) or not _is_text(request, response):
        return response
    response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    partly = request.path.startswith(STATIC) and any(name in request.headers for name in _ASKS_FOR_A_PART)
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "") and not partly:
        response.enable_compression(web.ContentCoding.gzip)
    return response


def _is_text(request: web.Request, response: web.StreamResponse) -> bool:
    if response.prepared or hdrs.CONTENT_ENCODING in response.headers:
        return False
    if isinstance(response, web.FileResponse):
        return request.path.startswith(STATIC) and request.path.endswith(_SUFFIXES)
    body = response.body if isinstance(response, web.Response) else None
    return response.content_type == "text/html" and isinstance(body, bytes) and len(body) >= LEAST_BYTES
