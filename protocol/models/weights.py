"""Weights to start from, in pieces: which tensors a stage needs, where they lie, and how a node knows that they are right.

A safetensors file is a JSON header and then the tensors' bytes. When a job is made the coordinator reads its weights once,
from one file or from the shards of one model, and stores a *weight index*: of each tensor its file, its place there and
its SHA-256. The index is an artifact, so the assignment names it by its own SHA-256; a node fetches it, then only the byte
ranges of its layers, and checks every tensor by itself. A range that is wrong, cut or of another file cannot pass.
"""

import itertools
import json
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol.ids import Digest
from protocol.job.job import MAX_SHARDS
from protocol.task import Layers

WEIGHT_INDEX = "weights.json"  # Name of the index among a job's files.
MAX_INDEX_BYTES = 64 << 20  # 200,000 tensors; the largest public models with single experts have 60,000.
MAX_FILE_BYTES = 1 << 44
UNITS = 64  # Of a stage's weights, about: as many replicas may each begin with another part of them.
LEAST_UNIT, MOST_UNIT = 64 << 10, 4 << 20  # A request costs a round trip, and a lie one unit.

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|wpe|embed_in)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.")
_LENGTH = struct.Struct("<Q")

Place = Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]


class IndexedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes ``begin <= i < end`` of file ``file`` of the index, counted from the file's own first byte."""

    file: Annotated[int, Meta(ge=0, lt=MAX_SHARDS)]
    begin: Place
    end: Place
    dtype: Annotated[str, Meta(pattern=r"^[A-Z0-9]{2,8}$")]
    shape: Annotated[tuple[Place, ...], Meta(max_length=8)]
    sha256: Digest


class WeightIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tensors of a model's files, by name."""

    files: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_SHARDS)]
    tensors: dict[Annotated[str, Meta(max_length=500)], IndexedTensor]


class Span(msgspec.Struct, frozen=True):
    """Neighbouring tensors of one file, fetched by one request."""

    file: int
    begin: int
    end: int
    names: tuple[str, ...]


class Unit(msgspec.Struct, frozen=True):
    """Neighbouring tensors that one node hands another at a time; ``at``: their place among all bytes of the stage."""

    span: Span
    at: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.span.end - self.span.begin


def weights_name(layers: Layers) -> str:
    """Name of the file with the weights of one stage, in a worker's folder."""
    return f"weights-{layers.first}-{layers.last}.safetensors"


def belongs(names: Iterable[str], layers: Layers, is_first: bool, is_last: bool) -> list[str]:
    """The names that a stage needs: its layers; the embedding on the first; norm and head on the last.

    Where a file has no head the model's head is its embedding, and the last stage needs that.
    """
    names = list(names)
    headless = not any(_HEAD.search(name) for name in names)
    needed = []
    for name in names:
        match = _LAYER.search(name)
        if match is not None:
            mine = layers.first <= int(match[1]) < layers.last
        elif _EMBEDDING.search(name):
            mine = is_first or (is_last and headless and "wpe" not in name)
        else:
            mine = is_last
        if mine:
            needed.append(name)
    return needed


def spans(index: WeightIndex, names: Iterable[str]) -> list[Span]:
    """The requests that bring ``names``, in the order of files and places; neighbours are joined."""
    ordered = sorted(names, key=lambda name: (index.tensors[name].file, index.tensors[name].begin))
    joined: list[Span] = []
    for name in ordered:
        tensor = index.tensors[name]
        last = joined[-1] if joined else None
        if last is not None and (last.file, last.end) == (tensor.file, tensor.begin):
            joined[-1] = Span(last.file, last.begin, tensor.end, (*last.names, name))
        else:
            joined.append(Span(tensor.file, tensor.begin, tensor.end, (name,)))
    return joined


def units(index: WeightIndex, found: Iterable[Span]) -> list[Unit]:
    """The bytes of ``found``, one after the other, cut between tensors: the same for all who have the same stage."""
    found = list(found)
    most = min(MOST_UNIT, max(LEAST_UNIT, sum(span.end - span.begin for span in found) // UNITS))
    cut: list[Unit] = []
    at = 0
    for span in found:
        names: list[str] = []
        for name in span.names:
            names.append(name)
            first, last = index.tensors[names[0]], index.tensors[name]
            if last.end - first.begin >= most or name == span.names[-1]:
                cut.append(Unit(Span(span.file, first.begin, last.end, tuple(names)), at))
                at += last.end - first.begin
                names = []
    return cut


def header(index: WeightIndex, found: Iterable[Span]) -> bytes:
    """Beginning of a safetensors file whose data are the bytes of ``found``, one after the other."""
    entries, at = {}, 0
    for name in itertools.chain.from_iterable(span.names for span in found):
        tensor = index.tensors[name]
        size = tensor.end - tensor.begin
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + size]}
        at += size
    return safetensors_header(entries)


def safetensors_header(entries: Mapping[str, Any]) -> bytes:
    """What a safetensors file begins with: the length of its header, and that; the tensors' bytes follow."""
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # The format's own writer aligns the data so.
    return _LENGTH.pack(len(text)) + text
