"""Files of any size over a line that may be cut at any time: upload by tus, download by ranges, both checked by SHA-256."""

import asyncio
import base64
import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from coordinator.client.errors import ArchiveError, ClientError, ProblemError, UnreachableError
from coordinator.client.line import ATTEMPTS, WORK_S, HttpLine, is_passing, place
from protocol.rest import api

PIECE_BYTES = 8 << 20  # Sent in one request: what a cut costs at most, on a line that notices it late.
CHUNK_BYTES = 1 << 20

TUS = {"Tus-Resumable": "1.0.0"}

Progress = Callable[[int, int], None]
"""Called with the bytes that are there, and the whole length."""


async def upload_file(
    line: HttpLine,
    path: Path,
    new: api.NewUpload,
    resume: str | None,
    progress: Progress,
    begun: Callable[[api.Upload], None],
) -> api.Upload:
    """Send a file and have it checked; see ``Client.upload``."""
    if resume is None:
        upload = await line.change("POST", "uploads", api.Upload, new)
    else:
        upload = await line.get(place("upload", resume), api.Upload)
    begun(upload)
    failures = 0
    while upload.artifact is None:
        try:
            before, upload = upload, await _send_piece(line, path, upload)
            failures = 0 if upload.offset > before.offset or upload.artifact else failures + 1
        except (UnreachableError, ProblemError) as error:
            failures += 1
            moved = isinstance(error, ProblemError) and error.status in (409, 460)
            if failures >= ATTEMPTS or not (moved or is_passing(error)):
                raise
            await line.pause(failures, error)
            with contextlib.suppress(UnreachableError):
                upload = await line.get(f"uploads/{upload.id}", api.Upload)
        progress(upload.offset, upload.length)
    return upload


async def download_file(line: HttpLine, path: str, digest: str, target: Path, progress: Progress) -> Path:
    """Fetch bytes whose SHA-256 is known. What came before a cut stays beside ``target`` and is gone on from, even by another
    process.

    Raises:
        ArchiveError: the bytes are not those that ``digest`` names; nothing of them is kept.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{digest[:16]}.part")
    failures = 0
    while True:
        held = part.stat().st_size if part.exists() else 0
        try:
            await _fetch(line, path, part, held, progress)
            break
        except (UnreachableError, ProblemError) as error:
            if isinstance(error, ProblemError) and error.status == 416:  # All of it is there, or too much.
                break
            moved = part.exists() and part.stat().st_size > held
            failures = 1 if moved else failures + 1
            if failures >= ATTEMPTS or not is_passing(error):
                raise
            await line.pause(failures, error)
    found = await asyncio.to_thread(sha256_of, part)
    if found != digest:
        part.unlink()
        raise ArchiveError(f"what came has SHA-256 {found}, the coordinator named {digest}: download it again")
    os.replace(part, target)
    return target


async def digest_of(line: HttpLine, path: str) -> str:
    """The SHA-256 that the coordinator says a file has. It may take long, where the file is made first."""

    async def once() -> str:
        async with line.request("HEAD", path, timeout=WORK_S) as response:
            return response.headers.get("X-Content-SHA256", "")

    return await line.again(once)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _fetch(line: HttpLine, path: str, part: Path, held: int, progress: Progress) -> None:
    headers = {"Range": f"bytes={held}-"} if held else {}
    async with line.request("GET", path, headers=headers, timeout=None) as response:
        going_on = response.status == 206
        received = held if going_on else 0
        whole = received + (response.content_length or 0)
        with part.open("ab" if going_on else "wb") as file:
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                file.write(chunk)
                received += len(chunk)
                progress(received, max(whole, received))


async def _send_piece(line: HttpLine, path: Path, upload: api.Upload) -> api.Upload:
    with path.open("rb") as file:
        file.seek(upload.offset)
        piece = file.read(min(PIECE_BYTES, upload.length - upload.offset))
    if not piece and upload.offset < upload.length:
        raise ClientError(
            f"{path.name} has become shorter than the {upload.length:,} bytes that it had: upload it anew"
        )
    headers = TUS | {
        "Upload-Offset": str(upload.offset),
        "Upload-Checksum": "sha256 " + base64.b64encode(hashlib.sha256(piece).digest()).decode(),
        "Content-Type": "application/offset+octet-stream",
    }
    async with line.request("PATCH", f"uploads/{upload.id}", data=piece, headers=headers, timeout=None):
        pass
    return await line.get(f"uploads/{upload.id}", api.Upload)
