"""A client that talks with a deployment's nodes directly: the coordinator names them, carries offers, and is told counts."""

import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus

import msgspec

from common.clock import Clock, SystemClock
from common.errors import IceConfigError, LinkError, PeerError, SignalError, TransportError
from coordinator.client.client import Client
from coordinator.client.errors import ProblemError
from protocol.identity import NodeKey
from protocol.node import OfferedIceServer
from protocol.rest.private import PrivateSession
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from transport.ice.ice import IceServer
from transport.private.conversation import PrivateConversation, PrivateRefusedError
from transport.private.meeting import MeetingClient, Surroundings

WAIT_S = 600.0  # For a node that loads the model, as at ``/v1``.
AGAIN_S = 2.0
MAX_TRIES = 4  # Nodes that a request may fail at; then it may be the request's fault.


class PrivateClient:
    """Of one deployment; use it as an async context manager. One request at a time."""

    def __init__(
        self,
        coordinator: Client,
        deployment: str,
        *,
        node: str | None = None,
        clock: Clock | None = None,
        loopback: bool = False,
        waits: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            node: the address of the only node that may read the words; None: whoever the coordinator names.
            loopback: the nodes are on this machine.
            waits: hears why there is nobody to talk with yet, once for each time of waiting.
        """
        self._coordinator, self._deployment, self._only = coordinator, deployment, node
        self._waits = waits
        self._around = Surroundings((), clock or SystemClock(), loopback)
        self._session: PrivateSession | None = None
        self._conversation: PrivateConversation | None = None
        self.nodes: list[PrivateSession] = []
        """Sessions that there were, the newest last: who has read the words."""

    async def __aenter__(self) -> "PrivateClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    async def ask(self, command: GenerateCommand) -> AsyncGenerator[TextReport | AnsweredReport]:
        """Pieces of an answer as they come, and its end. Where a node is gone, another one goes on behind what it said.

        Args:
            command: its seed should be drawn by lot, and stays the same at another node.
        Raises:
            ClientError: the coordinator names nobody. PrivateRefusedError: the model cannot read the request.
            SignalError: an answer is not the node's: the coordinator, or somebody there, is in the middle.
            TransportError: no node could be reached, or answered.
        """
        tokens: list[int] = []
        failed: list[str] = []
        while True:
            reused, before = self._conversation is not None, len(tokens)
            try:
                conversation = await self._met(failed)
                asked = msgspec.structs.replace(command, begun=tuple(tokens))
                async with aclosing(conversation.ask(asked)) as reports:
                    async for report in reports:
                        if isinstance(report, TextReport):
                            tokens += report.tokens
                        yield report
                        if isinstance(report, AnsweredReport):
                            return
            except (PeerError, LinkError, SignalError, PrivateRefusedError) as error:
                if not _is_for_another(error):
                    raise
                spent = isinstance(error, PrivateRefusedError) and error.code in ("over", "life")
                if reused and len(tokens) == before:
                    pass  # The session had ended meanwhile: its node may do all the same.
                elif self._session is not None and not spent:
                    failed.append(self._session.node)
                await self._leave()
                if len(failed) >= MAX_TRIES or (failed and self._only is not None):
                    raise

    async def _met(self, avoid: Sequence[str]) -> PrivateConversation:
        if self._conversation is not None:
            return self._conversation
        key = NodeKey.generate()
        session = self._session = await self._named(key.address, avoid)
        if self._only is not None and session.node != self._only:
            raise SignalError("node", f"the coordinator names node {session.node}, not {self._only}")
        around = dataclasses.replace(self._around, servers=_servers(session.ice_servers))
        meeting = MeetingClient(key, session.session, session.node, around)
        try:
            sealed = await self._coordinator.private_offer(self._deployment, session.session, await meeting.offer())
            channel = await meeting.accept(sealed)
        except ProblemError as error:
            await meeting.aclose()
            raise SignalError("refused", error.detail) from error
        except BaseException:
            await meeting.aclose()
            raise
        self._conversation = PrivateConversation(key, session.session, session.node, channel, around.clock)
        self.nodes.append(session)
        return self._conversation

    async def _named(self, client: str, avoid: Sequence[str]) -> PrivateSession:
        """A session with another node, or with one that has failed where there is no other, once one holds the model."""
        clock, told = self._around.clock, False
        until = clock.now() + WAIT_S
        while True:
            try:
                return await self._coordinator.private_session(self._deployment, client, avoid, self._only)
            except ProblemError as error:
                if error.status == HTTPStatus.CONFLICT and avoid:
                    avoid = ()
                    continue
                if error.status != HTTPStatus.SERVICE_UNAVAILABLE or clock.now() >= until:
                    raise
                if not told:
                    self._waits(error.detail)
                told = True
            await clock.sleep(AGAIN_S)

    async def _leave(self) -> None:
        conversation, self._conversation, self._session = self._conversation, None, None
        if conversation is not None:
            await conversation.aclose()


def _is_for_another(error: TransportError) -> bool:
    """Whether another node may do. An answer that is not the node's is told at once: somebody is in the middle."""
    if isinstance(error, SignalError):
        return error.reason == "refused"
    return not isinstance(error, PrivateRefusedError) or error.another


def _servers(offered: Sequence[OfferedIceServer]) -> tuple[IceServer, ...]:
    """Those that can be used."""
    found: list[IceServer] = []
    for server in offered:
        for url in server.urls:
            try:
                found.append(IceServer(url, server.username, server.credential))
            except IceConfigError:
                continue
    return tuple(found)
