"""Container images that submitters have pushed: the door that looks each one through, and the list of them.

An image is an uploaded file like a dataset. What is known of it stands signed at the beginning of its archive
(``protocol.images``), so nothing else is kept of it.
"""

from pathlib import Path
from typing import Final

from coordinator.errors import InvalidError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.store.ports import Store, col
from coordinator.store.records import FileRecord
from protocol.ids import Digest
from protocol.images.archive import HEAD_BYTES, examine, stated_in
from protocol.images.errors import ImageFormatError
from protocol.images.statement import PublishedImage
from protocol.rest.images import PublishedImageView

PURPOSE: Final = "image"


def check_image(path: Path) -> None:
    """See that a file is one image, signed, in Cottage's form and within its bounds; raises InvalidError."""
    try:
        with path.open("rb") as file:
            examine(file)
    except ImageFormatError as error:
        raise InvalidError(f"this image is not taken: {error}", PURPOSE) from error


async def stated_at(artifacts: ArtifactStore, artifact: Digest, field: str = PURPOSE) -> PublishedImage:
    """What an image's publisher says of it.

    Raises:
        NotFoundError: there is no such artifact.
        InvalidError: it is no image; ``field`` named it.
    """
    size = await artifacts.size(artifact)
    head = b"".join([piece async for piece in artifacts.read(artifact, 0, min(size, HEAD_BYTES))])
    try:
        return stated_in(head)
    except ImageFormatError as error:
        raise InvalidError(f"the artifact {artifact} is no image: {error}", field) from error


class PublishedImages:
    """Over any store."""

    def __init__(self, store: Store, artifacts: ArtifactStore) -> None:
        self._store, self._artifacts = store, artifacts

    async def stated(self, artifact: Digest) -> PublishedImage:
        """As ``stated_at``."""
        return await stated_at(self._artifacts, artifact)

    async def of_account(self, account_id: str) -> list[PublishedImageView]:
        """The images that an account has pushed, the newest first."""
        async with self._store.transaction() as tx:
            found = await tx.find(
                FileRecord, col(FileRecord.account_id).equals(account_id), col(FileRecord.purpose).equals(PURPOSE)
            )
        return [
            PublishedImageView.of(await self.stated(one.artifact), one.artifact, one.length, one.created)
            for one in sorted(found, key=lambda one: (-one.created, one.artifact))
            if await self._artifacts.has(one.artifact)
        ]
