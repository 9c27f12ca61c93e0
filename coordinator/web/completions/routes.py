"""``/v1``: the models of an account's jobs, for every program that speaks OpenAI's API."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET, UnsetType

from common.untrusted_text import untrusted
from coordinator.domain.serving import AdapterPoint, ModelPoint
from coordinator.errors import CottageError, InvalidError, NotFoundError, TooManyError
from coordinator.services.accounts.budgets import COMPLETIONS
from coordinator.services.jobs import ports
from coordinator.web.auth import budgets_of, costs, principal
from coordinator.web.documents import read_document
from coordinator.web.http import COMPLETION, answer
from coordinator.web.route import Route
from coordinator.web.stream import streamed, while_there
from protocol.rest.api import JobView
from protocol.rest.completions import (
    AnsweredBy,
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    Completion,
    CompletionChoice,
    CompletionRequest,
    FinishReason,
    ServedModel,
    ServedModels,
    TokenUsage,
    ToolCall,
    api_error,
    chat_logprobs,
    completion_logprobs,
)
from protocol.rest.embeddings import EmbeddingList, EmbeddingRequest, embeddings_of
from protocol.serving import AnsweredReport, AnswerReport, EmbeddedReport, GenerateCommand, TextReport, TokenLogprob

MAX_MODELS = 100
AT_A_TIME = 8  # Texts of one request; of an account twice as many are under way.
_NAME = re.compile(r"([0-9a-f]{32})(?:@(start|[0-9]{1,9})|:([0-9a-f]{32}))?")
_DONE = b"data: [DONE]\n\n"
_ERRORS = (400, 404)
_PARAMS = {"tokens": "max_tokens", "round": "model", "start": "model", "job": "model"}
MAX_VECTORS = 8 << 20  # Bytes of the embeddings of an answer; as JSON's numbers they have five times as many.
Reports = AsyncIterator[AnswerReport]


class CompletionRoutes:
    """Handlers. A model's name is the id of its job; ``ID@3`` is its checkpoint after three rounds, ``ID@start`` what it was.

    ``DEPLOYMENT:JOB`` is a deployment's adapter of that job.
    """

    def __init__(self, jobs: ports.JobsPort, outputs: ports.OutputsPort) -> None:
        self._jobs = jobs
        self._outputs = outputs

    def routes(self) -> list[Route]:
        """Every route of these handlers; ``http._no_such`` tells who asks for another one, and names these."""
        made = "The models of the account's jobs, the newest first"
        talk = "The model's answer to messages; with stream true piece by piece (Server-Sent Events)"
        go_on = "The text that follows a prompt; with stream true piece by piece"
        vectors = "Embeddings of texts: the mean of the last hidden states of its tokens, of length 1"
        return [
            Route("GET", f"{COMPLETION}models", self.models, made, ServedModels),
            Route("GET", f"{COMPLETION}models/{{model}}", self.model, "One of them", ServedModel, errors=_ERRORS),
            Route(
                "POST",
                f"{COMPLETION}chat/completions",
                self.chat,
                talk,
                ChatCompletion,
                ChatCompletionRequest,
                errors=_ERRORS,
                safe=True,
                events=True,
            ),
            Route(
                "POST",
                f"{COMPLETION}completions",
                self.complete,
                go_on,
                Completion,
                CompletionRequest,
                errors=_ERRORS,
                safe=True,
                events=True,
            ),
            Route(
                "POST",
                f"{COMPLETION}embeddings",
                self.embed,
                vectors,
                EmbeddingList,
                EmbeddingRequest,
                errors=_ERRORS,
                safe=True,
            ),
        ]

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        jobs = await self._jobs.list(MAX_MODELS, None, principal(request).account_id)
        return answer(ServedModels(tuple(one for job in jobs if _answers(job) for one in _served(job))))

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}."""
        name = request.match_info["model"]
        job, point = await self._found(request, name)
        view = await self._jobs.get(job)
        if view.spec.serve is not None and not _answers(view):  # As in the list.
            raise NotFoundError(f"deployment {job} answers nobody now: it is {view.state}", "model")
        own, *beside = _served(view)
        if not isinstance(point, AdapterPoint):
            return answer(msgspec.structs.replace(own, id=name))
        found = next((one for one in beside if one.id == name), None)
        if found is None:
            raise _unknown(name)
        return answer(found)

    @costs(COMPLETIONS)
    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        asked = await read_document(request, ChatCompletionRequest)
        return await self._answered(request, asked)

    @costs(COMPLETIONS)
    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        asked = await read_document(request, CompletionRequest)
        return await self._answered(request, asked)

    @costs(COMPLETIONS)
    async def embed(self, request: web.Request) -> web.Response:
        """POST /v1/embeddings."""
        asked = await read_document(request, EmbeddingRequest)
        if refused := asked.unsupported():
            raise InvalidError(f"{refused} is not supported here: leave it out", refused)
        command = asked.command()
        job, point = await self._found(request, asked.model)
        made: list[bytes] = []
        async with while_there(request), aclosing(self._outputs.complete(job, point, command)) as reports:  # type: ignore[type-var]
            report = await anext(reports)
            while isinstance(report, EmbeddedReport):
                made += report.vectors
                if (size := len(command.texts) * len(made[0])) > MAX_VECTORS:
                    few = f"{MAX_VECTORS // len(made[0]):,} texts at a time, of this model"
                    raise InvalidError(f"the embeddings have {size:,} bytes: give at most {few}", "input")
                report = await anext(reports)
        assert isinstance(report, AnsweredReport)
        return answer(embeddings_of(asked, made, report.prompt))

    async def _answered(
        self, request: web.Request, asked: ChatCompletionRequest | CompletionRequest
    ) -> web.StreamResponse:
        if refused := asked.unsupported():
            raise InvalidError(f"{refused} is not supported here: leave it out", refused)
        job, point = await self._found(request, asked.model)
        chat = isinstance(asked, ChatCompletionRequest)
        number = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        counts = asked.stream_options is not None and asked.stream_options.include_usage
        shape = _Shape(number, asked.model, counts, chat, int(time.time()))
        first, *others = asked.commands(_seed) if isinstance(asked, CompletionRequest) else [asked.command(_seed())]
        try:
            async with while_there(request):
                if others:
                    return answer(await self._together(request, shape, job, point, (first, *others)))
                async with aclosing(self._outputs.complete(job, point, first)) as reports:  # type: ignore[type-var]
                    if asked.stream:
                        return await _streamed(request, shape, reports)
                    return answer(await _whole(shape, reports))
        except CottageError as error:
            error.field = _param(error.field, chat)
            raise

    async def _together(
        self, request: web.Request, shape: "_Shape", job: str, point: ModelPoint, commands: Sequence[GenerateCommand]
    ) -> Completion:
        """Several texts of one request; each counts as a request of its own. What is wrong with one is told of all."""
        await budgets_of(request).take(COMPLETIONS, principal(request).account_id, len(commands) - 1)
        turn, answered = asyncio.Semaphore(AT_A_TIME), False

        async def one(command: GenerateCommand) -> Completion:
            nonlocal answered
            while True:
                try:
                    async with turn, aclosing(self._outputs.complete(job, point, command)) as reports:  # type: ignore[type-var]
                        made = await _whole(shape, reports)
                except TooManyError as error:
                    if not answered:
                        raise
                    await asyncio.sleep(error.retry_s)  # What is answered would be asked again, and paid again.
                    continue
                assert isinstance(made, Completion)
                answered = True
                return made

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(command)) for command in commands]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return _joined([task.result() for task in tasks])

    async def _found(self, request: web.Request, name: str) -> tuple[str, ModelPoint]:
        """The caller's job that a model's name means, and which of its models."""
        named = _NAME.fullmatch(name)
        try:
            if named is None:
                raise NotFoundError(name)
            await self._jobs.check_owner(named[1], principal(request).account_id)
        except NotFoundError as error:
            raise _unknown(name) from error
        if named[3]:
            return named[1], AdapterPoint(named[3])
        return named[1], "start" if named[2] == "start" else int(named[2]) if named[2] else None


