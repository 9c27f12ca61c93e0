"""The operator's pages: nodes and orders, jobs that wait, the outbox, room for files. They work without scripts."""

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.errors import CottageError, InvalidError, NotFoundError
from coordinator.services.jobs.ports import ListWindow
from coordinator.services.operation.ports import OperatorPort
from coordinator.web import pagination as pages
from coordinator.web.auth import needs
from coordinator.web.ledger import node_of
from coordinator.web.operation.routes import (
    JOB_STATES,
    NODE_STATES,
    ROW_STATES,
    any_job,
    node_query,
    ordered_by,
    state_in,
)
from coordinator.web.pages.account import read_form
from coordinator.web.pages.ledger import number_in
from coordinator.web.pages.render import Renderer
from protocol.rest.admin import MAX_REASON, NodeOrder

PER_PAGE: Final = 50
ORDERS: Final[Mapping[NodeOrder, tuple[str, tuple[str, ...], str]]] = {
    "drain": (
        "Drain it",
        (
            "It gets no new seat, in no job.",
            "A seat that it has goes to another node between two rounds, as soon as one is free; until then it works on.",
            "What it has done is paid as ever. This holds until you undrain it, also after a restart.",
        ),
        "The reason stands in the trail.",
    ),
    "undrain": ("Undrain it", ("From now on it may have seats again.",), "The reason stands in the trail."),
    "ban": (
        "Ban it",
        (
            "Its connection ends now, and it is refused when it comes back, with your reason.",
            "It loses no stake, and nothing that was verified. What nobody has looked at yet is not paid.",
            "Jobs go on with other nodes, or wait for some.",
        ),
        "Its owner reads the reason, and it stands in the trail.",
    ),
    "unban": (
        "Let it in again",
        ("It may connect and have seats again. It asks by itself every quarter of an hour.",),
        "The reason stands in the trail.",
    ),
}
"""What an order's button says, what follows from it, and who reads why."""


