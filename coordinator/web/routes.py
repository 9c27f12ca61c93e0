"""The door of the web layer: everything that the application answers over HTTP, except the nodes' WebSocket."""

from pathlib import Path

from aiohttp import web

from coordinator.services import ports
from coordinator.services.artifacts import ArtifactStore
from coordinator.services.checks import DatasetChecks
from coordinator.services.replays import Replays
from coordinator.services.uploads import UploadService
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
from coordinator.web.stream import Streams
from coordinator.web.transfers import Authorise, Transfers


def setup(
    app: web.Application,
    jobs: ports.Jobs,
    network: ports.Network,
    market: ports.Market,
    books: ports.Books,
    leavings: ports.Leavings,
    notices: ports.Notices,
    uploads: UploadService,
    checks: DatasetChecks,
    artifacts: ArtifactStore,
    authorise: Authorise,
    auth: Auth,
    replays: Replays,
    downloads: Path | None = None,
) -> None:
    """Add the REST interface and the pages to ``app``.

    Args:
        app: not yet started.
        jobs: everything about jobs.
        network: everything about nodes.
        market: price, demand, regions, earnings, health.
        books: what the ledger's pages show.
        leavings: checkpoints, logs, models to try.
        notices: what accounts are told of their jobs.
        uploads: where submitters' files arrive.
        checks: what says what datasets hold.
        artifacts: where files lie.
        authorise: a node's token to its address; raises ForbiddenError for a token that is not valid now.
        auth: knows who a request is from.
        replays: remembers what was answered to changing requests.
        downloads: folder of the installers that are offered; None: none are.
    """
    site = Site(jobs, leavings, network, market, books, uploads, checks, downloads)
    protect(app, site.error_page)
    install(app, auth, {"job": jobs.check_owner, "upload": uploads.check_owner}, jobs.is_shared)
    streams = Streams(jobs, network, reader_of=_reader)
    interface = Api(jobs, network, streams)
    routes = [
        *Transfers(jobs, uploads, artifacts, authorise).routes(),
        *Checks(checks, jobs).routes(),
        *interface.routes(),
        *LifeRoutes(jobs, leavings, artifacts).routes(),
        *NoticeRoutes(notices).routes(),
        *LedgerRoutes(books).routes(),
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
