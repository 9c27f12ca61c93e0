"""The life of a job for whoever pays for it: pause, resume, stop, budget, checkpoints, logs, trying the model, comparing runs."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec
from aiohttp import hdrs, web

from common.untrusted_text import untrusted
from coordinator.domain.job import JobAction
from coordinator.errors import CottageError, InvalidError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.jobs import ports
from coordinator.web import pagination as pages
from coordinator.web.auth import principal
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer, integer, read_body
from coordinator.web.ledger import audit_id
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from coordinator.web.sending import attached, send_artifact
from coordinator.web.stream import streamed, while_there
from coordinator.web.transfers import job_id, path_number
from protocol.ids import is_id
from protocol.rest import api
from protocol.rest.records import AuditRecords

_JOB = f"{API}/jobs/{{job}}"
_CHANGES = (403, 404, 409, 422, 503)
_BYTES = "application/octet-stream"
MAX_LINES = 1_000  # Of a log in one answer.
MAX_SEARCH = 200
MAX_ID = 10**15
MAX_COMPARED = 8  # Runs at once: more lines than that on one chart tell nothing.
MAX_POINTS = 500  # Of each curve that is compared.
LEVELS = ("debug", "info", "warning", "error")
_LOG_PAGE = (
    Query("after", "Id of the last line that the caller has: only later ones, oldest first."),
    Query("before", "Only lines before this id: the newest of them."),
    Query("search", "Text that is in the line, in any case.", "string"),
    Query("level", "Of the least important lines: debug, info, warning or error; info if left out.", "string"),
    Query("limit", f"At most this many, 1 to {MAX_LINES}; 200 if left out."),
)
_COMPARED = Query("jobs", f"Ids of 1 to {MAX_COMPARED} jobs, with commas between them.", "string", required=True)
_ROUND = Query("round", "Of the checkpoint, by the rounds that are in it; the newest if left out.")


class LifeRoutes:
    """Handlers of what changes a job that is under way, and of what it leaves."""

    def __init__(self, jobs: ports.JobsPort, outputs: ports.OutputsPort, artifacts: ArtifactStore) -> None:
        self._jobs = jobs
        self._outputs = outputs
        self._artifacts = artifacts

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        pause = "Pause once the round in flight is complete, stored and audited; nothing is spent meanwhile"
        resume = "Go on where the job was paused, or take a pause back that has not begun"
        stop = "End now with the model of the newest verified checkpoint; the rest is refunded"
        budget = "Raise the cap: the test wallet deposits it, or the job's own wallet is waited for"
        compare = "Several runs beside each other: how they stand, and their loss curves"
        output = "The bucket of the submitter's own that the model goes to, and what has arrived there"
        name_it = "Send the model to a bucket of one's own once it is ready, and checkpoints as they are verified"
        end_it = "Send nothing more there, and forget its key"
        share = "Let everybody look at the job, or nobody else"
        return [
            *self._leaving(),
            Route(
                "GET",
                f"{API}/compare",
                self.compare,
                compare,
                list[api.RunCurve],
                errors=(404, 422),
                queries=(_COMPARED,),
            ),
            Route("POST", f"{_JOB}/pause", self.pause, pause, api.JobView, errors=_CHANGES),
            Route("POST", f"{_JOB}/resume", self.resume, resume, api.JobView, errors=(402, *_CHANGES)),
            Route("POST", f"{_JOB}/stop", self.stop, stop, api.JobView, errors=_CHANGES),
            Route("POST", f"{_JOB}/budget", self.budget, budget, api.JobView, api.AddBudget, errors=(402, *_CHANGES)),
            Route("GET", f"{_JOB}/output", self.output, output, api.OutputView, errors=(404,)),
            Route(
                "PUT", f"{_JOB}/output", self.set_output, name_it, api.OutputView, api.NewOutput, errors=(404, 409, 422)
            ),
            Route("DELETE", f"{_JOB}/output", self.remove_output, end_it, None, status=204, errors=(404,)),
            Route("PUT", f"{_JOB}/share", self.share, share, api.JobView, api.Share, errors=_CHANGES),
        ]

    def _leaving(self) -> list[Route]:
        point = f"{_JOB}/checkpoints/{{round}}"
        listed = "The newest states of the model that are stored, newest first"
        part = "One stage's file of a checkpoint: safetensors, its SHA-256 as the list says"
        folder = "The model of a checkpoint: a Hugging Face folder as a zip archive, made when it is first asked for"
        merged = "The newest model as a whole, an adapter merged into the weights that it adapts; made when it is first asked for"
        log = "The job's log: what the coordinator noted and its workers wrote; kept after the end"
        records = "What an audited step was opened with, to run it again: `cottage ledger challenge`"
        file = "A file of those records: the opening, or what the job's workers read"
        audit = f"{_JOB}/audits/{{audit}}/records"
        trial = "Continue a prompt with a checkpoint: events waiting, checkpoint, text, done or error"
        return [
            Route(
                "GET",
                f"{_JOB}/checkpoints",
                self.checkpoints,
                listed,
                list[api.CheckpointView],
                errors=(404,),
                pager=pages.CHECKPOINTS,
            ),
            Route("GET", f"{point}/model.zip", self.folder, folder, "application/zip", errors=(404, 422)),
            Route("GET", f"{_JOB}/merged.zip", self.merged, merged, "application/zip", errors=(404,)),
            Route("GET", f"{point}/stages/{{stage}}", self.part, part, _BYTES, errors=(404, 422)),
            Route(
                "GET",
                f"{_JOB}/logs",
                self.log,
                log,
                list[api.LogLine],
                errors=(404, 422),
                queries=_LOG_PAGE,
                listed=True,
            ),
            Route("GET", audit, self.records, records, AuditRecords, errors=(404,)),
            Route("GET", f"{audit}/{{name}}", self.record, file, _BYTES, errors=(404,)),
            Route(
                "POST",
                f"{_JOB}/generate",
                self.generate,
                trial,
                "text/event-stream",
                api.TrialRequest,
                errors=_CHANGES,
                queries=(_ROUND,),
            ),
        ]

    async def checkpoints(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/checkpoints."""
        return pages.CHECKPOINTS.cut(request, await self._outputs.checkpoints(job_id(request)))

    async def part(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/checkpoints/{round}/stages/{stage}."""
        job, round_, stage = job_id(request), path_number(request, "round"), path_number(request, "stage")
        digest = await self._outputs.part(job, round_, stage)
        name = f"{job[:8]}-round{round_}-stage{stage}.safetensors"
        return await send_artifact(request, self._artifacts, digest, attached(name, _BYTES, digest))

    async def records(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/audits/{audit}/records."""
        return answer(await self._outputs.records(job_id(request), audit_id(request)))

    async def record(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/audits/{audit}/records/{name}."""
        job, audit, name = job_id(request), audit_id(request), request.match_info["name"]
        digest = await self._outputs.record(job, audit, name)
        return await send_artifact(request, self._artifacts, digest, attached(f"{audit[:8]}-{name}", _BYTES, digest))

    async def folder(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/checkpoints/{round}/model.zip."""
        job, round_ = job_id(request), path_number(request, "round")
        digest = await self._outputs.folder(job, round_)
        headers = attached(f"{job[:8]}-round{round_}.zip", "application/zip", digest)
        return await send_artifact(request, self._artifacts, digest, headers)

    async def merged(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/merged.zip."""
        job = job_id(request)
        digest = await self._outputs.model(job)
        return await send_artifact(
            request, self._artifacts, digest, attached(f"{job[:8]}-merged.zip", "application/zip", digest)
        )

    async def log(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/logs."""
        job, search, level = job_id(request), request.query.get("search", ""), request.query.get("level", "info")
        if level not in LEVELS:
            raise InvalidError(f"level is {level[:40]!r}: give debug, info, warning or error", "level")
        if len(search) > MAX_SEARCH or "\0" in search:
            raise InvalidError(f"search is longer than {MAX_SEARCH} characters, or has a NUL in it", "search")
        after = integer(request, "after", 0, 0, MAX_ID)
        before = integer(request, "before", 0, 0, MAX_ID) if "before" in request.query else None
        limit = integer(request, "limit", 200, 1, MAX_LINES)
        found = await self._outputs.log(job, after, before, search, cast(ports.LogLevel, level), limit + 1)
        if len(found) <= limit:
            return answer(found)
        shown = found[:limit] if after else found[-limit:]  # Without ``after`` the pages lead back in time.
        beyond = {"after": shown[-1].id} if after else {"before": shown[0].id}
        return answer(shown, headers={hdrs.LINK: f'<{request.rel_url.update_query(beyond)}>; rel="next"'})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST jobs/{job}/generate: Server-Sent Events, until ``done`` or ``error``."""
        job, wanted = job_id(request), await read_document(request, api.TrialRequest)
        round_ = integer(request, "round", 0, 0, MAX_ID) if "round" in request.query else None
        async with while_there(request), aclosing(self._outputs.generate(job, round_, wanted)) as pieces:  # type: ignore[type-var]
            response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
            coming = asyncio.ensure_future(anext(pieces))

            def told(error: CottageError) -> bytes:
                return _event({"error": api.Problem(error.code, untrusted(error.detail), error.field)})

            async with streamed(request, response, coming, told) as out:
                await out.write(_event(await coming))
                async for piece in pieces:
                    await out.write(_event(piece))
        return response

    async def compare(self, request: web.Request) -> web.Response:
        """GET compare?jobs=ID,ID."""
        ids = list(dict.fromkeys(request.query.get("jobs", "").split(",")))
        if not 1 <= len(ids) <= MAX_COMPARED or any(not is_id(job) for job in ids):
            raise InvalidError(f"jobs: give the ids of 1 to {MAX_COMPARED} jobs, with commas between them", "jobs")
        curves = []
        for job in ids:
            if not await self._jobs.is_shared(job):
                await self._jobs.check_owner(job, principal(request).account_id)
            view, points = await self._jobs.get(job), await self._jobs.metrics(job, 0)
            train, validation = ([p for p in points if p.kind == kind] for kind in ("train", "validation"))
            curves.append(api.RunCurve(view, _thinned(train), _thinned(validation)))
        return answer(curves)

    async def pause(self, request: web.Request) -> web.Response:
        """POST jobs/{job}/pause."""
        return await self._ask(request, JobAction.PAUSE)

    async def resume(self, request: web.Request) -> web.Response:
        """POST jobs/{job}/resume."""
        return await self._ask(request, JobAction.RESUME)

    async def stop(self, request: web.Request) -> web.Response:
        """POST jobs/{job}/stop."""
        return await self._ask(request, JobAction.STOP)

    async def budget(self, request: web.Request) -> web.Response:
        """POST jobs/{job}/budget."""
        more = await read_document(request, api.AddBudget)
        return answer(await self._jobs.add_budget(job_id(request), more.amount))

    async def share(self, request: web.Request) -> web.Response:
        """PUT jobs/{job}/share."""
        wanted = await read_document(request, api.Share)
        return answer(await self._jobs.share(job_id(request), wanted.shared))

    async def output(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/output."""
        return answer(await self._outputs.output(job_id(request)))

    async def set_output(self, request: web.Request) -> web.Response:
        """PUT jobs/{job}/output."""
        wanted = await read_document(request, api.NewOutput)
        return answer(await self._outputs.set_output(job_id(request), principal(request).account_id, wanted))

    async def remove_output(self, request: web.Request) -> web.Response:
        """DELETE jobs/{job}/output."""
        await read_body(request)
        await self._outputs.remove_output(job_id(request))
        return web.Response(status=204)

    async def _ask(self, request: web.Request, action: JobAction) -> web.Response:
        await read_body(request)
        return answer(await self._jobs.ask(job_id(request), action))


def _event(piece: Mapping[str, Any]) -> bytes:
    """One event, named by the piece's first key, with the whole piece as its data."""
    return f"event: {next(iter(piece))}\ndata: ".encode() + msgspec.json.encode(piece) + b"\n\n"


def _thinned(points: Sequence[api.Metric]) -> tuple[api.Metric, ...]:
    """At most MAX_POINTS of a curve, evenly, with its last one."""
    step = -(-len(points) // MAX_POINTS)
    kept = points[::step] if step > 1 else points
    return (*kept, points[-1]) if points and kept[-1] is not points[-1] else tuple(kept)
