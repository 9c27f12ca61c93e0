"""What a process that holds a model is asked, and what it answers, several requests at a time.

Beside the coordinator that is JSON, a line each; at a node it goes with what its task is told and says (``protocol.task``).
"""

from collections.abc import Mapping
from itertools import count, takewhile
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.codec import MAX_MESSAGE

MAX_TEXT = 256 << 10  # Characters of a prompt; no model that is served here reads as many tokens.
MAX_TOKENS = 1 << 20  # Of an answer; its model reads fewer.
MAX_STOPS, MAX_STOP = 4, 200
LONGEST = 8192  # Tokens of a prompt with its answer where nobody asks for less, and the model reads more.
LEAST = 32  # The same of any model: a page of its cache.
CACHE_BYTES = 1 << 30  # Of keys and values, of all answers together.
DRAFT_CACHE_BYTES = 256 << 20  # The same of a draft model, which drafts for few answers at a time.
MAX_LIKELIEST = 20
MAX_TOKEN_TEXT = 1000
MAX_CALLS = 256  # Of functions, in an answer.
MAX_FUNCTION = 200  # Characters of a function's name that is asked for.
MAX_ADAPTERS = 16  # That a model answers with beside itself.
MAX_SAID = 256  # Reports of a process that are told at a time.
MODEL_ARCHIVE = "model.zip"  # The model's folder, of a job that answers.
SMALL_ARCHIVE = "small.zip"  # The same without weights, for nodes that fetch those of their stage.
DRAFT_ARCHIVE = "draft.zip"  # The folder of the draft model, for nodes that hold a first stage.
SMALL_FILES = frozenset({".json", ".txt", ".model", ".jinja"})  # How their names end.
MAX_LINE = 2 * MAX_MESSAGE  # A request of a whole conversation.
SKETCH_BYTES = 8  # Of what crossed from one stage to the next at a token.
MAX_EMBEDDED = 2048  # Texts of a request for embeddings, as OpenAI's API has it.
MAX_VECTOR = 1 << 16  # Bytes of an embedding; the widest models in use have half as many.
RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
AdapterNumber = Annotated[int, Meta(ge=0, le=MAX_ADAPTERS)]
"""Of a deployment's adapters, counted from 1; 0: the model as it is."""


Token = Annotated[int, Meta(ge=0, lt=2**31)]
Tokens = Annotated[tuple[Token, ...], Meta(max_length=MAX_TOKENS)]
EndReason = Literal["stop", "length"]


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next token is drawn. The same ``seed`` draws the same tokens, whatever else the process answers beside.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: of the likeliest tokens so many; 0: all.
        top_p: of the likeliest tokens as many as have this probability together (Holtzman and others, 2020).
    """

    temperature: Annotated[float, Meta(ge=0, le=5)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=1000)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which functions among a request's ``tools`` the model calls.

    Attributes:
        forced: the answer is calls, of any of them or of the one with this ``name``; their arguments keep to their schemas.
            Else the model calls whatever it will.
        several: more than one call.
    """

    forced: bool = False
    name: Annotated[str, Meta(max_length=MAX_FUNCTION)] = ""
    several: bool = True


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """What one of ``tools`` says of its function, as far as it says any."""
    found = tool.get("function")
    return found if isinstance(found, Mapping) else {}


class GenerateCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="generate"):
    """Text to go on with, or messages to answer.

    Attributes:
        messages: for the model's chat template, with ``tools`` and further ``words`` of it; empty: ``prompt`` is gone on with.
        tokens: of the answer at most; None: as many as the model can read.
        stops: texts that end the answer, and are no part of it.
        choice: of ``tools``.
        schema: a JSON schema that the answer keeps to, where it is not forced to be calls; None: it is free.
        likeliest: tell how likely each token was, and so many of the likeliest at its place; None: tell nothing of it.
        begun: tokens of the answer that another process has drawn: it goes on behind them, and their text is not told again.
        adapter: which of the deployment's adapters answers.
    """

    id: RequestId
    prompt: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    words: dict[str, Any] = msgspec.field(default_factory=dict)
    tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    sampling: Sampling = Sampling()
    schema: dict[str, Any] | None = None
    stops: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=MAX_STOP)], ...], Meta(max_length=MAX_STOPS)
    ] = ()
    likeliest: Annotated[int, Meta(ge=0, le=MAX_LIKELIEST)] | None = None
    begun: Tokens = ()
    choice: ToolChoice = ToolChoice()
    adapter: AdapterNumber = 0


class CancelCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cancel"):
    """Nobody waits for the answer any more."""

    id: RequestId


class PingCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ping"):
    """Whether the process is there, also while it computes: a ``PongReport`` follows at once."""

    id: RequestId


