"""What a price needs of a model's own files: a tokenizer's vocabulary, and whether the weights are its config's.

Both are read in a thread, since a tokenizer has up to 64 MB and a header of weights 25. What was found of a file is remembered by
its digest: a form asks for a price at every change.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from coordinator.errors import InvalidError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.weight_index import check_fit
from protocol.codec import decode_json
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


@dataclass(frozen=True)
class TokenTable:
    """Of a ``tokenizer.json``. ``ids``: of every token; ``added``: those beside its model's own, by id."""

    ids: Mapping[str, int]
    added: Mapping[int, str]


def read_tokens(path: Path, field: str) -> TokenTable:
    """Which tokens a ``tokenizer.json`` has.

    Args:
        field: of the document, which names the file.
    Raises:
        InvalidError: it is too large, or has no table that can be read.
    """
    if (size := path.stat().st_size) > MAX_TOKENIZER_BYTES:
        raise InvalidError(f"the tokenizer has {size:,} bytes: {MAX_TOKENIZER_BYTES:,} at most", field)
    try:
        document = decode_json(path.read_bytes(), Any, MAX_TOKENIZER_BYTES)
        stated = document["model"]["vocab"]
        pieces = stated.items() if isinstance(stated, dict) else _numbered(stated)
        added = [(_text(token["content"]), _id(token["id"])) for token in document.get("added_tokens", ())]
        ids = {_text(token): _id(number) for token, number in pieces} | dict(added)
        if not ids:
            raise ValueError("it is empty")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        detail = "the tokenizer has no table of tokens that can be read: save_pretrained of transformers writes tokenizer.json"
        raise InvalidError(detail, field) from error
    return TokenTable(ids, {number: token for token, number in added})


def _numbered(pieces: Any) -> Iterator[tuple[Any, int]]:
    """As unigram models have them: text and likelihood of each."""
    if not isinstance(pieces, list) or not all(isinstance(piece, list) for piece in pieces):
        raise TypeError("it is neither a table nor a list of pieces")
    return ((piece[0], number) for number, piece in enumerate(pieces))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a token is no text")
    return value


def _id(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**32:
        raise ValueError("the id of a token is no whole number of 32 bits")
    return value


def _read_vocabulary(spec: JobSpec, path: Path) -> tuple[int, EndTokenChoice]:
    tokens = read_tokens(path, "tokenizer")
    try:
        end = ending(spec.tokenizer, ends_of(spec.model), tokens.ids, tokens.added)
    except EndingError as error:
        raise InvalidError(str(error), FIELD) from error
    return 1 + max(tokens.ids.values()), end
