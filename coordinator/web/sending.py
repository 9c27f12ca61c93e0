"""Artifacts as answers: a file by the kernel's own means, anything else piece by piece as it comes; ranges of both."""

import logging
from collections.abc import AsyncIterator, Mapping

from aiohttp import hdrs, web

from coordinator.errors import CottageError
from coordinator.services.artifacts.artifacts import ArtifactStore

LOG = logging.getLogger(__name__)


async def send_artifact(
    request: web.Request, artifacts: ArtifactStore, digest: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """The artifact, or the range of it that was asked for.

    Raises:
        NotFoundError: it is not here. UnavailableError: it cannot be read now.
    """
    path = await artifacts.near(digest)
    if path is not None:
        return web.FileResponse(path, headers=headers)
    size = await artifacts.size(digest)
    tag = f'"{digest}"'
    response = web.StreamResponse(headers={**headers, hdrs.ACCEPT_RANGES: "bytes", hdrs.ETAG: tag})
    wanted = _wanted(request, size, tag)
    if wanted is None:
        return web.Response(status=416, headers={hdrs.CONTENT_RANGE: f"bytes */{size}"})
    if len(wanted) < size:
        response.set_status(206)
        response.headers[hdrs.CONTENT_RANGE] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
    response.content_length = len(wanted)
    pieces = artifacts.read(digest, wanted.start, wanted.stop)
    if request.method == hdrs.METH_HEAD:
        await response.prepare(request)
        return response
    return await send_pieces(request, response, pieces, f"artifact {digest}")


async def send_pieces(
    request: web.Request, response: web.StreamResponse, pieces: AsyncIterator[bytes], what: str
) -> web.StreamResponse:
    """Bytes as they come; ``what``: they are, for the log. Raises what the first of them raises."""
    first = await anext(pieces, b"")  # What is refused at once is an ordinary error.
    await response.prepare(request)
    try:
        await response.write(first)
        async for piece in pieces:
            await response.write(piece)
    except CottageError as error:
        LOG.warning("%s breaks off while it is sent: %s", what, error)
        if request.transport is not None:
            request.transport.abort()  # Its reader sees that it is not whole, and goes on from there.
        return response
    await response.write_eof()
    return response


def attached(name: str, kind: str, digest: str | None = None) -> dict[str, str]:
    """Headers of a file that is to be kept: its name, the kind of its content, and its SHA-256 where that is known."""
    plain = "".join(one if one.isascii() and one.isprintable() and one not in '"\\' else "_" for one in name)
    headers: dict[str, str] = {hdrs.CONTENT_TYPE: kind, hdrs.CONTENT_DISPOSITION: f'attachment; filename="{plain}"'}
    if digest is not None:
        headers["X-Content-SHA256"] = digest
    return headers


def _wanted(request: web.Request, size: int, tag: str) -> range | None:
    """The bytes that are asked for; None: there are none of these."""
    if request.headers.get(hdrs.IF_RANGE, tag) != tag:
        return range(size)
    try:
        asked = request.http_range
    except ValueError:
        return None
    if asked.start is None and asked.stop is None:
        return range(size)
    found = range(size)[asked]
    return found if len(found) else None
