"""Answers the owner's windows and commands, whether this computer lends just now or not."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import msgspec
from aiohttp import web

from common.untrusted_text import untrusted
from desktop.agent.app import backup, support
from desktop.agent.app import settings as owner
from desktop.agent.app import status as local
from desktop.agent.app.card_views import views_of
from desktop.agent.app.image_fetch import ImageFetch, ImageOrder
from desktop.agent.app.selftest import NOT_TESTED, SelfTestMeans, SelfTestResult, Steps
from desktop.agent.base import networks
from desktop.agent.base.activity import Activity
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import NOTHING, Device
from desktop.agent.earnings.records import EarningRecords
from desktop.agent.earnings.withdrawals import OwnWithdrawals
from desktop.agent.errors import AgentError, NoNetworkError, NotConnectedError, SettingsError, UpdateError
from desktop.agent.federated.joining import (
    FederationsView,
    FederationView,
    Joining,
    JoinOrder,
    LeaveFederationOrder,
    LookOrder,
)
from desktop.agent.federated.memberships import Memberships
from desktop.agent.hardware.power import PowerCap
from desktop.agent.images import owner_orders
from desktop.agent.images.publishers import Publishers
from desktop.agent.jobs.line_limits import LimitsChange, LimitsView, LineLimits
from desktop.agent.jobs.traffic_usage import load_usage
from desktop.agent.lending.keeper import LendingChange, LendingView, change_kept
from desktop.agent.lending.policy import State
from desktop.agent.updates.keeper import UpdateOrder
from desktop.agent.updates.release import Release, this_release
from desktop.agent.updates.sandbox_images import Images
from desktop.answers import (
    ActivityEvents,
    BackupDone,
    CardView,
    EarningsSummary,
    KeyWords,
    PublishersView,
    SupportReport,
    UpdateView,
    WalletWithdrawal,
)
from protocol.identity import NodeKey
from protocol.node import LedgerInfo, NodeProfile
from transport.nettest.result import NetTest, PeerTest


class Live(Protocol):
    """The agent while it lends."""

    @property
    def ledger(self) -> LedgerInfo | None:
        """Where the money is kept, once that was told."""

    @property
    def cap(self) -> PowerCap:
        """How the power cap is held."""

    @property
    def joining(self) -> Joining:
        """The owner's federations."""

    def status(self) -> local.AgentStatus:
        """Everything that the owner may want to know now."""

    @property
    def heard(self) -> str | None:
        """The coordinator that is connected now."""

    def working(self) -> frozenset[str]:
        """Jobs that hold this node."""

    def limits(self) -> LimitsView:
        """The limits in force."""

    def change_limits(self, change: LimitsChange) -> LimitsView:
        """Change them at once; raises SettingsError."""

    def lending(self) -> LendingView:
        """When it lends."""

    async def lend(self, change: LendingChange) -> LendingView:
        """Change that at once, and say what follows; raises SettingsError."""

    async def adopt(self, settings: Settings) -> None:
        """Take over settings that need no new start."""

    async def test_line(self, order: local.Order) -> NetTest:
        """Test the line; raises NettestError."""

    async def test_peer(self, order: local.PeerOrder) -> PeerTest:
        """Test a link; raises NettestError."""

    async def claim(self) -> None:
        """Ask to be paid; raises NotConnectedError."""


@dataclass(frozen=True)
class Handles:
    """What the desk may ask of whoever keeps the agent.

    ``switch``: lend or not; ``restart``: hand over what runs and begin anew with the settings of now.
    ``means``: what a self-test asks. ``update``: look for a new version, or restart into it; raises UpdateError.
    ``newest``: what is known of one. ``login``: the owner has changed what starts at login. ``anew``: begin anew as the node that
    now lives in the home. ``leave``: hand over what runs, and end. ``release``: whose image is fetched.
    """

    switch: Callable[[bool], None]
    restart: Callable[[], None]
    means: Callable[[Settings], SelfTestMeans]
    update: Callable[[UpdateOrder], Awaitable[UpdateView]] | None = None
    login: Callable[[], None] = lambda: None
    newest: Callable[[], UpdateView] = lambda: UpdateView("off", "")
    anew: Callable[[], None] = lambda: None
    leave: Callable[[], None] = lambda: None
    release: Release | None = None


