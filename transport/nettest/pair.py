"""A link between two machines that have nothing in common but a relay, for as long as a test takes."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence

from common.clock import Clock
from common.errors import BadAddressError, MessageRefusedError, PeerError, PeerNotAllowedError
from protocol.codec import MessageError, decode, encode
from protocol.identity import NodeKey
from protocol.node import Signal
from transport.messages.lanes import Lane
from transport.nettest.errors import NettestError
from transport.nettest.mailbox import TOKEN_BYTES, Mailbox, MeetingPoint, opened
from transport.nettest.peer import PREFIX, PeerTests
from transport.nettest.phase import NettestPhase, OnPhase
from transport.nettest.result import PeerTest
from transport.nettest.target import Target
from transport.peer.peer import PeerNet

MEASURE_S = 30.0  # The link comes up within seconds; echoes and two transfers take six more.
MAX_MAIL = 64  # Envelopes that wait to be opened; a link takes two or three.


async def invite(targets: Sequence[Target], clock: Clock, on_code: Callable[[str], None], wait_s: float) -> PeerTest:
    """Wait for the other machine and let it measure; returns what it has found, seen from here.

    Args:
        on_code: told the line to pass on.
        wait_s: how long to wait.
    Raises:
        NettestError: no relay gives an address, or nobody came.
    """
    key, token = NodeKey.generate(), secrets.token_bytes(TOKEN_BYTES)
    target = targets[0]
    meeting = _Meeting(key, target, clock)
    async with opened(target, token, meeting.on_mail) as mailbox, meeting.joined(mailbox) as tests:
        mailbox.admit()
        on_code(MeetingPoint(target.name, *mailbox.address, key.address, token).code())
        try:
            async with clock.timeout(wait_s):
                result = await tests.results.get()
        except TimeoutError:
            raise NettestError(f"nobody came within {wait_s:.0f} s") from None
        return result


async def visit(
    targets: Sequence[Target], code: str, clock: Clock, on_phase: OnPhase, *, speed: bool = True
) -> PeerTest:
    """Measure the link to whoever has printed ``code``.

    Raises:
        NettestError: no code, another relay's, or the other machine is not reached.
    """
    point = MeetingPoint.read(code)
    target = next((one for one in targets if one.name == point.relay), None)
    if target is None:
        raise NettestError(f"the code is of the relay {point.relay}, which is not among the relays here")
    key = NodeKey.generate()
    meeting = _Meeting(key, target, clock)
    async with opened(target, point.token, meeting.on_mail) as mailbox, meeting.joined(mailbox) as tests:
        on_phase(NettestPhase("connecting", MEASURE_S))
        mailbox.other = point.host, point.port
        await meeting.net.allow({point.node})
        await mailbox.send(encode(Signal(key.address, b"")))
        on_phase(NettestPhase("measuring the link", MEASURE_S))
        try:
            async with clock.timeout(MEASURE_S):
                result = await tests.measure(point.node, speed=speed)
        except TimeoutError:
            raise NettestError(f"no link came up within {MEASURE_S:.0f} s") from None
        with contextlib.suppress(PeerError):
            await tests.tell(point.node, result)
        return result


class _Meeting:
    """One side's links, and the mailbox that carries their envelopes."""

    def __init__(self, key: NodeKey, target: Target, clock: Clock) -> None:
        self.net = PeerNet(key, self._send_signal, self._on_message, ice_servers=target.servers, clock=clock)
        self._tests = PeerTests(self.net, clock, lambda: "")
        self._mail: asyncio.Queue[Signal] = asyncio.Queue(MAX_MAIL)
        self._mailbox: Mailbox | None = None
        self._visitor = ""

    @contextlib.asynccontextmanager
    async def joined(self, mailbox: Mailbox) -> AsyncIterator[PeerTests]:
        """Carry envelopes as long as the body runs; then close every link."""
        self._mailbox = mailbox
        reading = asyncio.create_task(self._read(), name="nettest-mail")
        try:
            yield self._tests
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await self._tests.aclose()
            await self.net.aclose()

    def on_mail(self, message: bytes) -> None:
        """Take what the mailbox brings; what is malformed, or too much, is dropped."""
        with contextlib.suppress(MessageError, asyncio.QueueFull):
            self._mail.put_nowait(decode(message, Signal))

    async def _read(self) -> None:
        """The first who writes is the visitor; the token has let it in."""
        while True:
            signal = await self._mail.get()
            if not self._visitor:
                with contextlib.suppress(BadAddressError, PeerNotAllowedError):
                    await self.net.allow({signal.peer})
                    self._visitor = signal.peer
            if signal.envelope:
                await self.net.on_signal(signal.peer, signal.envelope)

    async def _send_signal(self, _: str, envelope: bytes) -> None:
        assert self._mailbox is not None
        await self._mailbox.send(encode(Signal(self.net.address, envelope)))

    async def _on_message(self, peer: str, lane: Lane, header: bytes, payload: memoryview) -> None:
        if not header.startswith(PREFIX):
            raise MessageRefusedError("this machine only measures")
        await self._tests.on_message(peer, lane, header, payload)
