"""How many of those that nobody knows may be here: keys are free, so what each costs is bounded by address and in sum.

A node is *known* once work of it was verified, or it holds a lease, or has the least stake where one is asked for, or is the
operator's. Those that are not yet wait here like everybody else, in a part of the room: when that is full, one of the address
that has most of them makes place for the next, so that no crowd keeps others out.
"""

import asyncio
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeVar

from common.clock import Clock
from coordinator.errors import UnavailableError
from coordinator.services.accounts.throttle import Throttle

MAX_GREETING = 1_024  # Connections that have not said who they are: each has ten seconds for it.
MAX_GREETING_EACH = 64  # Of one address; a house that comes back after an outage tries again within seconds.
# So few, where those that have said who they are wait so long for an answer.
SLOW_S, MAX_GREETING_SLOW = 5.0, 64
# Connections that wait for a place, and for how long: their nodes do so for fifteen seconds.
MAX_WAITING, WAIT_S = 16_384, 10.0
MAX_HERE_EACH = 2_048  # Nodes of one address; a company's machines share one.
MAX_STRANGERS = 8_192  # Nodes that nobody knows: two fifths of all that fit.
MAX_STRANGERS_EACH = 256  # Of one address, until their first rounds are verified.
# Keys of an address that were never here: at once, and then one in so many seconds.
NEW_KEYS, NEW_KEY_S = 256.0, 30.0
ALL_NEW_KEYS, ALL_NEW_KEY_S = 16_384.0, 2.0  # Keys of everybody that were never here: 1 KB each, for a week.
MAX_ADDRESSES = 50_000
AGAIN_S = 60.0
FLIP_S = 60.0
MAX_FLIPS = 2  # One is a reconnect that overtook its own disconnect; more are two machines.

S = TypeVar("S")


class CrowdedError(Exception):
    """There is no room for one more. ``retry_s``: when to come back."""

    def __init__(self, reason: str, retry_s: float = AGAIN_S) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_s = retry_s


class Crowd(Generic[S]):
    """Counts. ``S``: what stands for one that is here.

    Addresses of this machine itself are not counted: a proxy that nobody has told us of brings everybody from there.

    Each cell of a network counts who is here by itself: it is its own room that they take. Rows of new keys lie in the database
    of all, so each cell has its part of how many come over time. At once it takes as many as if it were alone, since a whole
    office may be led to the one that lacks nodes.
    """

    def __init__(self, clock: Clock, cells: int = 1) -> None:
        """``cells``: that the network's nodes are parted in."""
        self._new_keys = Throttle(clock, 1 / (cells * NEW_KEY_S), NEW_KEYS, MAX_ADDRESSES)
        self._all_new_keys = Throttle(clock, 1 / (cells * ALL_NEW_KEY_S), ALL_NEW_KEYS, 1)
        self._greeting: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._inside, self._waited = 0, 0.0
        self._here: Counter[str] = Counter()
        self._strangers: dict[str, OrderedDict[S, None]] = {}

    async def greeting(self, address: str) -> Callable[[], None]:
        """Hold a connection until it has said who it is, which calling what is returned says; where many are, wait for a place.

        Raises:
            UnavailableError: too many of this address have not, or there is no place.
        """
        each = self._greeting[address] if _counts(address) else 0
        if each >= MAX_GREETING_EACH:
            raise UnavailableError(f"{each:,} connections of yours have not said who they are: try again")
        self._greeting[address] += 1
        try:
            await self._place()
        except BaseException:
            self._greeting -= Counter({address: 1})
            raise
        return partial(self._said, address)

    async def _place(self) -> None:
        if not self._waiting and self._has_place():
            self._inside += 1
            return
        if len(self._waiting) >= MAX_WAITING:
            raise UnavailableError(
                f"{len(self._waiting):,} connections wait until others have said who they are: try again"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if not turn.cancelled():  # It came at the last moment.
                self._inside -= 1
                self._next()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise UnavailableError(
                f"many come just now, and your turn was not there in {WAIT_S:g} s: try again"
            ) from None

    def _has_place(self) -> bool:
        return self._inside < (MAX_GREETING_SLOW if self._waited > SLOW_S else MAX_GREETING)

    def _next(self) -> None:
        while self._waiting and self._has_place():
            turn = self._waiting.popleft()
            if not turn.done():
                self._inside += 1
                turn.set_result(None)

    def _said(self, address: str) -> None:
        self._greeting -= Counter({address: 1})
        self._inside -= 1
        self._next()

    def answered(self, seconds: float) -> None:
        """One that had said who it is was let in, or was not, after so long."""
        self._waited = seconds
        self._next()

    def check(
        self, address: str, *, new: bool, known: bool, coming: Mapping[tuple[str, bool], int] = MappingProxyType({})
    ) -> None:
        """See whether there is room for a node.

        Args:
            new: its key was never here. known: see the module.
            coming: how many others are about to be let in, by address and whether they are known.
        Raises:
            CrowdedError: with the reason for its owner.
        """
        if not _counts(address):
            return
        strange, all_coming = (
            coming.get((address, False), 0),
            sum(coming.get((address, one), 0) for one in (False, True)),
        )
        if self._here[address] + all_coming >= MAX_HERE_EACH:
            raise CrowdedError(f"{MAX_HERE_EACH:,} nodes of your address are here, which is all that are taken of one")
        if not known and len(self._strangers.get(address, ())) + strange >= MAX_STRANGERS_EACH:
            raise CrowdedError(
                f"{MAX_STRANGERS_EACH:,} nodes of your address are here of whom no work was verified yet: wait until it was"
            )
        if new and (wait := self._new_keys.take(address)):
            raise CrowdedError("many new keys have come from your address: keep a node's key, or come back later", wait)
        if new and (wait := self._all_new_keys.take("")):
            raise CrowdedError("many new keys are coming just now: come back later", wait)

    def came(self, one: S, address: str, *, known: bool) -> Sequence[S]:
        """One more is here; returns those of whom one has to make place for it, who waits longest first, or nobody."""
        if not _counts(address):
            return ()
        self._here[address] += 1
        if known:
            return ()
        self._strangers.setdefault(address, OrderedDict())[one] = None
        if sum(map(len, self._strangers.values())) <= MAX_STRANGERS:
            return ()
        most = max(self._strangers, key=lambda name: len(self._strangers[name]))
        return tuple(self._strangers[most])

    def known(self, one: S, address: str) -> None:
        """One that is here is no stranger any more."""
        if (strangers := self._strangers.get(address)) is not None:
            strangers.pop(one, None)
            if not strangers:
                del self._strangers[address]

    def left(self, one: S, address: str) -> None:
        """One is gone."""
        self._here -= Counter({address: 1})
        self.known(one, address)


class KeyFlips:
    """When keys changed hands lately: a connection took over from another one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flips: dict[str, deque[float]] = {}

    def note(self, node: str) -> None:
        """Its key has changed hands."""
        self._recent(node).append(self._clock.now())

    def often(self, node: str) -> bool:
        """Whether it is in use on two machines."""
        return len(self._recent(node)) >= MAX_FLIPS

    def _recent(self, node: str) -> deque[float]:
        oldest = self._clock.now() - FLIP_S
        self._flips = {key: flips for key, flips in self._flips.items() if flips and flips[-1] > oldest}
        flips = self._flips.setdefault(node, deque())
        while flips and flips[0] <= oldest:
            flips.popleft()
        return flips


def _counts(address: str) -> bool:
    try:
        return not ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address != ""
