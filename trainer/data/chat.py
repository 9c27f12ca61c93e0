"""Conversations as tokens, by the tokenizer's own chat template, and which of them are learnt. Free of torch.

The library that has the template's language renders it, in its sandbox. Where a template marks answers itself
(``{% generation %}``) its marks count. Otherwise an answer is what a conversation has more with it than with its prompt alone,
which holds only where the template writes each turn without looking at later ones; where it does not, nobody guesses.
"""

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel

from trainer.data.encoded import MOST_CHARACTERS, TokenIds, batches, encoded, encodings
from trainer.errors import DataError
from trainer.formats.talk import ChatMessages, Pair, Talk

Learn = Literal["answers", "all"]
_Written = TypeVar("_Written")
Span = tuple[int, int]
"""Characters that are learnt: the first, and the first that is not any more."""
MOST_MESSAGES = 1000  # Each answer is found by writing all that comes before it.
SHOWN = 160  # Characters of what a template says.
RENDER_S = 10.0  # For one conversation: the longest take some hundredths. A stranger's template may loop for ever.
_MARKS: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_LATER_TURNS: Final[Mapping[str, str]] = {
    "loop.index0 > ns.last_query_index": "true",
    "loop.last or (not loop.last and reasoning_content)": "true",
}
"""How Qwen's templates leave out the thoughts of earlier turns. In training each turn is written as when it was said."""
_PARTS: Final = re.compile(r"""\[\s*['"]type['"]\s*\]|\.type\b|\.text\b|\[\s*['"]text['"]\s*\]""")
"""How a template reads the parts of a message; others write a list of them as Python does."""
_BESIDE_CONTENT: Final = ("tool_calls", "reasoning_content", "thinking")
_NAMED: Final = re.compile(r"^[a-z]+_token$")


_GREETING: Final = ChatMessages([{"role": "user", "content": "Hello"}])


class UselessTemplateError(DataError):
    """A chat template that writes no conversation at all: it is broken, or does not come to an end."""


@contextmanager
def _limited() -> Iterator[None]:
    """Give the body ``RENDER_S`` of processor time, where the system has a timer for that and this is the main thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_number: int, _frame: object) -> None:
        detail = f"the chat template takes longer than {RENDER_S:g} s to write one conversation: it may be in a loop"
        raise UselessTemplateError("slow-template", f"{detail}; bring the tokenizer of the model's own folder")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, RENDER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        answers: the parts that are learnt.
        whole: its tokens may have what the tokenizer puts around a text, which templates write themselves.
    """

    text: str
    answers: tuple[Span, ...]
    whole: bool = False


@dataclass(frozen=True)
class Document:
    """Tokens of a conversation and whether each is learnt."""

    ids: TokenIds
    learnt: NDArray[np.bool_]


