"""The ledger's pages: every transaction and audit, a job's escrow, a node's account, a round and what proves it."""

import json
from typing import Any

from aiohttp import web

from coordinator.errors import NotFoundError
from coordinator.services.jobs import ports
from coordinator.web.auth import public
from coordinator.web.ledger import AUDIT_STATES, MAX_ID, audit_state, job_of, node_of, round_of
from coordinator.web.pages.render import Renderer, server_of
from coordinator.web.transfers import job_id
from protocol.evidence import RootOf, RoundEvidence, leaf_bytes, leaves_of
from protocol.rest.ledger import LedgerEntry

PER_PAGE = 50
MAX_ENTRIES_OF_JOB = 500  # On its ledger page; all of them are in the interface.
# What the ledger page can be narrowed to: word in the address, kinds, label.
FILTERS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("all", (), "Everything"),
    ("payouts", ("settle", "promise"), "Payouts"),
    ("escrows", ("fund", "refund"), "Deposits and refunds"),
    ("slashes", ("slash", "verdict"), "Slashes"),
    ("records", ("accept", "event", "table"), "Records"),
)


class LedgerPages:
    """Handlers of the pages about money and what it was paid for."""

    def __init__(self, jobs: ports.JobsPort, books: ports.LedgerPort, renderer: Renderer) -> None:
        self._jobs = jobs
        self._books = books
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        for path, handler in (
            ("/ledger", self.ledger),
            ("/ledger/audits", self.audits),
            ("/ledger/job/{job}", self.job),
            ("/ledger/node/{node}", self.moved),
            ("/nodes/{node}", self.node),
            ("/jobs/{job}/rounds/{round}", self.round),
        ):
            app.router.add_get(path, handler)

    @public
    async def ledger(self, request: web.Request) -> web.Response:
        """Transactions, newest first, in pages."""
        shown = request.query.get("show", "all")
        kinds = next((kinds for word, kinds, _ in FILTERS if word == shown), ())
        shown = shown if any(word == shown for word, _, _ in FILTERS) else "all"
        before, job = number_in(request, "before"), job_of(request)
        found = list(await self._books.entries(kinds, job, before or MAX_ID, PER_PAGE + 1))
        return self._renderer.page(
            request,
            "ledger.html",
            totals=await self._books.totals(),
            entries=found[:PER_PAGE],
            more=found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
            first=before is None,
            shown=shown,
            job=job,
            filters=FILTERS,
            told=told,
        )

    @public
    async def audits(self, request: web.Request) -> web.Response:
        """Audits of all jobs, in pages."""
        offset, state, job = number_in(request, "offset") or 0, audit_state(request), job_of(request)
        found = list(await self._books.audits(state, job, offset, PER_PAGE + 1))
        return self._renderer.page(
            request,
            "audits.html",
            audits=found[:PER_PAGE],
            more=offset + PER_PAGE if len(found) > PER_PAGE else None,
            first=offset == 0,
            state=state,
            states=AUDIT_STATES,
            job=job,
            filters=FILTERS,
        )

    @public
    async def job(self, request: web.Request) -> web.Response:
        """A job's escrow, its transactions, and how to check them."""
        job = job_id(request)
        complete = [one for one in await self._jobs.rounds(job) if one.state == "complete" and one.tokens]
        return self._renderer.page(
            request,
            "ledger_job.html",
            job=await self._jobs.get(job),
            books=await self._books.job(job),
            nodes=await self._jobs.nodes(job),
            rounds=sorted({one.round for one in complete}, reverse=True),
            entries=await self._books.entries((), job, None, MAX_ENTRIES_OF_JOB),
            server=server_of(request),
            told=told,
        )

    @public
    async def moved(self, request: web.Request) -> web.StreamResponse:
        """A node's transactions stand on its own page."""
        raise web.HTTPFound(f"/nodes/{node_of(request)}#payouts")

    @public
    async def node(self, request: web.Request) -> web.Response:
        """A node's account."""
        account = await self._books.node(node_of(request))
        return self._renderer.page(request, "node.html", account=account, node=account.node, told=told)

    @public
    async def round(self, request: web.Request) -> web.Response:
        """A round, counted from 1 as people do, and everything that proves it."""
        job, number = job_id(request), round_of(request) - 1
        if number < 0:
            raise NotFoundError("there is no round 0: on the pages rounds are counted from 1", "round")
        view, parts = await self._jobs.get(job), await self._jobs.nodes(job)
        found = await self._books.evidence(job, number)
        return self._renderer.page(
            request,
            "round.html",
            job=view,
            number=number,
            found=[_round(one) for one in found],
            names={part.node: part.name for part in parts},
            server=server_of(request),
        )


def told(entry: LedgerEntry) -> list[tuple[str, str]]:
    """What a transaction carries, as pairs: payees and amounts, the node that was slashed, a record's own words."""
    if entry.kind != "event":
        return [(name, str(value)) for name, value in entry.payload.items()]
    try:
        document = json.loads(str(entry.payload.get("text", "")))
    except ValueError:
        return [("text", str(entry.payload.get("text", "")))]
    return [(name, json.dumps(value) if isinstance(value, list) else str(value)) for name, value in document.items()]


def _round(found: RoundEvidence) -> dict[str, Any]:
    """A round's evidence as the page wants it: by lease, and the leaves as they are hashed."""
    whats: tuple[RootOf, ...] = ("commitments", "outcome") if found.concluded else ("commitments",)
    shares = {(share.stage, share.replica): share for share in found.shares}
    return {
        "evidence": found,
        "rows": [(one, shares[one.stage, one.replica]) for one in found.commitments],
        "leaves": {what: [leaf_bytes(leaf).decode() for leaf in leaves_of(found, what)] for what in whats},
    }


def number_in(request: web.Request, name: str) -> int | None:
    """A number from a link of ours; whatever else somebody typed is no number."""
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) <= 15 else None
