"""The door of the web layer: everything that the application answers over HTTP, except the nodes' WebSocket."""

from aiohttp import web

from coordinator.services.replays import Replays
from coordinator.version import release
from coordinator.web.accounts import AccountRoutes
from coordinator.web.api import Api
from coordinator.web.auth import Auth, principal, visitor
from coordinator.web.auth.gate import install
from coordinator.web.checks import Checks
from coordinator.web.http import protect
from coordinator.web.ledger import LedgerRoutes
from coordinator.web.life import LifeRoutes
from coordinator.web.notices import NoticeRoutes
from coordinator.web.once import Once
from coordinator.web.pages.account import AccountPages
from coordinator.web.pages.site import Site
from coordinator.web.route import register
from coordinator.web.services import Services
from coordinator.web.stream import Streams
from coordinator.web.transfers import Authorise, Transfers


def setup(app: web.Application, services: Services, authorise: Authorise, auth: Auth, replays: Replays) -> None:
    """Add the REST interface and the pages to ``app``.

    Args:
        app: not yet started.
        authorise: a node's token to its address; raises ForbiddenError for a token that is not valid now.
        auth: knows who a request is from.
        replays: remembers what was answered to changing requests.
    """
    jobs, uploads, artifacts = services.jobs, services.uploads, services.artifacts
    site = Site(services)
    protect(app, site.error_page)
    install(app, auth, {"job": jobs.check_owner, "upload": uploads.check_owner}, jobs.is_shared)
    streams = Streams(jobs, services.network, reader_of=_reader)
    interface = Api(jobs, services.network, streams)
    routes = [
        *Transfers(jobs, uploads, artifacts, authorise, services.doors).routes(),
        *Checks(services.checks, jobs).routes(),
        *interface.routes(),
        *LifeRoutes(jobs, services.leavings, artifacts).routes(),
        *NoticeRoutes(services.notices).routes(),
        *LedgerRoutes(services.books).routes(),
        *AccountRoutes(auth).routes(),
    ]
    site.reference.show(interface.describe_with(routes, release()))
    register(app, routes, Once(replays, lambda request: principal(request).account_id))
    site.register(app)
    AccountPages(auth, site.renderer).register(app)
    app.on_shutdown.append(streams.close)


def _reader(request: web.Request) -> str:
    who = visitor(request)
    return who.account_id if who is not None else request.remote or ""
