"""An owner's data as single examples: a row of a table or of JSON, a conversation, or a line of a text. Free of torch.

Whoever counts the privacy of one example (``trainer.outer.private_steps``) needs steps that draw each by itself, with one chance
for all, that nobody else can foresee or learn. So the draws are the operating system's, never those of the job's seed.

An example that is longer than a window is drawn as one window of it, by chance; a shorter one is alone in its window. So each
changes one gradient of a step, and no two are in one.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from protocol.job.end_tokens import ends_of
from protocol.job.federated import LEAST_HELD
from protocol.job.job import JobSpec
from trainer.data.chat import ChatTemplate
from trainer.data.data import MAX_HELDOUT_TOKENS, TokenFile, Windows
from trainer.data.encoded import TokenIds, encoded
from trainer.data.marks import BEGINS
from trainer.data.mixture import Mixture
from trainer.data.packing import filling, marked
from trainer.data.prepare import ending_of, make_tokenizer
from trainer.data.talks import fitted, row_batches, talks_of
from trainer.data.text import documents
from trainer.errors import DataError
from trainer.formats.rows import DatasetRow, place
from trainer.formats.source import Dataset
from trainer.formats.talk import Preference

LEAST_TOKENS = 2  # Something to learn, and something before it.
_DRAWN = 1 << 20  # Numbers at a time.
_UNTOLD = hashlib.sha256().hexdigest()  # Which examples a step has drawn is told to nobody.


class OwnExamples(TokenFile):
    """A file of token ids, of which it is known where each example begins."""

    def __init__(self, file: Path, starts: NDArray[np.int64], sequence: int, vocabulary: int, sampling: float) -> None:
        """Open a file of ``len(starts) - 1`` examples; ``sampling``: how likely a step takes one of them, at most.

        Raises:
            DataError: as ``TokenFile``.
        """
        super().__init__(file, sequence, vocabulary)
        self._starts = starts
        self._most = sampling

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self._starts) - 1

    def rate(self, batch: int) -> float:
        """How likely a step takes an example: a batch has at most ``batch`` of them, on average."""
        return min(self._most, batch / self.examples)

    def sample(
        self,
        seed: int,
        step: int,
        replica: int,
        batch: int,
        sampling: Literal["random", "epochs"] = "random",
        shares: int | None = None,
    ) -> tuple[Windows, str]:
        """Windows ``[b, sequence + 1]`` of examples, each drawn by itself, and no digest of which; ``b`` may be 0.

        Nothing of it follows from the arguments but ``rate``.
        """
        taken = np.concatenate(list(self._drawn(np.uint64(self.rate(batch) * 2.0**64))))
        cuts = np.frombuffer(os.urandom(8 * len(taken)), dtype="<u8").tolist()
        windows = [self._window(int(example), cut) for example, cut in zip(taken, cuts, strict=True)]
        found = np.stack(windows) if windows else np.zeros((0, self._sequence + 1))
        return self._checked(found.astype(np.int64)), _UNTOLD

    def heldout(self) -> Windows:
        """The first window of each example, of ``MAX_HELDOUT_TOKENS`` tokens at most, or ``LEAST_HELD`` where that is more.

        None is drawn by chance.
        """
        most = max(LEAST_HELD, MAX_HELDOUT_TOKENS // self._sequence)
        return self._checked(
            np.stack([self._window(one, 0) for one in range(min(most, self.examples))]).astype(np.int64)
        )

    def _drawn(self, below: np.uint64) -> Iterator[NDArray[np.int64]]:
        """Which examples have a number below this, of 64 random bits for each; some at a time."""
        for first in range(0, self.examples, _DRAWN):
            words = np.frombuffer(os.urandom(8 * min(_DRAWN, self.examples - first)), dtype="<u8")
            yield first + np.flatnonzero(words < below)

    def _window(self, example: int, cut: int) -> TokenIds:
        """A window of an example, the beginning of one document and what fills it; ``cut``: which, of a long one."""
        begin, end = (int(at) for at in self._starts[example : example + 2])
        parts = max(1, -(-(end - begin - 1) // self._sequence))  # Each has a target of its own.
        at = begin + cut % parts * self._sequence
        tokens = self._read(at, min(end, at + self._sequence + 1)).copy()
        tokens[0] |= np.uint32(BEGINS)
        rest = filling(self._sequence + 1 - len(tokens))
        if len(rest):
            rest[0] |= np.uint32(BEGINS)
        return np.concatenate([tokens, rest])


class _Examples:
    """A file of examples in the making."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, path.open("wb")
        self._lengths = array("q", [0])  # Of millions, a list would take four times the memory.

    def add(self, tokens: TokenIds) -> None:
        """One more."""
        self._file.write(tokens.astype("<u4").tobytes())
        self._lengths.append(len(tokens))

    def starts(self) -> NDArray[np.int64]:
        """Where each begins, and where the last ends; nothing more is added."""
        self._file.close()
        return np.cumsum(np.frombuffer(self._lengths, dtype=np.int64))


