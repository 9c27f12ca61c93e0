"""How programs and pages come to a private session with a node of a deployment; its words never come here."""

from aiohttp import web

from coordinator.services.accounts.budgets import COMPLETIONS
from coordinator.services.serving.private import PrivatePort
from coordinator.web.auth import costs
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer
from coordinator.web.route import Route
from coordinator.web.stream import while_there
from coordinator.web.transfers import job_id
from protocol.rest.private import NewPrivateSession, PrivateSession, SealedAnswer, SealedOffer

_PATH = f"{API}/jobs/{{job}}/private"


class PrivateRoutes:
    """Handlers. Whose a deployment is, the gate has seen to."""

    def __init__(self, private: PrivatePort) -> None:
        self._private = private

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        begin = "A node of a deployment to talk with directly, and how it is reached"
        offer = "Carry a sealed WebRTC offer to the session's node, and its sealed answer back"
        one = f"{_PATH}/{{private}}"
        return [
            Route("POST", _PATH, self.begin, begin, PrivateSession, NewPrivateSession, errors=(404, 409), safe=True),
            Route("POST", one, self.offer, offer, SealedAnswer, SealedOffer, errors=(404, 409, 410), safe=True),
        ]

    @costs(COMPLETIONS)
    async def begin(self, request: web.Request) -> web.Response:
        """POST /jobs/{job}/private."""
        wanted = await read_document(request, NewPrivateSession)
        return answer(await self._private.open(job_id(request), wanted))

    @costs(COMPLETIONS)
    async def offer(self, request: web.Request) -> web.Response:
        """POST /jobs/{job}/private/{private}."""
        offered = await read_document(request, SealedOffer)
        async with while_there(request):
            sealed = await self._private.offer(job_id(request), request.match_info["private"], offered.envelope)
        return answer(SealedAnswer(sealed))