class ChatTemplate:
    """What makes tokens of conversations."""

    def __init__(
        self, tokenizer: Tokenizer, settings: Mapping[str, Any] | None, learn: Learn, end: str | None, called: str
    ) -> None:
        """Take the template of a tokenizer's settings (``tokenizer_config.json``); pairs need none.

        Args:
            end: the token after a completion that no template writes.
            called: what the tokenizer's owner calls it.
        """
        self._tokenizer, self._learn, self._end, self._called = tokenizer, learn, end or "", called
        given = settings or {}
        self._templates = _templates(given.get("chat_template"))
        added = tokenizer.get_added_tokens_decoder().values()
        marks = sorted((re.escape(one.content) for one in added if one.special and one.content.strip()), key=len)
        self._marks = re.compile("|".join(reversed(marks)) or r"(?!)")
        self._special = {name: text for name, one in given.items() if _NAMED.match(name) and (text := _content(one))}

    @property
    def there(self) -> bool:
        """Whether there is one."""
        return bool(self._templates)

    @property
    def text(self) -> str:
        """All of them."""
        return "\n".join(self._templates.values())

    @property
    def changed(self) -> bool:
        """Whether the template leaves out thoughts of earlier turns, and is used so that it does not."""
        texts = self._templates.values() if self._learn == "answers" else ()
        return any(part in text and not _MARKS.search(text) for text in texts for part in _LATER_TURNS)

    def fault(self) -> str:
        """Why no conversation can be written with a template, not even a greeting; empty: each can, or there is none.

        One that refuses a greeting in words of its own may take other messages.
        """
        try:
            from jinja2 import TemplateError
        except ImportError:
            return ""  # Nobody can say.
        for name, template in self._templates.items():
            try:
                self._render(template, _GREETING, len(_GREETING.messages), asks=True)
            except UselessTemplateError as error:
                return error.detail
            except DataError:
                return ""  # The same.
            except Exception as error:  # noqa: BLE001 - a template may do anything that its language can.
                if (
                    type(error) is TemplateError or name == "tool_use"
                ):  # ``raise_exception``; functions that are not there.
                    continue
                said = " ".join(str(error).split())[:SHOWN] or type(error).__name__
                return f"the chat template of {self._called} cannot write a greeting: {said}"
        return ""

    def plain(self, texts: Sequence[str]) -> list[TokenIds]:
        """The tokens of texts as they stand there."""
        return encoded(self._tokenizer, texts, self._called, [self._called] * len(texts))

    def left_out(self, talk: Talk) -> str:
        """What of a conversation the template has no word for: functions, calls of them, thoughts; empty: nothing."""
        if not isinstance(talk, ChatMessages):
            return ""
        template = self._chosen(talk)
        there = ["tools"] if talk.tools else []
        there += [name for name in _BESIDE_CONTENT if any(one.get(name) for one in talk.messages)]
        return ", ".join(name for name in there if name not in template)

    def mark_in(self, said: str) -> str:
        """The first special token within what is said, where the model meets it as one of the template's; empty: none."""
        found = self._marks.search(said)
        return found[0] if found else ""

    def documents(self, talks: Sequence[Talk], places: Sequence[str]) -> Iterator[Document | DataError]:
        """The tokens of conversations, or why the template refuses one.

        Raises:
            DataError: there is no template, or the tokenizer cannot split what it gives.
        """
        found = [self.rendered(talk, place) for talk, place in zip(talks, places, strict=True)]
        made: dict[int, Document] = {}
        for whole in (False, True):
            some = {index: one for index, one in enumerate(found) if isinstance(one, Rendered) and one.whole == whole}
            for batch in batches((index, one.text) for index, one in some.items()):
                numbers, texts = zip(*batch, strict=True)
                named = [places[index] for index in numbers]
                split = encodings(self._tokenizer, texts, self._called, named, special=whole)
                for index, encoding in zip(numbers, split, strict=True):
                    ids = np.asarray(encoding.ids, np.uint32)
                    made[index] = Document(ids, _learnt(encoding, some[index].answers))
        for index, one in enumerate(found):
            yield one if isinstance(one, DataError) else made[index]

    def rendered(self, talk: Talk, where: str) -> Rendered | DataError:
        """A conversation as text, or why it cannot be.

        Raises:
            DataError: there is no template, or it writes nothing.
        """
        if isinstance(talk, Pair):
            made = self._joined(talk)
        else:
            if not self._templates:
                raise DataError(
                    "no-template",
                    f"{where} is a conversation, and {self._called} has no chat template to write it with: bring the "
                    "tokenizer of the model's folder (tokenizer.kind file, with chat_template in tokenizer.settings), or name "
                    "the texts prompt and completion to train without one",
                )
            if len(talk.messages) > MOST_MESSAGES:
                return DataError(
                    "long-row", f"{where} has more than {MOST_MESSAGES:,} messages: split the conversation"
                )
            written = self._as_taken(talk, where, self._by_template)
            if isinstance(written, DataError):
                return written
            made = written
        if len(made.text) > MOST_CHARACTERS:
            return DataError(
                "long-row", f"{where} has more than {MOST_CHARACTERS:,} characters: split the conversation"
            )
        return made

    def _joined(self, pair: Pair) -> Rendered:
        end = "" if pair.completion.endswith(self._end) else self._end
        text = pair.text() + end
        first = 0 if self._learn == "all" else len(pair.prompt)
        return Rendered(text, ((first, len(text)),), whole=True)

    @property
    def calls_as_tags(self) -> bool:
        """Whether it has functions, and their calls as JSON between ``<tool_call>`` tags, as Hermes, Qwen and SmolLM have."""
        return any("tools" in one and "<tool_call>" in one for one in self._templates.values())

    def asked(self, talk: ChatMessages, where: str) -> str | DataError:
        """What an answer follows: the messages as text, and who speaks next; or why they cannot be written.

        Raises:
            DataError: the template writes nothing.
        """
        return self._as_taken(talk, where, self._asking)

    def _asking(self, template: str, talk: ChatMessages) -> str:
        return self._render(template, talk, len(talk.messages), asks=True)[0]

    def _as_taken(
        self, talk: ChatMessages, where: str, write: Callable[[str, ChatMessages], _Written]
    ) -> _Written | DataError:
        """What ``write`` makes of a conversation, with one text a message where the template does not take it otherwise."""
        template, refusal = self._chosen(talk), None
        if talk.calls and "arguments is string" not in template:  # It would write a text within a text.
            talk = talk.with_tables()
        flat = talk.flat()
        as_it_is = talk != flat and (_PARTS.search(template) or not _in_parts(talk))
        for way in (talk, flat) if as_it_is else (flat,):
            try:
                return write(template, way)
            except UselessTemplateError:
                raise  # It would be the same for each.
            except DataError as error:
                refusal = refusal or DataError(error.code, f"{where} {error.detail}")
            except Exception as error:  # noqa: BLE001 - a template may do anything that its language can.
                said = " ".join(str(error).split())[:SHOWN] or type(error).__name__
                refusal = refusal or DataError("refused", f"{where} is refused by the chat template: {said}")
        assert refusal is not None
        return refusal

    def _chosen(self, talk: ChatMessages) -> str:
        """Of several templates the one for a conversation."""
        found = self._templates.get("tool_use") if talk.tools or talk.calls else None
        return found or self._templates.get("default") or next(iter(self._templates.values()), "")

    def _by_template(self, template: str, talk: ChatMessages) -> Rendered:
        if self._learn == "all" or talk.given:
            text, _ = self._render(template, talk, len(talk.messages))
            begin = 0 if self._learn == "all" else self._prompt(template, talk, talk.given, text)
            return Rendered(text, ((begin, len(text)),))
        if _MARKS.search(template):
            text, marked = self._render(template, talk, len(talk.messages), marks=True)
            return Rendered(text, tuple(_learnt_marks(talk, marked)))
        for part, always in _LATER_TURNS.items():
            template = template.replace(part, always)
        text, _ = self._render(template, talk, len(talk.messages))
        return Rendered(text, tuple(self._answers(template, talk, text)))

    def _answers(self, template: str, talk: ChatMessages, text: str) -> Iterator[Span]:
        """The assistant's turns: of each, all that stands behind its prompt."""
        for index, message in enumerate(talk.messages):
            if not talk.learns(message):
                continue
            with_it = text
            if index + 1 < len(talk.messages):
                with_it = self._begins(self._render(template, talk, index + 1)[0], text, index)
            yield self._prompt(template, talk, index, with_it), len(with_it)

    def _prompt(self, template: str, talk: ChatMessages, index: int, text: str) -> int:
        """How long the prompt of a message is: what comes before it, and who speaks next."""
        asked, _ = self._render(template, talk, max(1, index), asks=True)
        if index:
            return len(self._begins(asked, text, index))
        # No template writes a conversation of nothing: who speaks is found behind another message.
        before = self._begins(self._render(template, talk, 1)[0], asked, index)
        header = asked[len(before) :]
        if header not in text:
            raise _not_kept(index)
        return text.index(header) + len(header)

    def _begins(self, part: str, text: str, index: int) -> str:
        """What some messages come to within a text that goes on: without the end that some templates put behind the last one."""
        found = part if text.startswith(part) else part.removesuffix(self._special.get("eos_token", ""))
        if not text.startswith(found):
            raise _not_kept(index)
        return found

    def _render(
        self, template: str, talk: ChatMessages, count: int, *, asks: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
        """The first messages as text; ``asks``: with the words that an answer follows; ``marks``: and what is marked."""
        try:
            from jinja2 import TemplateSyntaxError
            from transformers.utils.chat_template_utils import render_jinja_template  # Only where it is asked for.
        except ImportError as error:
            detail = "cannot be written here: conversations need transformers, install cottage[coordinator]"
            raise DataError("no-transformers", detail) from error
        try:
            with _limited():
                texts, spans = cast(Any, render_jinja_template)(
                    [talk.messages[:count]],
                    tools=talk.tools,
                    chat_template=template,
                    return_assistant_tokens_mask=marks,
                    add_generation_prompt=asks,
                    **{**self._special, **(talk.words or {})},
                )
        except TemplateSyntaxError as error:
            broken = (
                f"the chat template of {self._called} is broken in line {error.lineno}: "
                f"{str(error.message)[:SHOWN].rstrip('.')}"
            )
            raise UselessTemplateError(
                "bad-template", f"{broken}; bring the tokenizer of the model's own folder"
            ) from None
        return str(texts[0]), [(int(first), int(last)) for first, last in spans[0]] if marks else []


def _learnt_marks(talk: ChatMessages, marked: Sequence[Span]) -> Sequence[Span]:
    """Of what a template marks, the answers to learn."""
    answers = [one for one in talk.messages if one["role"] == "assistant"]
    if all(map(talk.learns, answers)):
        return marked
    if len(marked) != len(answers):
        detail = "has answers that are not to be learnt (weight, train), and the chat template marks others than whole answers"
        raise DataError("refused", f"{detail}: leave them out")
    return [span for span, answer in zip(marked, answers, strict=True) if talk.learns(answer)]


def _in_parts(talk: ChatMessages) -> bool:
    return any(isinstance(one.get("content"), list) for one in talk.messages)


def _learnt(encoding: Encoding, answers: Sequence[Span]) -> NDArray[np.bool_]:
    """Which tokens are of an answer: from the first that has a character of it to the last."""
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    found = np.zeros(len(offsets), dtype=bool)
    for first, last in answers:
        touched = np.flatnonzero((offsets[:, 1] > first) & (offsets[:, 0] < last))
        if len(touched):
            found[touched[0] : touched[-1] + 1] = True
    return found


def _templates(given: Any) -> dict[str, str]:
    """Templates by name, as ``tokenizer_config.json`` has one or several."""
    if isinstance(given, str) and given:
        return {"default": given}
    if not isinstance(given, list):
        return {}
    pairs = ((one.get("name"), one.get("template")) for one in given if isinstance(one, dict))
    return {name: template for name, template in pairs if isinstance(name, str) and isinstance(template, str)}


def _content(token: Any) -> str:
    """A special token's text, as settings have it: a text, or an object with one."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _not_kept(index: int) -> DataError:
    return DataError(
        "refused",
        f"cannot be told apart: the chat template writes what stands before message {index + 1} otherwise when more follows, so "
        "nobody knows which tokens are the answer's. Bring a template with {% generation %} around answers, write the last "
        "answer as completion and the rest as prompt, or learn all (dataset.learn all)",
    )


def template_fault(settings: Mapping[str, Any], called: str) -> str:
    """As ``ChatTemplate.fault``, of ``tokenizer_config.json`` alone. ``called``: whose settings they are."""
    return ChatTemplate(Tokenizer(WordLevel({})), settings, "answers", None, called).fault()
