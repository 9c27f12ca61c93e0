"""``/api/v1/ledger`` and what else lets anybody watch the money: transactions, audits, totals, accounts, evidence."""

import re

from aiohttp import web

from coordinator.errors import InvalidError, NotFoundError
from coordinator.services.jobs import ports
from coordinator.web import pagination as pages
from coordinator.web.auth import public
from coordinator.web.http import API, answer
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from coordinator.web.transfers import job_id
from protocol.disputes import DisputeDetail, DisputeView
from protocol.evidence import RoundEvidence
from protocol.ids import ID_PATTERN, is_id
from protocol.rest import ledger

KINDS = ("fund", "accept", "event", "settle", "promise", "refund", "slash", "verdict", "table")
AUDIT_STATES = ("drawn", "opening", "showing", "replaying", "passed", "failed", "void")
MAX_ID = 2**62
MAX_ROUND = 10**6
_KINDS = "^({0})(,({0}))*$".format("|".join(KINDS))
_ADDRESS = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,44}")
_OF_JOB = Query("job", "Only those of this job.", "string", bounds={"pattern": ID_PATTERN})


class LedgerRoutes:
    """Handlers of what the ledger's pages show too."""

    def __init__(self, books: ports.LedgerPort) -> None:
        self._books = books

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        return [*self._lists(), *self._details()]

    def _lists(self) -> list[Route]:
        kind = Query(
            "kind", f"Only these kinds, separated by commas: {', '.join(KINDS)}.", "string", bounds={"pattern": _KINDS}
        )
        state = Query(
            "state", f"Only audits in this state: {', '.join(AUDIT_STATES)}.", "string", bounds={"enum": AUDIT_STATES}
        )
        entries, audits = list[ledger.LedgerEntry], list[ledger.NodeAudit]
        return [
            Route(
                "GET",
                f"{API}/ledger",
                self.entries,
                "Ledger transactions of all jobs, newest first",
                entries,
                errors=(404,),
                queries=(kind, _OF_JOB),
                pager=pages.ENTRIES,
            ),
            Route(
                "GET",
                f"{API}/ledger/audits",
                self.audits,
                "Audits of all jobs, those of the latest rounds first",
                audits,
                queries=(state, _OF_JOB),
                pager=pages.ALL_AUDITS,
            ),
            Route(
                "GET",
                f"{API}/disputes",
                self.disputes,
                "Disputes of all jobs, newest first",
                list[DisputeView],
                queries=(_OF_JOB,),
                pager=pages.DISPUTES,
            ),
        ]

    def _details(self) -> list[Route]:
        proof = "What is published about a round: commitments, draw, audits and shares, whose Merkle roots are on the ledger"
        return [
            Route(
                "GET",
                f"{API}/disputes/{{audit}}",
                self.dispute,
                "A dispute, with every answer once it is over",
                DisputeDetail,
                errors=(404,),
            ),
            Route("GET", f"{API}/ledger/totals", self.totals, "Where all the money is", ledger.LedgerTotals),
            Route(
                "GET",
                f"{API}/jobs/{{job}}/ledger",
                self.job,
                "A job's escrow, as the ledger has it",
                ledger.JobLedger,
                errors=(404,),
            ),
            Route(
                "GET",
                f"{API}/jobs/{{job}}/promise",
                self.promise,
                "What a job's payees can claim from the ledger",
                ledger.PromiseView,
                errors=(404,),
            ),
            Route(
                "GET",
                f"{API}/jobs/{{job}}/rounds/{{round}}/evidence",
                self.evidence,
                proof,
                list[RoundEvidence],
                errors=(404,),
            ),
            Route(
                "GET",
                f"{API}/nodes/{{node}}",
                self.node,
                "A node's stake, audits and earnings",
                ledger.NodeAccount,
                errors=(404,),
            ),
        ]

    @public
    async def entries(self, request: web.Request) -> web.Response:
        """GET ledger."""
        window = pages.ENTRIES.window(request)
        before = None if window.after is None else window.after[0]
        found = await self._books.entries(kinds(request), job_of(request), before, window.limit)
        return pages.ENTRIES.page(request, found)

    @public
    async def audits(self, request: web.Request) -> web.Response:
        """GET ledger/audits."""
        window = pages.ALL_AUDITS.window(request)
        found = await self._books.audits(audit_state(request), job_of(request), 0, window.limit, window.after)
        return pages.ALL_AUDITS.page(request, found)

    @public
    async def disputes(self, request: web.Request) -> web.Response:
        """GET disputes."""
        window = pages.DISPUTES.window(request)
        return pages.DISPUTES.page(request, await self._books.disputes(job_of(request), 0, window.limit, window.after))

    @public
    async def dispute(self, request: web.Request) -> web.Response:
        """GET disputes/{audit}."""
        return answer(await self._books.dispute(audit_id(request)))

    @public
    async def totals(self, _request: web.Request) -> web.Response:
        """GET ledger/totals."""
        return answer(await self._books.totals())

    @public
    async def job(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/ledger."""
        return answer(await self._books.job(job_id(request)))

    @public
    async def promise(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/promise."""
        return answer(await self._books.promise(job_id(request)))

    @public
    async def evidence(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/rounds/{round}/evidence."""
        return answer(await self._books.evidence(job_id(request), round_of(request)))

    @public
    async def node(self, request: web.Request) -> web.Response:
        """GET nodes/{node}."""
        return answer(await self._books.node(node_of(request)))


def kinds(request: web.Request) -> tuple[str, ...]:
    """The kinds that the query names; empty for all.

    Raises:
        InvalidError: one that there is not.
    """
    named = tuple(word for word in request.query.get("kind", "").split(",") if word)
    if unknown := [word for word in named if word not in KINDS]:
        raise InvalidError(f"kind is {unknown[0][:40]!r}: it is one of {', '.join(KINDS)}", "kind")
    return named


def audit_state(request: web.Request) -> str | None:
    """The state that the query names.

    Raises:
        InvalidError: one that there is not.
    """
    state = request.query.get("state") or None
    if state is not None and state not in AUDIT_STATES:
        raise InvalidError(f"state is {state[:40]!r}: it is one of {', '.join(AUDIT_STATES)}", "state")
    return state


def job_of(request: web.Request) -> str | None:
    """The job that the query names.

    Raises:
        InvalidError: no job's id.
    """
    job = request.query.get("job") or None
    if job is not None and not is_id(job):
        raise InvalidError(f"job is {job[:40]!r}: an id has 32 hexadecimal digits", "job")
    return job


def audit_id(request: web.Request) -> str:
    """The audit that the path names.

    Raises:
        NotFoundError: no audit's id.
    """
    audit = request.match_info["audit"]
    if not is_id(audit):
        raise NotFoundError(f"{audit[:40]!r} is no audit: an id has 32 hexadecimal digits", "audit")
    return audit


def node_of(request: web.Request) -> str:
    """The node that the path names.

    Raises:
        NotFoundError: no address.
    """
    node = request.match_info["node"]
    if not _ADDRESS.fullmatch(node):
        raise NotFoundError(f"{node[:60]!r} is no node: an address has 32 to 44 characters of base58", "node")
    return node


def round_of(request: web.Request) -> int:
    """The round that the path names, counted from 0.

    Raises:
        NotFoundError: no number of a round.
    """
    text = request.match_info["round"]
    if not text.isascii() or not text.isdigit() or len(text) > 7 or int(text) > MAX_ROUND:
        raise NotFoundError(f"{text[:40]!r} is no round: they are numbered from 0", "round")
    return int(text)