class FunctionCall(msgspec.Struct, frozen=True):
    """A function that the model asks for. ``arguments``: JSON, an object."""

    name: Annotated[str, Meta(max_length=MAX_LINE)]
    arguments: Annotated[str, Meta(max_length=MAX_LINE)]


SketchKey = Annotated[bytes, Meta(max_length=32)]
Sketches = Annotated[bytes, Meta(max_length=SKETCH_BYTES * MAX_TOKENS)]


class BoundarySketches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What two neighbours say crossed between them, in front of layer ``layer``: ``SKETCH_BYTES`` for each token from place
    ``first`` on, by who ``sent`` it and by who ``got`` it; empty: that one says nothing. Each has a key of its own."""

    layer: Annotated[int, Meta(ge=1, le=10_000)]
    first: Annotated[int, Meta(ge=0, lt=2**31)]
    sent: Sketches = b""
    got: Sketches = b""
    sent_key: SketchKey = b""
    got_key: SketchKey = b""


class CheckCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="check"):
    """Whether this model, asked so, says this: each token as it is drawn, its text, and why it ended (None: it was cut off).

    Attributes:
        asked: what was answered; ``begun`` is taken as it is, and ``tokens``, ``text`` and ``calls`` are what came behind it.
        prompt: how many tokens the prompt is said to have; None: nothing was said of it.
        context: tokens of a prompt with its answer, at most, where it was answered; None: as here.
        boundaries: of an answer that several stages made, in order; where it is wrong, they tell whose fault that is.
    """

    id: RequestId
    asked: GenerateCommand
    tokens: Tokens
    text: Annotated[str, Meta(max_length=MAX_LINE)]
    reason: EndReason | None
    prompt: Annotated[int, Meta(ge=0, lt=2**31)] | None
    calls: Annotated[tuple[FunctionCall, ...], Meta(max_length=MAX_CALLS)] = ()
    context: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    boundaries: Annotated[tuple[BoundarySketches, ...], Meta(max_length=64)] = ()


EmbeddedText = Annotated[str, Meta(max_length=MAX_TEXT)] | Tokens
"""A text, or its tokens."""
EmbeddedTexts = Annotated[tuple[EmbeddedText, ...], Meta(min_length=1, max_length=MAX_EMBEDDED)]
TokenCounts = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_TOKENS)], ...], Meta(max_length=MAX_EMBEDDED)]
Vectors = Annotated[tuple[Annotated[bytes, Meta(max_length=MAX_VECTOR)], ...], Meta(max_length=MAX_EMBEDDED)]


class EmbedCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="embed"):
    """Texts to make embeddings of: of each the mean of its tokens' last hidden states, divided by its length (L2).

    ``adapter``: as ``GenerateCommand.adapter``.
    """

    id: RequestId
    texts: EmbeddedTexts
    adapter: AdapterNumber = 0


class CheckEmbeddingsCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="check_embeddings"):
    """Whether this model makes these ``vectors``, as ``EmbeddedReport`` has them, of so many ``tokens``."""

    id: RequestId
    asked: EmbedCommand
    tokens: TokenCounts
    vectors: Vectors


class ProveCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="prove"):
    """Whether no rounding explains an answer that a check found wrong (``trainer.serve.proving``), a ``ProvenReport``.

    ``seed``: of what is changed by lot, 32 bytes as hex: of one seed all machines of an environment class find the same bits.
    """

    id: RequestId
    check: CheckCommand
    seed: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


AskCommand = GenerateCommand | EmbedCommand
AnswerCheck = CheckCommand | CheckEmbeddingsCommand
EngineCommand = (
    GenerateCommand | CancelCommand | CheckCommand | EmbedCommand | CheckEmbeddingsCommand | PingCommand | ProveCommand
)


class ReadyReport(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded. ``longest``: tokens of a prompt with its answer."""

    longest: int


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token's own text, the logarithm of its probability in nats, and the same of the likeliest at its place."""

    text: Annotated[str, Meta(max_length=MAX_TOKEN_TEXT)]
    logprob: Annotated[float, Meta(ge=-1e5, le=1e-3)]
    likeliest: Annotated[
        tuple[tuple[Annotated[str, Meta(max_length=MAX_TOKEN_TEXT)], Annotated[float, Meta(ge=-1e5, le=1e-3)]], ...],
        Meta(max_length=MAX_LIKELIEST),
    ] = ()


class TextReport(msgspec.Struct, frozen=True, tag="text"):
    """A piece of an answer that no later token can change, and the tokens since the piece before; either may be empty.

    A token that ends the answer is one of them, though it has no text, and no ``logprobs``, which are told of those that have.
    """

    id: RequestId
    text: Annotated[str, Meta(max_length=MAX_LINE)]
    tokens: Tokens = ()
    logprobs: Annotated[tuple[TokenLogprob, ...], Meta(max_length=MAX_TOKENS)] = ()