def write_examples(
    found: Sequence[Dataset],
    spec: JobSpec,
    tokenizer_file: Path | None,
    out: Path,
    called: str,
    held: tuple[Path, int] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Write the marked tokens of all examples, one after the other; returns where each begins, and where the last ends.

    Args:
        tokenizer_file: where ``spec.tokenizer.kind`` is "file". called: what messages call it.
        held: a second file, for one example in so many, and the same of that. Which they are follows from what each row says
            alone, so what is held back once stays so, whatever else the data has by then, and whatever a template adds.
    Raises:
        DataError: the data or the tokenizer cannot be used, or has no examples.
        OSError: there is no room.
    """
    kept, back = _Examples(out), None if held is None else _Examples(held[0])
    for said, tokens in _examples(found, spec, tokenizer_file, called):
        if len(tokens) < LEAST_TOKENS:
            continue
        into = back if back is not None and held is not None and _is_held(said, held[1]) else kept
        into.add(tokens)
    starts = kept.starts()
    if len(starts) == 1:
        raise DataError(
            "empty-dataset", "the data has no example of two tokens or more: bring texts, one to a row or line"
        )
    return starts, None if back is None else back.starts()


def check_examples(mixture: Mixture) -> None:
    """Refuse data that has no single examples.

    Raises:
        DataError: it has token ids, or answers to compare.
    """
    if mixture.tokenised or isinstance(mixture.talk, Preference):
        kind = "token ids, of which nobody knows where a text ends" if mixture.tokenised else "answers to compare"
        name = mixture.trained[0].name
        raise DataError("no-examples", f"{name} has {kind}: bring texts or conversations, one to a row or line")


@dataclass
class ExampleCount:
    """Examples, and the bytes of what they say, with one for the end of each."""

    examples: int = 0
    bytes: int = 0


def count_examples(found: Sequence[Dataset], one_in: int) -> tuple[ExampleCount, ExampleCount]:
    """Those that are learnt from, and the one in so many that is held back (0: none), as ``write_examples`` parts them.

    Nobody knows the tokenizer here: of conversations it counts those that a template leaves out, too.

    Raises:
        DataError: a row cannot be read.
    """
    kept, held = ExampleCount(), ExampleCount()
    for dataset in found:
        lines = _in_lines(dataset)
        for row in documents(dataset):
            said = _said(row, lines)
            if said.strip():
                count = held if one_in and _is_held(said, one_in) else kept
                count.examples += 1
                count.bytes += len(said.encode()) + (not lines)
    return kept, held


def _said(row: DatasetRow, lines: bool) -> str:
    """What tells a row from others. The last of ``lines`` may have no end yet, and is the same once another stands behind it."""
    assert isinstance(row.text, str)
    return row.text.rstrip("\r\n") + "\n" if lines else row.text


def _in_lines(dataset: Dataset) -> bool:
    return dataset.format(dataset.look()) == "text"


def _is_held(said: str, one_in: int) -> bool:
    """Of what the row says, not of its tokens: chat templates write today's date into them."""
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "big") % one_in == 0


def _examples(
    found: Sequence[Dataset], spec: JobSpec, tokenizer_file: Path | None, called: str
) -> Iterator[tuple[str, TokenIds]]:
    """What each row says, and its marked tokens."""
    mixture = Mixture(tuple(found), 0.0, None)
    check_examples(mixture)
    tokenizer = make_tokenizer(spec.tokenizer, tokenizer_file, lambda: iter(()), called=called)
    end = ending_of(spec.tokenizer, tokenizer, ends_of(spec.model)).token
    for dataset in found:
        if mixture.talk is not None:
            template = ChatTemplate(tokenizer, spec.tokenizer.settings, dataset.spec.learn, end, called)
            yield from _talks(dataset, template, spec.training.sequence)
        else:
            yield from _texts(dataset, tokenizer, end, called)


def _talks(dataset: Dataset, template: ChatTemplate, sequence: int) -> Iterator[tuple[str, TokenIds]]:
    for batch in row_batches(documents(dataset)):
        for row, made in talks_of(batch, template, dataset, answers=False):
            tokens = None if made is None else fitted(made, sequence)
            if tokens is not None:
                yield _said(row, lines=False), tokens


def _texts(dataset: Dataset, tokenizer: Tokenizer, end: str | None, called: str) -> Iterator[tuple[str, TokenIds]]:
    lines = _in_lines(dataset)
    closing = None if end is None or lines else tokenizer.token_to_id(end)
    for batch in row_batches(documents(dataset)):
        texts = [row.text for row in batch if isinstance(row.text, str)]
        places = [place(row.number, dataset.name) for row in batch]
        for row, ids in zip(batch, encoded(tokenizer, texts, called, places), strict=True):
            if not len(ids):
                continue
            if closing is not None and ids[-1] != closing:
                ids = np.append(ids, np.uint32(closing))
            yield _said(row, lines), marked(ids, np.ones(len(ids), dtype=bool))
