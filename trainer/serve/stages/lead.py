"""The first stage's part: requests become passes, and what was drawn becomes answers.

A pass has a row of each request whose turn it is. A request whose last token is known waits for nothing; one whose token is being
drawn has no other row. So requests fall into groups that follow each other around the ring: while lines carry one, stages compute
the others. What a request begins with as another one did is not computed again. The oldest requests get pages first; where there
are none, requests that have ended give theirs, then the youngest gives way: it begins again later.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from torch import Tensor

from protocol.codec import MessageError
from protocol.serving import (
    AnsweredReport,
    EmbedCommand,
    EngineReport,
    GenerateCommand,
    RefusedReport,
    TextReport,
    TokenLogprob,
)
from trainer.errors import DataError
from trainer.serve.answer_text import AnswerText
from trainer.serve.grammar import grammar_of
from trainer.serve.requests import AskedAnswer, Requests
from trainer.serve.stages.drafting import AnswerDrafts, Drafting
from trainer.serve.stages.pages import PAGE, PageTables, pages_of
from trainer.serve.stages.passes import (
    BATCH,
    DRAFTS,
    MAX_CHANGED,
    ClosedRequest,
    DrawnHeader,
    DrawnRow,
    OpenedRequest,
    PassHeader,
    PassRow,
)
from trainer.serve.stages.prefixes import PrefixBook, SharedPages
from trainer.serve.stages.share import SEATS, CacheSize
from trainer.serve.stages.texts import LedTexts

PIECE = 32  # Tokens of a prompt that are worth a pass of their own: fewer take a processor nearly as long.
MAX_OPENED = 1 << 19  # Characters of grammars beyond which a pass opens no further request.
MAX_DETAIL = 500  # Characters of what went wrong.
MAX_NAME = 64  # Characters of what stages call a request.


@dataclass(eq=False)
class LedAnswer:
    """One answer on its way.

    Attributes:
        drafts: its tokens so far, of its prompt and of what was drawn; and what may follow.
        begun: tokens of the answer that were there when it was asked for.
        number: under which the stages know it; None: they do not.
        fed: places that went out in rows, drafts not counted, or were another one's.
        drawing: whether its next token is being drawn.
        since: when it was last ready, in passes.
        texts: whose text it is, at ``place`` among them, if it is embedded and nothing is drawn.
    """

    command: GenerateCommand
    asked: AskedAnswer
    drafts: AnswerDrafts
    begun: int
    number: int | None = None
    fed: int = 0
    drawing: bool = False
    since: int = 0
    over: bool = False
    texts: LedTexts | None = None
    place: int = 0

    @property
    def tokens(self) -> list[int]:
        """Of its prompt, and what was drawn."""
        return self.drafts.so_far.tokens

    @property
    def left(self) -> int:
        """Known tokens that did not go out."""
        return len(self.tokens) - self.fed

    @property
    def goes_on(self) -> bool:
        """Whether all but its newest token went out, which did not."""
        return self.left == 1 and self.fed > 0

    @property
    def wanted(self) -> int:
        """Pages of what is known of it, and the next token."""
        return pages_of(len(self.tokens) + 1)


@dataclass(frozen=True)
class DrawingRow:
    """A row of a pass under way that draws. ``began``: when a row of one token and its drafts went out."""

    answer: LedAnswer
    number: int
    drafts: tuple[int, ...]
    began: float | None = None


@dataclass
class PassChanges:
    """What the next pass tells beside its rows."""

    closed: list[ClosedRequest] = field(default_factory=list)
    opened: list[OpenedRequest] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    reset: bool = False


class PassLead:
    """Leads the stages of a replica. All on one thread; it sends nothing itself.

    Attributes:
        under_way: passes of which nothing came back yet.
    """

    def __init__(
        self,
        requests: Requests,
        ends: Sequence[int],
        size: CacheSize,
        say: Callable[[EngineReport], None],
        drafting: Drafting | None = None,
    ) -> None:
        """``say``: takes what comes of requests. ``drafting``: makes drafts; None: of what was seen before alone."""
        self._requests, self._ends, self._size, self._say = requests, ends, size, say
        self.drafting = drafting or Drafting()
        self._waiting: deque[LedAnswer] = deque()
        self._running: dict[int, LedAnswer] = {}
        self._answers: dict[str, LedAnswer] = {}
        self._changes = PassChanges()
        self._pages, self._prefixes = PageTables(size.pages), PrefixBook()
        self._groups = self._most_under_way = 0
        self._passes = 0
        self._numbers = 0
        self._texts: dict[str, LedTexts] = {}
        self.under_way: dict[int, tuple[DrawingRow, ...]] = {}

    def join(self, stages: int) -> None:
        """Begin anew with so many stages; every answer under way has failed."""
        self.fail("the nodes that hold the model together have changed")
        self._changes, self._passes = PassChanges(), 0
        # A group for each stage to compute. More would hide more of the lines, but small passes cost nearly what large ones do.
        self._groups, self._most_under_way = stages, stages + 1

    def fail(self, detail: str) -> None:
        """Every answer under way has failed; the next pass has the stages forget them."""
        for answer in list(self._answers.values()):
            self._over(answer, 0)
            if answer.texts is None:
                self._say(RefusedReport(answer.command.id, "failed", detail[:MAX_DETAIL]))
        for texts in self._texts.values():
            texts.fail(detail[:MAX_DETAIL])
        self._texts.clear()
        self._running.clear()
        self._waiting.clear()
        self._pages, self._prefixes = PageTables(self._size.pages), PrefixBook()
        self._changes = PassChanges(reset=True)
        self.under_way.clear()

    def ask(self, command: GenerateCommand) -> None:
        """Begin an answer, or go on with one; what is wrong with a request is said like an answer."""
        if not self._most_under_way:
            self._say(RefusedReport(command.id, "failed", "the nodes that hold the model together are not all there"))
            return
        try:
            asked = self._requests.read(command)
            self._requests.check_known(command.begun, "the answer that has begun")
            asked.text.add(command.begun)  # Who drew these has told them.
            if asked.text.reason is None and asked.form is not None:
                asked.form.begin(command.begun)
        except DataError as error:
            self._say(RefusedReport(command.id, error.code, error.detail))
            return
        asked.form = None  # The last stage keeps it.
        drafts = self.drafting.begin([*asked.prompt, *command.begun], command.sampling)
        answer = LedAnswer(command, asked, drafts, len(command.begun))
        if asked.text.reason is not None:
            self._end(answer)
            return
        self._answers[command.id] = answer
        self._waiting.append(answer)

    def embed(self, command: EmbedCommand) -> None:
        """Begin with the texts of a request; what is wrong with them is said."""
        if not self._most_under_way:
            self._say(RefusedReport(command.id, "failed", "the nodes that hold the model together are not all there"))
            return
        try:
            rows = self._requests.rows(command)
        except DataError as error:
            self._say(RefusedReport(command.id, error.code, error.detail))
            return
        texts = self._texts[command.id] = LedTexts(command.id, rows, self._say)
        for place, row in enumerate(rows):
            asked = GenerateCommand(_name_of(command.id, place), adapter=command.adapter)
            text = AnswerText(self._requests.tokenizer, asked, list(self._ends), 0)
            drafts = self.drafting.begin(row, asked.sampling)
            answer = LedAnswer(asked, AskedAnswer(row, 0, text, None), drafts, 0, texts=texts, place=place)
            self._answers[asked.id] = answer
            self._waiting.append(answer)

    def cancel(self, request: str) -> None:
        """Nobody waits for an answer any more."""
        if (texts := self._texts.pop(request, None)) is not None:
            texts.over = True
            for text in [one for one in self._answers.values() if one.texts is texts]:
                self._over(text, 0)
        if (answer := self._answers.get(request)) is not None:
            self._over(answer, min(answer.fed, len(answer.tokens)))

    def next_pass(self) -> tuple[int, PassHeader, list[int]] | None:
        """The next pass, with its number and its rows' tokens; None: nothing can go out now."""
        if len(self.under_way) >= self._most_under_way:
            return None
        self._admit()
        rows, tokens, drawing = self._rows()
        changes = self._changes
        if not rows and not changes.closed:  # What is opened or dropped goes with rows, at the latest.
            return None
        self._changes = PassChanges()
        number, self._passes = self._passes, self._passes + 1
        self.under_way[number] = tuple(drawing)
        changed = (tuple(changes.closed), tuple(changes.opened), tuple(changes.dropped))
        header = PassHeader(*changed, tuple(rows), changes.reset)
        return number, header, tokens

    def take(self, number: int, drawn: DrawnHeader, vectors: Tensor) -> None:
        """What came of a pass. ``vectors``: ``[n, d]``, of its rows without tokens.

        Raises:
            MessageError: it does not belong to that pass, or a stage found something wrong.
        """
        if number not in self.under_way:
            return  # Of before a reset.
        if drawn.broken:
            raise MessageError(f"a stage could not go on: {drawn.broken}")
        rows = self.under_way.pop(number)
        if [row.number for row in drawn.rows] != [row.number for row in rows]:
            raise MessageError("what was drawn is of other requests than the pass")
        made = iter(vectors)
        for row, told in zip(rows, drawn.rows, strict=True):
            if (row.answer.texts is None) is not bool(told.tokens):
                raise MessageError("a text has tokens that were drawn, or an answer has none")
            if row.answer.texts is not None:
                self._embedded(row.answer, row.answer.texts, next(made))
            else:
                self._take(row, told)

    def read_on(self) -> bool:
        """While nothing can go out: have a draft model read a piece of what it has not read yet; False: there is nothing."""
        answers = [one.drafts for one in self._running.values() if one.texts is None]
        return len(answers) <= self._groups and self.drafting.read_on(answers)

    def _admit(self) -> None:
        """Open requests that wait while there are pages for what they begin with."""
        said = 0
        while self._waiting and len(self._running) < SEATS and said < MAX_OPENED:
            answer = self._waiting[0]
            # A text needs the states behind all of its tokens, which nobody keeps.
            like = None if answer.texts else self._prefixes.find(answer.tokens, answer.command.adapter)
            if answer.drawing or not self._has_room(answer.wanted, like):
                return
            self._waiting.popleft()
            answer.number, answer.fed, answer.since = self._numbers, 0, self._passes
            self._numbers += 1
            self._running[answer.number] = answer
            opened = _opened(answer, answer.number)
            if like is not None:
                self._pages.share(answer.number, like.number, like.count)
                answer.fed = like.count * PAGE
                opened = msgspec.structs.replace(opened, like=like.number, shared=like.count)
            said += len(opened.grammar or "") + 5 * len(opened.begun)
            self._changes.opened.append(opened)

    def _has_room(self, wanted: int, like: SharedPages | None) -> bool:
        """Whether there are pages for a request beside what those under way will want next; ended ones give theirs."""
        more = wanted - (0 if like is None else like.count)
        for number, one in self._running.items():
            more += max(0, one.wanted - len(self._pages.held(number)))
        while more > self._pages.free:
            if not self._drop_one(None if like is None else like.number):
                return False
        return True

    def _drop_one(self, spared: int | None = None) -> bool:
        """Have the request give its pages that ended longest ago; False: there is none."""
        number = self._prefixes.oldest(spared)
        if number is None or len(self._changes.dropped) == MAX_CHANGED:
            return False
        self._prefixes.forget(number)
        self._pages.release(number)
        self._changes.dropped.append(number)
        return True

    def _rows(self) -> tuple[list[PassRow], list[int], list[DrawingRow]]:
        """Rows for a pass: answers that wait longest, then parts of prompts while there is room.

        Drafts are for few answers, which wait for lines. With many, stages are busy, and a draft takes the time of a token.
        """
        ready = [one for one in self._running.values() if one.left and not one.drawing]
        going = sorted((one for one in ready if one.goes_on), key=lambda one: one.since)
        share = -(-sum(one.drawing or one.goes_on for one in self._running.values()) // self._groups)
        rows, tokens, drawing = list[PassRow](), list[int](), list[DrawingRow]()
        begin = [one for one in ready if not one.goes_on]
        piece = self._piece(sum(one.left for one in begin))
        for answer in (*going, *begin):
            room = BATCH - len(tokens) if answer.goes_on else min(BATCH - len(tokens), piece)
            if not room or answer.number is None or (answer.goes_on and len(rows) >= share):
                continue
            count = min(answer.left, room)
            draws = count == answer.left
            drafts = self._drafts(answer, room - count) if share == 1 else ()
            if not self._reach(answer, count + len(drafts), rows):
                continue  # Others go on meanwhile, and leave pages.
            rows.append(PassRow(answer.number, answer.fed, count + len(drafts), draws, drafts))
            tokens += [*answer.tokens[answer.fed : answer.fed + count], *drafts]
            piece -= 0 if answer.goes_on else count
            answer.fed += count
            if answer.texts is None:
                self._prefixes.note(answer.number, answer.tokens, answer.command.adapter, answer.fed)
            if draws:
                answer.drawing = True
                drawing.append(DrawingRow(answer, answer.number, drafts))
        if share == 1 and len(tokens) == sum(
            1 + len(one.drafts) for one in drawing
        ):  # No part of a prompt is with them.
            began = self.drafting.clock()
            drawing = [replace(one, began=began) for one in drawing]
        return rows, tokens, drawing

    def _piece(self, waiting: int) -> int:
        """How many tokens of prompts the next pass takes, of so many that wait: a part for each pass that may go out, so that
        stages compute at the same time, and while lines carry."""
        free = self._most_under_way - len(self.under_way)
        return min(BATCH, -(-waiting // max(1, min(free, waiting // PIECE))))

    def _drafts(self, answer: LedAnswer, most: int) -> tuple[int, ...]:
        room = answer.asked.most - answer.asked.text.count - 1
        if not answer.goes_on or answer.texts is not None:
            return ()
        return self.drafting.drafts(answer.drafts, min(most, room, DRAFTS))

    def _reach(self, answer: LedAnswer, count: int, rows: Sequence[PassRow]) -> bool:
        """Whether there are pages for the next places of an answer; younger ones give theirs, but not those with a row."""
        assert answer.number is not None
        needed = pages_of(answer.fed + count)
        kept = {row.number for row in rows}
        while needed > len(self._pages.held(answer.number)) + self._pages.free:
            if self._drop_one():
                continue
            numbers = [number for number in self._running if number not in kept]
            if not numbers or max(numbers) <= answer.number:
                return False
            youngest = self._running[max(numbers)]
            self._close(youngest, 0)
            self._waiting.appendleft(youngest)
        self._pages.reach(answer.number, answer.fed + count)
        return True

    def _embedded(self, answer: LedAnswer, texts: LedTexts, vector: Tensor) -> None:
        """The vector of a text."""
        if not answer.over:
            answer.drawing = False
            self._over(answer, 0)
            if texts.take(answer.place, vector):
                self._texts.pop(texts.request, None)

    def _take(self, row: DrawingRow, told: DrawnRow) -> None:
        """The next tokens of an answer."""
        answer, tokens = row.answer, told.tokens
        count = len(tokens)
        if count > len(row.drafts) + 1 or tokens[:-1] != row.drafts[: count - 1]:
            raise MessageError("what was drawn does not follow from its drafts")
        noted = [one for told_of in told.noted for one, _ in (told_of.own, *told_of.likeliest)]
        self._requests.check_known([*tokens, *noted], "what was drawn")
        likeliest = answer.command.likeliest
        if len(told.noted) != (0 if likeliest is None else count):
            raise MessageError("what was drawn does not say how likely it was")
        if answer.over:
            return
        answer.drawing, answer.since = False, self._passes
        if row.began is not None:
            self.drafting.turned(self.drafting.clock() - row.began)
        before = answer.asked.text.count
        text = answer.asked.text.add(tokens)
        new = tokens[: answer.asked.text.count - before]
        self.drafting.learn(answer.drafts, row.drafts, new)
        if answer.number == row.number:
            answer.fed = len(answer.tokens) - 1
        said = len(new) - (new[-1] in self._ends)
        likely: tuple[TokenLogprob, ...] = ()
        if (noting := answer.asked.likelihoods) is not None:
            for one in told.noted[:said]:
                noting.add(one.own, list(one.likeliest))
            likely = noting.take(said, self._requests.tokenizer)
        self._say(TextReport(answer.command.id, text, new, likely))
        if answer.asked.text.reason is not None:
            self._over(answer, len(answer.tokens) - 1)
            self._end(answer)

    def _over(self, answer: LedAnswer, length: int) -> None:
        """An answer ends, of whose sequence so many places count."""
        answer.over = True
        self.drafting.end(answer.drafts)
        del self._answers[answer.command.id]
        if answer.number is None:
            self._waiting.remove(answer)
        else:
            self._close(answer, length)

    def _close(self, answer: LedAnswer, length: int) -> None:
        """The stages forget an answer, unless they have not heard of it yet; of what counts, whole pages are kept."""
        number = answer.number
        assert number is not None
        kept = 0
        unheard = [one for one in self._changes.opened if one.number == number]
        if unheard:
            self._changes.opened.remove(unheard[0])
        else:
            kept = length // PAGE
            self._changes.closed.append(ClosedRequest(number, length, kept))
        self._pages.release(number, kept)
        if kept:
            self._prefixes.note(number, answer.tokens, answer.command.adapter, length)
            self._prefixes.keep(number)
            if self._prefixes.full:
                self._drop_one()
        else:
            self._prefixes.forget(number)
        del self._running[number]
        answer.number = None

    def _end(self, answer: LedAnswer) -> None:
        text = answer.asked.text
        assert text.reason is not None
        self._say(AnsweredReport(answer.command.id, text.reason, len(answer.asked.prompt), text.count, text.calls))


def _name_of(request: str, place: int) -> str:
    """Under which the stages know a text of a request."""
    return f"{request}/{place}"[-MAX_NAME:]


def _opened(answer: LedAnswer, number: int) -> OpenedRequest:
    """What the stages have to know of an answer."""
    asked, prompt = answer.command, len(answer.asked.prompt)
    said = (number, asked.id, prompt, asked.sampling)
    if answer.texts is not None:
        return OpenedRequest(*said, adapter=asked.adapter, embeds=True)
    grammar = grammar_of(asked)
    if grammar is None:
        return OpenedRequest(*said, likeliest=asked.likeliest, adapter=asked.adapter)
    begun = tuple(answer.tokens[prompt:])
    return OpenedRequest(*said, begun, grammar, asked.likeliest, asked.adapter)
