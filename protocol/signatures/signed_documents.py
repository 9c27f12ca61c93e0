"""Signed documents: how one is read, how those of the release key are judged by number and time, and what was seen is kept.

The signature (Ed25519, ``protocol.identity``) covers the canonical JSON of the content: sorted names, no spaces, integers and
ASCII only, which for these types is RFC 8785. Who holds the web server or the line, but not the key, could bring back an older
document, withhold newer ones until one expires, or show others another one under the same number: the attacks of The Update
Framework's paper (Samuel et al., CCS 2010) on a single role. Each kind has its own context, so that a signature of one is none
of another. What a document says, and what follows from it, is its own module's: the agent's ``updates.manifest`` and
``sandbox.statement``, and ``images.statement`` here, which has neither number nor end.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import Meta

from common.errors import TransportError
from common.system_words import reason
from protocol.codec import MessageError, decode_json, encode_json
from protocol.identity import NodeKey, verify

Number = Annotated[int, Meta(ge=1, lt=2**53)]
Unix = Annotated[int, Meta(ge=0, lt=2**40)]
Signature = Annotated[str, Meta(pattern=r"^[0-9a-f]{128}$")]
"""64 bytes as hexadecimal digits."""
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class SignedContent(Protocol):
    """``number`` grows with every document; at ``expires`` (Unix seconds) it ends."""

    @property
    def number(self) -> int: ...
    @property
    def expires(self) -> int: ...


C = TypeVar("C", bound=msgspec.Struct)
T = TypeVar("T", bound=SignedContent)
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class SignedKind(Generic[C]):
    """One kind of document.

    Attributes:
        context: of its signatures.
        envelope: what lies on a server: a struct of the content and its ``signature``.
        limit: bytes that a document may have.
        error: what is raised.
        noun, about: "update manifest" and "", or "statement" and " about the sandbox image": with its number between them.
    """

    context: str
    envelope: type[Any]
    limit: int
    error: type[Exception]
    noun: str
    about: str

    def sign(self, content: C, key: NodeKey) -> bytes:
        """The document for the server."""
        return encode_json(self.envelope(content, key.sign(self.context, encode_json(content)).hex()))

    def read(self, document: bytes, address: str) -> C:
        """The content of ``document``, if the key ``address`` (base58) has signed it; else ``error``: it is cut, malformed, or
        signed by nobody or somebody else."""
        return self.believed(self.opened(document), address)

    def opened(self, document: bytes) -> Any:
        """The envelope, whose signature nobody has looked at yet; raises ``error``."""
        try:
            return decode_json(document, self.envelope, self.limit)
        except MessageError as error:
            raise self._refused(error) from error

    def believed(self, signed: Any, address: str) -> C:
        """The content of an envelope, as ``read``."""
        content = getattr(signed, self.envelope.__struct_fields__[0])
        try:
            verify(address, bytes.fromhex(signed.signature), self.context, encode_json(content))
        except TransportError as error:
            raise self._refused(error) from error
        return cast(C, content)

    def _refused(self, error: Exception) -> Exception:
        return self.error(f"the {self.noun}{self.about} cannot be believed: {error}")


@dataclass(frozen=True)
class DocumentKind(SignedKind[Any], Generic[T]):
    """One kind of document that is replaced by newer ones.

    Attributes:
        expired: what its expiry means to the owner.
        server: whom one trusts who deletes what was seen.
    """

    expired: str
    server: str

    def sign(self, content: T, key: NodeKey) -> bytes:
        """The document for the server."""
        return super().sign(content, key)

    def read(self, document: bytes, address: str) -> T:
        """As ``SignedKind.read``."""
        return cast(T, super().read(document, address))

    def judge(self, content: T, number: int, digest: str, now: float) -> None:
        """Raise ``error`` where it has expired, is older than ``number``, or has that number and another ``digest``."""
        name = f"{self.noun} {content.number}{self.about}"
        if now >= content.expires:
            raise self.error(f"{name} has expired: {self.expired}")
        if content.number < number:
            raise self.error(f"{name} is older than {number}, which was seen before")
        if content.number == number and digest_of(content) != digest:
            raise self.error(f"there are two {self.noun}s{self.about} with the number {number}: neither is believed")

    def seen(self, file: Path, nothing: S) -> S:
        """What was kept in ``file``, ``nothing`` where it is not there; ``error`` where it cannot be read."""
        try:
            return cast(S, decode_json(file.read_bytes(), type(nothing)))
        except FileNotFoundError:
            return nothing
        except (OSError, MessageError) as error:
            raise self.error(
                f"{file} cannot be used: {error}. Delete it if you trust the {self.server} server now"
            ) from error

    def keep(self, file: Path, data: bytes) -> None:
        """Write all of ``data`` into ``file`` or leave it as it was, with ``error``."""
        draft = file.with_suffix(".new")
        try:
            draft.write_bytes(data)
            draft.replace(file)
        except OSError as error:
            raise self.error(f"{draft} cannot be written: {reason(error)}") from error


def digest_of(content: SignedContent) -> str:
    """Names what a document says."""
    return hashlib.sha256(encode_json(content)).hexdigest()
