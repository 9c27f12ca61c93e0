"""A coordinator for the agent's tests: a real server that speaks the real wire and does only what the test says."""

import asyncio
import hashlib
import secrets
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from common.urls import url_of
from protocol import identity
from protocol.artifacts import is_answer
from protocol.codec import decode, decode_json, encode, encode_json
from protocol.network import NetworkReport, RelayQuestion
from protocol.node import (
    Accounts,
    Acknowledged,
    Assign,
    Beat,
    Challenge,
    Command,
    CoordinatorMessage,
    Goodbye,
    Heartbeat,
    Hello,
    IceServers,
    JobEarned,
    NodeMessage,
    OfferedIceServer,
    Refused,
    Report,
    Signal,
    Welcome,
)
from protocol.private.sessions import PrivateAnswer, PrivateCounts

PATIENCE_S = 30.0


@dataclass
class Double:
    """``acknowledge`` off loses every acknowledgement; ``refusal`` is sent instead of a welcome.

    ``accounts``: what it answers who asks how the work in a job stands.
    """

    acknowledge: bool = True
    refusal: Refused | None = None
    host: str | None = None
    listen: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    ledger: object = None
    add_routes: Callable[[web.Application], None] = lambda _app: None
    heartbeat_seconds: float = 0.2
    hellos: list[Hello] = field(default_factory=list)
    reports: list[tuple[str, Report]] = field(default_factory=list)
    beats: list[tuple[str, Heartbeat]] = field(default_factory=list)
    goodbyes: list[str] = field(default_factory=list)
    networks: list[tuple[str, NetworkReport]] = field(default_factory=list)
    accounts: dict[str, JobEarned] = field(default_factory=dict)
    account_asks: list[tuple[str, ...]] = field(default_factory=list)
    ice_servers: tuple[OfferedIceServer, ...] = ()
    relays: tuple[OfferedIceServer, ...] = ()
    questions: list[str] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    uploads: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    waiting: int = 0
    gone: list[str] = field(default_factory=list)
    cut_after: int | None = None
    hang_after: int | None = None
    damage: int = 0
    tamper: Callable[[str, Signal], Signal | None] | None = None
    key: identity.NodeKey | None = None
    known_as: str = ""
    replayed: bytes = b""
    private: list[PrivateAnswer | PrivateCounts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes: dict[str, web.WebSocketResponse] = {}
        self.tokens: set[str] = set()
        self.answered: list[tuple[str, str]] = []
        self.unwanted: set[str] = set()
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self.port = 0

    # --- life -----------------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/api/v1/node", self._node)
        app.router.add_post("/api/v1/relays/credentials", self._credentials)
        app.router.add_get("/api/v1/network", self._network)
        app.router.add_get("/api/v1/artifacts/{digest}", self._get)
        app.router.add_put("/api/v1/artifacts/{digest}", self._put)
        self.add_routes(app)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.listen, self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self.url

    async def _network(self, _: web.Request) -> web.Response:
        said = {"nodes_online": 10, "nodes_busy": 4, "price_per_petaflop": 2000, "notice": ""}
        return web.json_response(said | ({"coordinator": self.key.address} if self.key else {}))

    async def stop(self) -> None:
        """End abruptly, as a killed process does; ``start`` takes the same port again."""
        for socket in list(self.nodes.values()):
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()
        self.nodes.clear()
        self.tokens.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return url_of(self.listen, self.port)

    # --- what a test does -----------------------------------------------------------------------------------------------

    async def send(self, node: str, message: CoordinatorMessage) -> None:
        await self.nodes[node].send_bytes(encode(message))

    async def assign(self, node: str, assign: Assign) -> None:
        await self.send(node, assign)

    async def command(self, node: str, assign: Assign, body: object) -> None:
        await self.send(node, Command(assign.lease, assign.fence, body))

    async def until(self, condition: Callable[[], object], patience: float = PATIENCE_S) -> None:
        """Return when ``condition`` holds; it is looked at whenever something arrives, and now and then."""
        async with asyncio.timeout(patience):
            while not condition():
                try:
                    async with asyncio.timeout(0.1), self._changed:
                        await self._changed.wait()
                except TimeoutError:
                    pass

    def bodies(self, kind: type, lease: str | None = None) -> list:
        return [r.body for _, r in self.reports if isinstance(r.body, kind) and lease in (None, r.lease)]

    def store(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.artifacts[digest] = data
        return digest

    # --- handlers -------------------------------------------------------------------------------------------------------

    async def _node(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=1 << 20)
        await socket.prepare(request)
        nonce, host = secrets.token_bytes(32), self.host or request.host
        await socket.send_bytes(encode(Challenge(nonce, host)))
        frame = await socket.receive()
        if frame.type is not WSMsgType.BINARY:
            return socket
        hello = decode(frame.data, Hello)
        identity.verify(hello.node, hello.signature, "cottage-hello", nonce, host.encode())
        self.hellos.append(hello)
        if self.refusal is not None:
            await socket.send_bytes(encode(self.refusal))
            await self._tell()
            return socket
        token = secrets.token_hex(16)
        self.tokens.add(token)
        proof = self.replayed or self._prove(hello, host)
        welcome = Welcome(token, self.heartbeat_seconds, 2.0, self.ice_servers, self.ledger, proof=proof)
        await socket.send_bytes(encode(welcome))
        self.nodes[hello.node] = socket
        await self._tell()
        try:
            async for frame in socket:
                if frame.type is WSMsgType.BINARY:
                    await self._message(hello.node, decode(frame.data, NodeMessage))
        finally:
            self.tokens.discard(token)
            if self.nodes.get(hello.node) is socket:
                del self.nodes[hello.node]
            await self._tell()
        return socket

    def _prove(self, hello: Hello, host: str) -> bytes:
        if self.key is None:
            return b""
        parts = (hello.nonce, hello.node.encode(), (self.known_as or host).encode())
        return self.key.sign("cottage-welcome", *parts)

    async def _message(self, node: str, message: NodeMessage) -> None:
        match message:
            case Report():
                self.reports.append((node, message))
                if self.acknowledge and message.seq:
                    await self.send(node, Acknowledged(message.lease, message.seq))
            case Heartbeat():
                self.beats.append((node, message))
                held = {pair.lease for pair in message.leases}
                await self.send(node, Beat(self.heartbeat_seconds, tuple(held & set(self.gone))))
            case Signal(peer=peer) as signal:
                passed = self.tamper(node, signal) if self.tamper else signal
                if passed is not None and peer in self.nodes:
                    await self.send(peer, Signal(node, passed.envelope))
            case NetworkReport():
                self.networks.append((node, message))
            case Accounts(jobs=jobs):
                self.account_asks.append(jobs)
                for job in jobs:
                    if job in self.accounts:
                        await self.send(node, self.accounts[job])
            case Goodbye(reason=reason):
                self.goodbyes.append(reason)
            case PrivateAnswer() | PrivateCounts():
                self.private.append(message)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _check_token(self, request: web.Request) -> None:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise web.HTTPForbidden(text="unknown token")

    async def _credentials(self, request: web.Request) -> web.Response:
        question = decode_json(await request.read(), RelayQuestion)
        signed = request.host.encode(), struct.pack("!d", question.sent)
        identity.verify(question.node, question.signature, "cottage-relays", *signed)
        self.questions.append(question.node)
        await self._tell()
        return web.Response(body=encode_json(IceServers(self.relays)), content_type="application/json")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        digest = request.match_info["digest"]
        self.requests.append(("GET", digest, request.headers.get("Range", "")))
        self._check_token(request)
        if digest not in self.artifacts:
            raise web.HTTPNotFound(text="no such artifact")
        data = self.artifacts[digest]
        if self.damage:
            self.damage -= 1
            data = b"x" + data[1:]
        start, stop = request.http_range.start or 0, request.http_range.stop
        response = web.StreamResponse(status=200 if start == 0 and stop is None else 206)
        response.headers["Content-Range"] = f"bytes {start}-{(stop or len(data)) - 1}/{len(data)}"
        data = data[:stop]
        response.content_length = len(data) - start
        await response.prepare(request)
        if self.cut_after is not None:
            await response.write(data[start : start + self.cut_after])
            self.cut_after = None
            assert request.transport is not None
            request.transport.close()
            return response
        if self.hang_after is not None:
            await response.write(data[start : start + self.hang_after])
            await asyncio.Event().wait()
        await response.write(data[start:])
        return response

    async def _put(self, request: web.Request) -> web.Response:
        digest = request.match_info["digest"]
        self.requests.append(("PUT", digest, ""))
        self._check_token(request)
        lease, answers = request.query["lease"], request.query["answers"]
        assert is_answer(answers)
        self.answered.append((lease, answers))
        if answers in self.unwanted:
            raise web.HTTPGone(text="nobody waits for it")
        data = await request.read()
        if self.gate is not None:
            self.waiting += 1
            await self._tell()
            await self.gate.wait()
        if hashlib.sha256(data).hexdigest() != digest:
            raise web.HTTPUnprocessableEntity(text="other bytes")
        self.artifacts[digest] = data
        self.uploads.append(digest)
        await self._tell()
        return web.Response(status=204)