@dataclass(frozen=True)
class _Shape:
    """How an answer is written. ``usage``: its last chunk counts tokens."""

    id: str
    model: str
    usage: bool
    chat: bool
    created: int

    def whole(self, text: str, told: Sequence[TokenLogprob], end: AnsweredReport) -> ChatCompletion | Completion:
        """All of it; ``told``: how likely its tokens were, where that was asked for."""
        if self.chat:
            calls = _calls(end) or None
            said = ChatAnswer(text or (None if calls else ""), calls)
            choices = (ChatChoice(said, "tool_calls" if calls else end.reason, logprobs=chat_logprobs(told)),)
            return ChatCompletion(self.id, self.created, self.model, choices, _counted(end), cottage=_by(end))
        text_choices = (CompletionChoice(text, end.reason, logprobs=completion_logprobs(told)),)
        return Completion(self.id, self.created, self.model, text_choices, _counted(end), cottage=_by(end))

    def chunk(
        self,
        text: str,
        role: Literal["assistant", ""] = "",
        reason: FinishReason | None = None,
        by: AnsweredBy | UnsetType = UNSET,
        told: Sequence[TokenLogprob] = (),
        offset: int = 0,
    ) -> bytes:
        """An event with its next piece; with the last one, who answered. ``offset``: characters of the tokens before."""
        if self.chat:
            delta = ChatDelta(role, None if reason else text)
            choices = (ChatChunkChoice(delta, reason, logprobs=chat_logprobs(told)),)
            return _event(ChatCompletionChunk(self.id, self.created, self.model, choices, cottage=by))
        choice = CompletionChoice(text, reason, logprobs=completion_logprobs(told, offset))
        return _event(Completion(self.id, self.created, self.model, (choice,), cottage=by))

    def last(self, end: AnsweredReport) -> bytes:
        """The events that end it."""
        kind = ChatCompletionChunk if self.chat else Completion
        calls = _calls(end)
        asked = (ChatChunkChoice(ChatDelta(tool_calls=calls)),)
        told = _event(ChatCompletionChunk(self.id, self.created, self.model, asked)) if calls else b""
        counted = _event(kind(self.id, self.created, self.model, (), _counted(end))) if self.usage else b""
        return told + self.chunk("", reason="tool_calls" if calls else end.reason, by=_by(end)) + counted + _DONE


