"""Container images of an account, as the interface shows them."""

from common.untrusted_text import View
from protocol.ids import Digest, NodeAddress
from protocol.images.statement import Architecture, ImageName, PublishedImage


class PublishedImageView(View, frozen=True):
    """One image. ``artifact``: what a job names; ``size``: bytes of its archive; ``unpacked``: of its layers.

    ``publisher``: the key that has signed it, which an owner accepts before the image runs there. ``pushed``: Unix seconds.
    """

    artifact: Digest
    name: ImageName
    image: Digest
    architecture: Architecture
    size: int
    unpacked: int
    publisher: NodeAddress
    pushed: float

    @classmethod
    def of(cls, stated: PublishedImage, artifact: Digest, size: int, pushed: float) -> "PublishedImageView":
        """What is stated, with where it lies."""
        return cls(
            artifact,
            stated.name,
            stated.image,
            stated.architecture,
            size,
            stated.unpacked,
            stated.publisher,
            pushed,
        )
