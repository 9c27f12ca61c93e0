"""Uploads by the tus protocol 1.0.0: core, creation, checksum, termination, expiration.

Source: https://tus.io/protocols/resumable-upload.

Any tus client can send files; JSON beside it says more (``GET``), and a JSON body may begin an upload in place of headers.
"""

import base64
import binascii
import hashlib
import re
from email.utils import formatdate
from typing import Final

import msgspec
from aiohttp import hdrs, web

from coordinator.domain.account import Scope
from coordinator.errors import CottageError, InvalidError
from coordinator.services.accounts.budgets import UPLOADS
from coordinator.services.artifacts.uploads import Checksum, UploadService
from coordinator.web.auth import costs, needs, principal, public
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer, read_chunks
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from protocol import codec
from protocol.rest.api import NewUpload, Upload

VERSION: Final = "1.0.0"
EXTENSIONS: Final = "creation,checksum,termination,expiration"
ALGORITHMS: Final = ("sha1", "sha256", "sha512", "md5")  # The protocol asks for sha1; ours send sha256.
MAX_BYTES: Final = 200 << 30
MEDIA: Final = "application/offset+octet-stream"
_METADATA: Final = {
    "filename": "name",
    "name": "name",
    "purpose": "purpose",
    "format": "format",
    "text_field": "text_field",
    "sha256": "sha256",
}
_VERSION = Query("Tus-Resumable", "The protocol's version: 1.0.0.", "string", True, True)
_OFFSET = Query("Upload-Offset", "Where the bytes begin: the upload's present offset.", "integer", True, True)
_CHECKSUM = Query(
    "Upload-Checksum", "Algorithm and digest in Base64 of the bytes of this request.", "string", False, True
)
_LENGTH = Query("Upload-Length", "Bytes of the file, where no JSON body says so.", "integer", False, True)
_MORE = Query(
    "Upload-Metadata", "filename, purpose, format, text_field, sha256; values in Base64.", "string", False, True
)


class VersionError(CottageError):
    """Another version of the protocol, or none."""

    status, code = 412, "tus_version"


class MediaError(CottageError):
    """A body of another type than the protocol has."""

    status, code = 415, "media_type"


class Tus:
    """Handlers of the uploads' routes."""

    def __init__(self, uploads: UploadService) -> None:
        self._uploads = uploads

    def routes(self) -> list[Route]:
        """What an upload can be asked."""
        all_, one = f"{API}/uploads", f"{API}/uploads/{{upload}}"
        begin = "Begin an upload of a dataset, weights, a tokenizer or an image (tus 1.0.0; a JSON body or headers)"
        far = "How far an upload is; HEAD says it in headers, as tus has it"
        send = "Bytes from the offset on (tus 1.0.0); after the last one the file is looked at"
        refused = (403, 404, 409, 412, 413, 415, 422, 460, 503, 507)
        unwelcome = (403, 412, 413, 415, 422, 503, 507)
        return [
            Route("OPTIONS", all_, self.options, "What of tus this server has", None, status=204),
            Route("POST", all_, self.create, begin, Upload, NewUpload, 201, unwelcome, (_LENGTH, _MORE)),
            Route("OPTIONS", one, self.options, "What of tus this server has", None, status=204),
            Route("GET", one, self.get, far, Upload, None, 200, (404, 422)),
            Route("PATCH", one, self.append, send, None, MEDIA, 204, refused, (_VERSION, _OFFSET, _CHECKSUM)),
            Route(
                "DELETE",
                one,
                self.terminate,
                "Give an upload up (tus 1.0.0)",
                None,
                None,
                204,
                (403, 404, 412),
                (_VERSION,),
            ),
        ]

    @public
    async def options(self, _request: web.Request) -> web.Response:
        """OPTIONS uploads."""
        told = {"Tus-Version": VERSION, "Tus-Extension": EXTENSIONS, "Tus-Max-Size": str(MAX_BYTES)}
        return web.Response(
            status=204, headers={**told, "Tus-Resumable": VERSION, "Tus-Checksum-Algorithm": ",".join(ALGORITHMS)}
        )

    @costs(UPLOADS)
    @needs(Scope.DATA_WRITE)
    async def create(self, request: web.Request) -> web.Response:
        """POST uploads."""
        if "Upload-Length" in request.headers or "Tus-Resumable" in request.headers:
            _same_version(request)
            new = _described(request)
        else:
            new = await read_document(request, NewUpload)
        made = await self._uploads.create(new, principal(request).account_id)
        return answer(made, 201, {**_headers(made), hdrs.LOCATION: f"{API}/uploads/{made.id}"})

    async def get(self, request: web.Request) -> web.Response:
        """GET uploads/{upload}, and HEAD."""
        found = await self._uploads.get(request.match_info["upload"])
        return answer(msgspec.to_builtins(found), 200, _headers(found))

    @costs(None)
    @needs(Scope.DATA_WRITE)
    async def append(self, request: web.Request) -> web.Response:
        """PATCH uploads/{upload}."""
        _same_version(request)
        if request.content_type != MEDIA:
            raise MediaError(f"Content-Type is {request.content_type[:80]!r}: send {MEDIA}", "Content-Type")
        offset = _number(request, "Upload-Offset")
        sum_ = _checksum(request.headers.get("Upload-Checksum"))
        made = await self._uploads.append(request.match_info["upload"], offset, read_chunks(request), sum_)
        return web.Response(status=204, headers=_headers(made))

    @costs(None)
    @needs(Scope.DATA_WRITE)
    async def terminate(self, request: web.Request) -> web.Response:
        """DELETE uploads/{upload}."""
        _same_version(request)
        await self._uploads.terminate(request.match_info["upload"])
        return web.Response(status=204, headers={"Tus-Resumable": VERSION})


