"""The client's side of a session that is open: it asks, counts what comes, and signs that."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from common.clock import Clock
from common.errors import MalformedFrameError, PeerUnreachableError, TransportError
from protocol.codec import MessageError, decode_json
from protocol.identity import NodeKey
from protocol.private.sessions import REFUSED_SESSION, SIGN_EVERY, FromNode, prompt_bound
from protocol.private.signed_counts import sign_counts
from protocol.serving import (
    MAX_LINE,
    MAX_TOKENS,
    AnsweredReport,
    CancelCommand,
    GenerateCommand,
    RefusedReport,
    TextReport,
)
from transport.private.channel import PrivateChannel

FIRST_SILENCE_S = 30.0  # Before an answer's first token, while the node reads the prompt.
SILENCE_S = 10.0
MAX_TEXT = 256  # Characters of a token, on average: more are none of a model.


class PrivateRefusedError(TransportError):
    """The node does not answer a request, or ends the session. ``code``: stable, for programs.

    Attributes:
        another: another node may answer it.
    """

    def __init__(self, report: RefusedReport) -> None:
        super().__init__(report.detail)
        self.code = report.code
        ends = report.id == REFUSED_SESSION
        self.another = ends or report.code in ("failed", "busy", "bad-begun", "unknown-token", "over", "unsigned")


@dataclass
class _Heard:
    """A request, and what came of it."""

    command: GenerateCommand
    tokens: int = 0
    characters: int = 0

    def take(self, report: TextReport) -> None:
        """Raise MalformedFrameError where no model says so much."""
        self.tokens += len(report.tokens)
        self.characters += len(report.text)
        most = (self.command.tokens or MAX_TOKENS) - len(self.command.begun)
        if self.tokens > most or self.characters > MAX_TEXT * (self.tokens + 4):
            raise MalformedFrameError("the node says more than was asked for")


class PrivateConversation:
    """One request at a time."""

    def __init__(self, key: NodeKey, session: str, node: str, channel: PrivateChannel, clock: Clock) -> None:
        """``key``: the session's."""
        self._key, self._session, self._node = key, session, node
        self._channel, self._clock = channel, clock
        self._asked = 0
        self._heard: dict[str, _Heard] = {}
        self._answers = self._prompt = self._tokens = self._signed = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Answers that have ended, tokens of their prompts, tokens of all answers."""
        return self._answers, self._prompt, self._tokens

    async def ask(self, command: GenerateCommand) -> AsyncGenerator[TextReport | AnsweredReport]:
        """Pieces of the answer behind ``command.begun``, and its end. Whoever stops listening ends it.

        Raises:
            PrivateRefusedError: the node says why not.
            PeerUnreachableError: it is gone, or silent. MalformedFrameError: it says what no model says.
        """
        self._asked += 1
        command = msgspec.structs.replace(command, id=str(self._asked))
        heard = self._heard[command.id] = _Heard(command)
        await self._channel.send(msgspec.json.encode(command))
        ended = False
        try:
            while not ended:
                report = await self._next(SILENCE_S if heard.tokens else FIRST_SILENCE_S)
                await self._count(report)
                ended = report.id in (command.id, REFUSED_SESSION) and not isinstance(report, TextReport)
                if isinstance(report, RefusedReport):
                    if ended:
                        raise PrivateRefusedError(report)
                elif report.id == command.id:
                    yield report
        finally:
            if not ended:
                await self._leave(command.id)

    async def aclose(self) -> None:
        """End the session, with all of it signed."""
        try:
            if self._tokens > self._signed:
                await self._sign()
        except PeerUnreachableError:
            pass  # Whoever is gone is not told.
        finally:
            await self._channel.aclose()

    async def _next(self, seconds: float) -> FromNode:
        try:
            async with self._clock.timeout(seconds):
                message = await self._channel.receive()
        except TimeoutError:
            raise PeerUnreachableError(f"the node has said nothing for {seconds:g} s") from None
        try:
            report: FromNode = decode_json(message, FromNode, MAX_LINE)
        except MessageError as error:
            raise MalformedFrameError(f"the node says what no node says: {error}") from None
        return report

    async def _count(self, report: FromNode) -> None:
        """Count and sign what was asked for, also where nobody listens to it any more."""
        heard = self._heard.get(report.id)
        if isinstance(report, RefusedReport):
            self._heard.pop(report.id, None)
        elif heard is None:
            raise MalformedFrameError("the node says what nobody asked for")
        elif isinstance(report, TextReport):
            heard.take(report)
            self._tokens += len(report.tokens)
            if self._tokens - self._signed >= SIGN_EVERY:
                await self._sign()
        else:
            del self._heard[report.id]
            self._answers += 1
            self._prompt += min(report.prompt, prompt_bound(heard.command))
            await self._sign()

    async def _sign(self) -> None:
        counts = sign_counts(self._key, self._session, self._node, *self.counts)
        self._signed = self._tokens
        await self._channel.send(msgspec.json.encode(counts))

    async def _leave(self, request: str) -> None:
        """Say that nobody listens, and sign what came."""
        try:
            await self._channel.send(msgspec.json.encode(CancelCommand(request)))
            await self._sign()
        except PeerUnreachableError:
            pass  # It is over in any case.
