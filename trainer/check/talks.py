"""What a check says of conversations: their tokens, what is learnt of them, and what a window or the template leaves out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from common.untrusted_text import untrusted
from protocol.rest.dataset import MAX_RENDERED, RenderedPart
from trainer.data.chat import ChatTemplate, Document, Rendered
from trainer.data.talks import another_kind, documents_of, fitted, taught
from trainer.errors import DataError
from trainer.formats.talk import ChatMessages, Preference, Said, Talk


@dataclass(frozen=True)
class CheckedRow:
    """A row that is looked at: its text as bytes, its conversation or two answers, and whether it is held out."""

    number: int
    content: bytes
    talk: Said | None = None
    held: bool = False


Remark = tuple[str, int, str]
"""A kind of finding, the row, and what is shown of it."""


class TalkTokens:
    """Renders every conversation, as preparing them does, and counts."""

    exact = True

    def __init__(self, template: ChatTemplate, sequence: int, answers: bool = False) -> None:
        """``answers``: rows have two answers each."""
        self._template, self._sequence, self.answers = template, sequence, answers
        self._tokens = 0
        self.learnt = 0
        self.trained = self.held = 0
        self.bare = 0
        """Conversations that no template is there for."""
        self._messages = self._pairs = 0
        """Rows with messages, and prompts with their completions."""
        self.unread: Counter[str] = Counter()
        self.rendered: tuple[RenderedPart, ...] = ()
        self.rejected: tuple[RenderedPart, ...] = ()

    @property
    def pairs(self) -> bool:
        """Whether some rows have no messages, which no template writes."""
        return self._pairs > 0

    @property
    def changed(self) -> bool:
        """Whether the template is used otherwise than it stands there."""
        return self._template.changed and not self.pairs

    @property
    def content(self) -> Literal["conversations", "pairs", "preferences"]:
        """What the rows are."""
        return "preferences" if self.answers else "pairs" if self._pairs > self._messages else "conversations"

    def of(self, _size: int) -> int:
        """Tokens of all of them."""
        return self._tokens

    def add(self, block: Sequence[CheckedRow], _size: int) -> Iterator[Remark]:
        """Look at some rows; what is to be said of each."""
        talks: list[tuple[CheckedRow, Said]] = []
        for one in block:
            if wrong := another_kind(one.talk, self.answers, f"row {one.number:,}"):
                yield "bad-row", one.number, wrong.detail
            elif one.talk is not None:
                self.unread.update(one.talk.unread)
                talks.append((one, one.talk))
        with_messages = sum(_has_messages(talk) for _, talk in talks)
        self._messages += with_messages
        self._pairs += len(talks) - with_messages
        if not self._template.there:
            bare = [one for one, talk in talks if _has_messages(talk)]
            self._tokens += sum(map(len, self._template.plain([one.content.decode() for one in bare])))
            self.bare += len(bare)
            talks = [(one, talk) for one, talk in talks if not _has_messages(talk)]
        places = [f"row {one.number:,}" for one, _ in talks]
        made = documents_of(self._template, [talk for _, talk in talks], places)
        for (one, talk), found in zip(talks, made, strict=True):
            yield from self._look(one, talk, found)

    def _look(self, one: CheckedRow, talk: Said, found: tuple[Document, ...] | DataError) -> Iterator[Remark]:
        if isinstance(found, DataError):
            yield found.code, one.number, found.detail
            return
        tokens = fitted(found, self._sequence)
        if tokens is None:
            yield "unlearnt", one.number, ""
            return
        self._tokens += len(tokens)
        self.learnt += taught(tokens)
        self.held += one.held
        self.trained += not one.held
        yield from self._odd(one.number, talk)
        if len(tokens) < (whole := sum(len(each.ids) for each in found)):
            yield "cut", one.number, f"{whole:,} tokens"
        if not self.rendered:
            chosen, rejected = (talk.chosen, talk.rejected) if isinstance(talk, Preference) else (talk, None)
            self.rendered, self.rejected = self._shown(chosen), self._shown(rejected)

    def _odd(self, row: int, said: Said) -> Iterator[Remark]:
        """What is trained on, and hardly meant."""
        if said.blank:
            yield "blank", row, ""
        if left := self._template.left_out(said.chosen if isinstance(said, Preference) else said):
            yield "left-out", row, left
        if _has_messages(said) and (mark := self._template.mark_in(said.text())):
            yield "marks", row, mark

    def _shown(self, talk: Talk | None) -> tuple[RenderedPart, ...]:
        shown = None if talk is None else self._template.rendered(talk, "")
        return _parts(shown) if isinstance(shown, Rendered) else ()


def _has_messages(said: Said) -> bool:
    """Whether a row is one for a chat template."""
    return isinstance(said.chosen if isinstance(said, Preference) else said, ChatMessages)


def _parts(rendered: Rendered) -> tuple[RenderedPart, ...]:
    """The beginning of a conversation as the model meets it, in parts that are learnt and parts that are not."""
    parts: list[RenderedPart] = []
    at, most = 0, min(len(rendered.text), MAX_RENDERED)
    for first, last in [*rendered.answers, (most, most)]:
        for until, learnt in ((min(first, most), False), (min(last, most), True)):
            if until > at:
                parts.append(RenderedPart(untrusted(rendered.text[at:until].replace("\n", "↵ ")), learnt))
                at = until
    return tuple(parts)
