"""What a coordinator at work says where a request is about a job of another cell: nothing was done, and who has it."""

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from common.untrusted_text import untrusted
from coordinator.errors import OtherCellError
from coordinator.web.fronts.seal import CELL, FrontSeal
from coordinator.web.http import problem_answer
from protocol.rest.api import Problem

MISDIRECTED: Final = 421


def misdirected(seal: FrontSeal) -> Middleware:
    """What answers it; it stands before everything that makes errors into answers. Fronts alone are told the cell's number."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except OtherCellError as error:
            said = f"{error}: send this to the network's own address, where requests are led to their cells"
            told = problem_answer(request, MISDIRECTED, Problem("http", untrusted(said)))
            if seal.is_on(request.headers):
                told.headers[CELL] = str(error.cell)
            return told

    return answer
