"""A dataset made ready for training: tokenizer, ``train.bin``, ``heldout.bin`` and ``manifest.json``. Free of torch.

The same bytes in give the same bytes out. Every k-th piece of text is held out, so held-out text comes from everywhere.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from protocol.job.end_tokens import END_OF_TEXT, EndingError, EndTokenChoice, ending
from protocol.job.job import TokenizerSpec
from trainer.data.chat import ChatTemplate
from trainer.data.data import TOKEN_BYTES
from trainer.data.encoded import MOST_CHARACTERS, TokenIds, encoded
from trainer.data.mixture import Mixture
from trainer.data.talks import TalkCounts, write_talks
from trainer.data.text import PIECE_CHARACTERS, pieces
from trainer.data.tokens import PIECE_TOKENS, Ids, id_pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset
from trainer.formats.talk import Preference, Said

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
    talks: TalkCounts | None = None
    """Of conversations: what became of them."""


def prepare(
    dataset: Dataset,
    tokenizer: TokenizerSpec,
    tokenizer_file: Path | None,
    heldout: float,
    sequence: int,
    out: Path,
    ends: Sequence[int] = (),
    called: str = "",
    preference: bool = False,
    more: Sequence[Dataset] = (),
    judged: Dataset | None = None,
) -> DatasetManifest:
    """Write ``out``'s four files.

    Args:
        tokenizer_file: the uploaded ``tokenizer.json`` where ``tokenizer.kind`` is "file".
        heldout: share of the pieces that is held out, in (0, 0.5]; 0: none, and ``heldout.bin`` is empty.
        sequence: tokens of a training sequence; both files hold at least one.
        ends: ids that the model's files name as ends.
        called: what its owner calls ``tokenizer_file``.
        preference: the job learns which of two answers is preferred.
        more: further datasets, of the same kind. judged: one that is held out, in place of a share of the others.
    Raises:
        DataError: the dataset or the tokenizer cannot be used. Nothing is left in ``out`` but what was there.
    """
    mixture = Mixture((dataset, *more), heldout, judged)
    names = ", ".join(one.name for one in mixture.trained)
    if mixture.tokenised and tokenizer.kind == "bpe":
        ids = f"a dataset of token ids ({dataset.format(dataset.look())})"
        raise DataError("missing-file", f"{ids} needs its own tokenizer: give tokenizer.kind file, or bytes")
    check_kind(mixture.talk, preference, names)
    made = make_tokenizer(tokenizer, tokenizer_file, lambda: _text(mixture, heldout), called=called)
    end = ending_of(tokenizer, made, ends).token
    out.mkdir(parents=True, exist_ok=True)
    named = called or (tokenizer_file.name if tokenizer_file else "the tokenizer")
    writers = _Writer(out / "train.bin.part"), _Writer(out / "heldout.bin.part")
    talks = None
    try:
        if mixture.talk is not None:
            template = ChatTemplate(made, tokenizer.settings, dataset.spec.learn, end, named)
            both = writers[0].write, writers[1].write
            talks = write_talks(mixture, template, sequence, out, both, answers=preference)
            rows, characters = talks.rows, talks.characters
        elif mixture.tokenised:
            rows, characters = _copy(mixture, heldout, made.get_vocab_size(with_added_tokens=True), *writers), 0
        else:
            rows, characters = _tokenize(made, named, mixture, heldout, end, *writers)
        _check_lengths(names, sequence, *(writers if heldout else writers[:1]))
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    train, held = writers
    _keep(made, tokenizer_file if tokenizer.kind == "file" else None, out / "tokenizer.json")
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
        talks=talks,
    )
    (out / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    return manifest


def prepare_tokenizer(
    spec: TokenizerSpec, file: Path | None, out: Path, ends: Sequence[int] = (), called: str = ""
) -> dict[str, int | str | None]:
    """Write ``out``'s ``tokenizer.json`` and ``manifest.json`` of a job whose data is elsewhere; arguments as of ``prepare``.

    Returns:
        the manifest: vocabulary, kind, and the token that ends documents.
    Raises:
        DataError: the tokenizer cannot be used, or is to be made from data.
    """
    if spec.kind == "bpe":
        raise DataError(
            "missing-file", "tokenizer.kind bpe is made from data, and there is none: set it to bytes or file"
        )
    made = make_tokenizer(spec, file, lambda: iter(()), called=called)
    vocabulary = made.get_vocab_size(with_added_tokens=True)
    manifest = {"vocabulary": vocabulary, "tokenizer": spec.kind, "end": ending_of(spec, made, ends).token}
    out.mkdir(parents=True, exist_ok=True)
    _keep(made, file if spec.kind == "file" else None, out / "tokenizer.json")
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _text(mixture: Mixture, heldout: float) -> Iterator[str]:
    """What a tokenizer is made from."""
    for one in mixture.trained:
        yield from _pieces(one, heldout)


def _keep(made: Tokenizer, file: Path | None, place: Path) -> None:
    """Write a tokenizer; where it came as a file, that very file."""
    if file is None:
        made.save(str(place))
    elif file != place:
        shutil.copyfile(file, place)


def check_kind(talk: Said | None, preference: bool, name: str) -> None:
    """Refuse rows with two answers where none is preferred, and others where one is; raises DataError."""
    if isinstance(talk, Preference) and not preference:
        raise DataError(
            "preferences",
            f"{name} has rows with a chosen and a rejected answer: give training.preference, with training.lora, to learn "
            "which is preferred; or, where chosen has whole conversations to learn from, name it in dataset.text_field",
        )
    if preference and not isinstance(talk, Preference):
        has = "texts" if talk is None else "one answer to each prompt"
        raise DataError(
            "no-preferences",
            f"training.preference learns from rows with a chosen and a rejected answer, and {name} has {has}: name the columns "
            "chosen and rejected, or leave training.preference out",
        )


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


def _pieces(dataset: Dataset, heldout: float) -> Iterator[str]:
    """So small that held-out ones come from all over a file."""
    longest = max(64, min(PIECE_CHARACTERS, int(dataset.size * heldout / 4))) if heldout else PIECE_CHARACTERS
    return pieces(dataset, longest)


def _tokenize(
    tokenizer: Tokenizer,
    called: str,
    mixture: Mixture,
    heldout: float,
    end: str | None,
    train: _Writer,
    held: _Writer,
) -> tuple[int, int]:
    """Encode all pieces, each document with one ``end`` after it; returns rows and characters."""
    rows = characters = 0
    for reading in mixture.passes():
        runs_on = end is None or reading.dataset.format(reading.dataset.look()) == "text"
        closing = None if runs_on else tokenizer.token_to_id(str(end))
        number = 0
        for batch in _batches(_pieces(reading.dataset, heldout)):
            places = [f"document {number + index:,}" for index in range(1, len(batch) + 1)]
            number += len(batch)
            for text, ids in zip(batch, encoded(tokenizer, batch, called, places), strict=True):
                taken = reading.place(text.encode())
                if taken is None:
                    continue
                chosen = held if taken == "heldout" else train
                chosen.write(ids)
                if closing is not None and not (len(ids) and ids[-1] == closing):  # Some texts have their own end.
                    chosen.write([closing])
                rows += not reading.again
                characters += len(text) * (not reading.again)
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


def _copy(mixture: Mixture, heldout: float, vocabulary: int, train: _Writer, held: _Writer) -> int:
    """Share tokenised pieces out, as they are; returns how many there were."""
    count = 0
    for reading in mixture.passes():
        some = max(64, min(PIECE_TOKENS, int(reading.dataset.size * heldout / 16)))
        piece_tokens = some if heldout else PIECE_TOKENS
        for ids in id_pieces(reading.dataset, vocabulary, piece_tokens):
            if taken := reading.place(ids.tobytes()):
                (held if taken == "heldout" else train).write(ids)
                count += not reading.again
    if count == 0:
        raise DataError("empty-dataset", "the dataset has no token ids in it: upload a file with ids")
    return count


def _check_lengths(name: str, sequence: int, train: _Writer, held: _Writer | None = None) -> None:
    if held is None:
        if train.tokens <= sequence:
            raise DataError(
                "too-short",
                f"{name} gives {train.tokens:,} tokens, and a sequence of {sequence} needs {sequence + 1}: bring more text",
            )
        return
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
