"""The state of a stage from several peers at once: no single peer's departure, slowness or lie stops it.

Every peer that has the state works through the pieces that nobody else has in hand; when none are left, those that others have in
hand are asked for once more, so that the last piece does not wait for a peer that has gone. A state is there when every piece was
held against its manifest, and not before: what a failed download has left behind is never handed out.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from common.clock import Clock
from common.errors import MessageRefusedError, TransportError
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import Payload
from desktop.agent.errors import PeerStateError
from desktop.agent.jobs.spool import Spool, Spooled, Spooling
from desktop.agent.jobs.state_store import StateStore
from protocol.codec import MessageError, decode, encode
from protocol.state import PREFIX, Manifest, StateAsk, StateGive, StateMessage, header, read_manifest
from protocol.task import KeptState
from transport.messages.lanes import Lane

MAX_GIVEN_AT_ONCE = 8  # Pieces on their way to peers: 8 MiB fill any home uplink.
MAX_ASKED = 256  # Pieces that wait for their turn: as many replicas as a stage may have, each asking for one.
MAX_PARTIAL = 2  # Downloads that were broken off and may go on: one a lease is usual.
PATIENCE = 3  # Times that a peer may fail before it is not asked any more.
ANSWER_S = 30.0  # A piece on a line of 0.3 Mbit/s. Others are asked for it long before.
PAUSE_S = 0.5  # Before a peer that failed is asked again.

Send = Callable[[str, Lane, bytes, bytes], Awaitable[None]]


@dataclass
class Partial:
    """A state of which some pieces are here, on the disk."""

    manifest: Manifest
    file: Spooling
    done: set[int] = field(default_factory=set)
    in_hand: dict[int, set[str]] = field(default_factory=dict)

    def finished(self) -> Spooled:
        """The state, of which every piece is here."""
        return self.file.finish(self.manifest)

    @property
    def is_whole(self) -> bool:
        """Whether every piece is here."""
        return len(self.done) == len(self.manifest.pieces)

    def next_for(self, peer: str, failed: Mapping[int, int]) -> int | None:
        """A piece to ask this peer for: one that nobody has in hand, else one that others are slow with.

        Args:
            failed: how often it did not give a piece; others come first.
        """
        missing = [piece for piece in range(len(self.manifest.pieces)) if piece not in self.done]
        fitting = [piece for piece in missing if peer not in self.in_hand.get(piece, set())]
        return min(
            fitting, key=lambda piece: (failed.get(piece, 0), len(self.in_hand.get(piece, ())), piece), default=None
        )

    def take(self, piece: int, data: bytes) -> bool:
        """Put a piece in its place; False where these are not its bytes. Raises OSError where the disk does not take it."""
        if not self.manifest.fits(piece, data):
            return False
        self.file.put(data, self.manifest.span(piece).start)
        self.done.add(piece)
        return True


@dataclass
class _Flight:
    """One state on its way to all seats here that wait for it: one of them fetches it.

    Attributes:
        users: how many wait. whole: for those who wait while another fetches it.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    whole: Spooled | None = None


