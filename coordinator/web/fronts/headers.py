"""Headers of what a front leads: those that go on, and who asks."""

from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web
from multidict import CIMultiDict

from coordinator.web.auth.gate import as_the_proxy_says
from coordinator.web.fronts.seal import CELL, FRONT, NONCE, STANDS_BY, FrontSeal

_OF_ONE_HOP: Final = frozenset(
    name.lower()
    for name in (
        hdrs.CONNECTION,
        hdrs.KEEP_ALIVE,
        hdrs.PROXY_AUTHENTICATE,
        hdrs.PROXY_AUTHORIZATION,
        hdrs.TE,
        hdrs.TRAILER,
        hdrs.TRANSFER_ENCODING,
        hdrs.UPGRADE,
        hdrs.EXPECT,
        hdrs.X_FORWARDED_FOR,
        hdrs.X_FORWARDED_PROTO,
        FRONT,
        STANDS_BY,
        NONCE,
        CELL,
    )
)

_OF_NODE: Final = tuple(name.lower() for name in (hdrs.HOST, hdrs.USER_AGENT, FRONT, "X-Forwarded"))


class FrontHeaders:
    """Makes those of what goes to a coordinator at work. ``behind_proxy``: as in ``Config``."""

    def __init__(self, seal: FrontSeal, behind_proxy: bool) -> None:
        self._seal, self._behind_proxy = seal, behind_proxy

    def asking(self, request: web.Request) -> web.Request:
        """The request as it came from whoever asks, as far as this one knows."""
        return as_the_proxy_says(request) if self._behind_proxy else request

    def of(self, request: web.Request, kept: tuple[str, ...] = ()) -> CIMultiDict[str]:
        """Those that came, and who asks."""
        asking = self.asking(request)
        headers = end_to_end(request.headers, kept)
        headers.update(self._seal.headers)
        headers[hdrs.X_FORWARDED_FOR] = asking.remote or ""
        headers[hdrs.X_FORWARDED_PROTO] = asking.scheme
        return headers

    def of_node(self, request: web.Request, nonce: bytes | None = None) -> CIMultiDict[str]:
        """Those of a node's connection. ``nonce``: what it was challenged with under the name that it asked for, if it was."""
        came = self.of(request)
        headers = CIMultiDict({name: value for name, value in came.items() if name.lower().startswith(_OF_NODE)})
        if nonce is not None:
            headers[hdrs.HOST] = request.host
            headers[NONCE] = nonce.hex()
        return headers


def end_to_end(headers: Mapping[str, str], kept: tuple[str, ...]) -> CIMultiDict[str]:
    """Headers that are not of one hop alone; the length of a body where it is ``kept``."""
    lengths = {hdrs.CONTENT_LENGTH.lower()} - {name.lower() for name in kept}
    named = {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    dropped = _OF_ONE_HOP | lengths | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
