"""Several cards of one computer: an agent each, with a node's key of its own, over one owner's settings, rules, line and wallet.

::

    on --the sandbox is safe--> lent --off, or lending ends--> off
     '--- cannot be used: tried again every RETRY_S, while the others work

A card that is switched hands over what it has; nothing happens to the others.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from common.clock import SystemClock, within
from common.untrusted_text import untrusted
from desktop.agent.app import startup, status
from desktop.agent.app.agent import Agent
from desktop.agent.app.card_views import views_of
from desktop.agent.app.parts import AgentParts, OtherCards
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.log import LOG, printable
from desktop.agent.earnings.purse import Purse
from desktop.agent.earnings.records import EarningRecords
from desktop.agent.errors import AgentError, SandboxError, SettingsError
from desktop.agent.federated.joining import Joining
from desktop.agent.hardware.meters import gpus
from desktop.agent.hardware.power import PowerCap
from desktop.agent.jobs.line_limits import LimitsChange, LimitsView, LineLimits
from desktop.agent.jobs.traffic_usage import LineShare
from desktop.agent.lending.keeper import LendingChange, LendingView
from desktop.answers import MAX_TASKS, CardView
from protocol.identity import NodeKey
from protocol.network import NetworkReport
from protocol.node import LedgerInfo
from transport.nettest.result import NetTest, PeerTest

RETRY_S = 30.0


@dataclass(eq=False)
class LentCard:
    """One of them: its home, and while it is lent its agent.

    Attributes:
        prepared: measured, and not at work yet.
        leaves: it was switched off and hands over; ``again``: and was switched on once more before that was done.
        finished: what was to be finished is.
    """

    gpu: str
    home: Home
    books: EarningRecords
    key: NodeKey
    end: asyncio.Event = field(default_factory=asyncio.Event)
    agent: Agent | None = None
    prepared: AgentParts | None = None
    trouble: AgentError | None = None
    task: "asyncio.Task[None] | None" = None
    finished: bool = False
    leaves: bool = False
    again: bool = False


class Computer:
    """All cards that are lent, to the owner's windows and commands as one agent. ``prepare`` it, then ``work`` once."""

    def __init__(self, home: Home, books: EarningRecords, worker_arguments: Sequence[str] = ()) -> None:
        """Nothing runs yet. ``books``: of the computer; what further cards earn is kept beside it."""
        self._home, self._arguments, self._clock = home, worker_arguments, SystemClock()
        self._key = home.key()
        self._settings = home.settings().completed(self._key.address)
        self._share = LineShare(home.usage, LineLimits.of(self._settings), self._clock.time())
        self._purse = Purse(self._key)
        self._cards: dict[str, LentCard] = {}
        for number, card in enumerate(map(str, self._settings.lent)):
            own = home.of_card(card) if number else home
            kept = books.of_card(own) if number else books
            self._cards[card] = LentCard(card, own, kept, own.key())
        self._activity = books.activity
        self._group = asyncio.TaskGroup()
        self._working, self._over = False, asyncio.Event()
        self.finished = False

    @property
    def _agents(self) -> list[Agent]:
        """Those that work; who hands over comes behind."""
        cards = sorted(self._cards.values(), key=lambda card: card.end.is_set())
        return [card.agent for card in cards if card.agent is not None]

    @property
    def first(self) -> Agent | None:
        """Who speaks where one has to; None for moments in which none works."""
        return next(iter(self._agents), None)

    # --- from settings to agents ------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Check and measure every card that is on.

        Raises:
            SettingsError: a setting cannot be used.
            SandboxError: no card can run jobs.
        """
        try:
            for card in self._on():
                try:
                    card.prepared = await self._parts(card)
                except SandboxError as error:
                    self._tell(card, error)
            if not any(card.prepared for card in self._on()):
                raise next(card.trouble for card in self._on() if card.trouble is not None)
        except BaseException:
            await self._let_go()
            raise

    def _on(self) -> list[LentCard]:
        return [self._cards[str(card)] for card in self._settings.working if str(card) in self._cards]

    async def _let_go(self) -> None:
        for card in self._cards.values():
            if card.prepared is not None:
                await card.prepared.sandbox.aclose()
                card.prepared = None

    async def _parts(self, card: LentCard) -> AgentParts:
        """What its agent is built from.

        Raises:
            SandboxError: it cannot run jobs; the processor takes no card's place here.
        """
        parts = await startup.prepare(card.home, self._settings.of_card(card.gpu), self._arguments, alone=False)
        others = OtherCards(
            lambda: tuple(pid for agent in self._agents if agent is not card.agent for pid in agent.pids()),
            lambda: card.agent is self.first and not any(agent.held() for agent in self._agents),
            lambda line: self._tell_line(card, line),
            self._share,
            self._purse,
        )
        if card.home.computer is None:
            return dataclasses.replace(parts, others=others)
        profile = msgspec.structs.replace(parts.profile, containers=False)
        return dataclasses.replace(parts, others=others, computer=self._key, profile=profile, containers=None)

    def _tell_line(self, card: LentCard, line: NetworkReport) -> None:
        for agent in self._agents:
            if agent is not card.agent:
                agent.told_line(line)

    # --- at work ----------------------------------------------------------------------------------------------------

    async def work(self, stop: asyncio.Event) -> None:
        """Lend until ``stop`` is set, or until no card is left.

        Raises:
            AgentError: why the last one left.
        """
        self._working = True
        try:
            async with self._group as group:
                self._follow()
                ends = [asyncio.create_task(stop.wait()), asyncio.create_task(self._over.wait())]
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in ends:
                        task.cancel()
                    self._working = False
                    for card in self._cards.values():
                        card.end.set()
                del group
        finally:
            await self._let_go()
        troubles = [card.trouble for card in self._on() if card.trouble is not None]
        if troubles and not stop.is_set():
            raise troubles[0]
        self.finished = bool(self._on()) and all(card.finished for card in self._on())

    def _follow(self) -> None:
        """Begin with each card that is on and not at work; have the others hand over."""
        if not self._working:
            return
        on = self._on()
        for card in self._cards.values():
            if card not in on:
                card.leaves, card.again = card.task is not None, False
                card.end.set()
            elif card.leaves:
                card.again = True
            elif card.task is None and not card.finished:
                card.end = asyncio.Event()
                card.task = self._group.create_task(self._lend(card), name=f"card-{card.gpu[:12]}")

    async def _lend(self, card: LentCard) -> None:
        while not card.end.is_set():
            try:
                parts, card.prepared = card.prepared or await self._parts(card), None
                agent = card.agent = Agent(parts, card.books)
                card.trouble = None
                await agent.work(card.end)
                card.finished = agent.finished
                break
            except SandboxError as error:
                self._tell(card, error)
                with contextlib.suppress(TimeoutError):
                    await within(RETRY_S, card.end.wait())
            except AgentError as error:
                self._tell(card, error)
                self._rest(card)
                break
            finally:
                card.agent = None
        card.task, card.leaves = None, False
        if card.again:
            card.again = False
            self._follow()
        if not any(one.task is not None for one in self._cards.values()):
            self._over.set()

    def _rest(self, card: LentCard) -> None:
        """Switch a card off that may not go on until its owner says so, unless it is the last one: then lending is off."""
        kept = self._home.settings()
        if kept.working != (card.gpu,) and card.gpu in kept.working:
            kept = msgspec.structs.replace(kept, resting=(*kept.resting, card.gpu))
            self._settings = kept.completed(self._key.address)
            try:
                self._home.remember(kept)
            except SettingsError as error:  # It rests all the same, until this agent ends.
                LOG.error("%s", error)

    def _tell(self, card: LentCard, error: AgentError) -> None:
        name = next((gpu.name for gpu in gpus() if gpu.uuid == card.gpu), card.gpu)
        LOG.error("%s: %s", printable(name), error)
        if str(error) != str(card.trouble):
            text = f"{name}: {error}"
            self._activity.add(
                self._clock.time(), "stopped", text, "error", cause=error.cause, **error.detail | {"gpu": card.gpu}
            )
        card.trouble = error

    def renew(self) -> None:
        """Take no new jobs, and end once none has a seat here."""
        for agent in self._agents:
            agent.renew()

    # --- to the owner -----------------------------------------------------------------------------------------------

    async def adopt(self, settings: Settings) -> None:
        """Take over settings that need no new start; which cards are on is one of them."""
        before, self._settings = self._on(), settings.completed(self._key.address)
        for card in self._on():
            if card not in before:
                card.trouble, card.finished = None, False
        self._follow()
        for card in self._cards.values():
            if card.agent is not None:
                await card.agent.adopt(self._settings.of_card(card.gpu))

    def _speaker(self) -> Agent:
        if self.first is None:
            raise SandboxError("no card works now: `cottage node cards` says why")
        return self.first

    @property
    def ledger(self) -> LedgerInfo | None:
        """Where the money is kept, once somebody was told."""
        return next((agent.ledger for agent in self._agents if agent.ledger is not None), None)

    @property
    def cap(self) -> PowerCap:
        """How the power cap is held on the first card that works."""
        return self._speaker().cap

    @property
    def joining(self) -> Joining:
        """The owner's federations, which the first card works for."""
        return self._speaker().joining

    @property
    def heard(self) -> str | None:
        """The coordinator that is connected now."""
        return next((agent.heard for agent in self._agents if agent.heard is not None), None)

    @property
    def flops(self) -> float:
        """As measured, of all that work."""
        return sum(agent.flops for agent in self._agents)

    def working(self) -> frozenset[str]:
        """Jobs in which one of the cards has a seat, or stands by."""
        return frozenset[str]().union(*(agent.working() for agent in self._agents))

    def limits(self) -> LimitsView:
        """The limits in force, for all together."""
        return LimitsView(self._limits, self._share.usage.month, self._share.usage.used, applied=True)

    @property
    def _limits(self) -> LineLimits:
        return LineLimits.of(self._settings)

    def change_limits(self, change: LimitsChange) -> LimitsView:
        """As ``Agent.change_limits``."""
        limits = change.apply(self._limits)
        self._home.remember(limits.into(self._home.settings()))
        self._settings = limits.into(self._settings)
        self._share.change(limits)
        for agent in self._agents:
            agent.keep_to(limits)
        return self.limits()

    def lending(self) -> LendingView:
        """When it lends."""
        return self._speaker().lending()

    async def lend(self, change: LendingChange) -> LendingView:
        """Change that at once for all cards; raises SettingsError."""
        speaker = self._speaker()
        views = await asyncio.gather(*(agent.lend(change) for agent in self._agents))
        return views[0] if views else speaker.lending()

    async def test_line(self, order: status.Order) -> NetTest:
        """As ``Agent.test_line``."""
        return await self._speaker().test_line(order)

    async def test_peer(self, order: status.PeerOrder) -> PeerTest:
        """As ``Agent.test_peer``, by the card that has the peer."""
        linked = (agent for agent in self._agents if order.peer in {link.peer for link in agent.status().links})
        speaker = next(linked, self._speaker())
        return await speaker.test_peer(order)

    async def claim(self) -> None:
        """Ask for all that was earned; raises NotConnectedError."""
        for agent in self._agents:
            await agent.claim()

    def status(self) -> status.AgentStatus:
        """Everything: of the first card that works, with the tasks and links of all, and a line for each."""
        first = self.first
        if first is None:
            raise SandboxError("no card works now")
        told = [(card, card.agent.status()) for card in self._cards.values() if card.agent is not None]
        tasks = tuple(msgspec.structs.replace(task, gpu=card.gpu) for card, one in told for task in one.tasks)
        dropped: dict[str, int] = {}
        for _, one in told:
            for name, count in one.dropped.items():
                dropped[name] = dropped.get(name, 0) + count
        return msgspec.structs.replace(
            first.status(),
            node=self._key.address,
            name=self._settings.name,
            memory_mb=self._settings.memory_mb,
            tasks=tasks[:MAX_TASKS],
            links=tuple(link for _, one in told for link in one.links),
            dropped=dropped,
            cards=self.cards(),
        )

    def cards(self) -> tuple[CardView, ...]:
        """A line for each card."""
        return tuple(self._seen(view, self._cards[view.gpu]) for view in views_of(self._home, self._settings))

    def _seen(self, view: CardView, card: LentCard) -> CardView:
        trouble = untrusted("" if card.trouble is None else str(card.trouble))
        if card.agent is None:
            return msgspec.structs.replace(
                view, state="starting" if card.task and not trouble else "off", trouble=trouble
            )
        one = card.agent.status()
        live = sum(task.is_live for task in one.tasks)
        return msgspec.structs.replace(view, state=one.state, lending=one.lending, jobs=live, trouble=trouble)
