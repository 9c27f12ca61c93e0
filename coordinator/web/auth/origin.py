"""Whether a change is asked for by a page of our own: scheme, host and port must be ours, as browsers send them.

A browser leaves out the port that its scheme has by itself, in ``PageOrigin`` as in ``Host``, and writes an IPv6 address in
brackets. Source: the Fetch standard, "Origin header", and RFC 6454, section 6.2.
"""

from typing import Final, NamedTuple

from aiohttp import hdrs, web

from common.errors import UrlError
from common.urls import parse_url
from coordinator.errors import ForbiddenError

SAFE_METHODS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})


class PageOrigin(NamedTuple):
    """Where a page is from. ``host`` has no brackets, and a port is always said."""

    scheme: str
    host: str
    port: int


def origin_of(text: str) -> PageOrigin | None:
    """What ``scheme://host[:port]`` names; None where that is no page of the web ("null", another scheme, a path)."""
    try:
        url = parse_url(text, zone_needed=False)
    except UrlError:
        return None
    if text.count("/") != 2 or {"?", "#"} & set(text) or url.raw_host is None or url.port is None:
        return None
    return PageOrigin(url.scheme, url.raw_host, url.port)


def check_same_origin(request: web.Request, public_url: str | None) -> None:
    """Refuse a change that another site's page asks for in the user's browser.

    Args:
        request: as the proxy in front says that it came, where there is one.
        public_url: where browsers find the coordinator, if its operator has said so.
    Raises:
        ForbiddenError: the browser names another origin than ours.
    """
    if request.method in SAFE_METHODS:
        return
    said, site = request.headers.getall(hdrs.ORIGIN, []), request.headers.get("Sec-Fetch-Site", "none")
    ours = {origin_of(f"{request.scheme}://{request.host}")} | {origin_of(public_url or "")}
    foreign = [origin for origin in said if origin_of(origin) not in ours - {None}]
    if foreign or site not in ("none", "same-origin"):
        raise ForbiddenError(
            f"this request comes from a page of another site, {(foreign or [site])[0][:80]!r}: open the coordinator's own "
            "page. If this is its page, its operator names the address with --public-url"
        )
