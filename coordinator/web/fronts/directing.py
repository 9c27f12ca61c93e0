"""Which cell a request is about, as far as it says so itself."""

import re
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web

from coordinator.domain.cells import cell_of, cell_of_token
from coordinator.web.auth.gate import MAKERS
from coordinator.web.fronts.cell_lines import FIRST
from coordinator.web.http import API, COMPLETION, MAX_JSON_BYTES, integer
from coordinator.web.monitoring.watchers import METRICS

MAX_HELD: Final = 1 << 16  # Bytes of a body that are held, so that it can be sent a second time.
# Of one that may name another job than its path does: as much as a document may have.
MAX_HELD_DOCUMENT: Final = MAX_JSON_BYTES
# What else has such a name is no job: an upload, an audit.
_JOB: Final = re.compile(r"/(?:jobs?|models)/([0-9a-f]{32})(?:[/@:]|$)")
_MODEL: Final = re.compile(rb'"model"\s*:\s*"([0-9a-f]{32})["@:]')
_PRICED: Final = (f"{API}/quote", f"{API}/choices")
_FORM: Final = "/submit"


@dataclass(frozen=True)
class RequestWay:
    """Where a request goes.

    Attributes:
        cell: whose it is; None: that of a job which is not there yet.
        makes: it may make a job.
        held: bytes of its body that are held.
    """

    cell: int | None
    makes: bool = False
    held: int = MAX_HELD


ONE_WAY: Final = RequestWay(FIRST)
"""Where there is one cell."""


def way_of(request: web.Request, cells: int) -> RequestWay:
    """What method, path and headers say.

    Raises:
        InvalidError: figures are asked of a cell that there is not.
    """
    if cells == 1:
        return ONE_WAY
    path = request.path
    if path == METRICS:
        return RequestWay(integer(request, "cell", FIRST + 1, 1, cells) - 1)
    if (named := _JOB.search(path)) is not None:
        return RequestWay(cell_of(named[1], cells))
    if (cell := cell_of_token(_token(request), cells)) is not None:
        return RequestWay(cell)
    if path in MAKERS or path in _PRICED or path.startswith(f"{_FORM}/"):
        # A price is that of the cell where the job would be; the form's parts are asked of the same one.
        return RequestWay(None, path in MAKERS and request.method == hdrs.METH_POST, MAX_HELD_DOCUMENT)
    return RequestWay(FIRST, held=MAX_HELD_DOCUMENT if path.startswith(COMPLETION) else MAX_HELD)


def cell_in(body: bytes, cells: int) -> int | None:
    """The cell of the model that a request to answer names; a guess, which a cell corrects. None: it names none."""
    named = _MODEL.search(body)
    return None if named is None else cell_of(named[1].decode(), cells)


def _token(request: web.Request) -> str:
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
