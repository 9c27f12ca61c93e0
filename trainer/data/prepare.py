"""A dataset made ready for training: tokenizer, ``train.bin``, ``heldout.bin`` and ``manifest.json``. Free of torch.

The same bytes in give the same bytes out. Every k-th piece of text is held out, so held-out text comes from everywhere.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from protocol.job.end_tokens import END_OF_TEXT, EndingError, EndTokenChoice, ending
from protocol.job.job import TOKENISED, TokenizerSpec
from trainer.data.data import TOKEN_BYTES
from trainer.data.encoded import MOST_CHARACTERS, TokenIds, encoded
from trainer.data.text import PIECE_CHARACTERS, pieces
from trainer.data.tokens import PIECE_TOKENS, Ids, id_pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset

BYTE_SPECIALS = (END_OF_TEXT, "<|begin|>", "<|pad|>")  # With 256 bytes a vocabulary of 259, as TokenizerSpec states.
MAX_TOKENIZER_TRAINING_CHARACTERS = 64 << 20  # Merges hardly change beyond; keeps memory and minutes bounded.
MAX_TOKENIZER_BYTES = 64 << 20
_BATCH = 256  # Pieces encoded at a time.


@dataclass(frozen=True)
class DatasetManifest:
    """What a prepared dataset holds; the content of ``manifest.json``."""

    rows: int
    characters: int
    train_tokens: int
    heldout_tokens: int
    vocabulary: int
    sequence: int
    tokenizer: str
    train_sha256: str
    heldout_sha256: str
    end: str | None
    """The token after each document; None where they run into each other."""


def prepare(
    dataset: Dataset,
    tokenizer: TokenizerSpec,
    tokenizer_file: Path | None,
    heldout: float,
    sequence: int,
    out: Path,
    ends: Sequence[int] = (),
    called: str = "",
) -> DatasetManifest:
    """Write ``out``'s four files.

    Args:
        tokenizer_file: the uploaded ``tokenizer.json`` where ``tokenizer.kind`` is "file".
        heldout: share of the pieces that is held out, in (0, 0.5].
        sequence: tokens of a training sequence; both files hold at least one.
        ends: ids that the model's files name as ends.
        called: what its owner calls ``tokenizer_file``.
    Raises:
        DataError: the dataset or the tokenizer cannot be used. Nothing is left in ``out`` but what was there.
    """
    total, form = dataset.size, dataset.format(dataset.look())
    piece_characters = max(64, min(PIECE_CHARACTERS, int(total * heldout / 4)))

    def read() -> Iterator[str]:
        return pieces(dataset, piece_characters)

    if form in TOKENISED and tokenizer.kind == "bpe":
        raise DataError(
            "missing-file",
            f"a dataset of token ids ({form}) needs its own tokenizer: give tokenizer.kind file, or bytes",
        )
    made = make_tokenizer(tokenizer, tokenizer_file, read, called=called)
    end = ending_of(tokenizer, made, ends).token
    out.mkdir(parents=True, exist_ok=True)
    named = called or (tokenizer_file.name if tokenizer_file else "the tokenizer")
    writers = _Writer(out / "train.bin.part"), _Writer(out / "heldout.bin.part")
    try:
        if form in TOKENISED:
            piece_tokens = max(64, min(PIECE_TOKENS, int(total * heldout / 16)))
            ids = id_pieces(dataset, made.get_vocab_size(with_added_tokens=True), piece_tokens)
            rows, characters = _copy(ids, heldout, *writers), 0
        else:
            rows, characters = _tokenize(made, named, read(), None if form == "text" else end, heldout, *writers)
        _check_lengths(dataset.name, sequence, *writers)
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    train, held = writers
    if tokenizer_file is None or tokenizer.kind != "file":
        made.save(str(out / "tokenizer.json"))
    elif tokenizer_file != out / "tokenizer.json":
        shutil.copyfile(tokenizer_file, out / "tokenizer.json")
    manifest = DatasetManifest(
        rows=rows,
        characters=characters,
        train_tokens=train.tokens,
        heldout_tokens=held.tokens,
        vocabulary=made.get_vocab_size(with_added_tokens=True),
        sequence=sequence,
        tokenizer=tokenizer.kind,
        train_sha256=train.finish(),
        heldout_sha256=held.finish(),
        end=end,
    )
    (out / "manifest.json").write_text(json.dumps(vars(manifest), indent=1) + "\n")
    return manifest


class _Writer:
    """A token file in the making: it takes its name when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self.tokens = 0

    def write(self, ids: Sequence[int] | Ids | TokenIds) -> None:
        data = np.asarray(ids, dtype="<u4").tobytes()
        self._file.write(data)
        self._hash.update(data)
        self.tokens += len(data) // TOKEN_BYTES

    def finish(self) -> str:
        self._file.close()
        self._path.replace(self._path.with_suffix(""))
        return self._hash.hexdigest()

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _tokenize(
    tokenizer: Tokenizer,
    called: str,
    texts: Iterator[str],
    end: str | None,
    heldout: float,
    train: _Writer,
    held: _Writer,
) -> tuple[int, int]:
    """Encode all pieces, each with one ``end`` after it; returns rows and characters."""
    every = max(2, round(1 / heldout))
    closing = None if end is None else tokenizer.token_to_id(end)
    rows = characters = 0
    for batch in _batches(texts):
        places = [f"document {rows + index:,}" for index in range(1, len(batch) + 1)]
        for text, ids in zip(batch, encoded(tokenizer, batch, called, places), strict=True):
            chosen = held if rows % every == every // 2 else train
            chosen.write(ids)
            if closing is not None and not (len(ids) and ids[-1] == closing):  # Some texts have their own end already.
                chosen.write([closing])
            rows += 1
            characters += len(text)
    if rows == 0:
        raise DataError("empty-dataset", "the dataset has no text in it: upload a file with text")
    return rows, characters


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Texts to encode at a time: some hundreds, or fewer long ones."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if len(batch) == _BATCH or size > MOST_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _copy(pieces_of_ids: Iterator[Ids], heldout: float, train: _Writer, held: _Writer) -> int:
    """Share tokenised pieces out, as they are; returns how many there were."""
    every, count = max(2, round(1 / heldout)), 0
    for ids in pieces_of_ids:
        (held if count % every == every // 2 else train).write(ids)
        count += 1
    if count == 0:
        raise DataError("empty-dataset", "the dataset has no token ids in it: upload a file with ids")
    return count


def _check_lengths(name: str, sequence: int, train: _Writer, held: _Writer) -> None:
    if train.tokens <= sequence or held.tokens <= sequence:
        raise DataError(
            "too-short",
            f"{name} gives {train.tokens:,} tokens to train on and {held.tokens:,} held out, sequences of {sequence} "
            f"need at least {sequence + 1} of each: bring more text, choose shorter sequences, or hold out a larger share",
        )


def make_tokenizer(
    spec: TokenizerSpec,
    file: Path | None,
    read: Callable[[], Iterator[str]],
    characters: int = MAX_TOKENIZER_TRAINING_CHARACTERS,
    called: str = "",
) -> Tokenizer:
    """The tokenizer that a job asks for.

    Args:
        file: the uploaded ``tokenizer.json`` where ``spec.kind`` is "file".
        read: begins the dataset's pieces anew; one that is trained on the data reads them up to ``characters``.
        called: what its owner calls ``file``, for messages; its own name unless given.
    Raises:
        DataError: the file is missing, gigantic, or no tokenizer.
    """
    if spec.kind == "file":
        return _read_tokenizer(file, called)
    made = Tokenizer(models.BPE(byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if spec.kind == "bytes":
        vocabulary = {character: index for index, character in enumerate(alphabet)}
        made.model = models.BPE(vocabulary, [])
        made.add_special_tokens([AddedToken(token, special=True) for token in BYTE_SPECIALS])
        return made
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocabulary, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(_first_characters(read(), characters), trainer)
    return made


def ending_of(spec: TokenizerSpec, tokenizer: Tokenizer, ends: Sequence[int]) -> EndTokenChoice:
    """The token between documents, see ``protocol.job.end_tokens``.

    Raises:
        DataError: the job names one that the tokenizer has not.
    """
    added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
    try:
        return ending(spec, ends, tokenizer.get_vocab(with_added_tokens=True), added)
    except EndingError as error:
        raise DataError("bad-end", str(error)) from error


def _first_characters(texts: Iterator[str], left: int) -> Iterator[str]:
    for text in texts:
        if left <= 0:
            return
        left -= len(text)
        yield text


def _read_tokenizer(file: Path | None, called: str) -> Tokenizer:
    if file is None:
        raise DataError("missing-file", "tokenizer kind 'file' needs the uploaded tokenizer.json")
    name = called or file.name
    try:
        size = file.stat().st_size
    except OSError as error:
        raise DataError("missing-file", f"{name} cannot be read: {error.strerror}") from error
    if size > MAX_TOKENIZER_BYTES:
        raise DataError("too-large", f"{name} has more than {MAX_TOKENIZER_BYTES:,} bytes")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises plain Exception for any broken tokenizer file.
        raise DataError("bad-tokenizer", f"{name} is no tokenizer.json: {_lack(file)}") from error
    tokenizer.no_truncation()  # Some were saved with the length of somebody's batches, which documents are not cut to.
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None  # Some leave merges out by chance: the same text has to give the same tokens.
    return tokenizer


def _lack(file: Path) -> str:
    """What a file that is no tokenizer lacks, and the way out."""
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return "it is not JSON, or was cut; upload the tokenizer.json of the model's own folder"
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        return (
            "it has no vocabulary under 'model'; that is in tokenizer.json, not in tokenizer_config.json or vocab.json"
        )
    return "a part of it is incomplete, or of a kind that is not known here; save it anew with transformers' save_pretrained"
