"""Models of the Hugging Face Hub, as the interface has them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol.ids import Digest
from protocol.job.job import HUB_PATTERN

HubName = Annotated[str, Meta(min_length=3, max_length=400)]
HubPath = Annotated[str, Meta(min_length=1, max_length=400)]


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository. ``sha256``: where the Hub names it."""

    path: HubPath
    size: int
    sha256: Digest | None = None


class NewHubModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``name``: ``organisation/name`` or ``organisation/name@revision``."""

    name: HubName


class HubModelView(msgspec.Struct, frozen=True):
    """A public model at one commit.

    ``files``: its weights, each to be begun as an upload and pulled. ``model`` and ``tokenizer``: what a job document says of it,
    but for the digests of these files; the tokenizer is uploaded. ``terms``: where the licence is to be read.
    """

    repository: str
    commit: str
    license: str
    terms: str
    files: tuple[HubFile, ...]
    model: dict[str, Any]
    tokenizer: dict[str, Any]


class Pull(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an upload's bytes are to come from: a file of a model at one commit."""

    hub: Annotated[str, Meta(pattern=f"^{HUB_PATTERN}$")]
    path: HubPath
