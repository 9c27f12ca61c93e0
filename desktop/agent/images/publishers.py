"""Whose images an owner lets run here. Files of the home folder, so that a command says it whether an agent runs or not."""

from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from common.errors import TransportError
from common.system_words import reason
from desktop.agent.base.config import Home
from desktop.agent.errors import SettingsError, UnacceptedImageError
from protocol.codec import MessageError, convert, decode_json, encode_json
from protocol.identity import parse_address
from protocol.ids import Digest, NodeAddress
from protocol.images.configuration import MAX_LAYERS, DiffId
from protocol.images.statement import PublishedImage

MAX_PUBLISHERS: Final = 256
MAX_KNOWN: Final = 64  # Images that are remembered; of those that are not here the oldest go first.
OWN_NAME: Final = "Cottage"

S = TypeVar("S", bound=msgspec.Struct)
PublisherName = Annotated[str, Meta(min_length=1, max_length=60, pattern=r"^[ -~]*$")]


class Publisher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody whose images run here. ``key``: base58; ``name``: what the owner calls them; ``since``: Unix seconds."""

    key: NodeAddress
    name: PublisherName
    since: float


class KnownImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image that a job has asked this computer to run, with what it asked for.

    ``artifact``: SHA-256 of its archive; ``layers``: as its configuration names them, once it was here; ``used``: Unix seconds.
    """

    artifact: Digest
    stated: PublishedImage
    gpu: bool
    memory_mb: int
    used: float
    layers: Annotated[tuple[DiffId, ...], Meta(max_length=MAX_LAYERS)] = ()


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    publishers: Annotated[tuple[Publisher, ...], Meta(max_length=MAX_PUBLISHERS)] = ()


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    images: Annotated[tuple[KnownImage, ...], Meta(max_length=MAX_KNOWN)] = ()


class Publishers:
    """Of one home. Every question reads the file: another process may have changed it."""

    def __init__(self, home: Home, own: str = "") -> None:
        """``own``: the release key of this build, whose images are accepted without being asked for; "": it names none."""
        self._home, self._own = home, own

    def all(self) -> tuple[Publisher, ...]:
        """Everybody who is accepted, Cottage first; raises SettingsError where the file is damaged."""
        own = (Publisher(self._own, OWN_NAME, 0.0),) if self._own else ()
        return own + _read(self._home.publishers, _Kept()).publishers

    def is_own(self, key: NodeAddress) -> bool:
        """Whether it is the release key of this build."""
        return key == self._own

    def accepts(self, key: NodeAddress) -> bool:
        """Whether images that ``key`` signs may run here."""
        return any(one.key == key for one in self.all())

    def check(self, stated: PublishedImage) -> None:
        """Raise UnacceptedImageError where an image may not run here."""
        if not self.accepts(stated.publisher):
            raise UnacceptedImageError(
                f"the image {stated.name} is signed by {stated.publisher}, whose images the owner of this computer has not "
                f"accepted (cottage node images accept {stated.publisher} --name NAME)"
            )

    def accept(self, key: str, name: str, now: float) -> Publisher:
        """Let images of ``key`` run here; one that is accepted already gets another name.

        Raises:
            SettingsError: it is no key, or there are too many.
        """
        try:
            parse_address(key)
            made: Publisher = convert({"key": key, "name": name, "since": now}, Publisher)
        except (TransportError, MessageError) as error:
            raise SettingsError(
                f"a publisher is a key, as `cottage image push` shows it, and a name of at most 60 letters: {error}"
            ) from error
        others = [one for one in _read(self._home.publishers, _Kept()).publishers if one.key != key]
        if len(others) >= MAX_PUBLISHERS:
            raise SettingsError(f"{MAX_PUBLISHERS} publishers are accepted: remove one first")
        _write(self._home.publishers, _Kept((*others, made)))
        return made

    def remove(self, key: str) -> Publisher:
        """Let no further job run images of ``key``; runs that have begun go on. Raises SettingsError where there is none."""
        kept = _read(self._home.publishers, _Kept()).publishers
        gone = next((one for one in kept if key in (one.key, one.name)), None)
        if gone is None:
            hint = (
                "Cottage's own are always accepted" if key in (self._own, OWN_NAME) else "see cottage node images list"
            )
            raise SettingsError(f"no publisher {key!r} was accepted here: {hint}")
        _write(self._home.publishers, _Kept(tuple(one for one in kept if one.key != gone.key)))
        return gone

    # --- images that were asked for -------------------------------------------------------------------------------------

    def known(self) -> tuple[KnownImage, ...]:
        """Images that jobs have asked for, the latest first."""
        return tuple(sorted(_read(self._home.element_images, _Known()).images, key=lambda one: -one.used))

    def note(self, image: KnownImage) -> None:
        """Remember one; a file that cannot be written is told."""
        others = [one for one in self.known() if one.artifact != image.artifact]
        room = sorted(others, key=lambda one: (not one.layers, -one.used))[: MAX_KNOWN - 1]
        _write(self._home.element_images, _Known((image, *room)))

    def forget_layers(self, artifact: Digest) -> None:
        """It is not here any more."""
        changed = [msgspec.structs.replace(one, layers=()) if one.artifact == artifact else one for one in self.known()]
        _write(self._home.element_images, _Known(tuple(changed)))


def _read(file: Path, nothing: S) -> S:
    try:
        found: S = decode_json(file.read_bytes(), type(nothing))
    except FileNotFoundError:
        return nothing
    except (OSError, MessageError) as error:
        raise SettingsError(f"{file} cannot be used: {error}. Correct it or delete it") from error
    return found


def _write(file: Path, content: msgspec.Struct) -> None:
    draft = file.with_suffix(".new")
    try:
        draft.write_bytes(encode_json(content))
        draft.replace(file)
    except OSError as error:
        raise SettingsError(f"{draft} cannot be written: {reason(error)}") from error