class OwnerApi:
    """The agent's local interface; used as an async context manager, open as long as that."""

    def __init__(self, home: Home, version: str, handles: Handles) -> None:
        """Nothing is answered yet.

        Raises:
            SettingsError: the key cannot be used.
        """
        self.home, self.version, self.handles = home, version, handles
        self.address = home.key().address
        self.books = EarningRecords.at(home)
        self.live: Live | None = None
        self.cards: Callable[[], tuple[CardView, ...]] = self._cards_of_rest
        self.works: Callable[[], bool] = lambda: True
        self.device: Device | None = None
        self.on, self.preparing, self.renews = True, False, False
        self.trouble: AgentError | None = None  # Why the switch went off by itself.
        self._test = SelfTestResult(NOT_TESTED)
        self._testing: asyncio.Task[None] | None = None
        self._ledger: LedgerInfo | None = None
        self._withdrawals = OwnWithdrawals()
        self._started = time.monotonic()
        self._runner: web.AppRunner | None = None
        release = handles.release or Release()
        self._image = ImageFetch(
            lambda: Images(home, release),
            bool(release.key and release.url),
            lambda text: self.activity.add(time.time(), "settings", text),
        )

    @property
    def agent(self) -> Live | None:
        """Who can say and do something now; of several cards none may, while each of them waits."""
        return self.live if self.works() else None

    @agent.setter
    def agent(self, live: Live | None) -> None:
        self.live = live

    @property
    def activity(self) -> Activity:
        """What has happened."""
        return self.books.activity

    async def __aenter__(self) -> "OwnerApi":
        gets: local.Gets = {
            "status": self.status,
            "earnings": self.earnings,
            "limits": self.limits,
            "lending": self.lending,
            "settings": self.settings,
            "activity": self.events,
            "selftest": lambda: self._test,
            "image": self._image.view,
            "support": self.support,
            "federations": self.federations,
            "publishers": lambda: owner_orders.seen(self._publishers),
        }
        posts: local.Posts = {
            "limits": (LimitsChange, self.change_limits),
            "lending": (LendingChange, self.lend),
            "settings": (owner.SettingsChange, self.change_settings),
            "selftest": (local.TestOrder, self.begin_test),
            "nettest": (local.Order, self.test_line),
            "nettest/peer": (local.PeerOrder, self.test_peer),
            "claim": (local.ClaimOrder, self.claim),
            "withdraw": (local.WithdrawOrder, self.withdraw),
            "backup": (local.BackupOrder, self.backup),
            "words": (local.WordsOrder, self.words),
            "restore": (local.RestoreOrder, self.restore),
            "cards": (local.CardOrder, self.switch_card),
            "update": (UpdateOrder, self.update),
            "image": (ImageOrder, self._image.begin),
            "leave": (local.LeaveOrder, self.leave),
            "federation": (LookOrder, self.look_at_federation),
            "federation/join": (JoinOrder, self.join_federation),
            "federation/leave": (LeaveFederationOrder, self.leave_federation),
            "publishers/accept": (owner_orders.AcceptOrder, self.accept_publisher),
            "publishers/remove": (owner_orders.RemoveOrder, self.remove_publisher),
        }
        self._runner = await local.serve(self.home.socket, gets, posts)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._image.aclose()
        if self._testing is not None:
            self._testing.cancel()
            await asyncio.wait((self._testing,))
        if self._runner is not None:
            await self._runner.cleanup()
            self.home.socket.unlink(missing_ok=True)
        self.books.close()

    # --- what it says ---------------------------------------------------------------------------------------------------

    def status(self) -> local.AgentStatus:
        """The agent's, or what is known while nothing is lent."""
        told = self.agent.status() if self.agent is not None else self._status_of_rest()
        earned, trouble = self.earnings(), self.trouble
        cause, detail = ("", {}) if trouble is None else (trouble.cause, trouble.detail)
        return msgspec.structs.replace(
            told,
            on=self.on,
            trouble="" if trouble is None else str(trouble),
            trouble_cause=cause,
            trouble_detail=detail,
            renews=self.renews,
            last_event=self.activity.last,
            update=self.handles.newest(),
            verified=earned.verified,
            paid=earned.paid,
            today=earned.today,
            week=earned.week,
        )

    def _status_of_rest(self) -> local.AgentStatus:
        kept = self.home.settings()
        device = self.device or NOTHING
        profile = NodeProfile(
            untrusted(kept.name),
            untrusted(device.name),
            device.kind,
            max(1, device.memory_mb),
            0.0,
            "",
            kept.sandbox,
            self.version,
        )
        return local.AgentStatus(
            node=self.address,
            payout=kept.payout or self.address,
            name=kept.name,
            coordinator=kept.coordinator,
            state="starting" if self.preparing else "off",
            reason=untrusted(""),
            note=device.note,
            pid=os.getpid(),
            uptime=time.monotonic() - self._started,
            profile=profile,
            tasks=(),
            links=(),
            dropped={},
            verified=0,
            paid=0,
            lending_state=State.OFF,
            electricity=kept.electricity,
            currency=kept.currency,
            worth=kept.worth_of(None),
            cards=self.cards(),
        )

    def rest(self) -> None:
        """Nothing is lent any more."""
        self.live, self.cards, self.works = None, self._cards_of_rest, lambda: True

    def _cards_of_rest(self) -> tuple[CardView, ...]:
        return views_of(self.home, self.home.settings())

    def earnings(self) -> EarningsSummary:
        """What jobs have brought."""
        if self.agent is not None and self.agent.ledger is not None:
            self._ledger = self.agent.ledger
        working = self.agent.working() if self.agent is not None else frozenset()
        heard = self.agent.heard if self.agent is not None else None
        return self.books.summary(time.time(), working, self._ledger.url if self._ledger else "", heard)

    def events(self) -> ActivityEvents:
        """What has happened, the newest first."""
        return self.activity.newest()

    def support(self) -> SupportReport:
        """For somebody who helps."""
        return SupportReport(support.report(self.home, self.activity, self.version))

    def settings(self) -> owner.SettingsView:
        """The owner's settings."""
        return self._settings("now")

    def _settings(self, effect: owner.Effect) -> owner.SettingsView:
        view = owner.view(self.home, self.version, effect)
        if self.agent is None:
            return view
        return msgspec.structs.replace(view, cap=self.agent.cap.held, cap_why=self.agent.cap.why)

    def limits(self) -> LimitsView:
        """How much of the line."""
        if self.agent is not None:
            return self.agent.limits()
        usage = load_usage(self.home.usage, time.time())
        return LimitsView(LineLimits.of(self.home.settings()), usage.month, usage.used, applied=True)

    def lending(self) -> LendingView:
        """When."""
        if self.agent is not None:
            return self.agent.lending()
        return change_kept(self.home.lending, LendingChange(), time.time())

    # --- what it does ---------------------------------------------------------------------------------------------------

    def change_limits(self, change: LimitsChange) -> LimitsView:
        """Raises SettingsError."""
        if self.agent is not None:
            return self.agent.change_limits(change)
        kept = self.home.settings()
        self.home.remember(change.apply(LineLimits.of(kept)).into(kept))
        return self.limits()

    async def lend(self, change: LendingChange) -> LendingView:
        """The view after the change; raises SettingsError."""
        if change.on and not self.home.settings().coordinator:
            raise NoNetworkError("no network is set: say first whom to lend to")
        view = await self.agent.lend(change) if self.agent else change_kept(self.home.lending, change, time.time())
        again = change.on and self.trouble is not None  # What was missing may have come: look at once.
        if change.on is not None and (change.on != self.on or again):
            self.handles.switch(change.on)
        return view

    async def change_settings(self, change: owner.SettingsChange) -> owner.SettingsView:
        """Raises SettingsError."""
        before = self.home.settings()
        after = change.apply(before, self.address, networks.known(self.home.networks))
        return self._settings(await self._take(before, after))

    async def _take(self, before: Settings, after: Settings) -> owner.Effect:
        self.home.remember(after)
        effect = owner.effect_of(before, after)
        if after != before:
            names = ", ".join(
                name for name in Settings.__struct_fields__ if getattr(before, name) != getattr(after, name)
            )
            self.activity.add(time.time(), "settings", f"settings were changed: {names}", names=names)
        if after.at_login != before.at_login:
            self.handles.login()
        if effect == "restart" and (self.live is not None or self.preparing):
            self.handles.restart()
        elif after != before and self.live is not None:
            await self.live.adopt(after)
        return effect

    async def switch_card(self, order: local.CardOrder) -> local.CardsView:
        """Lend one of several cards, or have it hand over what it has; raises SettingsError."""
        before = self.home.settings()
        await self._take(before, order.apply(before))
        return local.CardsView(self.status().cards)

    async def update(self, order: UpdateOrder) -> UpdateView:
        """Raises UpdateError."""
        if self.handles.update is None:
            raise UpdateError("this agent follows no updates")
        return await self.handles.update(order)

    def begin_test(self, _: local.TestOrder) -> SelfTestResult:
        """Begin a self-test, unless one runs."""
        if self._testing is None or self._testing.done():
            kept = self.home.settings()
            steps = Steps(self.home, kept, self.handles.means(kept))
            self._test = SelfTestResult(NOT_TESTED, running=True)
            self._testing = asyncio.create_task(self._follow(steps), name="selftest")
        return self._test

    async def _follow(self, steps: Steps) -> None:
        now = time.time()
        async for self._test in steps.results(now):
            pass
        bad = [check for check in self._test.checks if check.state == "bad"]
        text = f"self-test: {bad[0].name}: {bad[0].text}" if bad else "self-test: this computer can lend"
        self.activity.add(now, "test", text, "warning" if bad else "info", failed=bad[0].name if bad else "")

    async def test_line(self, order: local.Order) -> NetTest:
        """Raises NettestError, or NotConnectedError while nothing is lent."""
        return await self._lending().test_line(order)

    async def test_peer(self, order: local.PeerOrder) -> PeerTest:
        """Raises as ``test_line``."""
        return await self._lending().test_peer(order)

    async def claim(self, _: local.ClaimOrder) -> EarningsSummary:
        """Raises NotConnectedError."""
        await self._lending().claim()
        return self.earnings()

    async def withdraw(self, order: local.WithdrawOrder) -> WalletWithdrawal:
        """What it costs, or what became of it."""
        coordinator = self.home.settings().coordinator
        known = self.books.ledger(coordinator)
        found = await self._withdrawals.withdraw(coordinator, known, self.home.key(), order)
        if found.signature:
            text = f"sent {found.arrives} millionths to {found.target}"
            self.activity.add(time.time(), "paid", text, amount=str(found.arrives), target=found.target)
        return found

    async def backup(self, order: local.BackupOrder) -> BackupDone:
        """Raises SettingsError."""
        file = (self.home.path / order.file).expanduser()
        address = await asyncio.to_thread(backup.write, self.home, file, order.passphrase)
        return BackupDone(str(file), address)

    async def restore(self, order: local.RestoreOrder) -> BackupDone:
        """Raises SettingsError: lending is on, another node has earned here, or it is no backup or no node's words."""
        if self.live is not None or self.preparing or self.on:
            raise SettingsError("switch lending off first: a node does not change while it lends")
        earned = self.earnings().verified > 0 or any(self.home.promises.glob("*"))
        address = await asyncio.to_thread(self._restore, order, earned)
        self.activity.add(time.time(), "settings", f"this computer became node {address}", node=address)
        self.handles.anew()
        return BackupDone(order.file, address)

    def _restore(self, order: local.RestoreOrder, earned: bool) -> str:
        file = (self.home.path / order.file).expanduser()
        kept = None if order.words else backup.read(file, order.passphrase)
        key = NodeKey(kept.seed) if kept else backup.from_words(order.words)
        if key.address != self.address and earned:
            raise SettingsError(
                f"node {self.address} has earned on this computer: bring the other one back into a folder of its own, "
                "`cottage node restore --home FOLDER`"
            )
        backup.make_room(self.home, key)
        return backup.restore(self.home, kept) if kept else backup.restore_key(self.home, key)

    def leave(self, _: local.LeaveOrder) -> local.AgentStatus:
        """End, once this is answered."""
        asyncio.get_running_loop().call_soon(self.handles.leave)
        return self.status()

    def words(self, _: local.WordsOrder) -> KeyWords:
        """The key as words."""
        return KeyWords(backup.to_words(self.home.key()))

    def federations(self) -> FederationsView:
        """Which were joined; raises SettingsError where what is kept of them is damaged."""
        return FederationsView(tuple(Memberships(self.home.federations).joined.values()))

    async def look_at_federation(self, order: LookOrder) -> FederationView:
        """Raises SettingsError, NotConnectedError."""
        return await self._lending().joining.look(order, self.home.settings())

    async def join_federation(self, order: JoinOrder) -> FederationView:
        """Raises as ``look_at_federation``."""
        found = await self._lending().joining.join(order, self.home.settings().coordinator)
        name = found.told.spec.name if found.told.spec is not None else order.job
        self.activity.add(time.time(), "settings", f"joined the federation {name!r} with {order.data}", job=order.job)
        return found

    async def leave_federation(self, order: LeaveFederationOrder) -> FederationsView:
        """Raises as ``look_at_federation``."""
        found = await self._lending().joining.leave(order)
        self.activity.add(time.time(), "settings", f"left the federation {order.job[:8]}", job=order.job)
        return found

    @property
    def _publishers(self) -> Publishers:
        return Publishers(self.home, this_release().key)

    def accept_publisher(self, order: owner_orders.AcceptOrder) -> PublishersView:
        """Raises SettingsError."""
        found = owner_orders.accept(self._publishers, order)
        self.activity.add(time.time(), "settings", f"accepted images of {order.name!r} ({order.key})")
        return found

    def remove_publisher(self, order: owner_orders.RemoveOrder) -> PublishersView:
        """Raises SettingsError."""
        found = owner_orders.remove(self._publishers, order)
        self.activity.add(time.time(), "settings", f"accepts no images of {order.key} any more")
        return found

    def _lending(self) -> Live:
        if self.agent is None:
            raise NotConnectedError("lending is off: there is no connection to the coordinator")
        return self.agent
