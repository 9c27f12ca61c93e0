"""What agents of one job say to each other about the weights that it starts from: asking, and answering members only.

Whoever asks is answered where a live lease here is of that very job, and its plan names the asker or the asker is expected. What
is given is read from the files that this job's leases have laid out, never from the cache, where other jobs' weights lie.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.clock import Clock
from common.errors import MessageRefusedError, TransportError
from desktop.agent.base.log import LOG
from desktop.agent.jobs.weight_layout import WeightLayout
from protocol.codec import MessageError, decode
from protocol.plan import Layers
from protocol.weight_sharing import PREFIX, WeightsAsk, WeightsGive, WeightsMessage, header
from transport.messages.lanes import Lane

MAX_GIVEN_AT_ONCE = 16  # Pieces on their way to peers: 4 MiB fill any home uplink.
MAX_ASKED = 512  # That wait for their turn: each of 64 peers asks for a few, and what is here.
ANSWER_S = 10.0  # A megabyte of them on a line of 1 Mbit/s; the coordinator is quicker than what takes longer.

Send = Callable[[str, Lane, bytes, bytes], Awaitable[None]]


class Weights(Protocol):
    """The weights of one lease (``desktop.agent.jobs.weights``)."""

    @property
    def layouts(self) -> Mapping[Layers, WeightLayout]:
        """Its files, those that are still coming among them."""


class WeightExchange:
    """Asks peers for pieces of weights, and answers them."""

    def __init__(self, send: Send, leases: Callable[[str, str], Sequence[Weights] | None], clock: Clock) -> None:
        """Hold nothing.

        Args:
            send: carries (peer, lane, header, payload) and returns when the peer has taken it.
            leases: the weights of the leases here of a job (first) that a node (second) is of, or comes to; None: there are none.
        """
        self._send = send
        self._leases = leases
        self.clock = clock
        self._turn = asyncio.Semaphore(MAX_GIVEN_AT_ONCE)
        self._answers: dict[tuple[str, WeightsAsk], asyncio.Future[bytes | None]] = {}
        self._giving: set[asyncio.Task[None]] = set()
        self.given = 0

    async def ask(self, peer: str, ask: WeightsAsk) -> bytes | None:
        """One answer; None where the peer cannot be reached, has it not, or does not answer in time."""
        key = (peer, ask)
        if key in self._answers:
            return None
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        try:
            async with self.clock.timeout(ANSWER_S):
                await self._send(peer, Lane.CONTROL, header(ask), b"")
                return await answer
        except (TransportError, TimeoutError) as error:
            LOG.debug("%s gave nothing of the weights: %s", peer, error or "no answer")
            return None
        finally:
            del self._answers[key]

    async def on_message(self, sender: str, data: bytes, payload: bytes | memoryview) -> None:
        """Take a message whose header begins with ``PREFIX``.

        Raises:
            MessageRefusedError: it is malformed, or too much is asked for at once.
        """
        try:
            message: WeightsMessage = decode(data[len(PREFIX) :], WeightsMessage)
        except MessageError as error:
            raise MessageRefusedError("no message about weights") from error
        match message:
            case WeightsAsk():
                self._give(sender, message)
            case WeightsGive(job=job, layers=layers, unit=unit, begin=begin, found=found):
                waiting = self._answers.get((sender, WeightsAsk(job, layers, unit, begin)))
                if waiting is not None and not waiting.done():
                    waiting.set_result(bytes(payload) if found else None)

    def _give(self, peer: str, ask: WeightsAsk) -> None:
        if len(self._giving) >= MAX_ASKED:
            raise MessageRefusedError("too many pieces are on their way already")
        task = asyncio.create_task(self._answer(peer, ask), name=f"weights-{peer[:8]}")
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _answer(self, peer: str, ask: WeightsAsk) -> None:
        try:
            if ask.unit is None:
                data = self._here(peer, ask)
                give = WeightsGive(ask.job, ask.layers, found=data is not None)
                await self._send(peer, Lane.CONTROL, header(give), data or b"")
                return
            async with self._turn:
                piece = await self._piece(peer, ask, ask.unit)
                give = WeightsGive(ask.job, ask.layers, ask.unit, ask.begin, bool(piece))
                await self._send(peer, Lane.BULK, header(give), piece)
                self.given += len(piece)
        except TransportError as error:
            LOG.info("%s did not take what it asked for of the weights: %s", peer, error)

    def _here(self, peer: str, ask: WeightsAsk) -> bytes | None:
        """One bit a unit, of the lease that has the most; empty: all is to come yet. None: the peer is none of the job."""
        leases = self._leases(ask.job, peer)
        if leases is None:
            return None
        layouts = [lease.layouts[ask.layers] for lease in leases if ask.layers in lease.layouts]
        return max(layouts, key=lambda layout: len(layout.done)).done_bits() if layouts else b""

    async def _piece(self, peer: str, ask: WeightsAsk, unit: int) -> bytes:
        for lease in self._leases(ask.job, peer) or ():
            layout = lease.layouts.get(ask.layers)
            piece = b"" if layout is None else await asyncio.to_thread(layout.piece, unit, ask.begin)
            if piece:
                return piece
        return b""

    async def aclose(self) -> None:
        """Give nothing more."""
        giving = list(self._giving)
        for task in giving:
            task.cancel()
        await asyncio.gather(*giving, return_exceptions=True)


@dataclass(frozen=True)
class Circle:
    """Who may have the weights of one lease's job, as that lease sees it.

    Attributes:
        address: of this node. linked: the nodes that it exchanges messages with.
        liars: who gave other bytes than it was asked for, and is not asked again.
        chance: gives whole numbers below its argument.
    """

    job: str
    address: str
    exchange: WeightExchange
    linked: Callable[[], set[str]]
    liars: set[str] = field(default_factory=set)
    chance: Callable[[int], int] = secrets.randbelow
