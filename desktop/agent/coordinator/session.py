"""The WebSocket to the coordinator: the handshake, heartbeats, and coming back after a cut.

::

    connect -> Challenge -> Hello -> Welcome -> messages both ways, heartbeats
       ^                       '-> Refused        |
       '---- wait (backoff with jitter) <---------'  closed, silent, malformed, another key than the invitation's
"""

import asyncio
import random
import secrets
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import msgspec

from common import tracing
from common.clock import Clock, backoff, within
from common.errors import IdentityError
from common.http_sessions import ProxyError, open_session, through, why
from common.untrusted_text import untrusted
from common.urls import at, authority, names, parse_url
from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.log import LOG, printable
from desktop.agent.errors import AgentError, CoordinatorRefusedError, NotConnectedError
from protocol.codec import MAX_MESSAGE, MessageError, decode, encode
from protocol.identity import NodeKey, verify
from protocol.node import (
    CARD_CONTEXT,
    HELLO_CONTEXT,
    PROTOCOL,
    WELCOME_CONTEXT,
    Beat,
    Challenge,
    CoordinatorMessage,
    Goodbye,
    Heartbeat,
    HeldLease,
    Hello,
    NodeMessage,
    NodeProfile,
    Refused,
    TaskMessage,
    Welcome,
)

NODE_PATH = "/api/v1/node"
HANDSHAKE_S = 15.0  # A busy coordinator answers within seconds; one that does not is tried again.
SILENT_BEATS = 4  # Heartbeats without any answer until the connection counts as dead.
SILENT_MIN_S = 10.0  # A coordinator that beats every second may still stall for a few.
GOODBYE_S = 3.0
RECONNECT_MAX_S = 2.0  # While leases are held: they expire within seconds.


class Listener(Protocol):
    """Whoever the session works for. ``received`` must not wait for anything: it delays the next heartbeat."""

    def accepting(self) -> bool:
        """Whether new leases are welcome."""

    def held(self) -> tuple[HeldLease, ...]:
        """The leases that live on this node."""

    async def welcomed(self, welcome: Welcome) -> None:
        """A connection stands: send again what was not acknowledged."""

    def received(self, message: TaskMessage) -> None:
        """A message has come."""


class _ConnectionEndedError(AgentError):
    """This connection is over; the next one may work."""


class _RefusedForNowError(_ConnectionEndedError):
    """The coordinator does not take this node now; the text is its own."""


_BROKEN = (aiohttp.ClientError, OSError, TimeoutError, MessageError, NotConnectedError, _ConnectionEndedError)


@dataclass(frozen=True)
class Introduction:
    """What the node says of itself. ``computer``: whose further card it is, which vouches for it; None: it is its own."""

    key: NodeKey
    payout: str
    profile: NodeProfile
    computer: NodeKey | None = None