def _headers(upload: Upload) -> dict[str, str]:
    told = {"Tus-Resumable": VERSION, "Upload-Offset": str(upload.offset), "Upload-Length": str(upload.length)}
    if upload.expires is not None:
        told["Upload-Expires"] = formatdate(upload.expires, usegmt=True)
    return told


def _same_version(request: web.Request) -> None:
    given = request.headers.get("Tus-Resumable", "")
    if given != VERSION:
        raise VersionError(f"Tus-Resumable is {given[:40]!r}: this server speaks {VERSION}", "Tus-Resumable")


def _number(request: web.Request, header: str) -> int:
    text = request.headers.get(header, "")
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise InvalidError(f"the header {header} is {text[:40]!r}: give a whole number", header)
    return int(text)


def _described(request: web.Request) -> NewUpload:
    """An upload from the headers of tus' creation extension."""
    told: dict[str, object] = {"length": _number(request, "Upload-Length")}
    for pair in filter(None, (part.strip() for part in request.headers.get("Upload-Metadata", "").split(","))):
        key, _, value = pair.partition(" ")
        if key in _METADATA:  # Clients add keys of their own, such as a file's type.
            told[_METADATA[key]] = _decoded(key, value)
    name = str(told.get("name", ""))
    made: NewUpload = codec.convert(told | {"name": name[:200]}, NewUpload)
    return made


def _decoded(key: str, value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidError(f"Upload-Metadata {key[:40]} is no text in Base64: {error}", "Upload-Metadata") from error


def _checksum(header: str | None) -> Checksum | None:
    if header is None:
        return None
    algorithm, _, text = header.partition(" ")
    if algorithm not in ALGORITHMS:
        raise InvalidError(
            f"Upload-Checksum names {algorithm[:40]!r}: use one of {', '.join(ALGORITHMS)}", "Upload-Checksum"
        )
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidError(f"Upload-Checksum is not Base64: {error}", "Upload-Checksum") from error
    if len(digest) != hashlib.new(algorithm, usedforsecurity=False).digest_size:
        raise InvalidError(
            f"Upload-Checksum has {len(digest)} bytes: a digest of {algorithm} has another length", "Upload-Checksum"
        )
    return Checksum(algorithm, digest)
