"""What a dataset holds, asked for before anybody pays."""

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.jobs import ports
from coordinator.web.auth import costs, needs, principal
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer, integer
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from protocol.rest.dataset import Check, CheckRequest

MAX_WAIT = 20  # Seconds; proxies cut what is silent for 30.
_WAIT = Query("wait", f"Seconds that the answer may take to hold the end, at most {MAX_WAIT}.")


class CheckRoutes:
    """Handlers of the checks' route."""

    def __init__(self, checks: DatasetChecks, jobs: ports.JobsPort) -> None:
        self._checks = checks
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """One route: asking again says how far it is."""
        says = "Check a dataset row by row; the same request again says how far it is, and at the end what was found"
        refused = (403, 404, 413, 422, 503)
        return [
            Route(
                "POST",
                f"{API}/checks",
                self.check,
                says,
                Check,
                CheckRequest,
                200,
                refused,
                (_WAIT,),
                yaml=True,
                safe=True,
            )
        ]

    @costs(None)  # A new check is counted where it begins.
    @needs(Scope.DATA_WRITE)
    async def check(self, request: web.Request) -> web.Response:
        """POST checks."""
        seconds = integer(request, "wait", 0, 0, MAX_WAIT)
        asked = await read_document(request, CheckRequest)
        wanted = [("dataset.artifact", asked.dataset.artifact)]
        wanted += [("tokenizer.file", asked.tokenizer.file)] if asked.tokenizer.file is not None else []
        account_id = principal(request).account_id
        await self._jobs.check_files(account_id, wanted)
        name = await self._jobs.file_name(account_id, asked.dataset.artifact)
        return answer(await self._checks.get(asked, float(seconds), name, account_id))
