"""Named messages between the ranks of one group, over links that come and go, in a thread of their own.

Every message is named by (kind, number of the call, step in it, piece) and says what it holds, so messages may overtake each
other, and a rank that calls something else is found out. A message that nobody has asked for yet is kept, up to
``MAX_UNCLAIMED`` bytes for each rank; then its lane (collectives, or messages between two ranks) waits, and so does the sender.
"""

import asyncio
import logging
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from common.errors import MessageRefusedError, PeerError, PeerNotAllowedError
from trainer.dist.post import LOOK_S, Post
from trainer.dist.settings import GroupSettings
from trainer.errors import GroupError, RankLostError
from trainer.files.tensors import bytes_of
from transport.ice.stats import LinkState
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.peer import PeerNet

LOG = logging.getLogger(__name__)

MAX_UNCLAIMED = 1 << 30  # Bytes of a rank that runs ahead: all gradients of a model with 250 M parameters.
MAX_UNCLAIMED_COUNT = 65536  # The same in messages: thousands of micro-batches.
PIECE = 64 << 20  # Longer tensors go in pieces: a message is held as a whole by who receives it.
WATCH_S = 2.0  # Between two questions to a rank that is waited for; a dead link is noticed by the transport itself.
GOODBYE_S = 2.0  # Leaving is a courtesy: nobody waits longer for it.
QUIET_LOOK_S = 1.0  # Between two looks into the Store while all links are up.

COLLECTIVE, POINT_TO_POINT = 0, 1
_NAME = struct.Struct(">BQHI")
_ALIVE, _GOODBYE = b"alive", b"goodbye"

_T = TypeVar("_T")


class Name(NamedTuple):
    """Which message it is, among those of one sender.

    Attributes:
        kind: ``COLLECTIVE`` or ``POINT_TO_POINT``.
        number: of the call; for the latter the tag times 2^32 plus the number among the messages of its tag.
        step: within the call.
        piece: of the tensor.
    """

    kind: int
    number: int
    step: int
    piece: int


@dataclass
class _Rank:
    """What is known of another rank."""

    address: str
    lost: str = ""
    arrived: dict[Name, tuple[bytes, bytearray]] = field(default_factory=dict)
    awaited: dict[Name, asyncio.Future[tuple[bytes, bytearray]]] = field(default_factory=dict)
    held: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def has_room(self, size: int) -> bool:
        return not self.arrived or (self.held + size <= MAX_UNCLAIMED and len(self.arrived) < MAX_UNCLAIMED_COUNT)