class EmbeddedReport(msgspec.Struct, frozen=True, tag="embedded"):
    """Embeddings of the next texts, in order: of each how many ``tokens`` it has, and its vector, float32, little-endian."""

    id: RequestId
    tokens: TokenCounts
    vectors: Vectors


class AnsweredReport(msgspec.Struct, frozen=True, tag="answered"):
    """The end of an answer: the model or a text of ``stops`` ended it (``stop``), or it is as long as it may be (``length``).

    Embeddings end with ``stop``, and have no ``tokens``.

    ``prompt`` and ``tokens``: how many, those that were ``begun`` among them. ``calls``: of functions among the request's
    ``tools``; their text is no part of the answer. ``nodes``: names of those that answered, which the coordinator fills in.
    """

    id: RequestId
    reason: EndReason
    prompt: Annotated[int, Meta(ge=0, lt=2**31)]
    tokens: Annotated[int, Meta(ge=0, lt=2**31)]
    calls: Annotated[tuple[FunctionCall, ...], Meta(max_length=MAX_CALLS)] = ()
    nodes: Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=16)] = ()


class RefusedReport(msgspec.Struct, frozen=True, tag="refused"):
    """A request that cannot be answered. ``code``: stable, for programs."""

    id: RequestId
    code: Annotated[str, Meta(max_length=100)]
    detail: Annotated[str, Meta(max_length=4000)]


class CheckedReport(msgspec.Struct, frozen=True, tag="checked"):
    """What came of a check.

    Attributes:
        wrong: what is not as the model says it, in words; empty: it all is.
        worst: by how many nats the token that is furthest from its draw is behind it (0: none is). Of embeddings: how far the
            furthest one is from the model's, both of length 1.
        stages: of a wrong answer that several stages made: who can have done it. One: it did; two: one of them lies about what
            crossed between them.
    """

    id: RequestId
    wrong: Annotated[str, Meta(max_length=500)]
    worst: float
    stages: Annotated[tuple[Annotated[int, Meta(ge=0, lt=64)], ...], Meta(max_length=64)] = ()


class ProvenReport(msgspec.Struct, frozen=True, tag="proven"):
    """What came of ``ProveCommand``.

    Attributes:
        wrong: what no rounding explains, in words; empty: nothing.
        digest: SHA-256 of all that was computed for it, bit for bit.
        env_class: that it was computed in.
    """

    id: RequestId
    wrong: Annotated[str, Meta(max_length=500)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    env_class: Annotated[str, Meta(max_length=200)]


class SketchReport(msgspec.Struct, frozen=True, tag="sketches"):
    """At the end of an answer that several stages made: what crossed a stage's boundary at each of its tokens from place
    ``first`` on, ``SKETCH_BYTES`` each; ``got`` by its first layer, or ``sent`` by its last."""

    id: RequestId
    side: Literal["got", "sent"]
    first: Annotated[int, Meta(ge=0, lt=2**31)]
    values: Sketches


class PongReport(msgspec.Struct, frozen=True, tag="pong"):
    """The process is there. ``computing``: for how many seconds it has been at one pass; 0: it waits for work."""

    id: RequestId
    computing: Annotated[float, Meta(ge=0, le=1e9)]


AnswerReport = TextReport | EmbeddedReport | AnsweredReport
EngineReport = (
    ReadyReport
    | TextReport
    | EmbeddedReport
    | AnsweredReport
    | RefusedReport
    | CheckedReport
    | ProvenReport
    | SketchReport
    | PongReport
)


def adapter_archive(number: int) -> str:
    """The file with a deployment's adapter of this number, counted from 1: its folder, as an archive."""
    return f"adapter-{number}.zip"


def adapters_of(files: Mapping[str, str]) -> tuple[str, ...]:
    """The artifacts of all adapters among a deployment's files, in order."""
    names = takewhile(files.__contains__, map(adapter_archive, count(1)))
    return tuple(files[name] for name in names)


def longest_of(each: int, positions: int, wanted: int | None) -> int:
    """Tokens of a prompt with its answer that a node reads, and a deployment promises.

    Args:
        each: bytes of one token's keys and values, of all layers. positions: that the model tells apart.
        wanted: tokens that are asked for; None: as many as there may be.
    """
    return max(LEAST, min(positions, LONGEST, CACHE_BYTES // each, wanted or LONGEST))


def draft_tokens(each: int, context: int) -> int:
    """Tokens whose keys and values a draft model has room for. ``each``: bytes of one; ``context``: of the longest sequence."""
    return max(context, min(DRAFT_CACHE_BYTES // each, 16 * context))
