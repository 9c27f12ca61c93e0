"""``/api/v1/admin``: what an operator sees of nodes, jobs, the outbox and files, and orders. Needs the scope ``operate``."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, get_args

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.errors import InvalidError, NotFoundError
from coordinator.services.operation.ports import NodeQuery, OperatorPort, OrderedBy
from coordinator.web import pagination as pages
from coordinator.web.auth import needs, principal
from coordinator.web.auth.gate import address_of
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer
from coordinator.web.ledger import node_of
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from protocol.ids import is_id
from protocol.rest.admin import (
    LEAST_JOB_FILES_DAYS,
    MOST_DAYS,
    AdminJob,
    AdminJobState,
    AdminNode,
    AdminNodeState,
    AdminOrder,
    AdminRow,
    AdminRowState,
    AdminStorage,
    NodeOrder,
)

S = TypeVar("S", bound=str)

MAX_SEARCH: Final = 200
NODE_STATES: Final[tuple[AdminNodeState, ...]] = get_args(AdminNodeState)
JOB_STATES: Final[tuple[AdminJobState, ...]] = get_args(AdminJobState)
ROW_STATES: Final[tuple[AdminRowState, ...]] = get_args(AdminRowState)
_ADMIN: Final = f"{API}/admin"
_SEARCH = Query(
    "search",
    "How an address begins, the node's or the one that it pays to, or a part of the name.",
    "string",
    bounds={"maxLength": MAX_SEARCH, "pattern": "^[^\\x00]*$"},
)

_KEPT: Final[Mapping[str, tuple[str, int]]] = {
    "job_files_days": ("a paid job's inputs, states and openings stayed after its end", LEAST_JOB_FILES_DAYS),
    "uploads_days": ("uploaded files stayed that no job names", 1),
}
_POLICY = tuple(
    Query(name, f"As if {what} for so many days.", bounds={"minimum": least, "maximum": MOST_DAYS})
    for name, (what, least) in _KEPT.items()
)


class OperationRoutes:
    """Handlers."""

    def __init__(self, operation: OperatorPort) -> None:
        self._operation = operation

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        return [*self._of_nodes(), *self._others()]

    def _of_nodes(self) -> list[Route]:
        node, state = f"{_ADMIN}/nodes/{{node}}", _state("nodes", NODE_STATES)
        orders = (
            ("drain", self.drain, "Give a node no new seat; those that it has go to others as these come"),
            ("undrain", self.undrain, "Let a node have seats again"),
            ("ban", self.ban, "Send a node away; nothing that was verified is taken, and no stake"),
            ("unban", self.unban, "Let a banned node come back"),
        )
        listed = "Nodes that ever were here; a page may be shorter than asked for while others follow"
        return [
            Route(
                "GET",
                f"{_ADMIN}/nodes",
                self.nodes,
                listed,
                list[AdminNode],
                queries=(_SEARCH, state),
                pager=pages.ADMIN_NODES,
            ),
            Route("GET", node, self.node, "One node, with what it holds", AdminNode),
            *(Route("POST", f"{node}/{word}", handler, text, AdminNode, AdminOrder) for word, handler, text in orders),
        ]

    def _others(self) -> list[Route]:
        jobs, outbox = "Jobs of all accounts, newest first, and what they wait for", f"{_ADMIN}/outbox"
        rows = "What the ledger has not confirmed, newest first: under way, or given up"
        files = "What lies here, and what the next sweep would remove, also by other days; it takes as long as a sweep"
        return [
            Route(
                "GET",
                f"{_ADMIN}/jobs",
                self.jobs,
                jobs,
                list[AdminJob],
                queries=(_state("jobs", JOB_STATES),),
                pager=pages.ADMIN_JOBS,
            ),
            Route(
                "POST",
                f"{_ADMIN}/jobs/{{any_job}}/cancel",
                self.cancel,
                "End a job of any account: what is verified is paid, the rest refunded",
                AdminJob,
                AdminOrder,
            ),
            Route(
                "GET",
                outbox,
                self.outbox,
                rows,
                list[AdminRow],
                queries=(_state("rows", ROW_STATES),),
                pager=pages.ADMIN_ROWS,
            ),
            Route("GET", f"{_ADMIN}/storage", self.storage, files, AdminStorage, queries=_POLICY),
        ]

    @needs(Scope.OPERATE)
    async def nodes(self, request: web.Request) -> web.Response:
        """GET admin/nodes."""
        found = await self._operation.nodes(node_query(request), pages.ADMIN_NODES.window(request))
        return pages.ADMIN_NODES.page(request, found.found, found.beyond)

    @needs(Scope.OPERATE)
    async def node(self, request: web.Request) -> web.Response:
        """GET admin/nodes/{node}."""
        return answer(await self._operation.node(node_of(request)))

    @needs(Scope.OPERATE)
    async def drain(self, request: web.Request) -> web.Response:
        """POST admin/nodes/{node}/drain."""
        return await self._order(request, "drain")

    @needs(Scope.OPERATE)
    async def undrain(self, request: web.Request) -> web.Response:
        """POST admin/nodes/{node}/undrain."""
        return await self._order(request, "undrain")

    @needs(Scope.OPERATE)
    async def ban(self, request: web.Request) -> web.Response:
        """POST admin/nodes/{node}/ban."""
        return await self._order(request, "ban")

    @needs(Scope.OPERATE)
    async def unban(self, request: web.Request) -> web.Response:
        """POST admin/nodes/{node}/unban."""
        return await self._order(request, "unban")

    @needs(Scope.OPERATE)
    async def jobs(self, request: web.Request) -> web.Response:
        """GET admin/jobs."""
        state, window = state_in(request, JOB_STATES), pages.ADMIN_JOBS.window(request)
        return pages.ADMIN_JOBS.page(request, await self._operation.jobs(state, window))

    @needs(Scope.OPERATE)
    async def cancel(self, request: web.Request) -> web.Response:
        """POST admin/jobs/{any_job}/cancel."""
        order = await read_document(request, AdminOrder)
        return answer(await self._operation.cancel(any_job(request), order.reason, ordered_by(request)))

    @needs(Scope.OPERATE)
    async def outbox(self, request: web.Request) -> web.Response:
        """GET admin/outbox."""
        window = pages.ADMIN_ROWS.window(request)
        before = None if window.after is None else window.after[0]
        return pages.ADMIN_ROWS.page(
            request, await self._operation.outbox(state_in(request, ROW_STATES), before, window.limit)
        )

    @needs(Scope.OPERATE)
    async def storage(self, request: web.Request) -> web.Response:
        """GET admin/storage."""
        return answer(await self._operation.storage(*(_days_in(request, name) for name in _KEPT)))

    async def _order(self, request: web.Request, order: NodeOrder) -> web.Response:
        told = await read_document(request, AdminOrder)
        return answer(await self._operation.order(node_of(request), order, told.reason, ordered_by(request)))


def _days_in(request: web.Request, name: str) -> int | None:
    """For how long the query would have some files stay; None: it says nothing of that.

    Raises:
        InvalidError: days that nobody may choose.
    """
    text, (_, least) = request.query.get(name), _KEPT[name]
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6 and least <= int(text) <= MOST_DAYS):
        raise InvalidError(f"{name} is {text[:40]!r}: choose {least} to {MOST_DAYS} days", name)
    return int(text)


def ordered_by(request: web.Request) -> OrderedBy:
    """Who orders something, as the trail has it."""
    who = principal(request)
    via = "session" if who.session else f"key {who.key}" if who.key else ""
    return OrderedBy(who, via, address_of(request))


def node_query(request: web.Request) -> NodeQuery:
    """Which nodes the query means.

    Raises:
        InvalidError: no state of a node, or a text that is too long or has a NUL in it.
    """
    text = request.query.get("search", "").strip()
    if len(text) > MAX_SEARCH or "\0" in text:
        raise InvalidError(f"search is longer than {MAX_SEARCH} characters, or has a NUL in it", "search")
    return NodeQuery(text, state_in(request, NODE_STATES))


def state_in(request: web.Request, states: Sequence[S]) -> S | None:
    """The state that the query names; None: any.

    Raises:
        InvalidError: one that there is not.
    """
    named = request.query.get("state") or None
    if named is not None and named not in states:
        raise InvalidError(f"state is {named[:40]!r}: it is one of {', '.join(states)}", "state")
    return next((state for state in states if state == named), None)


def any_job(request: web.Request) -> str:
    """The job that the path names, whosever it is.

    Raises:
        NotFoundError: no job's id.
    """
    job = request.match_info["any_job"]
    if not is_id(job):
        raise NotFoundError(f"{job[:40]!r} is no job: an id has 32 hexadecimal digits", "job")
    return job


def _state(what: str, states: Sequence[str]) -> Query:
    return Query("state", f"Only {what} in this state: {', '.join(states)}.", "string", bounds={"enum": tuple(states)})
