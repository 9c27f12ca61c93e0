"""Templates, and what they may call."""

import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2
from aiohttp import web
from markupsafe import Markup

from common.untrusted_text import untrusted_lines
from coordinator.client import deployments, text
from coordinator.domain.account import Principal
from coordinator.errors import ForbiddenError
from coordinator.web.auth import visitor
from coordinator.web.pages import chart, curves
from coordinator.web.pages.fresh import is_live, pack, packed
from protocol.datasets.file_formats import WORDS

WEB_FOLDER: Final = Path(__file__).resolve().parent.parent
STATIC_FOLDER: Final = WEB_FOLDER / "static"
CSRF_COOKIE: Final = "cottage_csrf"
CSRF_FIELD: Final = "csrf"

# How states look: an icon and a colour, always beside the word.
JOB_LOOKS: Final = {
    "created": ("coin", "warn"),
    "funded": ("wait", ""),
    "planned": ("plan", ""),
    "running": ("run", "live"),
    "paused": ("clock", "warn"),
    "verifying": ("shield", "live"),
    "settled": ("check", "good"),
    "failed": ("cross", "bad"),
    "cancelled": ("stop", ""),
}
NODE_LOOKS: Final = {
    "starting": ("wait", ""),
    "ready": ("check", ""),
    "training": ("run", "live"),
    "waiting": ("clock", ""),
    "spare": ("spare", ""),
    "auditor": ("shield", ""),
    "lost": ("cross", "bad"),
    "rejected": ("stop", "bad"),
    "done": ("check", "good"),
}
SERVING_LOOKS: Final = {
    **NODE_LOOKS,
    "loading": ("wait", ""),
    "waits for the others": ("clock", ""),
    "answers": ("run", "live"),
}
ARRAY_LOOKS: Final = {**NODE_LOOKS, "runs": ("run", "live")}
CHECK_LOOKS: Final = {
    "pending": ("clock", ""),
    "verified": ("check", "good"),
    "rejected": ("cross", "bad"),
    "void": ("stop", ""),
    "drawn": ("dot", ""),
    "opening": ("wait", ""),
    "showing": ("wait", ""),
    "replaying": ("run", "live"),
    "passed": ("check", "good"),
    "failed": ("cross", "bad"),
    "queued": ("clock", ""),
    "sent": ("wait", ""),
    "confirmed": ("check", "good"),
}
ENTRY_LOOKS: Final = {
    "deposit": ("download", ""),
    "acceptance": ("check", ""),
    "payout": ("coin", "good"),
    "refund": ("upload", ""),
    "slash": ("cross", "bad"),
    "promise": ("coin", ""),
    "verdict": ("shield", ""),
    "record": ("pen", ""),
    "payees": ("plan", ""),
}
ENTRY_WORDS: Final = {
    "fund": "deposit",
    "settle": "payout",
    "promise": "promise",
    "refund": "refund",
    "slash": "slash",
    "verdict": "verdict",
    "accept": "acceptance",
    "event": "record",
    "table": "payees",
}
EVENT_ICONS: Final = {
    "created": "pen",
    "funded": "coin",
    "planned": "plan",
    "assigned": "plan",
    "spare": "spare",
    "auditor": "shield",
    "ready": "check",
    "running": "run",
    "round": "dot",
    "validation": "eye",
    "differs": "alert",
    "audit": "shield",
    "void": "alert",
    "fault": "alert",
    "lost": "plug",
    "rejected": "stop",
    "slashed": "stop",
    "ledger": "alert",
    "paid": "coin",
    "refund": "coin",
    "refunded": "coin",
    "model": "node",
    "paused": "clock",
    "verifying": "shield",
    "settled": "check",
    "failed": "cross",
    "cancelled": "stop",
    "budget": "coin",
    "spent": "coin",
    "promised": "coin",
    "shared": "eye",
    "evaluation": "eye",
    "joined": "node",
    "limit": "wait",
    "unused": "wait",
    "crowded": "wait",
    "period": "plan",
    "crossing": "plan",
    "moved": "plan",
    "stake": "alert",
    "overflow": "alert",
    "element": "alert",
    "dispute": "shield",
    "pausing": "pause",
    "ending": "clock",
    "stopping": "stop",
    "resumed": "run",
    "restored": "upload",
}
"""Of each kind of event, a picture of ``static/icons.svg``."""

