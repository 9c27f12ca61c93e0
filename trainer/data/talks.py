"""A dataset of conversations in windows: what is cut, what is left out, and what is held out. Free of torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.data.chat import ChatTemplate, Document
from trainer.data.encoded import MOST_CHARACTERS, TokenIds
from trainer.data.marks import UNLEARNT
from trainer.data.mixture import Mixture
from trainer.data.packing import Packer, marked
from trainer.data.text import documents
from trainer.errors import DataError
from trainer.formats.rows import DatasetRow, place
from trainer.formats.source import Dataset
from trainer.formats.talk import Preference, Said

_BATCH = 256  # Conversations whose tokens are made at a time.


@dataclass
class TalkCounts:
    """What became of a dataset's conversations.

    Attributes:
        rows: those that are trained on or held out.
        characters: of what is said in them.
        learnt: targets of the loss.
        cut: conversations longer than a window, of which the beginning is taken; of two answers what each begins with.
        unlearnt: those of which nothing is learnt, or nothing of one answer of two, which are left out.
        refused: those that the template refuses, which are left out.
    """

    rows: int = 0
    characters: int = 0
    learnt: int = 0
    cut: int = 0
    unlearnt: int = 0
    refused: int = 0


def documents_of(
    template: ChatTemplate, said: Sequence[Said], places: Sequence[str]
) -> Iterator[tuple[Document, ...] | DataError]:
    """The tokens of rows, of two answers both with their prompt, or why one is refused; raises as ``ChatTemplate.documents``."""
    parts = [(one.chosen, one.rejected) if isinstance(one, Preference) else (one,) for one in said]
    named = [place for place, some in zip(places, parts, strict=True) for _ in some]
    made = template.documents([one for some in parts for one in some], named)
    for some in parts:
        found = [next(made) for _ in some]
        wrong = next((one for one in found if isinstance(one, DataError)), None)
        yield wrong or tuple(one for one in found if isinstance(one, Document))


def fitted(found: Sequence[Document], sequence: int) -> TokenIds | None:
    """A row's marked tokens, at most a window of them; None where nothing of it is learnt.

    Two answers stand side by side. Where they do not fit, both are cut at the same length.
    """
    shorter = min(len(one.ids) for one in found)
    most = sequence if len(found) == 1 else max(sequence // 2, sequence - shorter)
    if not all(one.learnt[1:most].any() for one in found):
        return None
    return np.concatenate([marked(one.ids[:most], one.learnt[:most]) for one in found])


def write_talks(
    mixture: Mixture,
    template: ChatTemplate,
    sequence: int,
    scratch: Path,
    writers: tuple[Callable[[TokenIds], None], Callable[[TokenIds], None]],
    answers: bool = False,
) -> TalkCounts:
    """Give the windows of what is trained on and of what is held out to ``writers``.

    Args:
        scratch: a folder in which conversations wait.
        answers: the rows have two answers each.
    Raises:
        DataError: a row cannot be read, is no conversation, or is refused by the template, where such rows are not left out.
    """
    counts = TalkCounts()
    with Packer(scratch / "train.waiting", sequence) as train, Packer(scratch / "heldout.waiting", sequence) as held:
        for reading in mixture.passes():
            counted = TalkCounts() if reading.again else counts
            for batch in row_batches(documents(reading.dataset)):
                for row, found in talks_of(batch, template, reading.dataset, answers):
                    if taken := reading.place(row.text.encode() if isinstance(row.text, str) else b""):
                        _count(row, found, held if taken == "heldout" else train, sequence, counted)
        for packer, write in zip((train, held), writers, strict=True):
            for window in packer.windows():
                write(window)
    return counts


def row_batches(rows: Iterator[DatasetRow]) -> Iterator[list[DatasetRow]]:
    """Some hundreds, or fewer long ones."""
    batch: list[DatasetRow] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row.text) if isinstance(row.text, str) else 0
        if len(batch) == _BATCH or size > MOST_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _count(
    row: DatasetRow, found: tuple[Document, ...] | None, packer: Packer, sequence: int, counts: TalkCounts
) -> None:
    if found is None:
        counts.refused += 1
        return
    tokens = fitted(found, sequence)
    if tokens is None:
        counts.unlearnt += 1
        return
    packer.add(tokens)
    counts.rows += 1
    counts.characters += len(row.text) if isinstance(row.text, str) else 0
    counts.learnt += taught(tokens)
    counts.cut += len(tokens) < sum(len(one.ids) for one in found)


def taught(marked_ids: TokenIds) -> int:
    """How many of some tokens are learnt."""
    return int(np.count_nonzero(marked_ids & np.uint32(UNLEARNT) == 0))


def talks_of(
    rows: list[DatasetRow], template: ChatTemplate, dataset: Dataset, answers: bool
) -> Iterator[tuple[DatasetRow, tuple[Document, ...] | None]]:
    """Rows with the tokens of what is said in them, None where they are left out; raises as ``write_talks``."""
    places = [place(row.number, dataset.name) for row in rows]
    others = [another_kind(row.talk, answers, where) for row, where in zip(rows, places, strict=True)]
    given = [(row.talk, where) for row, where, wrong in zip(rows, places, others, strict=True) if wrong is None]
    made = documents_of(template, [talk for talk, _ in given if talk is not None], [where for _, where in given])
    for row, wrong in zip(rows, others, strict=True):
        found = wrong or next(made)
        if isinstance(found, DataError):
            if dataset.spec.faulty == "refuse":
                raise found
            yield row, None
        else:
            yield row, found


def another_kind(said: Said | None, answers: bool, where: str) -> DataError | None:
    """What is wrong with a text among conversations, and the like; ``answers``: the rows before it have two answers each."""
    if said is not None and isinstance(said, Preference) == answers:
        return None
    own = "is a text" if said is None else "has one answer" if answers else "has two answers"
    others = "have two" if answers else "are conversations"
    return DataError("bad-row", f"{where} {own}, and the rows before it {others}: put them into two datasets")