async def _whole(shape: _Shape, reports: Reports) -> ChatCompletion | Completion:
    texts: list[str] = []
    told: list[TokenLogprob] = []
    report = await anext(reports)
    while isinstance(report, TextReport):
        texts.append(report.text)
        told += report.logprobs
        report = await anext(reports)
    assert isinstance(report, AnsweredReport)
    return shape.whole("".join(texts), told, report)


def _joined(answers: Sequence[Completion]) -> Completion:
    """One answer with a choice for each, in their order."""
    choices = tuple(
        msgspec.structs.replace(choice, index=index) for index, one in enumerate(answers) for choice in one.choices
    )
    counts = [one.usage for one in answers if one.usage is not None]
    prompt, said = sum(one.prompt_tokens for one in counts), sum(one.completion_tokens for one in counts)
    nodes = dict.fromkeys(name for one in answers if one.cottage is not UNSET for name in one.cottage.nodes)
    by = AnsweredBy(tuple(nodes)) if nodes else UNSET
    return msgspec.structs.replace(
        answers[0], choices=choices, usage=TokenUsage(prompt, said, prompt + said), cottage=by
    )


async def _streamed(request: web.Request, shape: _Shape, reports: Reports) -> web.StreamResponse:
    """Piece by piece. What is refused at once is an ordinary error. The line is kept alive while a model is loaded, and while a
    node is waited for in mid-answer."""
    response = web.StreamResponse(headers={hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"})
    coming = asyncio.ensure_future(anext(reports))

    def told(error: CottageError) -> bytes:
        return _event(api_error(error.status, error.code, untrusted(error.detail), _param(error.field, shape.chat))[1])

    async with streamed(request, response, coming, told) as out:
        report, offset = await coming, 0
        if shape.chat:
            await out.write(shape.chunk("", "assistant"))
        while isinstance(report, TextReport):
            if report.text or report.logprobs:
                await out.write(shape.chunk(report.text, told=report.logprobs, offset=offset))
                offset += sum(len(one.text) for one in report.logprobs)
            report = await anext(reports)
        assert isinstance(report, AnsweredReport)
        await out.write(shape.last(report))
    return response


def _seed() -> int:
    return secrets.randbits(63)


def _param(field: str, chat: bool) -> str:
    """What a refusal is about, in the words of a request here."""
    return "messages" if chat and field == "prompt" else _PARAMS.get(field, field)


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _calls(end: AnsweredReport) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"call_{secrets.token_hex(8)}", index, call) for index, call in enumerate(end.calls))


def _by(end: AnsweredReport) -> AnsweredBy | UnsetType:
    return AnsweredBy(tuple(map(untrusted, end.nodes))) if end.nodes else UNSET


def _counted(end: AnsweredReport) -> TokenUsage:
    return TokenUsage(end.prompt, end.tokens, end.prompt + end.tokens)


def _answers(job: JobView) -> bool:
    if job.spec.array is not None:
        return False
    return job.rounds_done > 0 if job.spec.serve is None else job.state in ("planned", "running")


def _served(job: JobView) -> list[ServedModel]:
    """A job's model, and the adapters that answer beside it."""
    own = ServedModel(job.id, int(job.created), untrusted(job.name or "cottage"))
    adapters = () if job.spec.serve is None else job.spec.serve.adapters
    named = ((f"{job.id}:{one.job}", untrusted(one.name or "adapter")) for one in adapters)
    return [own, *(ServedModel(name, own.created, title) for name, title in named)]


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"there is no model {name[:80]!r}: GET /v1/models lists yours", "model")
