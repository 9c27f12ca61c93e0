"""Which pair of candidates a link uses: the first direct one that answers, else one relay, else two.

aioice nominates every pair that it checks and settles for the first answer, so the two sides may end on different pairs, and a
relay in the next street beats a hole that is punched a moment later. Here the controlling side checks all pairs and nominates one
(regular nomination, RFC 8445 section 8.1.1): a direct pair at once, a relayed one after a head start for those that are better.
"""

import asyncio
import contextlib
import ipaddress
import logging
from typing import Any

from aioice import stun
from aioice.ice import CandidatePair

from transport.ice.turn_client import BEST_PREFERENCE

LOG = logging.getLogger(__name__)

HEAD_START_S = 0.5  # A hole is punched by the first check of the later side, or by its repetition 0.1 s later.
SECOND_LEG_S = 0.15  # A second leg makes the way longer and costs twice: one is waited for a round trip more.
LESSER_RELAY_S = 0.1  # A relay that stands by, or is reached by TCP.
BLOCKED_HEAD_START_S = 0.1  # Without UDP only a neighbour in the same network answers directly, and at once.
# Pauses between checks of a pair; the peer may begin seconds later.
TRIES_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
REPETITIONS = 1  # Of each try, after aioice's half a second: an answer may take 1.5 s.
BURST_PAIRS = 16  # Checked at once, 2 KB in all; aioice starts the others 20 ms apart.
NOMINATION_S = 2.0  # A pair that answered a moment ago and does not answer now is left for the next one.
_ROLE_CONFLICT = 487

_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8")
)


def is_private(text: str) -> bool:
    """Whether an address means something else in every home (RFC 1918, RFC 6598, RFC 4193)."""
    ip = ipaddress.ip_address(text)
    if isinstance(ip, ipaddress.IPv6Address):
        return int(ip) >> 121 == 0xFC >> 1 or ip.is_loopback
    return any(ip in network for network in _PRIVATE)


def relay_legs(pair: CandidatePair) -> int:
    """How many relays the pair goes through: 0, 1 or 2."""
    return (pair.local_candidate.type == "relay") + (pair.remote_candidate.type == "relay")


class _RoleConflictError(Exception):
    """Both sides hold themselves for the controlling one; the roles have been changed."""


class CandidateChecks:
    """Stands in for ``aioice.Connection.check_start``."""

    def __init__(self, connection: Any) -> None:
        """Take the aioice connection; ``install`` comes before its checks begin."""
        self._connection = connection
        self._began: float | None = None
        self._nominating = asyncio.Lock()
        self._moved = asyncio.Event()
        self.udp_blocked = False

    def install(self) -> None:
        """Have aioice check pairs this way."""
        self._connection.check_start = self._check

    async def _check(self, pair: CandidatePair) -> None:
        connection = self._connection
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
            for other in connection._check_list[:BURST_PAIRS]:
                connection.check_start_task(other)
        connection.check_state(pair, CandidatePair.State.IN_PROGRESS)
        if not (_plausible(pair) and await self._answers(pair, nominate=False)):
            self._settle(pair, CandidatePair.State.FAILED)
            return
        if connection.ice_controlling:
            await self._nominate(pair)
        elif pair.remote_nominated:
            pair.nominated = True
        self._settle(pair, CandidatePair.State.SUCCEEDED)

    def _settle(self, pair: CandidatePair, state: CandidatePair.State) -> None:
        self._connection.check_state(pair, state)
        self._connection.check_complete(pair)
        self._moved.set()

    async def _nominate(self, pair: CandidatePair) -> None:
        """Nominate the pair when its turn has come, unless another one was quicker."""
        await self._turn(pair)
        async with self._nominating:
            if not self._connection._nominated:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(NOMINATION_S):
                        pair.nominated = await self._answers(pair, nominate=True)

    async def _turn(self, pair: CandidatePair) -> None:
        """Wait while a better pair may still answer."""
        legs, loop = relay_legs(pair), asyncio.get_running_loop()
        if legs == 0:
            return
        assert self._began is not None
        until = self._began + self._patience(pair, legs)
        while (left := until - loop.time()) > 0 and self._better_is_tried(legs):
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._moved.wait()

    def _patience(self, pair: CandidatePair, legs: int) -> float:
        head_start = BLOCKED_HEAD_START_S if self.udp_blocked else HEAD_START_S
        ends = (pair.local_candidate, pair.remote_candidate)
        lesser = sum(end.type == "relay" and (end.priority >> 8) & BEST_PREFERENCE < BEST_PREFERENCE for end in ends)
        return head_start + SECOND_LEG_S * (legs - 1) + LESSER_RELAY_S * lesser

    def _better_is_tried(self, legs: int) -> bool:
        over = (CandidatePair.State.FAILED, CandidatePair.State.SUCCEEDED)
        pairs = self._connection._check_list
        return any(relay_legs(pair) < legs and pair.state not in over for pair in pairs)

    async def _answers(self, pair: CandidatePair, *, nominate: bool) -> bool:
        """Whether the other end answers a check; several are on their way at once, each a little later than the one before."""
        jobs: set[asyncio.Task[bool]] = set()
        try:
            for pause in TRIES_S:
                jobs.add(asyncio.create_task(self._ask(pair, nominate=nominate)))
                done, jobs = await asyncio.wait(jobs, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if any(job.result() for job in done):
                    return True
            return any(await asyncio.gather(*jobs))
        except _RoleConflictError:
            return await self._answers(pair, nominate=nominate and self._connection.ice_controlling)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _ask(self, pair: CandidatePair, *, nominate: bool) -> bool:
        """Send one check.

        Raises:
            _RoleConflictError: RFC 8445, section 7.2.5.1.
        """
        connection = self._connection
        request = connection.build_request(pair, nominate=nominate)
        try:
            _, source = await pair.protocol.request(
                request,
                pair.remote_addr,
                integrity_key=connection.remote_password.encode(),
                retransmissions=REPETITIONS,
            )
        except stun.TransactionError as error:
            if error.response is not None and error.response.error_code == _ROLE_CONFLICT:
                connection.switch_role(ice_controlling="ICE-CONTROLLING" not in request.attributes)
                raise _RoleConflictError from error
            return False
        return bool(source == pair.remote_addr)  # Section 7.2.5.2.1: an answer from elsewhere is none.


def _plausible(pair: CandidatePair) -> bool:
    """Spare a relay on the Internet from a home's private addresses: it refuses them, some even end the allocation."""
    local, remote = pair.local_candidate, pair.remote_candidate
    return local.type != "relay" or is_private(local.host) or not is_private(remote.host)
