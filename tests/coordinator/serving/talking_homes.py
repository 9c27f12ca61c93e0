"""Homes that talk: real WebRTC and the agent's own side of a session in this process, with a model that repeats its prompt."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable

import msgspec

from common.clock import SystemClock
from common.errors import TransportError
from common.untrusted_text import untrusted
from coordinator.errors import ConflictError
from desktop.agent.jobs.private_talk import PrivateTalk
from protocol.identity import NodeKey
from protocol.private.sessions import MAX_UNSIGNED, PrivateTicket, SignedCounts
from protocol.rest.private import NewPrivateSession, PrivateSession
from protocol.serving import AnsweredReport, EngineReport, GenerateCommand, RefusedReport, TextReport
from transport.private.channel import PrivateChannel
from transport.private.meeting import MeetingNode, Surroundings

AROUND = Surroundings((), SystemClock(), loopback=True)
LONG = 2 * MAX_UNSIGNED  # Tokens of an answer to "long".


class RepeatingModel:
    """Says the last words again, one a token; asked for something ``long``, numbers.

    ``stops_after``: tokens after which it says nothing more. ``refuses``: code and words in place of any answer.
    """

    def __init__(self) -> None:
        self.talks = True
        self.asked: list[GenerateCommand] = []
        self.forgotten: list[str] = []
        self.stops_after: int | None = None
        self.refuses: tuple[str, str] | None = None

    def ask_privately(self, command: GenerateCommand, listener: Callable[[EngineReport], None]) -> None:
        self.asked.append(command)
        if self.refuses is not None:
            listener(RefusedReport(command.id, *self.refuses))
            return
        said = command.messages[-1]["content"] if command.messages else command.prompt
        words = [str(number) for number in range(LONG)] if said == "long" else said.split(" ")
        for place, word in list(enumerate(words))[len(command.begun) :]:
            if place == self.stops_after:
                return
            listener(TextReport(command.id, f" {word}" if place else word, (place,)))
        listener(AnsweredReport(command.id, "stop", 7, len(words)))

    def forget_private(self, request: str) -> None:
        self.forgotten.append(request)


class TalkingHomes:
    """``PrivatePort`` with homes that are asked in turn. ``tamper``: what becomes of an answer on its way.

    ``beside``: nodes that hold the model with any of them.
    """

    def __init__(self) -> None:
        self.keys: tuple[NodeKey, ...] = (NodeKey.generate(), NodeKey.generate())
        self.models = {key.address: RepeatingModel() for key in self.keys}
        self.signed: dict[str, SignedCounts] = {}
        self.channels: list[PrivateChannel] = []
        self.beside: list[str] = []
        self.tamper: Callable[[bytes], bytes] = lambda envelope: envelope
        self._tickets: dict[str, tuple[NodeKey, PrivateTicket]] = {}
        self._talks: set[asyncio.Task[None]] = set()

    async def open(self, job: str, wanted: NewPrivateSession) -> PrivateSession:
        able = [key for key in self.keys if key.address not in wanted.avoid]
        if not able:
            raise ConflictError("no other node of this deployment answers now")
        expires = int(time.time()) + 60
        ticket = PrivateTicket(secrets.token_hex(16), job, wanted.client, 10_000, expires)
        self._tickets[ticket.session] = (able[0], ticket)
        name = untrusted(f"home {self.keys.index(able[0]) + 1}")
        beside = tuple(self.beside)
        named = tuple(untrusted(f"{one[:4]} beside") for one in beside)
        found = PrivateSession(ticket.session, able[0].address, name, (), ticket.tokens, expires)
        return msgspec.structs.replace(found, nodes=1 + len(beside), beside=beside, beside_names=named)

    async def offer(self, job: str, session: str, envelope: bytes) -> bytes:
        key, ticket = self._tickets[session]
        meeting = MeetingNode(key, ticket, AROUND)
        sealed = await meeting.answer(envelope)
        talk = asyncio.create_task(self._talk(key, ticket, meeting))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)
        return self.tamper(sealed)

    async def _talk(self, key: NodeKey, ticket: PrivateTicket, meeting: MeetingNode) -> None:
        with contextlib.suppress(TransportError):
            try:
                channel = await meeting.opened()
            except BaseException:
                await meeting.aclose()
                raise
            self.channels.append(channel)
            try:
                model = self.models[key.address]
                await PrivateTalk(
                    ticket, key.address, channel, model, SystemClock(), lambda counts: self._take(ticket, counts)
                ).run()
            finally:
                await channel.aclose()

    def _take(self, ticket: PrivateTicket, counts: SignedCounts) -> None:
        self.signed[ticket.session] = counts

    async def aclose(self) -> None:
        for talk in tuple(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
