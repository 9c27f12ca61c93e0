"""What every stage does with a pass: opens and closes requests, runs its layers, and notes what crossed its boundaries."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from protocol.codec import MessageError
from protocol.serving import SketchReport
from trainer.serve.adapters import adapted, rows_of
from trainer.serve.stages.pages import PAGE, CrossedStates, LayerCache, NoPagesError
from trainer.serve.stages.passes import MAX_CHANGED, OpenedRequest, PassHeader, PassRow
from trainer.serve.stages.share import CacheSize, ModelShare
from trainer.serve.stages.sketches import SketchBook, sketch_vectors
from trainer.transfer import HostCopy, to_device

Side = Literal["got", "sent"]


@dataclass
class StageRequest:
    """A request that is open.

    Attributes:
        vectors: what its sketches are made with.
        books: what crossed this stage's boundaries.
        computed: places that rows were of.
    """

    opened: OpenedRequest
    vectors: Tensor
    books: dict[Side, SketchBook]
    computed: int = 0


@dataclass
class _Noted:
    """Sketches of the rows of a pass on their way into their books."""

    rows: list[tuple[SketchBook, PassRow]] = field(default_factory=list)
    sketches: HostCopy | None = None

    def keep(self) -> None:
        """Write them down, once they are there."""
        if self.sketches is None:
            return
        sketches, begin = self.sketches.arrived(), 0
        for book, row in self.rows:
            book.note(row.first, sketches[begin : begin + row.count])
            begin += row.count


class StageLayers:
    """One stage's layers with their cache. All on one thread.

    Attributes:
        passes: how many were computed; ``opened``: how many requests were opened.
        requests: those that are open, by number.
        key: of the sketches of requests that are opened from now on.
    """

    def __init__(self, share: ModelShare, size: CacheSize, say: Callable[[SketchReport], None]) -> None:
        """``say``: takes what is told of requests that end."""
        self._share, self._size, self._say = share, size, say
        shape, cut = share.shape, share.cut
        self.cache = LayerCache(cut.last - cut.first, size.pages, shape.kv_heads, shape.head_dim, share.device)
        ends: tuple[tuple[Side, bool], ...] = ("got", cut.is_first), ("sent", cut.is_last)
        self._sides = [side for side, is_the_model_s in ends if not is_the_model_s]
        self.requests: dict[int, StageRequest] = {}
        self._kept: set[int] = set()
        self._crossed = {side: CrossedStates(size.pages, shape.hidden, share.device) for side in self._sides}
        self.key = b""
        self.passes = self.opened = 0

    def forget(self) -> None:
        """Drop everything; of requests under way all that was computed is told."""
        for one in self.requests.values():
            self._tell(one, None)
        self.requests.clear()
        self._kept.clear()
        self.cache.clear()

    @torch.inference_mode()
    def run(self, header: PassHeader, inputs: Tensor) -> Tensor | None:
        """Do what a pass says; hidden states ``[t, d]`` of its rows, None where it has none.

        Args:
            inputs: token ids ``[t]`` on the first stage, hidden states ``[t, d]`` on the others.
        Raises:
            MessageError: it cannot be done: the neighbour is wrong.
        """
        if header.reset:
            self.forget()
        self._change(header)
        if not header.rows:
            return None
        self._check(header)
        try:
            places = self.cache.places([(row.number, row.first, row.count) for row in header.rows])
        except NoPagesError as error:
            raise MessageError(str(error)) from error
        inputs = to_device(inputs, self._share.device)
        got = self._note("got", header, inputs, places.written)
        parts = [(self.requests[row.number].opened.adapter, row.count) for row in header.rows]
        with adapted(rows_of(parts, self._share.device)):
            out = self._share.run(inputs, places)
        sent = self._note("sent", header, out, places.written)
        got.keep()  # A card has computed the pass meanwhile.
        sent.keep()
        self.passes += 1
        return out

    def _change(self, header: PassHeader) -> None:
        """Close, open and drop; pages go last, for those that are opened may share them."""
        for closed in header.closed:
            one = self.requests.pop(closed.number, None)
            if one is None:
                raise MessageError(f"request {closed.number} is closed, and was not open")
            self._tell(one, closed.length)
            if closed.kept:
                self._kept.add(closed.number)
        for opened in header.opened:
            self._open(opened)
        for closed in header.closed:
            self.cache.tables.release(closed.number, closed.kept)
        for number in header.dropped:
            if number not in self._kept:
                raise MessageError(f"request {number} is dropped, and was not kept")
            self._kept.remove(number)
            self.cache.tables.release(number)

    def _open(self, opened: OpenedRequest) -> None:
        if opened.number in self.requests or opened.number in self._kept or len(self.requests) >= MAX_CHANGED:
            raise MessageError(f"request {opened.number} is open already, or one too many")
        if opened.adapter > self._share.adapters:
            raise MessageError(f"request {opened.number} is of adapter {opened.adapter}, of {self._share.adapters}")
        vectors = to_device(sketch_vectors(opened.id, self._share.shape.hidden, self.key), self._share.device)
        self.opened += 1
        sides = () if opened.embeds else self._sides  # Of embeddings nothing is blamed on anybody.
        one = StageRequest(opened, vectors, {side: SketchBook() for side in sides})
        if opened.shared:
            self._begin_behind(one, opened)
        self.requests[opened.number] = one

    def _begin_behind(self, one: StageRequest, opened: OpenedRequest) -> None:
        """Begin behind the pages of another request; what crossed there is sketched once more, with this request's vectors."""
        try:
            self.cache.tables.share(opened.number, opened.like, opened.shared)
        except NoPagesError as error:
            raise MessageError(str(error)) from error
        one.computed = opened.shared * PAGE
        lie = self.cache.places_of(opened.number, one.computed)
        for side, book in one.books.items():
            book.note(0, (self._crossed[side].read(lie) @ one.vectors).cpu())

    def _check(self, header: PassHeader) -> None:
        seen: set[int] = set()
        for row in header.rows:
            if row.number not in self.requests or row.number in seen:
                raise MessageError(f"a row is of request {row.number}, which is not open, or has another row")
            one = self.requests[row.number]
            if row.first > one.computed or row.first + row.count > self._size.longest:
                raise MessageError(f"a row goes from place {row.first:,} to {row.first + row.count:,}: it cannot")
            if len(row.drafts) >= row.count or (row.drafts and not row.draws):
                raise MessageError(f"a row of {row.count} tokens has {len(row.drafts)} drafts")
            one.computed = row.first + row.count
            seen.add(row.number)

    def _note(self, side: Side, header: PassHeader, states: Tensor, lie: Tensor) -> "_Noted":
        """Sketch what crosses a boundary, where there is one at this side. ``lie``: where the states' places lie, ``[t]``."""
        noted = _Noted()
        if side not in self._crossed:
            return noted
        self._crossed[side].write(lie, states)
        begin = 0
        sketched: list[Tensor] = []
        for row in header.rows:
            one = self.requests[row.number]
            if side in one.books:
                noted.rows.append((one.books[side], row))
                sketched.append(states[begin : begin + row.count] @ one.vectors)
            begin += row.count
        if sketched:
            noted.sketches = HostCopy(torch.cat(sketched))
        return noted

    def _tell(self, one: StageRequest, length: int | None) -> None:
        for side, book in one.books.items():
            if values := book.told(length):
                self._say(SketchReport(one.opened.id, side, 0, values))