class Mesh:
    """This rank's links to all others."""

    def __init__(self, settings: GroupSettings, store: Store, rank: int, size: int, timeout: float) -> None:
        """Connect to everybody.

        Args:
            timeout: seconds for this, and for every later call.
        Raises:
            RankLostError: some did not appear in time.
            GroupError: this process cannot be that rank.
        """
        self.rank, self.size, self.timeout = rank, size, timeout
        self._settings = settings
        self._post = Post(store, rank, size)
        self._ranks: dict[int, _Rank] = {}
        self._by_address: dict[str, int] = {}
        self._closed = ""
        limits = replace(PeerLimits(), reach_s=settings.reach_s)
        if size - 1 > limits.max_peers:
            raise GroupError(f"{size} ranks: a group over Cottage links has at most {limits.max_peers + 1}")
        self._loop = asyncio.new_event_loop()
        self._background: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="cottage-mesh", daemon=True)
        self._thread.start()
        self._net = PeerNet(
            settings.key,
            self._signal,
            self._take_message,
            ice_servers=settings.ice_servers,
            loopback=settings.loopback,
            limits=limits,
        )
        connecting = self.start(self._connect())
        try:
            connecting.result()
        except BaseException:
            connecting.cancel()
            self.close()
            raise

    @property
    def wire_bytes(self) -> int:
        """Bytes in DTLS datagrams sent so far, refreshed about once a second."""
        return sum(link.wire_sent for link in self._net.stats().values())

    def start(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Run in the mesh's thread.

        Raises:
            GroupError: it has ended.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # The loop is closed.
            work.close()
            raise GroupError(f"the process group was {self._closed}") from None

    async def _connect(self) -> None:
        waiting_for: Sequence[int] = ()
        try:
            async with asyncio.timeout(self.timeout):
                addresses = await self._post.meet(self._net.address)
                self._enrol(addresses)
                await self._net.allow(set(self._by_address))
                self._background.append(asyncio.create_task(self._read_post(), name="dist-post"))
                waiting_for = list(self._ranks)
                await asyncio.gather(*(self._greet(rank) for rank in waiting_for))
        except TimeoutError:
            missing = await self._post.missing() or [
                rank
                for rank, other in self._ranks.items()
                if self._net.stats()[other.address].state is not LinkState.UP
            ]
            raise RankLostError(
                missing,
                f"no link to rank {_listed(missing)} within {self.timeout:g} s: has it started, and can it be reached?",
            ) from None
        self._background += [asyncio.create_task(self._watch(rank), name=f"dist-watch-{rank}") for rank in self._ranks]

    def _enrol(self, addresses: Sequence[str]) -> None:
        pinned = self._settings.peers
        for rank, address in enumerate(addresses):
            if pinned and address != pinned[rank]:
                raise GroupError(f"rank {rank} says that it is {address}, but COTTAGE_PEERS names {pinned[rank]}")
            if rank != self.rank:
                self._ranks[rank] = _Rank(address)
        self._by_address = {other.address: rank for rank, other in self._ranks.items()}
        if len(self._by_address) != self.size - 1 or self._net.address in self._by_address:
            raise GroupError("two ranks have one key: give each its own COTTAGE_KEY_FILE, or none")

    async def _greet(self, rank: int) -> None:
        while True:  # Whoever is late is waited for as long as the caller says, not as long as a link that broke.
            try:
                await self._net.send(self._ranks[rank].address, Lane.CONTROL, _ALIVE)
                return
            except PeerNotAllowedError as error:
                raise RankLostError([rank], f"rank {rank} cannot be reached: {error}") from error
            except PeerError as error:
                LOG.info("rank %d is not there yet: %s", rank, error)

    async def _signal(self, address: str, envelope: bytes) -> None:
        await self._post.write(self._by_address[address], envelope)

    async def _read_post(self) -> None:
        """Hand letters to the links until the Store is gone: links that are up do not need it."""
        while True:
            try:
                letters = await self._post.read()
            except RuntimeError as error:  # A Store raises nothing more exact; rank 0, which has it, may have ended.
                LOG.info("the Store is gone, lost links cannot be made again: %s", error)
                return
            for rank, envelope in letters:
                if rank in self._ranks:
                    await self._net.on_signal(self._ranks[rank].address, envelope)
            quiet = all(link.state is LinkState.UP for link in self._net.stats().values())
            await asyncio.sleep(QUIET_LOOK_S if quiet else LOOK_S)

    async def _watch(self, rank: int) -> None:
        """Ask a rank for a sign of life while something of it is awaited."""
        other = self._ranks[rank]
        while not other.lost:
            if not other.awaited:
                other.changed.clear()
                await other.changed.wait()
                continue
            try:
                await self._net.send(other.address, Lane.CONTROL, _ALIVE)
            except PeerError as error:
                self._lose(rank, str(error))
            await asyncio.sleep(WATCH_S)

    def _lose(self, rank: int, why: str) -> None:
        other = self._ranks[rank]
        other.lost = other.lost or why
        for waiting in other.awaited.values():
            if not waiting.done():
                waiting.set_exception(RankLostError([rank], f"rank {rank} is lost: {other.lost}"))
        other.awaited.clear()
        other.changed.set()

    async def _take_message(self, address: str, _: Lane, header: bytes, payload: memoryview) -> None:
        rank = self._by_address[address]
        other = self._ranks[rank]
        if header == _ALIVE:
            return
        if header == _GOODBYE:
            self._lose(rank, "it left the group")
            return
        if len(header) <= _NAME.size or payload.nbytes > PIECE:
            raise MessageRefusedError(f"rank {self.rank} knows no message with {len(header)}+{payload.nbytes} bytes")
        name = Name(*_NAME.unpack_from(header))
        content = header[_NAME.size :]
        while name not in other.awaited and not other.has_room(payload.nbytes):
            other.changed.clear()
            await other.changed.wait()
        if name in other.arrived:
            raise MessageRefusedError(f"rank {self.rank} has {name} already")
        waiting = other.awaited.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((content, bytearray(payload)))
        else:
            other.arrived[name] = content, bytearray(payload)
            other.held += payload.nbytes

    async def put(self, rank: int, name: Name, content: bytes, payload: memoryview) -> None:
        """Carry one message; returns when the other rank holds it.

        Raises:
            RankLostError: the rank is gone.
        """
        self._check(rank)
        # One that is full does not stop the other.
        lane = Lane.ACTIVATIONS if name.kind == POINT_TO_POINT else Lane.BULK
        try:
            await self._net.send(self._ranks[rank].address, lane, _NAME.pack(*name) + content, payload)
        except PeerError as error:
            self._lose(rank, str(error))
            raise RankLostError([rank], f"rank {rank} is lost: {error}") from error

    async def take(self, rank: int, name: Name) -> tuple[bytes, bytearray]:
        """Wait for one message: what it says that it holds, and its bytes.

        Raises:
            RankLostError: the rank is gone.
        """
        if rank in self._ranks and name in self._ranks[rank].arrived:
            other = self._ranks[rank]
            message = other.arrived.pop(name)
            other.held -= len(message[1])
            other.changed.set()
            return message
        self._check(rank)
        other = self._ranks[rank]
        waiting: asyncio.Future[tuple[bytes, bytearray]] = self._loop.create_future()
        other.awaited[name] = waiting
        other.changed.set()
        try:
            return await waiting
        finally:
            other.awaited.pop(name, None)

    def _check(self, rank: int) -> None:
        if self._closed:
            raise GroupError(f"the process group was {self._closed}")
        if rank not in self._ranks:
            raise GroupError(f"rank {rank} is not another rank of this group of {self.size}")
        if self._ranks[rank].lost:
            raise RankLostError([rank], f"rank {rank} is lost: {self._ranks[rank].lost}")

    def close(self, how: str = "shut down") -> None:
        """Say goodbye and end the thread; what still waits fails. Closing again does nothing."""
        if self._closed:
            return
        self._closed = how
        self.start(self._aclose()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._post.close()

    async def _aclose(self) -> None:
        for other in self._ranks.values():
            for waiting in other.awaited.values():
                if not waiting.done():
                    waiting.set_exception(GroupError(f"the process group was {self._closed}"))
        reachable = [
            other.address
            for other in self._ranks.values()
            if (link := self._net.stats().get(other.address)) is not None and link.state is LinkState.UP
        ]
        goodbyes = (self._net.send(address, Lane.CONTROL, _GOODBYE, timeout=GOODBYE_S) for address in reachable)
        await asyncio.gather(*goodbyes, return_exceptions=True)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._net.aclose()


class Call:
    """One call of a collective, or one tensor between two ranks, as seen by this rank."""

    def __init__(self, mesh: Mesh, operation: str, kind: int, number: int) -> None:
        """Take what names its messages."""
        self.mesh, self.operation = mesh, operation
        self._kind, self._number = kind, number
        self._awaited: Counter[int] = Counter()

    async def put(self, rank: int, tensor: Tensor, step: int = 0) -> None:
        """Send a tensor that does not change until this returns: when the other rank holds it."""
        data = bytes_of(tensor)
        content = self._content(tensor)
        self._awaited[rank] += 1
        for piece in range(_pieces(len(data))):
            name = Name(self._kind, self._number, step, piece)
            await self.mesh.put(rank, name, content, data[piece * PIECE : (piece + 1) * PIECE])
        self._awaited[rank] -= 1

    async def take(self, rank: int, like: Tensor, step: int = 0) -> Tensor:
        """Receive a tensor with the shape and type of ``like``.

        Raises:
            GroupError: the rank sent something else.
        """
        size = like.numel() * like.element_size()
        data = bytearray()
        self._awaited[rank] += 1
        for piece in range(_pieces(size)):
            content, part = await self.mesh.take(rank, Name(self._kind, self._number, step, piece))
            if content != self._content(like) or len(part) != min(PIECE, size - piece * PIECE):
                raise GroupError(
                    f"rank {rank} sent {content[:64]!r} of {len(part)} bytes, here is {self._content(like)!r} of {size}: "
                    "do all ranks make the same calls in the same order?"
                )
            data = part if size <= PIECE else data + part
        self._awaited[rank] -= 1
        return torch.frombuffer(data, dtype=like.dtype).view(like.shape) if data else like.new_empty(like.shape)

    def _content(self, tensor: Tensor) -> bytes:
        return f"{self.operation} {tensor.dtype}".encode()

    async def within_the_limit(self, body: "Callable[[Call], Coroutine[Any, Any, _T]]") -> _T:
        """Run the call.

        Raises:
            RankLostError: a rank is gone, or it took longer than the group's timeout.
            GroupError: as the body.
        """
        try:
            async with asyncio.timeout(self.mesh.timeout):
                return await body(self)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        except TimeoutError:
            silent = sorted(+self._awaited)
            raise RankLostError(
                silent,
                f"{self.operation} took longer than {self.mesh.timeout:g} s: rank {_listed(silent)} did not answer",
            ) from None


def _pieces(size: int) -> int:
    return max(1, -(-size // PIECE))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks) or "of nobody"
