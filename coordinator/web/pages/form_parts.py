"""Forms with files, as browsers send them (``multipart/form-data``): the one way to read them, whatever arrives."""

import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import (
    BadContentDispositionHeader,
    BadContentDispositionParam,
    BodyPartReader,
    ClientConnectionError,
    MultipartReader,
    web,
)
from aiohttp.http_exceptions import HttpProcessingError

from common.untrusted_text import REPLACEMENT, untrusted
from coordinator.errors import InvalidError, TooLargeError
from coordinator.services.accounts.budgets import UPLOADS
from coordinator.services.artifacts.uploads import UploadService
from coordinator.web.auth import budgets_of, principal
from coordinator.web.pages.render import CSRF_FIELD, check_csrf
from protocol.ids import Digest
from protocol.rest.api import NewUpload

CHUNK_BYTES = 1 << 18
_NO_TEXT = re.compile("[\ud800-\udfff\0]")
"""What bytes become that are no UTF-8, in a part's header; no page and no document takes them."""


def keep_no_odd_headers() -> None:
    """Have this process forget what aiohttp warns of: Python keeps each text of a warning for ever, and strangers write these."""
    for kind in (BadContentDispositionHeader, BadContentDispositionParam):
        warnings.simplefilter("ignore", kind)


@dataclass(frozen=True)
class FormLimits:
    """``way``: what whoever has longer texts does instead."""

    fields: int
    text_bytes: int
    way: str


class FormFile:
    """A file that arrives. ``input``: its place in the form; ``name``: as its sender calls it."""

    def __init__(self, part: BodyPartReader, name: str, filename: str) -> None:
        self._part = part
        self.input, self.name = name, filename
        self.cut: InvalidError | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """What has not been read of it."""
        try:
            async for piece in _pieces(self._part):
                yield piece
        except InvalidError as error:
            self.cut = error
            raise


async def read_parts(
    request: web.Request,
    typed: dict[str, str],
    files: Collection[str],
    take: Callable[[FormFile], Awaitable[None]],
    limits: FormLimits,
) -> None:
    """Put a form's texts into ``typed`` and hand its files over, in their order; what ``take`` leaves of one is passed over.

    Args:
        files: inputs of files.
    Raises:
        ForbiddenError: the form's token is missing or wrong; it comes first, before any file is read.
        InvalidError: not a form, or a part of one; TooLargeError: its texts are too long.
    """
    if request.content_type != "multipart/form-data":
        raise InvalidError(f"Content-Type is {request.content_type[:80]!r}: send the form as multipart/form-data")
    room = limits.text_bytes
    with _arriving():
        reader = await request.multipart()
    while (part := await _next(reader)) is not None:
        with _arriving():
            name, filename = _text_of(part.name or ""), _text_of(part.filename or "")
        if not name or len(typed) >= limits.fields:
            raise _other(limits)
        if name in files:
            check_csrf(request, typed.get(CSRF_FIELD))
            if filename:
                await _hand_over(FormFile(part, name, filename), take)
            continue
        text = bytearray()
        async for piece in _pieces(part):
            text += piece
            if len(text) > room:
                raise TooLargeError(f"the form's texts have more than {limits.text_bytes:,} bytes: {limits.way}")
        room -= len(text)
        typed[name] = text.decode("utf-8", "replace").replace("\0", REPLACEMENT)
    check_csrf(request, typed.get(CSRF_FIELD))


async def keep_file(
    request: web.Request,
    uploads: UploadService,
    new: NewUpload,
    pieces: AsyncIterator[bytes],
    cost: Callable[[int], float] = lambda _size: 1.0,
) -> Digest:
    """Make an artifact of a file that came with a form. It counts as an upload, as if it had come by itself.

    Args:
        cost: as how many uploads one of so many bytes counts.
    Raises:
        TooManyError: the account has had its part of them. Others: as ``UploadService.take``.
    """
    budgets, account = budgets_of(request), principal(request).account_id
    size, least = 0, cost(0)
    await budgets.take(UPLOADS, account, least)

    async def counted() -> AsyncIterator[bytes]:
        nonlocal size
        async for piece in pieces:
            size += len(piece)
            yield piece

    try:
        return (await uploads.take(new, counted(), account)).artifact or ""
    finally:
        await budgets.used(UPLOADS, account, cost(size) - least)


async def _hand_over(file: FormFile, take: Callable[[FormFile], Awaitable[None]]) -> None:
    await take(file)
    if file.cut is not None:
        raise file.cut  # Nothing comes after it.
    async for _ in file.pieces():
        pass  # The rest of the form comes after it.


async def _next(reader: MultipartReader) -> BodyPartReader | None:
    with _arriving():
        part = await reader.next()
    if part is not None and not isinstance(part, BodyPartReader):
        raise InvalidError("a part of the form is a form itself: reload the page")
    return part


async def _pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    while True:
        with _arriving():
            piece = await part.read_chunk(CHUNK_BYTES)
        if not piece:
            return
        yield piece


@contextmanager
def _arriving() -> Iterator[None]:
    """Only reading happens in it, so whatever goes wrong there is the sender's or the line's."""
    try:
        yield
    except (
        ValueError,
        RuntimeError,  # Of aiohttp: a part named ``_charset_`` that names none.
        HttpProcessingError,  # A header of a part: too long, too many, or none.
        ClientConnectionError,
        ConnectionError,
        web.RequestPayloadError,
    ) as error:
        said = untrusted(getattr(error, "message", "") or error, 200)
        raise InvalidError(f"the form did not arrive whole: {said}") from error


def _other(limits: FormLimits) -> InvalidError:
    return InvalidError(f"a form of other fields, or of more than {limits.fields}: reload the page")


def _text_of(name: str) -> str:
    return _NO_TEXT.sub(REPLACEMENT, name)
