"""The agent as a program: keeps the switch, lends in stretches, and answers its owner all the time.

::

    off --the switch--> preparing --the sandbox is safe--> lending --finished, or the switch--> off
                           ^  |                               |
        every RETRY_S -----'  '-- jobs cannot run here        '-- settings that need it: a new stretch at once
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from common.clock import SystemClock, within
from common.shutdown_signals import on_end
from common.system_words import reason
from desktop.agent.app import startup
from desktop.agent.app.agent import Agent
from desktop.agent.app.autostart import MOVED, UNIT, Autostart
from desktop.agent.app.computer import Computer
from desktop.agent.app.owner_api import Handles, OwnerApi
from desktop.agent.app.selftest import SelfTestMeans, SelfTestResult, Speed, Steps
from desktop.agent.app.status import Order
from desktop.agent.base import loop_watchdog
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import Device
from desktop.agent.base.log import LOG, printable
from desktop.agent.coordinator.nettest import LineTests
from desktop.agent.errors import AgentError, SandboxError, SettingsError, UpdateError
from desktop.agent.jobs.line_limits import LineLimits
from desktop.agent.jobs.traffic_usage import LineShare
from desktop.agent.updates.folder import InstallationFolder
from desktop.agent.updates.keeper import UpdateOrder, Updates
from desktop.agent.updates.release import Release, Way, installation, this_release, version
from desktop.agent.updates.replaced import LOOK_S, ProgramPlace
from desktop.agent.updates.setup import SetupFile
from desktop.answers import UpdateView
from transport.nettest.result import NetTest

Kind = Literal["end", "version", "anew", "unit"]
RETRY_S = 30.0  # Docker starts some time after the desktop does.


@dataclass(frozen=True)
class Next:
    """What follows when the service has ended.

    ``kind``: end: nothing; version: become ``version``, which lies in ``folder`` or that ``setup`` installs; anew: become what
    lies in this program's place now; unit: let the unit of this user's systemd go on.
    """

    kind: Kind = "end"
    version: str = ""
    folder: InstallationFolder | None = None
    setup: SetupFile | None = None


class Service:
    """One home's program. ``run`` it once; ``stop`` ends it in order."""

    def __init__(
        self,
        home: Home,
        worker_arguments: Sequence[str] = (),
        *,
        stays: bool = False,
        release: Release | None = None,
        way: tuple[Way, InstallationFolder | None] | None = None,
        place: ProgramPlace | None = None,
    ) -> None:
        """``stays``: go on when lending is off, by the switch that is remembered; otherwise lend now, and end with that.
        A home on trial only answers. ``release``, ``way`` and ``place``: this program's own by default.

        Raises:
            SettingsError: the key cannot be used.
        """
        self._home, self._arguments, self._stays = home, worker_arguments, stays
        release = release or this_release()
        self._updates = Updates(home, release, way or installation(), SystemClock(), self._tell_update)
        handles = Handles(
            self.switch,
            self._restart,
            self._means,
            self._update,
            self._login_changed,
            lambda: self._updates.view,
            lambda: self.between_jobs(Next("anew")),
            self.leave,
            release,
        )
        self.desk = OwnerApi(home, version(), handles)
        self.desk.on = not home.trial and (not stays or _remembered(home))
        self.after = Next()
        self._place = place or ProgramPlace()
        self._end, self._wake, self._login = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._at_login, self._entry_too = Autostart.of(home), False
        self._stopped = False
        self._agent: Agent | Computer | None = None

    def stop(self) -> None:
        """Hand over what runs, and end."""
        self._stopped = True
        self._end.set()
        self._wake.set()

    def leave(self) -> None:
        """Hand over what runs, and end, whatever was to follow."""
        self.after = Next()
        self.stop()

    def switch(self, on: bool) -> None:
        """Lend, or hand over what runs and rest; remembered."""
        self.desk.on, self.desk.trouble = on, None
        _remember(self._home, on)
        if not on:
            self._end.set()
        self._wake.set()
        self._login.set()

    def _restart(self) -> None:
        self._end.set()
        self._wake.set()

    def between_jobs(self, after: Next) -> None:
        """End once no job has a seat here, at once where none has; then comes ``after``, and the switch stays as it is."""
        self.after, self.desk.renews = after, True
        if self._agent is None:
            self.stop()
        else:
            self._agent.renew()

    async def run(self) -> None:
        """Until ``stop``, or, where it does not stay, until lending ends.

        Raises:
            AgentError: where it does not stay, why it cannot lend.
        """
        async with self.desk:
            settings = self._home.settings()
            self.desk.device = await asyncio.to_thread(startup.chosen, settings.gpu, settings.sandbox)
            if self._home.trial:
                await self._wake.wait()
                return
            self.desk.activity.add(time.time(), "started", "the agent has started")
            watching = [
                asyncio.create_task(self._updates.watch(lambda: self._home.settings().updates), name="updates"),
                asyncio.create_task(self._keep_login(), name="at-login"),
                asyncio.create_task(self._watch_place(), name="place"),
            ]
            try:
                await self._live()
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.wait(watching)
            self.desk.activity.add(time.time(), "ended", "the agent has ended")

    async def _live(self) -> None:
        while not self._stopped:
            if self.desk.on:
                await self._lend()
            elif not self._stays:
                break
            else:
                await self._rest(None)

    async def _rest(self, seconds: float | None) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await within(seconds, self._wake.wait())

    async def _lend(self) -> None:
        """One stretch, and what follows from how it ended."""
        self._end.clear()
        try:
            finished = await self._stretch()
        except SandboxError as error:
            self._tell(error)
            await self._rest(RETRY_S)
        except AgentError as error:
            _remember(self._home, on=False)
            self.desk.on = False
            self._tell(error)
        else:
            self.desk.trouble = None
            if finished:
                self.switch(False)
            if self.desk.renews:
                self.stop()  # The stretch has ended, by that wish or by another.

    def _tell(self, error: AgentError) -> None:
        if not self._stays:
            raise error
        LOG.error("%s", error)
        if str(error) != str(self.desk.trouble):
            self.desk.activity.add(time.time(), "stopped", str(error), "error", cause=error.cause, **error.detail)
        self.desk.trouble = error

    async def _stretch(self) -> bool:
        """Lend until told otherwise; whether it ended because what was to be finished is."""
        self.desk.preparing = True
        preparing = asyncio.create_task(self._prepared(), name="prepare")
        ending = asyncio.create_task(self._end.wait(), name="end")
        try:
            await asyncio.wait((preparing, ending), return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                preparing.cancel()
                with contextlib.suppress(asyncio.CancelledError, AgentError):
                    await preparing
                return False
            agent = preparing.result()
        finally:
            ending.cancel()
            self.desk.preparing = False
        self.desk.trouble = None
        self._agent = self.desk.live = agent
        if isinstance(agent, Computer):
            self.desk.cards, self.desk.works = agent.cards, lambda: agent.first is not None
        try:
            await agent.work(self._end)
            return agent.finished
        finally:
            self._agent = None
            self.desk.rest()

    async def _prepared(self) -> Agent | Computer:
        """Who lends: one agent, or one for each card."""
        settings = self._home.settings()
        if not settings.cards:
            return Agent(await startup.prepare(self._home, settings, self._arguments), self.desk.books)
        computer = Computer(self._home, self.desk.books, self._arguments)
        await computer.prepare()
        return computer

    # --- what starts at login -------------------------------------------------------------------------------------------

    def _login_changed(self) -> None:
        self._entry_too = True
        self._login.set()

    async def _keep_login(self) -> None:
        """Follow what the owner does with the switch and the setting, and nothing else."""
        if not self._stays:
            return  # Started in a terminal or by another program, for as long as that wants.
        if await asyncio.to_thread(self._at_login.was_disabled_by_hand):
            self._home.remember(msgspec.structs.replace(self._home.settings(), at_login=False))
            self._at_login.forget()
            self.desk.activity.add(
                time.time(), "settings", "starting with the computer was switched off outside of Cottage"
            )
        while True:
            await self._login.wait()
            self._login.clear()
            wish, entry, self._entry_too = self._home.settings().at_login, self._entry_too, False
            if entry:
                await asyncio.to_thread(self._at_login.show_entry, wish)
            await asyncio.to_thread(self._at_login.follow, wish=wish, on=self.desk.on)
            await self._move_to_unit()

    async def _move_to_unit(self) -> None:
        if self._arguments or MOVED in os.environ or not self.desk.on or self.desk.renews:
            return
        if await asyncio.to_thread(self._at_login.can_take_over):
            self.desk.activity.add(time.time(), "settings", f"the agent goes on as the service {UNIT}")
            self.between_jobs(Next("unit"))

    # --- a new version --------------------------------------------------------------------------------------------------

    async def _update(self, order: UpdateOrder) -> UpdateView:
        if not order.restart:
            return await self._updates.look()
        view = self._updates.view
        if view.stage not in ("ready", "installed"):
            raise UpdateError(f"no new version is ready: {view.text or 'this is the newest'}")
        updates = self._updates
        self.after = Next("anew")
        if view.stage == "ready":
            self.after = Next("version", view.version, updates.folder, updates.setup)
        self.stop()
        return view

    async def _watch_place(self) -> None:
        """Where a package manager puts another version in this program's place, become it between jobs."""
        while not (version := self._place.newer()):  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(LOOK_S)
        LOG.info("version %s was installed in this program's place", printable(version))
        self._updates.installed(printable(version))
        self.between_jobs(Next("anew"))

    def _tell_update(self, text: str, version: str) -> None:
        self.desk.activity.add(time.time(), "update", text, version=version)

    # --- a self-test ----------------------------------------------------------------------------------------------------

    async def steps(self) -> AsyncIterator[SelfTestResult]:
        """A self-test without a running service, step by step."""
        settings = self._home.settings()
        async for found in Steps(self._home, settings, self._means(settings)).results(time.time()):
            yield found
        self.desk.books.close()

    def _means(self, settings: Settings) -> SelfTestMeans:
        return SelfTestMeans(lambda: startup.chosen(settings.gpu, settings.sandbox), self._speed, self._line)

    async def _speed(self, device: Device) -> Speed:
        if self._agent is not None:
            return Speed(self._agent.flops)  # Measured when this stretch began; now jobs would disturb it.
        settings = self._home.settings()
        if not settings.coordinator:
            settings = startup.without_coordinator(settings)
        completed = settings.completed(self.desk.address)
        sandbox, bench = await startup.measured(self._home, completed, device, self._arguments, again=True)
        await sandbox.aclose()
        return Speed(bench.flops, bench.was_busy)

    async def _line(self) -> NetTest:
        if self._agent is not None:
            return await self._agent.test_line(Order())
        settings, clock = self._home.settings(), SystemClock()
        share = LineShare(self._home.usage, LineLimits.of(settings), clock.time())
        tests = LineTests(self._home, self._home.key(), settings.coordinator, share.allowance, clock, lambda _: None)
        return await tests.run()


async def serve(home: Home, worker_arguments: Sequence[str] = (), *, stays: bool = False) -> Next:
    """Run the program until it is asked to end or something else takes its place; raises as ``Service.run`` does."""
    service = Service(home, worker_arguments, stays=stays)
    on_end(service.leave)
    async with loop_watchdog.told():
        await service.run()
    return service.after


def _remembered(home: Home) -> bool:
    try:
        return home.switch.read_text().strip() == "on"
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SettingsError(f"{home.switch} cannot be read: {reason(error)}") from error


def _remember(home: Home, on: bool) -> None:
    try:
        home.switch.write_text("on\n" if on else "off\n")
    except OSError as error:
        LOG.warning("the switch cannot be remembered in %s: %s", home.switch, error)
