"""What programs ask of finished models, and what they are answered, in the words of OpenAI's API.

Source: platform.openai.com/docs/api-reference.

Unknown fields of requests are passed over, as servers of this API do. Those that would change an answer and are not supported
are refused, since an answer that silently does without is a wrong one.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common.untrusted_text import View
from protocol.codec import MessageError
from protocol.serving import (
    MAX_FUNCTION,
    MAX_LIKELIEST,
    MAX_STOP,
    MAX_STOPS,
    MAX_TEXT,
    MAX_TOKENS,
    FunctionCall,
    GenerateCommand,
    Sampling,
    TokenLogprob,
    ToolChoice,
    function_of,
)

MAX_MESSAGES = 1000
MAX_PROMPTS = 32
MAX_NAME = 100
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP)]
Stops = Annotated[tuple[Stop, ...], Meta(max_length=MAX_STOPS)]
Count = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Share = Annotated[float, Meta(ge=-2, le=2)]
_TEMPERATURE, _TOP_P = 1.0, 1.0
MAX_TEMPERATURE = 2


class StreamOptions(msgspec.Struct, frozen=True):
    """``include_usage``: a last chunk counts tokens."""

    include_usage: bool = False


class AnswerSchema(msgspec.Struct, frozen=True):
    """A JSON schema, and what it is called; it is kept to whether ``strict`` or not."""

    name: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)


class ResponseFormat(msgspec.Struct, frozen=True):
    """Free text, any JSON object, or one that keeps to a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: AnswerSchema | None = None

    def __post_init__(self) -> None:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("the type is json_schema and there is none: write the schema into json_schema")

    @property
    def schema(self) -> dict[str, Any] | None:
        """What the answer keeps to; None: nothing."""
        if self.type == "json_schema":
            return self.json_schema.schema if self.json_schema is not None else {}
        return {"type": "object"} if self.type == "json_object" else None


PromptText = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of request have.

    ``top_k`` is no word of OpenAI's, and one that vLLM and llama.cpp take beside; so are ``min_p`` and ``repetition_penalty``.
    """

    model: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1000)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stops | Stop | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    presence_penalty: Share | None = None
    frequency_penalty: Share | None = None
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def unsupported(self) -> str:
        """The first field that would change the answer, and is not supported; empty: there is none."""
        refused = {
            "n": self.n not in (None, 1),
            "presence_penalty": bool(self.presence_penalty),
            "frequency_penalty": bool(self.frequency_penalty),
            "logit_bias": bool(self.logit_bias),
            "min_p": bool(self.min_p),
            "repetition_penalty": self.repetition_penalty not in (None, 1),
        }
        return next((name for name, is_asked in refused.items() if is_asked), "")

    def _check_stream(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise MessageError(
                "stream_options go with a stream: set stream to true, or leave them out", "stream_options"
            )

    def _sampling(self, seed: int) -> Sampling:
        temperature = _TEMPERATURE if self.temperature is None else self.temperature
        own = seed if self.seed is None else self.seed
        return Sampling(temperature, self.top_k or 0, _TOP_P if self.top_p is None else self.top_p, own)

    def _stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()


class NamedFunction(msgspec.Struct, frozen=True):
    """One of the functions in ``tools``."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_FUNCTION)]


