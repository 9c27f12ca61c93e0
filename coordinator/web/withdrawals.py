"""``/api/v1/withdrawals``: how a lender's earnings leave a wallet that holds no SOL."""

from aiohttp import web

from coordinator.services.jobs import ports
from coordinator.web.auth import public
from coordinator.web.auth.gate import address_of
from coordinator.web.http import API, answer, read_body
from coordinator.web.route import Route
from protocol import codec
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalAnswer,
    WithdrawalRequest,
    WithdrawalTerms,
)

MAX_QUESTION = 8 << 10  # A transaction has 1,232 bytes, 1,644 in base64.


class WithdrawalRoutes:
    """Handlers. Nobody signs in here: the signature under the transaction says whose money it is."""

    def __init__(self, withdrawals: ports.WithdrawalPort) -> None:
        self._withdrawals = withdrawals

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        base = f"{API}/withdrawals"
        offers = "What a withdrawal costs now, and the transaction for its owner to sign; or why there is none"
        take = "A transaction as its owner has signed it: signed by the coordinator, too, and sent; or why it is not"
        return [
            Route("GET", base, self.terms, "What taking earnings out costs here", WithdrawalTerms),
            Route(
                "POST",
                f"{base}/offers",
                self.offer,
                offers,
                WithdrawalAnswer,
                WithdrawalRequest,
                200,
                (403, 413, 422),
                safe=True,
            ),
            Route("POST", base, self.take, take, SentWithdrawal, SignedWithdrawal, 200, (403, 413, 422)),
        ]

    @public
    async def terms(self, _request: web.Request) -> web.Response:
        """GET withdrawals."""
        return answer(await self._withdrawals.terms())

    @public
    async def offer(self, request: web.Request) -> web.Response:
        """POST withdrawals/offers."""
        asked: WithdrawalRequest = codec.decode_json(await read_body(request, MAX_QUESTION), WithdrawalRequest)
        return answer(await self._withdrawals.offer(asked, address_of(request)))

    @public
    async def take(self, request: web.Request) -> web.Response:
        """POST withdrawals."""
        signed: SignedWithdrawal = codec.decode_json(await read_body(request, MAX_QUESTION), SignedWithdrawal)
        return answer(await self._withdrawals.take(signed, address_of(request)))
