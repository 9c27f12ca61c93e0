"""One pass over a dataset: faults, repeats, secrets, personal data, samples and tokens, in bounded memory."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from tokenizers import Tokenizer

from common.untrusted_text import untrusted
from protocol.datasets.encodings import first_control
from protocol.datasets.file_formats import remarks
from protocol.job.end_tokens import EndTokenChoice
from protocol.job.job import TOKENISED, DatasetFormat
from protocol.rest.dataset import (
    MAX_PLACES,
    MAX_SAMPLES,
    MAX_SHOWN,
    CheckRequest,
    DatasetReport,
    Finding,
    Place,
    Severity,
)
from trainer.check.foreign import Foreign
from trainer.check.repeats import Repeats
from trainer.check.sensitive import Hit, Scanner
from trainer.check.talks import CheckedRow, Remark, TalkTokens
from trainer.data.chat import ChatTemplate
from trainer.data.encoded import DroppedCharacters, encoded
from trainer.data.mixture import is_held_out
from trainer.data.prepare import ending_of, make_tokenizer
from trainer.data.text import first_talk, numbered, pieces
from trainer.data.tokens import id_pieces
from trainer.errors import DataError
from trainer.formats.rows import DatasetRow
from trainer.formats.source import Dataset
from trainer.formats.talk import Preference

BLOCK_BYTES = 1 << 20  # Of rows that are looked at together.
COUNTED_BYTES = 16 << 20  # More text than this is not tokenised here: its tokens are worked out from so much of it.
TRAINED_CHARACTERS = 4 << 20  # What a tokenizer of the data is trained on here; merges of words hardly change beyond.
MIN_LINE = 40  # Shorter lines of plain text come again in any book.
FEW_TOKENS = 100_000  # Tiny Shakespeare, the smallest set in common use, has three times as many.
FEW_FOREIGN = 0.02  # Of rows that are not UTF-8: beyond it the file is in another encoding, and they are no damage.
SKIMMED_SHARE = 0.3  # Of rows that come again: beyond it a warning, for the model learns them by heart.
MAX_UNREAD = 10  # Names of fields that are not read.
_PROGRESS_BYTES = 4 << 20
_LETTERS = bytes(range(256)).lower()
_UNLIKE = bytes(code for code in range(128) if not chr(code).isalpha())  # What near-duplicates may differ in.

FAULTS = {
    "bad-encoding": "not readable in the file's encoding",
    "bad-row": "not in the form of a row, or without text in the field",
    "no-field": "without the field",
    "bad-character": "half a character in it",
    "long-row": "too long",
    "refused": "refused by the chat template",
}
_ODD: Final[Sequence[tuple[str, Severity, str]]] = (
    ("blank", "warning", "an answer without words: the model learns to say nothing"),
    (
        "left-out",
        "warning",
        "functions, calls of them or thoughts that this tokenizer's chat template has no word for: it leaves them out",
    ),
    (
        "marks",
        "notice",
        "special tokens within what is said: the model meets them as if the template had written them",
    ),
)
Progress = Callable[[int], None]


def check(
    dataset: Dataset,
    request: CheckRequest,
    tokenizer_file: Path | None,
    scratch: Path,
    progress: Progress,
    called: str = "",
) -> DatasetReport:
    """Read a dataset once and say what it holds.

    Args:
        tokenizer_file: the uploaded ``tokenizer.json`` where the request has one.
        scratch: folder for hashes of rows, 16 bytes each.
        progress: called now and then with the bytes read.
        called: what ``tokenizer_file`` is called in messages.
    Raises:
        DataError: the whole file cannot be read, or the tokenizer cannot be used.
    """
    content, size = dataset.look(), dataset.size
    form = dataset.format(content)
    if form in TOKENISED:
        known = partial(make_tokenizer, request.tokenizer, tokenizer_file, lambda: iter(()), called=called)
        return _check_ids(dataset, form, request, known, remarks(content, dataset.name, form))
    skipping = replace(dataset, spec=msgspec.structs.replace(dataset.spec, faulty="skip"))
    next(numbered(dataset), None)  # A file that is none is refused before anything is trained on it.
    read = partial(pieces, skipping)
    tokenizer = make_tokenizer(request.tokenizer, tokenizer_file, read, TRAINED_CHARACTERS, called)
    end = EndTokenChoice(None) if form == "text" else ending_of(request.tokenizer, tokenizer, request.ends)
    named = called or (tokenizer_file.name if tokenizer_file else "the tokenizer")
    tokens: _Tokens | TalkTokens = _Tokens(tokenizer, size, end.token, named)
    if (talk := first_talk(skipping)) is not None:
        template = ChatTemplate(tokenizer, request.tokenizer.settings, dataset.spec.learn, end.token, named)
        tokens = TalkTokens(template, request.sequence, isinstance(talk, Preference))
    with Repeats(scratch) as equal, Repeats(scratch) as alike:
        reader = _Reader(dataset, form, request, equal, alike, tokens)
        reader.read(numbered(dataset), progress)
        progress(size)
        told = remarks(content, dataset.name, form)
        return reader.report(told, end.warning, tokenizer.get_vocab_size(with_added_tokens=True))


class _Tokens:
    """Counts the tokens of every ``n``-th block, so that files of any size take about the same time."""

    def __init__(self, tokenizer: Tokenizer, size: int, end: str | None, called: str) -> None:
        self._tokenizer, self._called = tokenizer, called
        self._dropped = DroppedCharacters(tokenizer)
        self._every = max(1, -(-size // COUNTED_BYTES))
        self._end = None if end is None else tokenizer.token_to_id(end)
        self._blocks = self._counted = self._looked = 0

    @property
    def exact(self) -> bool:
        return self._every == 1

    def add(self, rows: Sequence[CheckedRow], size: int) -> Iterator[Remark]:
        """Count those of a block; the rows of which the tokenizer leaves something out, and what."""
        if self._blocks % self._every == 0:
            texts = [row.content.decode() for row in rows]
            found = encoded(self._tokenizer, texts, self._called, [f"row {row.number:,}" for row in rows])
            self._counted += sum(len(one) for one in found)
            if self._end is not None:
                self._counted += sum(not len(one) or int(one[-1]) != self._end for one in found)
            self._looked += size
            for row, text in zip(rows, texts, strict=True):
                if lost := self._dropped.first(text):
                    yield "unknown", row.number, lost
        self._blocks += 1

    def of(self, size: int) -> int:
        """Tokens of all ``size`` bytes of text."""
        return self._counted if self.exact else round(self._counted / max(1, self._looked) * size)


class _Reader:
    """What is known of the rows so far."""

    def __init__(
        self,
        dataset: Dataset,
        form: DatasetFormat,
        request: CheckRequest,
        equal: Repeats,
        alike: Repeats,
        tokens: _Tokens | TalkTokens,
    ) -> None:
        self._request, self._size, self._form = request, dataset.size, form
        self._name = f" of {dataset.name}"  # The report is of this file: each row need not say so.
        self._equal, self._alike, self._tokens = equal, alike, tokens
        self._plain = form == "text"
        self._foreign = Foreign()
        # Else what rows hold was decoded: no bytes of the file.
        self._as_it_is = dataset.encoding(dataset.look()) == "utf-8"
        self._scanner = Scanner()
        self._chance = random.Random(0)  # noqa: S311 - which rows are shown
        self._rows = self._usable = self._characters = self._bytes = self._longest = self._longest_row = 0
        self._seen = self._last = self._documents = 0
        self._counts: Counter[str] = Counter()
        self._latest: dict[str, int] = {}
        self._places: defaultdict[str, list[Place]] = defaultdict(list)
        self._hits: dict[str, Hit] = {}
        self._readings = ""
        self._samples: list[Place] = []

    def read(self, rows: Iterator[DatasetRow], progress: Progress) -> None:
        block, size, read, told = list[CheckedRow](), 0, 0, 0
        for row in rows:
            read += row.size
            self._rows = row.number
            if isinstance(row.text, DataError):
                self._note(row.text.code, row.number, row.text.detail.replace(self._name, ""))
                if self._as_it_is and row.text.code == "bad-encoding":
                    self._foreign.bad(row.raw)
            elif not row.text.strip():
                self._note("empty", row.number, "")
                self._characters += len(row.text) if self._plain else 0
                self._documents += bool(row.text)
            else:
                held = not self._plain and is_held_out(self._documents, self._request.dataset.heldout)
                entry = CheckedRow(row.number, row.text.encode(), row.talk, held)
                self._documents += 1
                self._good(entry, row.text)
                block.append(entry)
                size += len(entry.content)
            if size >= BLOCK_BYTES:
                self._block(block, size)
                block, size = [], 0
            if read - told >= _PROGRESS_BYTES:
                told = read
                progress(read)
        if block:
            self._block(block, size)

    def _good(self, entry: CheckedRow, text: str) -> None:
        number, content = entry.number, entry.content
        if control := first_control(text):
            self._note("control", number, f"the character {ord(control)} in it")
        self._foreign.good(text)
        self._usable += number != self._last
        self._last = number
        self._characters += len(text)
        self._bytes += len(content)
        if len(text) > self._longest:
            self._longest, self._longest_row = len(text), number
        if not self._plain or len(text) >= MIN_LINE:
            self._equal.add(number, content.strip(), held=entry.held)
            alike = content.translate(_LETTERS, _UNLIKE)
            self._alike.add(number, alike if len(alike) >= MIN_LINE // 2 else content.strip())
        self._seen += 1
        if len(self._samples) < MAX_SAMPLES:
            self._samples.append(Place(number, untrusted(_shown(text))))
        elif (at := self._chance.randrange(self._seen)) < MAX_SAMPLES:
            self._samples[at] = Place(number, untrusted(_shown(text)))

    def _block(self, block: list[CheckedRow], size: int) -> None:
        for kind, number, shown in self._tokens.add(block, size):
            self._note(kind, number, shown)
        for hit in self._scanner.scan([(entry.number, entry.content) for entry in block]):
            self._hits[hit.kind.name] = hit
            self._note(hit.kind.name, hit.row, hit.shown)

    def _note(self, kind: str, row: int, shown: str) -> None:
        if self._latest.get(kind) != row:
            self._latest[kind] = row
            self._counts[kind] += 1
            if len(self._places[kind]) < MAX_PLACES:
                self._places[kind].append(Place(row, untrusted(shown, MAX_SHOWN)))

    def report(self, said: Sequence[str], doubt: str, vocabulary: int) -> DatasetReport:
        tokens = self._tokens.of(self._bytes)
        self._readings = self._foreign.readings(self._counts["bad-encoding"])
        told = [Finding("format", "notice", untrusted(text), self._rows) for text in said]
        talks = self._tokens if isinstance(self._tokens, TalkTokens) else None
        if doubt and (talks is None or talks.pairs):  # Templates write their own ends.
            told.append(Finding("ends", "warning", untrusted(doubt), self._usable))
        own = () if talks is None else self._of_talks(talks)
        usable = self._usable if talks is None or talks.bare else talks.trained + talks.held
        findings = [*told, *self._faults(), *own, *self._sensitive(), *self._repeats(), *self._sizes(tokens)]
        return DatasetReport(
            bytes=self._size,
            rows=self._rows,
            usable=usable,
            characters=self._characters,
            longest=self._longest,
            tokens=tokens,
            exact=self._tokens.exact,
            vocabulary=vocabulary,
            findings=tuple(findings),
            samples=tuple(sorted(self._samples, key=lambda place: place.row)),
            problem=self._problem(tokens) or ("" if talks is None else self._problem_of_talks(talks)),
            format=self._form,
            content="texts" if talks is None else talks.content,
            learnt=None if talks is None else talks.learnt,
            rendered=() if talks is None else talks.rendered,
            rejected=() if talks is None else talks.rejected,
        )

    def _problem(self, tokens: int) -> str:
        faulty = sum(self._counts[kind] for kind in FAULTS)
        refused = self._request.dataset.faulty == "refuse"
        if (foreign := self._counts["bad-encoding"]) > FEW_FOREIGN * self._rows and self._readings and refused:
            way = "name the encoding (dataset.encoding), or save the file as UTF-8"
            return f"{foreign:,} of {self._rows:,} rows are not UTF-8: {self._readings}; {way}"
        if self._rows == 0:
            return "it has no rows, only what stands before them: bring a file with text in it"
        if self._usable == 0:
            return f"none of {self._rows:,} rows has text to train on: look at the field's name and the format"
        if tokens <= 2 * self._request.sequence and not isinstance(self._tokens, TalkTokens):
            return (
                f"{tokens:,} tokens are too few for sequences of {self._request.sequence:,}, which need as many once more to be "
                "held out: bring more text, or choose shorter sequences"
            )
        if faulty and refused:
            rows = f"{faulty:,} of {self._rows:,} rows cannot be read"
            if faulty == self._counts["bad-character"]:  # In UTF-16 the file may be cut.
                return f"{rows}: {self._places['bad-character'][0].shown}"
            return f"{rows}: mend the file, or leave those rows out (dataset.faulty skip)"
        return ""

    def _problem_of_talks(self, talks: TalkTokens) -> str:
        if talks.bare:
            if self._request.tokenizer.kind == "bytes":  # Nobody has said yet which one there will be.
                return ""
            return "conversations are written by a chat template, and the tokenizer has none: take that of the model's folder"
        if talks.trained and talks.held:
            return ""
        if not talks.trained + talks.held:
            ways = "look at who speaks, at the template and dataset.learn, and whether training.sequence is long enough"
            return f"nothing of these conversations is learnt: {ways}"
        few = f"{talks.trained + talks.held:,} of these conversations teach something, and"
        which = "none of them is held out" if talks.trained else "all of them are held out"
        ways = (
            "bring more, hold out a larger share (dataset.heldout, 0.2 at most), or a file of its own (heldout_dataset)"
        )
        return f"{few} {which}: {ways}"

    def _of_talks(self, talks: TalkTokens) -> Iterator[Finding]:
        if talks.bare:
            text = "conversations, for which this tokenizer has no chat template: their tokens are counted without one"
            yield Finding("template", "warning", untrusted(text), talks.bare)
        if talks.answers:
            text = "two answers a prompt: an adapter with a weight of preferences (training.preference) learns which is better"
            yield Finding("preferences", "notice", untrusted(text), self._usable)
        if talks.changed:
            text = (
                "the chat template leaves out the thoughts of earlier turns when it is used: in training each turn is written as "
                "when it was said"
            )
            yield Finding("thoughts", "notice", untrusted(text), self._usable)
        if self._counts["cut"]:
            text = f"longer than a sequence of {self._request.sequence:,} tokens: what lies beyond is cut off"
            yield self._finding("cut", "warning", text)
        if self._counts["unlearnt"]:
            yield self._finding(
                "unlearnt", "warning", "without anything that is learnt in the first sequence; left out"
            )
        if talks.unread:
            names = ", ".join(name for name, _ in talks.unread.most_common(MAX_UNREAD))
            more = " and others" if len(talks.unread) > MAX_UNREAD else ""
            text = f"fields that are not read: {names}{more}"
            yield Finding("unread", "notice", untrusted(text), max(talks.unread.values()))
        for kind, severity, text in _ODD:
            if self._counts[kind]:
                yield self._finding(kind, severity, text)

    def _faults(self) -> Iterator[Finding]:
        skipped = self._request.dataset.faulty == "skip"
        for kind, says in FAULTS.items():
            if self._counts[kind]:
                more = f"; {self._readings}" if kind == "bad-encoding" and self._readings else ""
                left = "; left out" if skipped else ""
                yield self._finding(kind, "warning" if skipped else "error", says + left + more)
        if self._counts["empty"] and not self._plain:
            yield self._finding("empty", "warning", "empty; left out")
        if self._counts["control"]:
            yield self._finding(
                "control", "warning", "control characters, which text has none of; trained on as they are"
            )
        if self._counts["unknown"]:
            yield self._finding("unknown", "warning", "characters that the tokenizer has no token for, and leaves out")

    def _sensitive(self) -> Iterator[Finding]:
        for name, hit in self._hits.items():
            part = "may be secrets" if hit.kind.group == "secret" else "may be personal data"
            yield self._finding(name, "warning", f"{hit.kind.says}, {part}: a model can learn them by heart")

    def _repeats(self) -> Iterator[Finding]:
        count, first = self._equal.found(MAX_PLACES)
        near, near_first = self._alike.found(MAX_PLACES)
        leaked, leaked_first = self._equal.leaked(MAX_PLACES)
        if leaked:
            text = "held out and trained on, too, word for word: the held-out loss is of what was seen"
            yield Finding("leak", "warning", untrusted(text), leaked, tuple(map(Place, leaked_first)))
        if count:
            severity: Severity = "warning" if count > SKIMMED_SHARE * self._usable else "notice"
            yield Finding(
                "duplicate",
                severity,
                untrusted("the same as an earlier one, word for word"),
                count,
                tuple(map(Place, first)),
            )
        if near > count:
            again = set(first)
            places = tuple(Place(row) for row in near_first if row not in again)
            text = "the same as an earlier one but for case, digits, spaces or marks"
            yield Finding("near-duplicate", "notice", untrusted(text), near - count, places)

    def _sizes(self, tokens: int) -> Iterator[Finding]:
        if tokens < FEW_TOKENS and self._usable and not isinstance(self._tokens, TalkTokens):
            text = (
                f"this is little text: {tokens:,} tokens, and a model learns few of them by rule and the rest by heart"
            )
            yield Finding("tiny", "warning", untrusted(text), self._usable)
        long = 100 * self._characters / max(1, self._usable)
        if self._longest > max(long, 100_000) and not self._plain:
            place = Place(self._longest_row, untrusted(f"{self._longest:,} characters"))
            yield Finding("long", "notice", untrusted("a hundred times as long as the others"), 1, (place,))

    def _finding(self, kind: str, severity: Severity, text: str) -> Finding:
        return Finding(kind, severity, untrusted(text), self._counts[kind], tuple(self._places[kind]))


def _shown(text: str) -> str:
    return " ".join(text[: 2 * MAX_SHOWN].split())[:MAX_SHOWN]


def _check_ids(
    dataset: Dataset, form: DatasetFormat, request: CheckRequest, known: Callable[[], Tokenizer], said: Sequence[str]
) -> DatasetReport:
    """Token ids: every one must be in the vocabulary; there is no text to look at."""
    if request.tokenizer.kind == "bpe":
        raise DataError(
            "missing-file", "token ids need the tokenizer that they were made with: tokenizer.kind file, or bytes"
        )
    tokenizer = known()
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    rows = tokens = 0
    samples = list[Place]()
    for ids in id_pieces(dataset, vocabulary):
        rows += 1
        tokens += len(ids)
        if len(samples) < MAX_SAMPLES:
            samples.append(Place(rows, untrusted(_shown(tokenizer.decode(ids[:200].tolist())))))
    few = (
        f"{tokens:,} tokens are too few for sequences of {request.sequence:,}: bring more, or choose shorter sequences"
        if tokens <= 2 * request.sequence
        else ""
    )
    told = tuple(Finding("format", "notice", untrusted(text), rows) for text in said)
    return DatasetReport(dataset.size, rows, rows, 0, 0, tokens, True, vocabulary, told, tuple(samples), few, form)