class OperationPages:
    """Handlers, for whoever has the scope ``operate``."""

    def __init__(self, operation: OperatorPort, renderer: Renderer) -> None:
        self._operation = operation
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        for path, handler in (
            ("/admin", self.nodes),
            ("/admin/nodes/{node}", self.node),
            ("/admin/nodes/{node}/{order}", self.ask),
            ("/admin/jobs", self.jobs),
            ("/admin/jobs/{any_job}/cancel", self.ask_to_cancel),
            ("/admin/outbox", self.outbox),
            ("/admin/storage", self.storage),
        ):
            app.router.add_get(path, handler)
        app.router.add_post("/admin/nodes/{node}/{order}", self.order)
        app.router.add_post("/admin/jobs/{any_job}/cancel", self.cancel)

    @needs(Scope.OPERATE)
    async def nodes(self, request: web.Request) -> web.Response:
        """Nodes, with a search."""
        asked, pager = node_query(request), pages.ADMIN_NODES
        found = await self._operation.nodes(asked, ListWindow(pager.window(request).after, PER_PAGE + 1))
        shown, beyond = found.found[:PER_PAGE], found.beyond
        if len(found.found) > PER_PAGE:
            beyond = pager.place(shown[-1])
        return self._renderer.page(
            request,
            "admin_nodes.html",
            nodes=shown,
            asked=asked,
            states=NODE_STATES,
            first="cursor" not in request.query,
            more=None if beyond is None else pager.cursor(beyond),
        )

    @needs(Scope.OPERATE)
    async def node(self, request: web.Request) -> web.Response:
        """One node, with what it holds and what can be done with it."""
        return self._renderer.page(request, "admin_node.html", node=await self._operation.node(node_of(request)))

    @needs(Scope.OPERATE)
    async def ask(self, request: web.Request) -> web.Response:
        """Whether a node shall be drained, banned, or let off."""
        return await self._asked(request, _order_of(request))

    @needs(Scope.OPERATE)
    async def order(self, request: web.Request) -> web.StreamResponse:
        """Do it."""
        order, node, form = _order_of(request), node_of(request), await read_form(request)
        reason = form.get("reason", "")
        try:
            await self._operation.order(node, order, _short(reason), ordered_by(request))
        except CottageError as error:
            return await self._asked(request, order, reason, error)
        raise web.HTTPSeeOther(f"/admin/nodes/{node}")

    @needs(Scope.OPERATE)
    async def jobs(self, request: web.Request) -> web.Response:
        """Jobs of all accounts, and what they wait for."""
        state, pager = state_in(request, JOB_STATES), pages.ADMIN_JOBS
        state = state or (None if request.query.get("state") == "" else "live")
        found = await self._operation.jobs(state, ListWindow(pager.window(request).after, PER_PAGE + 1))
        shown = found[:PER_PAGE]
        return self._renderer.page(
            request,
            "admin_jobs.html",
            jobs=shown,
            state=state,
            states=JOB_STATES,
            first="cursor" not in request.query,
            more=pager.cursor(pager.place(shown[-1])) if len(found) > PER_PAGE else None,
        )

    @needs(Scope.OPERATE)
    async def ask_to_cancel(self, request: web.Request) -> web.Response:
        """Whether a job shall end."""
        return await self._asked_to_cancel(request)

    @needs(Scope.OPERATE)
    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """End it."""
        job, form = any_job(request), await read_form(request)
        reason = form.get("reason", "")
        try:
            await self._operation.cancel(job, _short(reason), ordered_by(request))
        except CottageError as error:
            return await self._asked_to_cancel(request, reason, error)
        raise web.HTTPSeeOther("/admin/jobs")

    @needs(Scope.OPERATE)
    async def outbox(self, request: web.Request) -> web.Response:
        """What the ledger has not confirmed."""
        state = state_in(request, ROW_STATES)
        found = await self._operation.outbox(state, number_in(request, "before"), PER_PAGE + 1)
        return self._renderer.page(
            request,
            "admin_outbox.html",
            rows=found[:PER_PAGE],
            state=state,
            first="before" not in request.query,
            more=found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
        )

    @needs(Scope.OPERATE)
    async def storage(self, request: web.Request) -> web.Response:
        """Room for files."""
        return self._renderer.page(request, "admin_storage.html", stock=await self._operation.storage())

    async def _asked(
        self, request: web.Request, order: NodeOrder, reason: str = "", error: CottageError | None = None
    ) -> web.Response:
        node = await self._operation.node(node_of(request))
        button, follows, read = ORDERS[order]
        return self._question(
            request,
            error,
            title=f"{button.removesuffix(' it')}: {node.name or 'a node without a name'}",
            subject=node.node,
            button=button,
            follows=follows,
            read=read,
            reason=reason,
            grave=order == "ban",
            needed=order in ("ban", "unban"),
            action=f"/admin/nodes/{node.node}/{order}",
            back=f"/admin/nodes/{node.node}",
        )

    async def _asked_to_cancel(
        self, request: web.Request, reason: str = "", error: CottageError | None = None
    ) -> web.Response:
        job = await self._operation.job(any_job(request))
        return self._question(
            request,
            error,
            title=f"Cancel: {job.name}",
            subject=f"{job.id}, of {job.owner or job.account}",
            button="Cancel the job",
            follows=(
                job.sentence,
                "Training stops at once; it cannot be taken up again.",
                "Work that is done is looked at and paid, and the rest of the escrow goes back to its submitter.",
            ),
            read="The job's owner reads the reason, and it stands in the trail.",
            reason=reason,
            grave=True,
            needed=True,
            action=f"/admin/jobs/{job.id}/cancel",
            back="/admin/jobs",
        )

    def _question(self, request: web.Request, error: CottageError | None, **told: Any) -> web.Response:
        problem, status = ("", 200) if error is None else (error.detail, error.status)
        return self._renderer.page(request, "admin_ask.html", status, problem=problem, most=MAX_REASON, **told)


def _order_of(request: web.Request) -> NodeOrder:
    """The order that the path names.

    Raises:
        NotFoundError: there is none such.
    """
    order = request.match_info["order"]
    found = next((one for one in ORDERS if one == order), None)
    if found is None:
        raise NotFoundError(
            f"{order[:40]!r} is nothing that can be done with a node: it is {', '.join(ORDERS)}", "order"
        )
    return found


def _short(reason: str) -> str:
    """A reason as it was typed.

    Raises:
        InvalidError: it is longer than a line of the trail has room for.
    """
    if len(reason) > MAX_REASON:
        raise InvalidError(f"the reason has {len(reason)} characters: say it in {MAX_REASON}", "reason")
    return reason
