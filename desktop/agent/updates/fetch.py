"""The manifest and its packages over HTTP: from one host, resumed where it was cut, and never more than was promised."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import aiohttp
from yarl import URL

from common.errors import UrlError
from common.http_sessions import open_session, through, why
from common.urls import at
from desktop.agent.errors import UpdateError
from desktop.agent.updates.manifest import MANIFEST, UpdateManifest
from desktop.agent.updates.release import checked_url

STALL_S = 60.0
MAX_REDIRECTS = 3
CHUNK = 1 << 16


class Stated(Protocol):
    """What was signed of a file: its name, SHA-256 in hexadecimal digits, and bytes."""

    @property
    def file(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...


async def manifest_at(url: str, key: str) -> UpdateManifest:
    """The manifest at ``url``.

    Raises:
        UpdateError: it cannot be had, or not be believed.
    """
    return MANIFEST.read(await document_at(url, MANIFEST.limit), key)


async def document_at(url: str, limit: int) -> bytes:
    """What is at ``url``, up to one byte more than ``limit``; raises UpdateError where it cannot be had."""
    async with _session() as http:
        try:
            async with await _get(http, checked_url(url), {}) as answer:
                document = await answer.content.read(limit + 1)
                while not answer.content.at_eof() and len(document) <= limit:
                    document += await answer.content.read(limit + 1 - len(document))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            way = through(checked_url(url))
            raise UpdateError(f"{url} cannot be reached{way}: {why(error)}") from error
    return document


async def fetch(url: str, package: Stated, folder: Path, told: Callable[[int], None] = lambda _: None) -> Path:
    """The package's file in ``folder``, whole and checked; what came before a cut is kept for the next try.

    Args:
        url: of the signed document, beside which the file is.
        told: how many bytes of it are here, now and then.
    Raises:
        UpdateError: it cannot be had now, or is not what the manifest names.
    """
    target, part = folder / package.sha256, folder / f"{package.sha256}.part"
    if target.exists() and await asyncio.to_thread(is_whole, target, package):
        return target
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        async with _session() as http:
            await _append(http, at(checked_url(url), package.file), package, part, told)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UpdateError(f"{package.file} was not fetched whole: {why(error)}") from error
    if part.stat().st_size < package.size:
        raise UpdateError(f"{package.file} was cut off at {part.stat().st_size:,} of {package.size:,} bytes")
    if not await asyncio.to_thread(is_whole, part, package):
        part.unlink()
        raise UpdateError(f"{package.file} is not the file that the manifest names (SHA-256 {package.sha256})")
    part.replace(target)
    return target


async def _append(
    http: aiohttp.ClientSession, url: URL, package: Stated, part: Path, told: Callable[[int], None]
) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have >= package.size:
        return
    async with await _get(http, url, {"Range": f"bytes={have}-"} if have else {}) as answer:
        if answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise UpdateError(f"{url.host} answers a range of {package.file} with another one")
        have = have if answer.status == 206 else 0
        with part.open("ab" if have else "wb") as file:
            async for chunk in answer.content.iter_chunked(CHUNK):
                if file.tell() + len(chunk) > package.size:
                    file.truncate(0)
                    raise UpdateError(f"{package.file} is larger than the {package.size:,} bytes that it should have")
                await asyncio.to_thread(file.write, chunk)
                told(file.tell())


async def _get(http: aiohttp.ClientSession, url: URL, headers: dict[str, str]) -> aiohttp.ClientResponse:
    """An answer 200 or 206 of the host of ``url``; a redirect to another one is refused."""
    here = url
    for _ in range(MAX_REDIRECTS + 1):
        answer = await http.get(here, headers=headers, allow_redirects=False)
        if answer.status in (200, 206):
            return answer
        answer.release()
        if answer.status not in (301, 302, 303, 307, 308):
            raise UpdateError(f"{here} answers {answer.status} {answer.reason}")
        try:
            here = at(here, answer.headers.get("Location", ""))
        except UrlError as error:
            raise UpdateError(str(error)) from error
        if here.origin() != url.origin():
            raise UpdateError(f"{url} leads to another host, {here.host}: this is not followed")
    raise UpdateError(f"{url} leads round in circles")


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, connect=STALL_S, sock_read=STALL_S)
    # Packed on the way, a small answer could grow without end; and ranges would mean other bytes.
    return open_session(timeout=timeout, auto_decompress=False, headers={"Accept-Encoding": "identity"})


def is_whole(path: Path, package: Stated) -> bool:
    """Whether that is in the file; raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == package.sha256