class States:
    """Gives what is on the store, and gets what is on others'."""

    def __init__(self, address: str, store: StateStore, send: Send, clock: Clock) -> None:
        """Take this node's address; ``send`` carries (peer, lane, header, payload) and returns when the peer has taken it."""
        self._address = address
        self._clock = clock
        self._turn = asyncio.Semaphore(MAX_GIVEN_AT_ONCE)
        self._store = store
        self._send = send
        self._partial: OrderedDict[str, Partial] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._answers: dict[tuple[str, str, int | None], asyncio.Future[bytes | None]] = {}
        self._giving: set[asyncio.Task[None]] = set()
        self.given = 0
        self.taken: dict[str, int] = {}

    @property
    def spool(self) -> Spool:
        """Where a state lies until it is kept."""
        return self._store.spool

    async def keep(self, owner: str, state: bytes | Payload) -> str:
        """Put a state on the store; see ``StateStore.keep``."""
        return await asyncio.to_thread(self._store.keep, owner, state)

    async def fetch(self, kept: KeptState) -> Payload:
        """The whole state, checked piece by piece. Seats that ask for the same one wait for each other, and each gets its own.

        Raises:
            StateError: no peer that was named could give all of it. What came stays here, and a later try goes on from there.
            OSError: the disk has no room for it.
        """
        flight = self._flights.setdefault(kept.manifest, _Flight())
        flight.users += 1
        try:
            async with flight.lock:
                if flight.whole is not None:
                    return await asyncio.to_thread(self.spool.share, flight.whole)
                whole = await self._fetch_alone(kept)
                if flight.users > 1 and isinstance(whole, Spooled):
                    flight.whole = await asyncio.to_thread(self.spool.share, whole)
                return whole
        finally:
            flight.users -= 1
            if flight.users == 0:
                del self._flights[kept.manifest]

    async def _fetch_alone(self, kept: KeptState) -> Payload:
        digest = kept.manifest
        here = await asyncio.to_thread(self._store.whole, digest)
        if here is not None:
            return here
        peers = [peer for peer in kept.holders if peer != self._address]
        partial = self._partial.get(digest) or await self._begin(digest, peers)
        await self._gather(digest, partial, peers)
        if not partial.is_whole:
            have, of = len(partial.done), len(partial.manifest.pieces)
            raise PeerStateError(
                f"the state {digest[:16]} could not be had: {have} of {of} pieces came from {len(peers)} peers"
            )
        self._partial.pop(digest, None)
        return partial.finished()

    async def _begin(self, digest: str, peers: list[str]) -> Partial:
        """Learn of which pieces the state consists, from whoever answers first with the right bytes."""
        manifest = await self._manifest(digest, peers)
        self._partial[digest] = partial = Partial(manifest, await asyncio.to_thread(self.spool.begin, manifest.size))
        while len(self._partial) > MAX_PARTIAL:
            self._partial.popitem(last=False)
        return partial

    async def _manifest(self, digest: str, peers: list[str]) -> Manifest:
        asked = [asyncio.create_task(self._ask(peer, digest, None), name=f"manifest-{peer[:8]}") for peer in peers]
        try:
            for answer in asyncio.as_completed(asked):
                data = await answer
                try:
                    manifest = read_manifest(data, digest) if data else None
                except MessageError:
                    continue
                if manifest is not None:
                    return manifest
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise PeerStateError(
            f"none of the {len(peers)} peers that should keep the state {digest[:16]} gave its manifest"
        )

    async def _gather(self, digest: str, partial: Partial, peers: list[str]) -> None:
        """Let all peers work until the state is whole, or none of them can go on."""
        working = {asyncio.create_task(self._work(digest, partial, peer), name=f"state-{peer[:8]}") for peer in peers}
        try:
            while working and not partial.is_whole:
                done, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            partial.in_hand.clear()

    async def _work(self, digest: str, partial: Partial, peer: str) -> None:
        """Take piece after piece from one peer, as long as it gives them."""
        failures, failed = 0, Counter[int]()
        while failures < PATIENCE and (piece := partial.next_for(peer, failed)) is not None:
            partial.in_hand.setdefault(piece, set()).add(peer)
            try:  # In hand until it is in its place: nobody else should ask for it meanwhile.
                data = await self._ask(peer, digest, piece)
                fits = data is None or piece in partial.done or await asyncio.to_thread(partial.take, piece, data)
            finally:
                partial.in_hand[piece].discard(peer)
            if not fits:
                LOG.warning("%s gave wrong bytes for a state: it is not asked again", peer)
                return
            if data is None:
                failures += 1
                failed[piece] += 1
                await self._clock.sleep(PAUSE_S)
            else:
                failures = 0
                self.taken[peer] = self.taken.get(peer, 0) + 1

    async def _ask(self, peer: str, digest: str, piece: int | None) -> bytes | None:
        """One answer; None where the peer cannot be reached, has it not, or does not answer."""
        key = (peer, digest, piece)
        if key in self._answers:
            return None  # It has been asked on behalf of another lease: this one takes it from somebody else.
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        try:
            async with self._clock.timeout(ANSWER_S):
                await self._send(peer, Lane.CONTROL, header(StateAsk(digest, piece)), b"")
                return await answer
        except (TransportError, TimeoutError) as error:
            LOG.info("%s did not give piece %s of a state: %s", peer, piece, error or "no answer")
            return None
        finally:
            del self._answers[key]

    # --- what peers say -------------------------------------------------------------------------------------------------

    async def on_message(self, sender: str, lane: Lane, data: bytes, payload: bytes | memoryview) -> None:
        """Take a message whose header begins with ``PREFIX``.

        Raises:
            MessageRefusedError: it is malformed, or too much is asked for at once.
        """
        try:
            message: StateMessage = decode(data[len(PREFIX) :], StateMessage)
        except MessageError as error:
            raise MessageRefusedError("no message about a state") from error
        match message:
            case StateAsk():
                self._give(sender, message)
            case StateGive(manifest=digest, piece=piece, found=found):
                waiting = self._answers.get((sender, digest, piece))
                if waiting is not None and not waiting.done():
                    waiting.set_result(bytes(payload) if found else None)

    def _give(self, peer: str, ask: StateAsk) -> None:
        if len(self._giving) >= MAX_ASKED:
            raise MessageRefusedError("too many pieces are on their way already")
        task = asyncio.create_task(self._answer(peer, ask), name=f"give-{peer[:8]}")
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _answer(self, peer: str, ask: StateAsk) -> None:
        async with self._turn:
            await self._read_and_send(peer, ask)

    async def _read_and_send(self, peer: str, ask: StateAsk) -> None:
        manifest = await asyncio.to_thread(self._store.manifest, ask.manifest)
        data = b""
        if manifest is not None and ask.piece is None:
            data = encode(manifest)
        elif manifest is not None and ask.piece is not None and ask.piece < len(manifest.pieces):
            data = await asyncio.to_thread(self._store.read, ask.manifest, manifest.span(ask.piece))
        try:
            await self._send(peer, Lane.BULK, header(StateGive(ask.manifest, ask.piece, bool(data))), data)
        except TransportError as error:
            LOG.info("%s did not take a piece of a state: %s", peer, error)
        else:
            self.given += len(data)

    async def aclose(self) -> None:
        """Give nothing more."""
        giving = list(self._giving)
        for task in giving:
            task.cancel()
        await asyncio.gather(*giving, return_exceptions=True)
