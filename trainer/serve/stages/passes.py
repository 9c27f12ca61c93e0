"""What goes between the stages of a replica: ``u32 header length | header | raw float32`` (little-endian).

A *pass* goes from the first stage to the last: rows of some requests' tokens, as hidden states. What was *drawn* comes back. A
neighbour is a stranger's machine, so each payload is looked at, and ``MessageError`` says what is wrong with it.
"""

import struct
from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from protocol.codec import MAX_MESSAGE, MessageError, decode, encode
from protocol.serving import MAX_LIKELIEST, AdapterNumber, RequestId, Sampling, Token, Tokens
from trainer.files.tensors import bytes_of
from trainer.transfer import HostCopy

BATCH = 512  # Tokens of a pass: a long prompt comes in parts, so that answers under way go on.
DRAFTS = 8  # Tokens behind a row's own that its answer may go on with.
MAX_HEADER = 2 * MAX_MESSAGE  # A grammar, and the tokens that an answer has begun with.
MAX_CHANGED = 1024  # Requests that a pass opens or closes.
_LENGTH = struct.Struct("<I")
_FLOAT32 = 4

RequestNumber = Annotated[int, Meta(ge=0, lt=2**53)]
Place = Annotated[int, Meta(ge=0, lt=2**31)]
Nats = Annotated[float, Meta(ge=-1e5, le=1e-3)]
Likely = tuple[Token, Nats]


class OpenedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request whose rows follow. It has a new ``number`` whenever its keys and values are made anew.

    Attributes:
        prompt: how many tokens its prompt has. ``grammar``: what its answer keeps to (``trainer.serve.grammar``), ``begun`` too.
        likeliest, adapter: as ``GenerateCommand`` has them.
        like: a request that is open or kept, whose first ``shared`` pages are this one's, too.
        embeds: it is a text whose embedding is wanted: the mean of its last hidden states, and nothing is drawn.
    """

    number: RequestNumber
    id: RequestId
    prompt: Place
    sampling: Sampling
    begun: Tokens = ()
    grammar: Annotated[str, Meta(max_length=MAX_HEADER)] | None = None
    likeliest: Annotated[int, Meta(ge=0, le=MAX_LIKELIEST)] | None = None
    adapter: AdapterNumber = 0
    like: RequestNumber = 0
    shared: Place = 0
    embeds: bool = False


class ClosedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request without further rows. ``length``: places of its sequence that count; 0: it begins again. ``kept``: pages of it
    that stay, until the request is dropped."""

    number: RequestNumber
    length: Place
    kept: Place = 0


class PassRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tokens of a request from place ``first`` on. The last ``len(drafts)`` are drafts, the first of which may follow the token
    before it; ``draws``: the last stage draws behind that one, and behind each draft that agrees."""

    number: RequestNumber
    first: Place
    count: Annotated[int, Meta(ge=1, le=BATCH)]
    draws: bool = False
    drafts: Annotated[tuple[Token, ...], Meta(max_length=DRAFTS)] = ()


class PassHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a stage does: forget all (``reset``), close, open, drop, and compute ``rows``.

    ``dropped``: requests of which pages were kept.
    ``broken``: what a stage found wrong with this pass or one before; nothing of it counts, until one that resets.
    """

    closed: Annotated[tuple[ClosedRequest, ...], Meta(max_length=MAX_CHANGED)] = ()
    opened: Annotated[tuple[OpenedRequest, ...], Meta(max_length=MAX_CHANGED)] = ()
    dropped: Annotated[tuple[RequestNumber, ...], Meta(max_length=MAX_CHANGED)] = ()
    rows: Annotated[tuple[PassRow, ...], Meta(max_length=BATCH)] = ()
    reset: bool = False
    broken: Annotated[str, Meta(max_length=500)] = ""

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return sum(row.count for row in self.rows)


class NotedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """How likely a token was that was drawn, and the likeliest at its place."""

    own: Likely
    likeliest: Annotated[tuple[Likely, ...], Meta(max_length=MAX_LIKELIEST)]


class DrawnRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The next tokens of a request: all but the last are drafts that agreed. ``noted``: of each, where it was asked for.

    A text that is embedded has none; its vector follows.
    """

    number: RequestNumber
    tokens: Annotated[tuple[Token, ...], Meta(max_length=DRAFTS + 1)] = ()
    noted: Annotated[tuple[NotedToken, ...], Meta(max_length=DRAFTS + 1)] = ()


class DrawnHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What came of a pass: of its rows that draw, in order. ``broken``: as ``PassHeader``."""

    rows: Annotated[tuple[DrawnRow, ...], Meta(max_length=BATCH)] = ()
    broken: Annotated[str, Meta(max_length=500)] = ""


def longest_payload(hidden: int) -> int:
    """Bytes that no pass is longer than. ``hidden``: the model's width."""
    return _LENGTH.size + MAX_HEADER + BATCH * hidden * _FLOAT32


def pack_pass(header: PassHeader, hidden: Tensor | None) -> tuple[bytes | memoryview, ...]:
    """Pieces of a payload. ``hidden``: ``[t, d]`` of the rows, one after the other; None: there are none."""
    return (
        _packed(header)
        if hidden is None
        else (*_packed(header), bytes_of(HostCopy(hidden, torch.float32).arrived().contiguous()))
    )


def unpack_pass(payload: bytes, hidden: int) -> tuple[PassHeader, Tensor]:
    """A pass, and its hidden states ``[t, hidden]``.

    Raises:
        MessageError: it is none, or its rows have other tokens than it says, or numbers that are not finite.
    """
    header, rest = _unpacked(payload, PassHeader)
    assert isinstance(header, PassHeader)
    expected = 0 if header.broken else header.tokens
    if header.tokens > BATCH:
        raise MessageError(f"a pass has {header.tokens:,} tokens: {BATCH} at most")
    if len(rest) != expected * hidden * _FLOAT32:
        raise MessageError(f"a pass of {expected:,} tokens has {len(rest):,} bytes of {hidden:,} numbers each")
    states = torch.frombuffer(bytearray(rest), dtype=torch.float32) if expected else torch.empty(0)
    if not bool(torch.isfinite(states).all()):
        raise MessageError("a pass has numbers that are not finite")
    return header, states.view(-1, hidden)


def pack_drawn(header: DrawnHeader, vectors: Tensor | None = None) -> tuple[bytes | memoryview, ...]:
    """Pieces of a payload. ``vectors``: ``[n, d]``, of the rows without tokens; None: there are none."""
    return (
        _packed(header)
        if vectors is None
        else (*_packed(header), bytes_of(HostCopy(vectors, torch.float32).arrived().contiguous()))
    )


def unpack_drawn(payload: bytes, hidden: int) -> tuple[DrawnHeader, Tensor]:
    """What was drawn, and the vectors ``[n, hidden]`` of its rows without tokens, in order.

    Raises:
        MessageError: it is no such thing.
    """
    header, rest = _unpacked(payload, DrawnHeader)
    assert isinstance(header, DrawnHeader)
    count = sum(not row.tokens for row in header.rows)
    if len(rest) != count * hidden * _FLOAT32:
        raise MessageError(f"{len(rest):,} bytes follow what was drawn, which has {count:,} vectors")
    vectors = torch.frombuffer(bytearray(rest), dtype=torch.float32) if count else torch.empty(0)
    if not bool(torch.isfinite(vectors).all()):
        raise MessageError("a vector has numbers that are not finite")
    return header, vectors.view(-1, hidden)


def _packed(header: msgspec.Struct) -> tuple[bytes, ...]:
    data = encode(header)
    return _LENGTH.pack(len(data)) + data, b""


def _unpacked(payload: bytes, kind: type) -> tuple[msgspec.Struct, memoryview]:
    if len(payload) < _LENGTH.size:
        raise MessageError(f"a payload of {len(payload)} bytes has no header")
    (length,) = _LENGTH.unpack_from(payload)
    if length > min(MAX_HEADER, len(payload) - _LENGTH.size):
        raise MessageError(f"a header of {length:,} bytes is not there, or too long")
    view = memoryview(payload)[_LENGTH.size :]
    found = decode(view[:length], kind, MAX_HEADER)
    assert isinstance(found, msgspec.Struct)
    return found, view[length:]