class CoordinatorSession:
    """Keeps one connection to the coordinator alive, for as long as ``run`` runs."""

    def __init__(
        self,
        url: str,
        introduction: Introduction,
        listener: Listener,
        clock: Clock,
        coordinator_key: str = "",
        invitation: str = "",
    ) -> None:
        """``url``: the coordinator's base address, ``http://host:port`` or ``https://host``; ``coordinator_key``: what it has to
        prove that it holds, if anything; ``invitation``: the code that lets this node in, where it has one."""
        self._url, self._coordinator_key = parse_url(url), coordinator_key
        self._invitation = invitation
        self._self = introduction
        self._listener = listener
        self._clock = clock
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._beat_now = asyncio.Event()
        self._left = asyncio.Event()
        self._back = asyncio.Event()
        self._back.set()
        self._why_away = ""
        self._period = 1.0
        self._wait_after_refusal = 0.0
        self.state = "connecting"
        self.reason = ""
        self.online_since: float | None = None
        self.last_seen = clock.now()

    @property
    def online(self) -> bool:
        """Whether messages can be sent now."""
        return self._socket is not None

    def silent(self) -> float:
        """For how many seconds there has been no coordinator; 0 while there is a connection."""
        return 0.0 if self.online else self._clock.now() - self.last_seen

    async def run(self) -> None:
        """Connect, and connect again, until ``goodbye``.

        Raises:
            RefusedError: the coordinator does not want this node until its owner changes something.
        """
        failures = 0
        async with open_session() as http:
            while not self._left.is_set():
                if not self._back.is_set():
                    self.state, self.reason = "away", self._why_away
                    await self._back.wait()
                    continue
                self.state = "connecting"
                self.online_since = None
                try:
                    await self._connection(http)
                except _RefusedForNowError as refused:
                    self.reason = str(refused)
                except _BROKEN as error:
                    self.reason = printable(f"no connection to {self._url}{self._explained(error)}")
                finally:
                    self._socket = None
                if self._left.is_set():
                    return
                if not self._back.is_set():
                    continue
                failures = 1 if self.online_since is not None else failures + 1
                wait = backoff(failures, random.random)
                if self._listener.held():
                    wait = min(wait, RECONNECT_MAX_S)
                wait = self._wait_after_refusal or wait
                LOG.warning("%s; next try in %.1f s", self.reason, wait)
                await self._clock.sleep(wait)

    def _explained(self, error: Exception) -> str:
        """Why there is no connection, and by which way it was tried."""
        if isinstance(error, ProxyError):
            return f": {error}"
        way, reason = through(self._url), why(error)
        if isinstance(error, aiohttp.WSServerHandshakeError):
            reason = f"what answers there takes no nodes (HTTP {error.status}): is it a Cottage coordinator?"
        if way and self._url.scheme == "http" and isinstance(error, aiohttp.WSServerHandshakeError):
            reason += "; of plain HTTP few proxies pass WebSockets on: use an https address"
        return f"{way}: {reason}"

    async def send(self, message: NodeMessage) -> None:
        """Send one message.

        Raises:
            NotConnectedError: there is no connection; it was not sent.
        """
        socket = self._socket
        if socket is None:
            raise NotConnectedError("there is no connection to the coordinator")
        try:
            await socket.send_bytes(encode(message))
        except (ConnectionError, aiohttp.ClientError) as error:
            raise NotConnectedError(f"the connection to the coordinator broke: {error}") from error

    async def goodbye(self, reason: str) -> None:
        """Tell the coordinator that this node leaves, if it can be told; ``run`` returns soon, or when it is cancelled.

        A flag too, since a cancellation can get lost: a TaskGroup whose children fail at that moment raises their errors instead.
        """
        self._left.set()
        self._back.set()
        await self._say_goodbye(reason)

    async def leave(self, reason: str) -> None:
        """Say goodbye and stay away until ``come_back``."""
        self._back.clear()
        self._why_away = reason
        await self._say_goodbye(reason)

    async def introduce(self, introduction: Introduction) -> None:
        """Connect anew with another name, wallet or floor; leases are kept, as through a cut."""
        self._self = introduction
        if self._socket is not None:
            await self._socket.close()

    def come_back(self) -> None:
        """Connect again, if this node is away."""
        self._back.set()

    async def _say_goodbye(self, reason: str) -> None:
        socket = self._socket
        if socket is None:
            return

        async def speak() -> None:
            await self.send(Goodbye(untrusted(reason)))
            await socket.close()

        try:
            await within(GOODBYE_S, speak())
        except (NotConnectedError, TimeoutError):
            LOG.warning("the coordinator could not be told that this node leaves")

    def beat_soon(self) -> None:
        """Send the next heartbeat at once: a lease has come or gone."""
        self._beat_now.set()

    # --- one connection -------------------------------------------------------------------------------------------------

    async def _connection(self, http: aiohttp.ClientSession) -> None:
        self._wait_after_refusal = 0.0
        if not self.reason:  # Later tries are told of with why the last one failed.
            LOG.info("waiting for %s to answer", self._url)
        async with asyncio.timeout(HANDSHAKE_S):
            socket = await http.ws_connect(at(self._url, NODE_PATH), max_msg_size=MAX_MESSAGE, compress=0)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                welcome = await self._shake_hands(socket)
            if not self._back.is_set():
                raise _ConnectionEndedError("this node has just gone away")
            self._socket = socket
            self.state, self.reason = "online", ""
            self.last_seen = self.online_since = self._clock.now()
            LOG.info("connected to %s as %s", self._url, self._self.key.address)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._receive(socket), name="receive")
                    group.create_task(self._heartbeats(welcome.heartbeat_seconds), name="heartbeats")
                    group.create_task(self._listener.welcomed(welcome), name="welcomed")
            except BaseExceptionGroup as errors:
                raise main_error(errors, NotConnectedError) from None
        finally:
            self._socket = None
            await socket.close()

    async def _shake_hands(self, socket: aiohttp.ClientWebSocketResponse) -> Welcome:
        challenge = await self._next(socket)
        if not isinstance(challenge, Challenge):
            raise _ConnectionEndedError(f"expected a challenge, got {type(challenge).__name__}")
        self._check_host(challenge.host)
        signature = self._self.key.sign(HELLO_CONTEXT, challenge.nonce, challenge.host.encode())
        nonce = secrets.token_bytes(32) if self._coordinator_key else b""
        me, held = self._self, self._listener.held()
        hello = Hello(
            PROTOCOL, me.key.address, me.payout, signature, me.profile, held, nonce, self._invitation, tracing.is_on()
        )
        if me.computer is not None:
            vouched = me.computer.sign(CARD_CONTEXT, me.key.address.encode())
            profile = msgspec.structs.replace(me.profile, computer=me.computer.address)
            hello = msgspec.structs.replace(hello, profile=profile, vouched=vouched)
        await socket.send_bytes(encode(hello))
        answer = await self._next(socket)
        match answer:
            case Welcome(proof=proof):
                self._check_key(proof, nonce)
                return answer
            case Refused(reason=reason, retry_seconds=None):
                self.state, self.reason = "refused", printable(reason)
                raise CoordinatorRefusedError(f"the coordinator {self._url} refuses this node: {printable(reason)}")
            case Refused(reason=reason, retry_seconds=seconds):
                self.state = "refused"
                self._wait_after_refusal = seconds or 0.0
                raise _RefusedForNowError(printable(reason))
            case _:
                raise _ConnectionEndedError(f"expected a welcome, got {type(answer).__name__}")

    def _check_host(self, host: str) -> None:
        """The signature is good only for the coordinator that was dialled: one in the middle cannot pass it on as its own."""
        if not names(host, self._url):
            raise _ConnectionEndedError(f"{self._url} presents itself as {printable(host)!r}: dial it by that name")

    def _check_key(self, proof: bytes, nonce: bytes) -> None:
        """Who holds the address holds the invitation's key, too: signed for this greeting, under the name that was dialled."""
        if not self._coordinator_key:
            return
        parts = (nonce, self._self.key.address.encode(), authority(self._url).encode())
        try:
            verify(self._coordinator_key, proof, WELCOME_CONTEXT, *parts)
        except IdentityError as error:
            raise _ConnectionEndedError(
                f"what answers there cannot show that it is the network of your invitation (key {self._coordinator_key}): "
                "ask whoever invited you for a new one"
            ) from error

    async def _next(self, socket: aiohttp.ClientWebSocketResponse) -> CoordinatorMessage:
        frame = await socket.receive()
        if frame.type is not aiohttp.WSMsgType.BINARY:
            detail = f" ({printable(str(frame.extra))})" if frame.extra else ""
            raise _ConnectionEndedError(f"the coordinator closed the connection, code {socket.close_code}{detail}")
        message: CoordinatorMessage = decode(frame.data, CoordinatorMessage)
        return message

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = await self._next(socket)
            self.last_seen = self._clock.now()
            match message:
                case Challenge() | Welcome():
                    raise _ConnectionEndedError(f"an unexpected {type(message).__name__}")
                case Refused(reason=reason, retry_seconds=seconds):
                    self.state = "refused"
                    if seconds is None:
                        raise CoordinatorRefusedError(
                            f"the coordinator {self._url} ended this session: {printable(reason)}"
                        )
                    self._wait_after_refusal = seconds
                    raise _RefusedForNowError(printable(reason))
                case Beat(next_seconds=seconds):
                    self._period = seconds
                    self._listener.received(message)
                case _:
                    self._listener.received(message)

    async def _heartbeats(self, first_period: float) -> None:
        self._period = first_period
        while True:
            self._beat_now.clear()
            await self.send(Heartbeat(self._listener.held(), self._listener.accepting()))
            await self._wait_for_beat()
            silence = self._clock.now() - self.last_seen
            if silence > max(SILENT_MIN_S, SILENT_BEATS * self._period):
                raise _ConnectionEndedError(f"the coordinator has said nothing for {silence:.0f} s")

    async def _wait_for_beat(self) -> None:
        try:
            async with self._clock.timeout(self._period):
                await self._beat_now.wait()
        except TimeoutError:
            return
