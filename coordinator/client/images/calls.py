"""Images over the line."""

from collections.abc import Callable, Sequence
from pathlib import Path

from common.untrusted_text import untrusted
from coordinator.client.files import Progress, upload_file
from coordinator.client.line import HttpLine
from protocol.rest import api
from protocol.rest.images import PublishedImageView


class ImageCalls:
    """Calls of the client about images of containers."""

    _line: HttpLine

    async def images(self, limit: int | None = None) -> Sequence[PublishedImageView]:
        """The images that the account has pushed, newest first."""
        return await self._line.list("images", PublishedImageView, limit)

    async def push_image(
        self,
        archive: Path,
        name: str,
        digest: str,
        progress: Progress = lambda _done, _all: None,
        resume: str | None = None,
        begun: Callable[[api.Upload], None] = lambda _upload: None,
    ) -> api.Upload:
        """Send an archive that ``coordinator.client.images.archives.write`` has made; goes on where it stopped after a cut.

        Args:
            name: of the image. digest: SHA-256 of the archive.
            progress: called with the bytes that the coordinator holds, and the whole length.
            resume: id of an upload that another process began with the same archive.
            begun: called with the upload before its first bytes go.
        """
        new = api.NewUpload(archive.stat().st_size, untrusted(name), "image", sha256=digest)
        return await upload_file(self._line, archive, new, resume, progress, begun)
