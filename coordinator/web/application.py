"""The door of the web layer: everything that the application answers over HTTP, except the nodes' WebSocket."""

from collections.abc import Callable
from functools import cache
from typing import Any

from aiohttp import web

from coordinator.services.artifacts.hub_models import HubModels
from coordinator.services.jobs.idempotency import IdempotentAnswers
from coordinator.version import release
from coordinator.web import openapi
from coordinator.web.accounts import AccountRoutes
from coordinator.web.api import Api
from coordinator.web.arrays.elements import ElementRoutes
from coordinator.web.arrays.images import ImageRoutes
from coordinator.web.auth import Auth, principal, visitor
from coordinator.web.auth.gate import install
from coordinator.web.checks import CheckRoutes
from coordinator.web.completions.private import PrivateRoutes
from coordinator.web.completions.routes import CompletionRoutes
from coordinator.web.http import protect
from coordinator.web.hub import HubRoutes
from coordinator.web.ledger import LedgerRoutes
from coordinator.web.life import LifeRoutes
from coordinator.web.notices import NoticeRoutes
from coordinator.web.once import Once
from coordinator.web.operation.invitations import InvitationRoutes
from coordinator.web.operation.routes import OperationRoutes
from coordinator.web.pages.account import AccountPages
from coordinator.web.pages.form_parts import keep_no_odd_headers
from coordinator.web.pages.identity import IdentityPages
from coordinator.web.pages.site import Site
from coordinator.web.route import Route, register
from coordinator.web.services import Services
from coordinator.web.stream import Streams
from coordinator.web.transfers import Authorise, TransferRoutes
from coordinator.web.withdrawals import WithdrawalRoutes


def setup(
    app: web.Application, services: Services, authorise: Authorise, auth: Auth, replays: IdempotentAnswers
) -> None:
    """Add the REST interface and the pages to ``app``.

    Args:
        app: not yet started.
        authorise: a node's token to its address; raises ForbiddenError for a token that is not valid now.
        auth: knows who a request is from.
        replays: remembers what was answered to changing requests.
    """
    keep_no_odd_headers()
    site = Site(services)
    protect(app, site.error_page)
    install(
        app, auth, {"job": services.jobs.check_owner, "upload": services.uploads.check_owner}, services.jobs.is_shared
    )
    streams = Streams(services.jobs, services.network, reader_of=_reader)
    document, routes = interface(services, authorise, auth, streams)
    site.reference.show(document)
    register(app, routes, Once(replays, lambda request: principal(request).account_id))
    site.register(app)
    accounts = AccountPages(auth, site.renderer)
    accounts.register(app)
    IdentityPages(auth, accounts, site.renderer).register(app)
    app.on_shutdown.append(streams.close)


def interface(
    services: Services, authorise: Authorise, auth: Auth, streams: Streams
) -> tuple[Callable[[], dict[str, Any]], list[Route]]:
    """The REST interface: its OpenAPI document, written when it is first asked for, and every route of it."""
    jobs, artifacts = services.jobs, services.artifacts
    api = Api(jobs, services.network, services.market, streams)
    routes = [
        *TransferRoutes(jobs, services.uploads, artifacts, authorise, services.doors).routes(),
        *ImageRoutes(services.images).routes(),
        *HubRoutes(HubModels(services.uploads)).routes(),
        *CheckRoutes(services.checks, jobs).routes(),
        *api.routes(),
        *CompletionRoutes(jobs, services.outputs).routes(),
        *PrivateRoutes(services.private).routes(),
        *LifeRoutes(jobs, services.outputs, artifacts).routes(),
        *ElementRoutes(services.elements, artifacts).routes(),
        *NoticeRoutes(services.notices).routes(),
        *LedgerRoutes(services.books).routes(),
        *WithdrawalRoutes(services.withdrawals).routes(),
        *AccountRoutes(auth).routes(),
        *OperationRoutes(services.operation).routes(),
        *InvitationRoutes(services.lenders, services.network, services.public_url).routes(),
    ]
    document = cache(lambda: openapi.document(routes, release()))
    api.describe_with(document)
    return document, routes


def _reader(request: web.Request) -> str:
    who = visitor(request)
    return who.account_id if who is not None else request.remote or ""
