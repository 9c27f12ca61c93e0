"""Lists in pages.

A page holds ``limit`` items; the header ``Link`` (RFC 8288, ``rel="next"``) is the address of the next one and is missing on the
last. The ``cursor`` in it is opaque to the reader: it names the item that the next page comes behind, not a number of items, so
what is added meanwhile neither repeats an item nor hides one.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from coordinator.errors import InvalidError
from coordinator.services.jobs.ports import ListWindow
from coordinator.web.http import answer, integer
from coordinator.web.parameters import Query
from protocol.ids import JobId

Number = Annotated[int, Meta(ge=0, lt=2**62)]
Behind = Annotated[int, Meta(gt=-(2**62), le=0)]  # The newest first.
Moment = Annotated[float, Meta(ge=0, lt=1e12)]
Name = Annotated[str, Meta(max_length=200, pattern="^[^\\x00]*$")]
MAX_CURSOR = 400  # Characters: the longest has a relay's address of 200.


@dataclass(frozen=True)
class Pager:
    """How one list is cut.

    Attributes:
        name: of the list; a cursor of another one is refused.
        place: where an item stands in the order of the list.
        shape: the type of that, a tuple.
        size: items of a page where nobody asks for a number.
        most: items of the largest page.
    """

    name: str
    place: Callable[[Any], tuple[Any, ...]]
    shape: Any
    size: int = 100
    most: int = 1000

    @property
    def queries(self) -> tuple[Query, Query]:
        """What a reader may ask for."""
        return (
            Query(
                "limit",
                f"At most this many, 1 to {self.most:,}; {self.size} if left out.",
                bounds={"minimum": 1, "maximum": self.most},
            ),
            Query(
                "cursor",
                "Where the page begins, as the header Link of the page before has it.",
                "string",
                bounds={"maxLength": MAX_CURSOR},
            ),
        )

    def window(self, request: web.Request) -> ListWindow:
        """The part of the list that the query asks for, and one item more, which tells whether there is another page.

        Raises:
            InvalidError: no number, or no cursor of this list.
        """
        limit = integer(request, "limit", self.size, 1, self.most)
        text = request.query.get("cursor")
        return ListWindow(None if text is None else self._read(text), limit + 1)

    def page(self, request: web.Request, found: Sequence[Any], beyond: tuple[Any, ...] | None = None) -> web.Response:
        """The answer: ``found`` is what ``window`` asked for; ``beyond``: where to go on, if that is not behind the last item."""
        limit = integer(request, "limit", self.size, 1, self.most)
        headers: dict[str, str] = {}
        if len(found) > limit:
            beyond = self.place(found[limit - 1])
        if beyond is not None:
            there = request.rel_url.update_query(cursor=self.cursor(beyond))
            headers[hdrs.LINK] = f'<{there}>; rel="next"'
        return answer(found[:limit], headers=headers)

    def cut(self, request: web.Request, items: Sequence[Any]) -> web.Response:
        """The answer, of a list that is whole in memory."""
        window = self.window(request)
        found = sorted(items, key=self.place)
        if window.after is not None:
            found = [item for item in found if self.place(item) > window.after]
        return self.page(request, found[: window.limit])

    def cursor(self, place: tuple[Any, ...]) -> str:
        """What names a place of this list to a reader."""
        return base64.urlsafe_b64encode(msgspec.json.encode((self.name, place))).rstrip(b"=").decode()

    def _read(self, text: str) -> tuple[Any, ...]:
        try:
            if len(text) > MAX_CURSOR:
                raise ValueError(len(text))
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
            name, place = msgspec.json.decode(data, type=tuple[str, self.shape])  # type: ignore[name-defined]
            if name != self.name:
                raise ValueError(name)
        except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
            raise InvalidError(
                f"the cursor {text[:40]!r} is none of this list: begin without one, then follow the header Link",
                "cursor",
            ) from error
        return tuple(place)


JOBS = Pager("jobs", lambda one: (one.created, one.id), tuple[Moment, JobId], 50, 200)
ROUNDS = Pager("rounds", lambda one: (one.round, one.epoch), tuple[Number, Number])
COMMITS = Pager(
    "commits", lambda one: (one.round, one.epoch, one.replica, one.stage), tuple[Number, Number, Number, Number]
)
AUDITS = Pager("audits", lambda one: (one.round, one.audit), tuple[Number, Name])
RECEIPTS = Pager("receipts", lambda one: (one.id,), tuple[Number])
EVENTS = Pager("events", lambda one: (one.id,), tuple[Number])
SEATS = Pager("seats", lambda one: (one.node,), tuple[Name])
NODES = Pager("nodes", lambda one: (one.since, one.node), tuple[Moment, Name])
RELAYS = Pager("relays", lambda one: (one.urls[0] if one.urls else "",), tuple[Name])
ENTRIES = Pager("ledger", lambda one: (one.id,), tuple[Number], 50, 200)
ALL_AUDITS = Pager("all-audits", lambda one: (one.audit.round, one.audit.audit), tuple[Number, Name], 50, 200)
DISPUTES = Pager("disputes", lambda one: (one.began, one.audit), tuple[Moment, Name], 50, 200)
KEYS = Pager("keys", lambda one: (one.created, one.id), tuple[Moment, Name])
SESSIONS = Pager("sessions", lambda one: (one.created, one.id), tuple[Moment, Name])
INVITATIONS = Pager("invitations", lambda one: (one.created, one.id), tuple[Moment, Name])
CHECKPOINTS = Pager("checkpoints", lambda one: (-one.round,), tuple[Behind])
IMAGES = Pager("images", lambda one: (-one.pushed, one.artifact), tuple[float, Name])
DELIVERIES = Pager("deliveries", lambda one: (one.id,), tuple[Number], 50, 200)
TRAIL = Pager("trail", lambda one: (one.id,), tuple[Number], 50, 200)
ADMIN_NODES = Pager("admin-nodes", lambda one: (one.since, one.node), tuple[Moment, Name], 50, 200)
ADMIN_JOBS = Pager("admin-jobs", lambda one: (one.created, one.id), tuple[Moment, JobId], 50, 200)
ADMIN_ROWS = Pager("admin-outbox", lambda one: (one.id,), tuple[Number], 50, 200)
