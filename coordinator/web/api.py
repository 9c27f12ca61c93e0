"""``/api/v1``: jobs, the network, health, and the document that describes it all."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from coordinator.errors import UnavailableError
from coordinator.services.accounts.budgets import LOOKS, PRICES
from coordinator.services.jobs import ports
from coordinator.web import pagination as pages
from coordinator.web.auth import costs, principal, public, shared
from coordinator.web.documents import own_origin, read_document
from coordinator.web.http import API, answer, integer, read_body
from coordinator.web.once import RESOURCE
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from coordinator.web.stream import Streams
from coordinator.web.transfers import job_id
from protocol import codec
from protocol.job.job import JobSpec
from protocol.network import RelayEnvelope, RelayOrder, RelayQuestion
from protocol.node import IceServers
from protocol.rest import api
from protocol.rest.market import Market

MAX_POINTS = 5_000  # Points or events in one answer: half a megabyte of JSON.
MAX_AFTER = 10**15
MAX_ANNOUNCEMENT = 2 << 20  # A relay's report of a megabyte in base64, and its signature.
READY_S = 5.0
CHOICES = 8  # Prices that the answer is chosen from, about.
_JOBS, _JOB = f"{API}/jobs", f"{API}/jobs/{{job}}"
_CHANGES = (403, 404, 409, 422, 503)
_AFTER: dict[str, Any] = {"minimum": 0, "maximum": MAX_AFTER}
_AFTER_METRIC = Query("after", "How many points the caller has already: only later ones are sent.", bounds=_AFTER)
_AFTER_EVENT = Query("after", "Id of the last event that the caller has.", bounds=_AFTER)
_LIMIT = Query(
    "limit",
    f"At most this many, 1 to {MAX_POINTS:,}, which it is if left out.",
    bounds={"minimum": 1, "maximum": MAX_POINTS},
)


class Api:
    """Handlers of everything that is not a file."""

    def __init__(
        self, jobs: ports.JobsPort, network: ports.NetworkPort, market: ports.MarketPort, streams: Streams
    ) -> None:
        self._jobs = jobs
        self._network = network
        self._market = market
        self._streams = streams
        self._document: Callable[[], dict[str, Any]] = dict

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        return [*self._submitting(), *self._changing(), *self._reading(), *self._around()]

    def _submitting(self) -> list[Route]:
        priced = "What a job would take and cost on the network as it is"
        refused = (402, 403, 404, 409, 413, 422, 503)
        made = "Submit a job; it waits for its escrow"
        cheaper = "Other jobs that would be cheaper or sooner, each quoted"
        return [
            Route("POST", f"{API}/quote", self.quote, priced, api.Quote, JobSpec, 200, refused, yaml=True, safe=True),
            Route(
                "POST",
                f"{API}/choices",
                self.choices,
                cheaper,
                tuple[api.Choice, ...],
                JobSpec,
                200,
                refused,
                yaml=True,
                safe=True,
            ),
            Route("POST", _JOBS, self.create, made, api.JobView, api.NewJob, 201, refused, yaml=True),
        ]

    def _changing(self) -> list[Route]:
        fund = "Look for the escrow; the test wallet opens it first"
        cancel = "Stop, pay what is verified, refund the rest"
        return [
            Route("POST", f"{_JOB}/fund", self.fund, fund, api.JobView, errors=(402, *_CHANGES)),
            Route("POST", f"{_JOB}/cancel", self.cancel, cancel, api.JobView, errors=_CHANGES),
        ]

    def _reading(self) -> list[Route]:
        parts = (
            ("rounds", self._jobs.rounds, pages.ROUNDS, "Outer rounds, with their losses", api.RoundView),
            (
                "commits",
                self._jobs.commits,
                pages.COMMITS,
                "The nodes' commitments, and what each brought",
                api.CommitView,
            ),
            ("audits", self._jobs.audits, pages.AUDITS, "Audits, drawn and concluded", api.AuditView),
            ("receipts", self._jobs.receipts, pages.RECEIPTS, "Ledger transactions of the job", api.Receipt),
        )
        later = (
            ("metrics", self._jobs.metrics, _counted, "Points of the loss curves", list[api.Metric], _AFTER_METRIC),
            ("events", self._jobs.events, _last_id, "What happened", list[api.JobEvent], _AFTER_EVENT),
        )
        live, stream = "The job live: events job, metrics, events, end", "text/event-stream"
        seats, escrow = "Each node's part in the job", "What the wallet must put into escrow"
        return [
            Route("GET", _JOBS, self.list_jobs, "Jobs, newest first", list[api.JobView], pager=pages.JOBS),
            Route("GET", _JOB, self.get, "One job", api.JobView),
            Route("GET", f"{_JOB}/funding", self.funding, escrow, api.Funding),
            Route("GET", f"{_JOB}/nodes", self.seats, seats, list[api.JobNode], pager=pages.SEATS),
            *(
                Route("GET", f"{_JOB}/{name}", _part(read, pager), text, list[kind], pager=pager)  # type: ignore[valid-type]
                for name, read, pager, text, kind in parts
            ),
            *(
                Route("GET", f"{_JOB}/{name}", _later(read, last), text, kind, queries=(query, _LIMIT), listed=True)
                for name, read, last, text, kind, query in later
            ),
            Route("GET", f"{_JOB}/stream", self.stream, live, stream, errors=(404,)),
        ]

    def _around(self) -> list[Route]:
        live, stream = "The network live: event network", "text/event-stream"
        ready = "The database and the ledger answer"
        report = "A relay tells how it is; signed by its key, which the operator has allowed"
        refused = (403, 409, 413, 422)
        ask = "A node asks for credentials at every relay, to measure them; signed by its key"
        return [
            Route("GET", f"{API}/nodes", self.nodes, "Nodes of the network", list[api.NodeView], pager=pages.NODES),
            Route("GET", f"{API}/relays", self.relays, "Relays, and for whom", list[api.RelayView], pager=pages.RELAYS),
            Route("POST", f"{API}/relays/announce", self.announce, report, RelayOrder, RelayEnvelope, 200, refused),
            Route("POST", f"{API}/relays/credentials", self.credentials, ask, IceServers, RelayQuestion, 200, refused),
            Route("GET", f"{API}/network", self.view, "The network at a glance", api.NetworkView),
            Route("GET", f"{API}/market", self.market, "Price and demand, and what machines were paid", Market),
            Route("GET", f"{API}/network/stream", self.network_stream, live, stream),
            Route("GET", "/healthz", self.health, "The process answers", dict[str, str]),
            Route("GET", "/readyz", self.ready, ready, dict[str, str]),
            Route("GET", "/openapi.json", self.describe, "This document", dict[str, Any]),
        ]

    def describe_with(self, document: Callable[[], dict[str, Any]]) -> None:
        """Take what ``/openapi.json`` serves."""
        self._document = document

    @costs(PRICES)
    async def quote(self, request: web.Request) -> web.Response:
        """POST quote."""
        spec = await read_document(request, JobSpec)
        await own_origin(request, self._jobs, spec)
        return answer(await self._jobs.quote(spec, principal(request).account_id))

    @costs(PRICES, CHOICES)
    async def choices(self, request: web.Request) -> web.Response:
        """POST choices."""
        spec = await read_document(request, JobSpec)
        await own_origin(request, self._jobs, spec)
        return answer(await self._jobs.choices(spec))

    async def create(self, request: web.Request) -> web.Response:
        """POST jobs."""
        new, account = await read_document(request, api.NewJob), principal(request).account_id
        await own_origin(request, self._jobs, new.spec, whole=True)
        made = await self._jobs.create(new, account, request.get(RESOURCE))
        return answer(made, 201, {"Location": f"{API}/jobs/{made.id}"})

    async def list_jobs(self, request: web.Request) -> web.Response:
        """GET jobs."""
        window = pages.JOBS.window(request)
        found = await self._jobs.list(window.limit, window.after, principal(request).account_id)
        return pages.JOBS.page(request, found)

    @shared
    async def get(self, request: web.Request) -> web.Response:
        """GET jobs/{job}."""
        return answer(await self._jobs.get(job_id(request)))

    async def funding(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/funding."""
        return answer(await self._jobs.funding(job_id(request)))

    @shared
    async def seats(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/nodes."""
        return pages.SEATS.cut(request, await self._jobs.nodes(job_id(request)))

    @costs(LOOKS)
    async def fund(self, request: web.Request) -> web.Response:
        """POST jobs/{job}/fund."""
        await read_body(request)
        return answer(await self._jobs.fund(job_id(request)))

    async def cancel(self, request: web.Request) -> web.Response:
        """POST jobs/{job}/cancel."""
        await read_body(request)
        return answer(await self._jobs.cancel(job_id(request)))

    @shared
    async def stream(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/stream."""
        return await self._streams.job(request, job_id(request))

    @public
    async def nodes(self, request: web.Request) -> web.Response:
        """GET nodes."""
        return pages.NODES.cut(request, await self._network.nodes())

    @public
    async def relays(self, request: web.Request) -> web.Response:
        """GET relays."""
        return pages.RELAYS.cut(request, await self._network.relays())

    @public
    async def announce(self, request: web.Request) -> web.Response:
        """POST relays/announce."""
        body = await read_body(request, MAX_ANNOUNCEMENT)
        envelope: RelayEnvelope = codec.decode_json(body, RelayEnvelope, MAX_ANNOUNCEMENT)
        return answer(await self._network.announce_relay(envelope))

    @public
    async def credentials(self, request: web.Request) -> web.Response:
        """POST relays/credentials."""
        question: RelayQuestion = codec.decode_json(await read_body(request), RelayQuestion)
        return answer(await self._network.relay_credentials(question, request.host[:200]))

    @public
    async def view(self, _request: web.Request) -> web.Response:
        """GET network."""
        return answer(await self._network.view())

    @public
    async def market(self, _request: web.Request) -> web.Response:
        """GET market."""
        return answer(await self._market.now())

    @public
    async def network_stream(self, request: web.Request) -> web.StreamResponse:
        """GET network/stream."""
        return await self._streams.network(request)

    @public
    async def health(self, _request: web.Request) -> web.Response:
        """GET /healthz."""
        return answer({"status": "ok"})

    @public
    async def ready(self, _request: web.Request) -> web.Response:
        """GET /readyz."""
        try:
            async with asyncio.timeout(READY_S):
                await self._network.view()
        except TimeoutError as error:
            raise UnavailableError(f"the database did not answer within {READY_S:g} s: try again") from error
        return answer({"status": "ready"})

    @public
    async def describe(self, _request: web.Request) -> web.Response:
        """GET /openapi.json."""
        return answer(self._document())


def _part(read: Callable[[str, ports.ListWindow], Awaitable[Sequence[Any]]], pager: pages.Pager) -> Handler:
    @shared
    async def handler(request: web.Request) -> web.Response:
        return pager.page(request, await read(job_id(request), pager.window(request)))

    return handler


def _later(
    read: Callable[[str, int, int], Awaitable[Sequence[Any]]], last: Callable[[int, Sequence[Any]], int]
) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        after, limit = integer(request, "after", 0, 0, MAX_AFTER), integer(request, "limit", MAX_POINTS, 1, MAX_POINTS)
        found = await read(job_id(request), after, limit + 1)
        headers: dict[str, str] = {}
        if len(found) > limit:
            there = request.rel_url.update_query(after=last(after, found[:limit]))
            headers[hdrs.LINK] = f'<{there}>; rel="next"'
        return answer(found[:limit], headers=headers)

    return shared(handler)


def _counted(after: int, points: Sequence[api.Metric]) -> int:
    return after + len(points)


def _last_id(_after: int, events: Sequence[api.JobEvent]) -> int:
    return events[-1].id