# Address, name, and the addresses that belong under it.
NAVIGATION: Final = (
    ("/network", "Network", ("/network", "/machines", "/lenders", "/status", "/nodes/")),
    ("/runs", "Runs", ("/runs",)),
    ("/jobs", "Jobs", ("/jobs", "/compare", "/playground")),
    ("/earn", "Lend", ("/earn", "/earnings", "/download", "/join")),
    ("/ledger", "Ledger", ("/ledger",)),
    ("/docs", "Docs", ("/docs",)),
)
RULE_WORDS: Final = {
    "everybody": "Every computer may lend here.",
    "invited": "Only computers that were invited may lend here.",
    "listed": "Only computers on the operator's list, and those of owners on it, may lend here.",
    "verified": "Only computers of people who sign in here through their organisation may lend here.",
}
INCIDENT_WORDS: Final = {
    "lost": "Nodes lost",
    "fault": "Faults of nodes",
    "void": "Rounds lost",
    "rejected": "Work rejected",
    "slashed": "Stakes slashed",
    "ledger": "Ledger failed",
    "failed": "Jobs failed",
}
SERVING_FILTERS: Final = (
    "answered",
    "bits_words",
    "drawn_again",
    "hours",
    "memory_words",
    "nodes_sentence",
    "seat_word",
    "under_way",
    "whose_hour",
)
"""Functions of ``deployments`` that templates have as filters."""


def _shown(value: object) -> object:
    """What a page shows of a value: escaped after this, and without what deceives a reader before it."""
    return untrusted_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def environment() -> jinja2.Environment:
    """One for all coordinators of a process, which carries a cell each: each template is compiled once."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB_FOLDER / "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "loss_chart": curves.loss_chart,
        "rate_chart": curves.rate_chart,
        "speed_chart": curves.speed_chart,
        "compare_chart": curves.compare_chart,
        "price_chart": curves.price_chart,
        "earned_chart": curves.earned_chart,
        "navigation": NAVIGATION,
        "incident_words": INCIDENT_WORDS,
        "rule_words": RULE_WORDS,
        "job_looks": JOB_LOOKS,
        "node_looks": NODE_LOOKS,
        "serving_looks": SERVING_LOOKS,
        "array_looks": ARRAY_LOOKS,
        "serving_sentences": deployments.SERVING_SENTENCES,
        "check_looks": CHECK_LOOKS,
        "event_icons": EVENT_ICONS,
        "entry_looks": ENTRY_LOOKS,
        "entry_words": ENTRY_WORDS,
        "job_sentences": text.JOB_SENTENCES,
        "sign": text.SIGN,
        "shape": text.shape,
        "asset_version": _asset_version(),
    }
    for name in (
        "amount",
        "count",
        "size",
        "speed",
        "work",
        "duration",
        "takes",
        "ratio",
        "short",
        "agreement",
        "told_apart",
        "evaluation_sentence",
        "measured",
        "seat_place",
    ):
        made.filters[name] = getattr(text, name)
    for name in SERVING_FILTERS:
        made.filters[name] = getattr(deployments, name)
    made.filters["nodes_words"] = deployments.nodes
    made.filters["dataset_format"] = WORDS.__getitem__
    made.filters["date"] = chart.date
    made.filters["iso"] = _iso
    made.filters["moment"] = _moment
    made.filters["grouped"] = "{:,}".format
    return made


class Renderer:
    """Renders pages."""

    def html(self, path: str, name: str, csrf: str = "", who: Principal | None = None, **values: Any) -> str:
        """A page's text. ``csrf``: what its forms bring back; empty where they have it already. ``who``: is signed in."""
        return environment().get_template(name).render(path=path, csrf=csrf, who=who, **values)

    def page(self, request: web.Request, name: str, code: int = 200, **values: Any) -> web.Response:
        """One page, and the cookie that its forms are checked against; packed and without both where it renews itself."""
        if code == 200 and is_live(request):
            return packed(pack(self.html(request.path, name, **values)))
        held = request.cookies.get(CSRF_COOKIE, "")
        token = held if re.fullmatch(r"[0-9a-f]{64}", held) else secrets.token_hex(32)
        html = self.html(request.path, name, csrf=form_token(token), who=visitor(request), **values)
        response = web.Response(text=html, status=code, content_type="text/html", headers={"Cache-Control": "no-store"})
        if token != held:
            response.set_cookie(CSRF_COOKIE, token, httponly=True, samesite="Strict", path="/", secure=request.secure)
        return response


def server_of(request: web.Request) -> str:
    """This coordinator's address as the reader's browser has it."""
    return f"{request.scheme}://{request.host[:200]}"


def form_token(cookie: str) -> str:
    """What forms bring back to show that they were made for the browser with this cookie: another text in each page, so that
    packing a page tells nothing of it."""
    salt = secrets.token_hex(16)
    return salt + _sealed(cookie, salt)


def _sealed(cookie: str, salt: str) -> str:
    return hmac.digest(cookie.encode(), salt.encode(), "sha256").hex()[:32]


def check_csrf(request: web.Request, token: object) -> None:
    """See that a form was made for this browser.

    Raises:
        ForbiddenError: its token is missing, or not the browser's.
    """
    cookie = request.cookies.get(CSRF_COOKIE, "")
    given = token if isinstance(token, str) else ""
    if not cookie or not secrets.compare_digest(given[32:].encode(), _sealed(cookie, given[:32]).encode()):
        raise ForbiddenError(
            "this form is too old, or cookies are switched off: go back, reload the page, and send it again"
        )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _asset_version() -> str:
    """Changes with the files, so that a browser never mixes old and new ones."""
    digest = hashlib.sha256()
    for path in sorted(STATIC_FOLDER.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
