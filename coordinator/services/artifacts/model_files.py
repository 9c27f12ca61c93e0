"""What a price needs of a model's own files: a tokenizer's vocabulary, and whether the weights are its config's.

Both are read in a thread, since a tokenizer has up to 64 MB and a header of weights 25. What was found of a file is remembered by
its digest: a form asks for a price at every change.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from coordinator.errors import InvalidError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.weight_index import check_fit
from protocol.job.end_tokens import FIELD, EndingError, EndTokenChoice, ending, ends_of
from protocol.job.job import JobSpec
from protocol.models.model import ENDS_WITH, resolve

BYTES_VOCABULARY = 259
MAX_TOKENIZER_BYTES = 64 << 20
MAX_REMEMBERED = 1_000  # A line or two each.
MAX_READ_AT_ONCE = 2  # A header of 25 MB takes ten times as much memory while it is read.


T = TypeVar("T")


@dataclass(frozen=True)
class Model:
    """A job's model: its resolved config, what is doubtful about its files, in words, and the token that ends its texts."""

    config: Mapping[str, object]
    warnings: tuple[str, ...] = ()
    end: str | None = None


@dataclass(frozen=True)
class _Refused:
    detail: str
    field: str


class _Memory(Generic[T]):
    """What was found, by what was asked; refusals too."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, T | _Refused] = OrderedDict()
        self._turn = asyncio.Semaphore(MAX_READ_AT_ONCE)

    async def get(self, asked: object, read: Callable[[], Awaitable[T]]) -> T:
        """What ``read`` finds; raises as it does."""
        key = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).digest()
        found = self._found.get(key)
        if found is None:
            async with self._turn:
                found = self._found.get(key)  # Somebody asked for the same meanwhile.
                if found is None:
                    try:
                        found = await read()
                    except InvalidError as error:
                        found = _Refused(error.detail, error.field)
        self._found[key] = found
        self._found.move_to_end(key)
        if len(self._found) > MAX_REMEMBERED:
            self._found.popitem(last=False)
        if isinstance(found, _Refused):
            raise InvalidError(found.detail, found.field)
        return found


class ModelFiles:
    """Reads them."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts
        self._vocabularies: _Memory[tuple[int, EndTokenChoice]] = _Memory()
        self._fits: _Memory[str] = _Memory()

    async def of(self, spec: JobSpec, config: Mapping[str, object] | None, called: Mapping[str, str]) -> Model:
        """The job's model.

        Args:
            config: its final config, or that of the job it starts from; None works one out from the document.
            called: what the submitter calls the files of weights, by digest.
        Raises:
            ModelConfigError: it cannot be built. NotFoundError: an uploaded tokenizer is not here.
            InvalidError: tokenizer or weights are unreadable, or are not the model's.
        """
        stated = config is None or spec.tokenizer.file is not None
        vocabulary, end = await self._vocabulary(spec) if stated else (0, EndTokenChoice(None))
        config = resolve(spec.model, vocabulary) if config is None else config
        warnings = end.warning, await self._fit(spec, config, called)
        return Model(config, tuple(text for text in warnings if text), end.token)

    async def _vocabulary(self, spec: JobSpec) -> tuple[int, EndTokenChoice]:
        """Token ids that the tokenizer will have, at most; and how it ends documents."""
        if spec.tokenizer.kind == "bytes":
            return BYTES_VOCABULARY, EndTokenChoice(None)
        if spec.tokenizer.kind == "bpe":
            return spec.tokenizer.vocabulary, EndTokenChoice(None)
        if spec.tokenizer.file is None:
            raise InvalidError(
                "tokenizer.kind is file: upload a tokenizer.json and name it in tokenizer.file", "tokenizer"
            )
        tokenizer = spec.tokenizer.file

        async def read() -> tuple[int, EndTokenChoice]:
            async with self._artifacts.files(tokenizer) as (path,):
                return await asyncio.to_thread(_read_vocabulary, spec, path)

        return await self._vocabularies.get((spec.tokenizer, ends_of(spec.model)), read)

    async def _fit(self, spec: JobSpec, config: Mapping[str, object], called: Mapping[str, str]) -> str:
        """What is doubtful about the weights, or "". A job is made once all of them are here, so its weights were compared."""
        files = spec.model.weight_files
        lacking = sum([not await self._artifacts.has(digest) for digest in files])
        if lacking:
            return (
                f"{lacking} of {len(files)} files of weights are not uploaded yet: "
                "whether they fit the config is seen once they are here"
            )
        if not files:
            return ""
        named = [
            (called.get(digest) or f"file {number} of the weights", digest) for number, digest in enumerate(files, 1)
        ]
        asked = ({key: value for key, value in config.items() if key != ENDS_WITH}, named)

        async def read() -> str:
            async with self._artifacts.files(*files) as paths:
                placed = [(name, path) for (name, _), path in zip(named, paths, strict=True)]
                return await asyncio.to_thread(check_fit, config, placed)

        return await self._fits.get(asked, read)


def _read_vocabulary(spec: JobSpec, path: Path) -> tuple[int, EndTokenChoice]:
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise InvalidError(
            f"the tokenizer has {path.stat().st_size:,} bytes: {MAX_TOKENIZER_BYTES:,} at most", "tokenizer"
        )
    try:
        document = json.loads(path.read_bytes())
        stated = document["model"]["vocab"]
        pieces = (
            stated.items() if isinstance(stated, dict) else ((piece[0], number) for number, piece in enumerate(stated))
        )
        added = {int(token["id"]): str(token["content"]) for token in document.get("added_tokens", ())}
        vocabulary = {token: int(number) for token, number in pieces} | {
            token: number for number, token in added.items()
        }
        count = 1 + max(vocabulary.values())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        detail = "the tokenizer has no table of tokens that can be read: save_pretrained of transformers writes tokenizer.json"
        raise InvalidError(detail, "tokenizer") from error
    try:
        return count, ending(spec.tokenizer, ends_of(spec.model), vocabulary, added)
    except EndingError as error:
        raise InvalidError(str(error), FIELD) from error