class FunctionChoice(msgspec.Struct, frozen=True):
    """The function that is to be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class ChatCompletionRequest(_Request, frozen=True, kw_only=True):
    """Messages to answer, in the model's own chat template. ``chat_template_kwargs``: further words for it, as vLLM has them."""

    messages: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LIKELIEST)] | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: tuple[str, ...] | None = None
    web_search_options: Any = None

    def unsupported(self) -> str:
        """As of both kinds."""
        refused = {
            "functions": bool(self.functions),
            "function_call": self.function_call not in (None, "none", "auto"),
            "audio": self.audio is not None,
            "modalities": self.modalities not in (None, (), ("text",)),
            "web_search_options": self.web_search_options is not None,
        }
        return next((name for name, is_asked in refused.items() if is_asked), "") or super().unsupported()

    def command(self, seed: int) -> GenerateCommand:
        """What is asked of the model. ``seed``: where the request names none.

        Raises:
            MessageError: ``tool_choice`` forces a call of what is not among ``tools``, two of them have one name, or one is no
                function; or an option goes with another that is not set.
        """
        self._check_stream()
        if self.top_logprobs and not self.logprobs:
            raise MessageError("top_logprobs go with logprobs: set that to true, or leave them out", "top_logprobs")
        self._check_tools()
        tokens, choice = self.max_completion_tokens or self.max_tokens, self._choice()
        return GenerateCommand(
            "1",
            messages=self.messages,
            tools=() if self.tool_choice == "none" else self.tools or (),
            words=self.chat_template_kwargs or {},
            tokens=tokens,
            sampling=self._sampling(seed),
            schema=None if self.response_format is None or choice.forced else self.response_format.schema,
            stops=self._stops(),
            choice=choice,
            likeliest=(self.top_logprobs or 0) if self.logprobs else None,
        )

    def _check_tools(self) -> None:
        seen: set[str] = set()
        for number, tool in enumerate(self.tools or (), 1):
            name = function_of(tool).get("name")
            if (
                tool.get("type", "function") != "function"
                or not isinstance(name, str)
                or not 0 < len(name) <= MAX_FUNCTION
            ):
                form = '{"type": "function", "function": {"name": ...}}'
                raise MessageError(f"tool {number} is no function with a name: it is written as {form}", "tools")
            if name in seen:
                raise MessageError(f"two of tools are called {name!r}: a call would not tell which", "tools")
            seen.add(name)

    def _choice(self) -> ToolChoice:
        several = self.parallel_tool_calls is not False
        if self.tool_choice in (None, "none", "auto"):
            return ToolChoice(several=several)
        if not self.tools:
            raise MessageError("tool_choice forces a call, and there are no tools: name them", "tool_choice")
        if not isinstance(self.tool_choice, FunctionChoice):
            return ToolChoice(True, several=several)
        name = self.tool_choice.function.name
        if name not in {function_of(tool).get("name") for tool in self.tools}:
            raise MessageError(f"tool_choice names the function {name!r}, which is not among tools", "tool_choice")
        return ToolChoice(True, name, several=several)


class CompletionRequest(_Request, frozen=True, kw_only=True):
    """A text to go on with, or a list of them, each of which has a choice of its own."""

    prompt: PromptText | Annotated[tuple[PromptText, ...], Meta(min_length=1, max_length=MAX_PROMPTS)]
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LIKELIEST)] | None = None
    echo: bool | None = None
    best_of: int | None = None

    def unsupported(self) -> str:
        """As of both kinds."""
        refused = {
            "suffix": bool(self.suffix),
            "echo": bool(self.echo),
            "best_of": self.best_of not in (None, 1),
        }
        return next((name for name, is_asked in refused.items() if is_asked), "") or super().unsupported()

    def commands(self, seeds: Callable[[], int]) -> list[GenerateCommand]:
        """What is asked of the model, for each text; without ``max_tokens`` sixteen tokens, as of old.

        Raises:
            MessageError: as that of chats; a stream of several texts.
        """
        self._check_stream()
        texts = (self.prompt,) if isinstance(self.prompt, str) else self.prompt
        if self.stream and len(texts) > 1:
            raise MessageError("a stream goes on with one text: leave stream out, or ask for each by itself", "stream")
        return [self._command(text, seeds()) for text in texts]

    def _command(self, text: str, seed: int) -> GenerateCommand:
        return GenerateCommand(
            "1",
            text,
            tokens=self.max_tokens or 16,
            sampling=self._sampling(seed),
            schema=None if self.response_format is None else self.response_format.schema,
            stops=self._stops(),
            likeliest=self.logprobs,
        )


class TokenUsage(View, frozen=True):
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


FinishReason = Literal["stop", "length", "tool_calls"]


