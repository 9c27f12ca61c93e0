"""One private session at a node: what its client asks, what the model says, and what the client signs of it."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

import msgspec

from common.clock import Clock
from common.errors import TransportError
from desktop.agent.base.exception_groups import main_error
from protocol.codec import decode_json
from protocol.private.sessions import (
    LIFE_S,
    MARK,
    MAX_ANSWERS,
    MAX_UNSIGNED,
    REFUSED_SESSION,
    FromClient,
    FromNode,
    PrivateTicket,
    SignedCounts,
)
from protocol.private.signed_counts import check_counts
from protocol.serving import AnsweredReport, CancelCommand, EngineReport, GenerateCommand, RefusedReport, TextReport
from transport.private.channel import PrivateChannel
from transport.private.meeting import MAX_REQUEST

SIGN_S = 5.0  # For a client to sign what it has been told.
MAX_UNTOLD = 4 << 20  # Bytes that wait for a client.
NO_COUNTS = SignedCounts(0, 0, 0, bytes(64))


class SessionOverError(TransportError):
    """A session ends by its rules. ``code``: which one."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class AskedModel(Protocol):
    """The model of a lease."""

    @property
    def talks(self) -> bool:
        """Whether it can be asked now."""

    def ask_privately(self, command: GenerateCommand, listener: Callable[[EngineReport], None]) -> None:
        """Ask it, and hear what it says."""

    def forget_private(self, request: str) -> None:
        """Nobody listens any more."""


@dataclass
class _Untold:
    """What a client is still to be told."""

    report: FromNode
    size: int


class PrivateTalk:
    """Of one ticket. ``run`` it once; it ends with the channel, with the model, or by the session's rules."""

    def __init__(
        self,
        ticket: PrivateTicket,
        node: str,
        channel: PrivateChannel,
        model: AskedModel,
        clock: Clock,
        signed: Callable[[SignedCounts], None],
    ) -> None:
        """``signed``: told of all counts that the client has signed."""
        self._ticket, self._node, self._channel, self._model = ticket, node, channel, model
        self._clock, self._on_signed = clock, signed
        self._names: dict[str, str] = {}  # The client's name of an answer under way, and the model's.
        self._untold: deque[_Untold] = deque()
        self._size = 0
        self._news, self._was_signed = asyncio.Event(), asyncio.Event()
        self._over: asyncio.Future[SessionOverError] = asyncio.get_running_loop().create_future()
        self._answers = self._prompt = self._tokens = 0  # That the client was told of.
        self._signed = NO_COUNTS

    async def run(self) -> None:
        """Answer until the session is over.

        Raises:
            TransportError: why it is.
        """
        try:
            async with self._clock.timeout(LIFE_S), asyncio.TaskGroup() as group:
                group.create_task(self._listen(), name="private-listen")
                group.create_task(self._tell(), name="private-tell")
                group.create_task(self._until_over(), name="private-over")
        except TimeoutError:
            raise SessionOverError("life", f"it has lasted for {LIFE_S:g} s: ask for another one") from None
        except BaseExceptionGroup as errors:
            raise main_error(errors, TransportError) from None
        finally:
            for name in self._names.values():
                self._model.forget_private(name)
            self._names.clear()

    def end(self) -> None:
        """The model is here no more."""
        self._end("gone", "this node holds the model no more")

    async def refuse(self, code: str, detail: str) -> None:
        """Say why the session is over, if anybody still listens."""
        await self._channel.send(msgspec.json.encode(RefusedReport(REFUSED_SESSION, code, detail)))

    def _end(self, code: str, detail: str) -> None:
        if not self._over.done():
            self._over.set_result(SessionOverError(code, detail))

    async def _until_over(self) -> None:
        raise await self._over

    # --- what the client says -------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            message: FromClient = decode_json(await self._channel.receive(), FromClient, MAX_REQUEST)
            match message:
                case GenerateCommand():
                    self._begin(message)
                case CancelCommand(id=request):
                    if (name := self._names.pop(request, None)) is not None:
                        self._model.forget_private(name)
                case SignedCounts():
                    self._take(message)
                case _:
                    assert_never(message)

    def _begin(self, command: GenerateCommand) -> None:
        if why := self._why_not(command):
            code, detail = why
            self._put(RefusedReport(command.id, code, detail))
            return
        # Drawn by lot, so that nobody else can name it.
        name = self._names[command.id] = MARK + secrets.token_hex(16)
        self._model.ask_privately(
            msgspec.structs.replace(command, id=name), lambda report: self._said(command.id, name, report)
        )

    def _why_not(self, command: GenerateCommand) -> tuple[str, str] | None:
        if not self._model.talks:
            return "failed", "this node's model does not answer now"
        unsigned = self._answers - self._signed.answers
        if command.id in self._names or command.id == REFUSED_SESSION or len(self._names) + unsigned >= MAX_ANSWERS:
            return "busy", f"a session has {MAX_ANSWERS} answers that are not signed, each with a name of its own"
        if self._prompt + self._tokens >= self._ticket.tokens:
            return "over", f"the session's {self._ticket.tokens:,} tokens are used up: ask for another one"
        return None

    def _take(self, counts: SignedCounts) -> None:
        """Take what the client has signed.

        Raises:
            SessionOverError: it is less than before, or more than it was told. BadSignatureError: it is not the client's.
        """
        check_counts(counts, self._ticket.client, self._ticket.session, self._node)
        told = (self._answers, self._prompt, self._tokens)
        signs = (counts.answers, counts.prompt, counts.tokens)
        if not counts.follows(self._signed) or any(sign > said for sign, said in zip(signs, told, strict=True)):
            raise SessionOverError("counts", f"counts {signs} are signed, where {told} were told")
        self._signed = counts
        self._was_signed.set()
        self._on_signed(counts)

    # --- what the model says --------------------------------------------------------------------------------------------

    def _said(self, request: str, name: str, report: EngineReport) -> None:
        if self._names.get(request) != name or not isinstance(report, FromNode):
            return  # Sketches are the coordinator's, who hears nothing of this.
        if not isinstance(report, TextReport):
            del self._names[request]
            self._model.forget_private(name)
        self._put(msgspec.structs.replace(report, id=request))

    def _put(self, report: FromNode) -> None:
        size = len(msgspec.json.encode(report))
        if self._size + size > MAX_UNTOLD:
            self._end("slow", f"more than {MAX_UNTOLD:,} bytes wait for you: read faster")
            return
        self._untold.append(_Untold(report, size))
        self._size += size
        self._news.set()

    async def _tell(self) -> None:
        while True:
            while not self._untold:
                self._news.clear()
                await self._news.wait()
            one = self._untold.popleft()
            self._size -= one.size
            await self._until_signed()
            match one.report:
                case TextReport(tokens=tokens):
                    self._tokens += len(tokens)
                case AnsweredReport(prompt=prompt):
                    self._answers, self._prompt = self._answers + 1, self._prompt + prompt
                case RefusedReport():
                    pass
                case _:
                    assert_never(one.report)
            await self._channel.send(msgspec.json.encode(one.report))

    async def _until_signed(self) -> None:
        """Hold back while the client has not signed for what it was told.

        Raises:
            SessionOverError: it does not.
        """
        try:
            async with self._clock.timeout(SIGN_S):
                while self._tokens - self._signed.tokens >= MAX_UNSIGNED:
                    self._was_signed.clear()
                    await self._was_signed.wait()
        except TimeoutError:
            raise SessionOverError("unsigned", f"{MAX_UNSIGNED} tokens are not signed: sign as you read") from None
