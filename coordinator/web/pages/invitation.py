"""The page of an invitation to this network: a link that opens the app, the address, and a picture of both for a camera."""

from functools import lru_cache

import segno
from aiohttp import web
from markupsafe import Markup

from common.errors import InvitationError
from common.invitations import Invitation, read
from common.urls import is_loopback
from coordinator.services.jobs import ports
from coordinator.web.auth import public
from coordinator.web.pages.render import Renderer, server_of

QUIET = 4  # Modules of white around it, as ISO/IEC 18004 asks for.


class InvitationPage:
    """Handler of the page. ``public_url``: where others find this coordinator, if its operator has said so."""

    def __init__(self, network: ports.NetworkPort, renderer: Renderer, public_url: str | None) -> None:
        self._network = network
        self._renderer = renderer
        self._public_url = public_url

    def register(self, app: web.Application) -> None:
        """Add the page to ``app``."""
        app.router.add_get("/join", self.page)

    @public
    async def page(self, request: web.Request) -> web.Response:
        """``key``: of the invitation that led here, which this coordinator may not hold."""
        view = await self._network.view()
        url = (self._public_url or server_of(request)).rstrip("/")
        invitation = Invitation(url, view.coordinator, _code_in(request))
        asked = request.query.get("key", "")[:60]
        return self._renderer.page(
            request,
            "join.html",
            invitation=invitation,
            picture=picture(invitation.page),
            rule=view.who_may_lend,
            other=asked if asked and asked != view.coordinator else "",
            only_here=self._public_url is None and is_loopback(request.host),
        )


def _code_in(request: web.Request) -> str:
    """The code of the invitation that led here; one that is damaged is none.

    It is shown to who has it already, in a page that no cache keeps.
    """
    try:
        return read(f"cottage://join?at=http://localhost&code={request.query.get('code', '')[:200]}").code
    except InvitationError:
        return ""


@lru_cache(256)  # Mostly of the one page that everybody is shown; each takes ten times as long as the rest of it.
def picture(text: str) -> Markup:
    """``text`` as a QR code, an inline drawing without a style of its own: black on white by night, too, as cameras want it."""
    code = segno.make(text, error="m", micro=False)
    size = code.symbol_size(border=QUIET)[0]
    path = code.svg_inline(border=QUIET, svgclass=None, lineclass=None, omitsize=True, light="#fff")
    named = path.replace("<svg", '<svg role="img" aria-label="QR code of this invitation" class="qr"', 1)
    assert f"0 0 {size} {size}" in named
    return Markup(named)  # noqa: S704 - digits and letters of the library's own.