class ToolCall(msgspec.Struct, frozen=True):
    """A function that the model asks for. ``index``: its place in the answer."""

    id: str
    index: int
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatAnswer(msgspec.Struct, frozen=True):
    """What the model says, as it says it: a text of a stranger's model."""

    content: str | None
    tool_calls: tuple[ToolCall, ...] | None = None
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class LikelyToken(msgspec.Struct, frozen=True):
    """A token that might have come, with the logarithm of its probability in nats; ``bytes``: of its text in UTF-8."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class AnsweredToken(LikelyToken, frozen=True):
    """A token that came, and those that were likeliest."""

    top_logprobs: tuple[LikelyToken, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """How likely the tokens of an answer were."""

    content: tuple[AnsweredToken, ...]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The same in the words of the older kind; ``text_offset``: where each token begins in the text."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


def chat_logprobs(told: Sequence[TokenLogprob]) -> ChatLogprobs | None:
    """As chat answers have them; None where none were told."""
    content = tuple(
        AnsweredToken(*_likely(one.text, one.logprob), tuple(LikelyToken(*_likely(*other)) for other in one.likeliest))
        for one in told
    )
    return ChatLogprobs(content) if content else None


def completion_logprobs(told: Sequence[TokenLogprob], offset: int = 0) -> CompletionLogprobs | None:
    """As completions have them; ``offset``: characters of the tokens before."""
    if not told:
        return None
    texts = [one.text for one in told]
    return CompletionLogprobs(
        tuple(texts),
        tuple(one.logprob for one in told),
        tuple(_by_text(one.likeliest) for one in told),
        tuple(accumulate(map(len, texts[:-1]), initial=offset)),
    )


def _by_text(likeliest: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Parts of characters have one text, so the likeliest of them has its place."""
    found: dict[str, float] = {}
    for text, logprob in likeliest:
        found.setdefault(text, logprob)
    return found


def _likely(text: str, logprob: float) -> tuple[str, float, tuple[int, ...]]:
    return text, logprob, tuple(text.encode(errors="replace"))


class ChatChoice(msgspec.Struct, frozen=True):
    """The answer."""

    message: ChatAnswer
    finish_reason: FinishReason
    index: int = 0
    logprobs: ChatLogprobs | None = None


class AnsweredBy(msgspec.Struct, frozen=True):
    """Who answered, of a deployment: names of its nodes, in order. An addition of ours to this API."""

    nodes: tuple[str, ...]


class ChatCompletion(msgspec.Struct, frozen=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: TokenUsage
    object: Literal["chat.completion"] = "chat.completion"
    cottage: AnsweredBy | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds."""

    role: Literal["assistant", ""] = ""
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """Of the answer, the next piece."""

    delta: ChatDelta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: ChatLogprobs | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """A piece of an answer."""

    id: str
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: TokenUsage | None = None
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    cottage: AnsweredBy | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """The text that follows, or its next piece."""

    text: str
    finish_reason: FinishReason | None
    index: int = 0
    logprobs: CompletionLogprobs | None = None


class Completion(msgspec.Struct, frozen=True):
    """A text that follows, whole or a piece of it."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: TokenUsage | None = None
    object: Literal["text_completion"] = "text_completion"
    cottage: AnsweredBy | UnsetType = UNSET


class ServedModel(View, frozen=True):
    """A model that can be asked. ``id``: of the job that made it; of a deployment's adapter ``DEPLOYMENT:JOB``."""

    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"


class ServedModels(View, frozen=True):
    """All of an account's, the newest first."""

    data: tuple[ServedModel, ...]
    object: Literal["list"] = "list"


class ApiFault(View, frozen=True):
    """What is wrong. ``code`` is stable, for programs; ``param`` the field that it is about."""

    message: str
    type: str
    param: str | None
    code: str


class ApiError(View, frozen=True):
    """An error in the shape that clients of this API read."""

    error: ApiFault


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def told(status: int) -> int:
    """A status of the coordinator's as clients of this API know it.

    They ask again after 409, by themselves: what stands against a request here does not pass so soon.
    """
    return 400 if status in (409, 413, 422) else status


def api_error(status: int, code: str, detail: str, field: str) -> tuple[int, ApiError]:
    """An error of the coordinator's as clients of this API know it, with its status there."""
    known = told(status)
    kind = _TYPES.get(known, "invalid_request_error" if known < 500 else "server_error")
    code = "model_not_found" if known == 404 and field == "model" else _CODES.get(known, code)
    return known, ApiError(ApiFault(detail, kind, field or None, code))
