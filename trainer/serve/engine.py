"""A model folder that answers several requests at a time, by ``transformers``' continuous batching. One asyncio loop has it.

Prompts and answers share batches: a new request waits for the next step, not for others' ends. Keys and values lie in pages,
and what prompts begin with alike is computed once.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from protocol.serving import AnsweredReport, EngineReport, FunctionCall, GenerateCommand, RefusedReport, TextReport
from trainer.audit.environment import configure
from trainer.data.chat import ChatTemplate
from trainer.errors import DataError
from trainer.formats.conversations import talk_of
from trainer.formats.talk import ChatMessages
from trainer.serve.calls import CallsApart
from trainer.serve.grammar import AnswerForms
from trainer.serve.sampling import FORM, SAMPLING, SeededSampler
from trainer.serve.texts import TextStream

PAGE = 32  # Tokens of a page of the cache.
BATCH = 512  # Tokens that are computed at a time: a long prompt comes in parts, so that answers under way go on.
LONGEST = 8192  # Tokens of a prompt with its answer, where the model reads more.
CACHE_BYTES = 1 << 30
_FLOAT32 = 4

Say = Callable[[EngineReport], None]


@dataclass
class _Answer:
    """A request under way. ``seen``: tokens that are text already."""

    prompt: int
    text: TextStream
    calls: CallsApart | None
    seen: int = 0


class Engine:
    """A model with its tokenizer. An async context: leaving it ends its thread."""

    def __init__(self, folder: Path, threads: int, say: Say) -> None:
        """Load a model; ``say`` takes what comes of requests, on the loop's thread."""
        configure(threads)
        self._say = say
        self._answers: dict[str, _Answer] = {}
        made: Any = AutoTokenizer.from_pretrained(folder)
        self._tokenizer = made.backend_tokenizer
        self._encode = made
        config = AutoConfig.from_pretrained(folder)
        kind: Any = AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText
        model: Any = kind.from_pretrained(folder, dtype=torch.float32)
        settings = {**made.special_tokens_map, "chat_template": _templates(made.chat_template)}
        self._chat = ChatTemplate(self._tokenizer, settings, "answers", None, "this model")
        text = config.get_text_config()
        each = _cached_bytes(text)
        self.longest = max(PAGE, min(int(text.max_position_embeddings), LONGEST, CACHE_BYTES // each))
        self._ends = _ends(model.generation_config, made)
        self._forms = AnswerForms(made, int(text.vocab_size), self._ends)
        pages = max(-(-self.longest // PAGE) + 1, CACHE_BYTES // (each * PAGE))
        self._manager = model.init_continuous_batching(
            cast(Any, GenerationConfig)(do_sample=False, max_new_tokens=self.longest, pad_token_id=0),
            # What draws tokens keeps its rows beside the batch, which neither a graph nor a second batch in flight allows.
            ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=min(pages, 64 * (-(-self.longest // PAGE) + 1)),
                max_batch_tokens=BATCH,
                use_cuda_graph=False,
                use_async_batching=False,
                per_request_processors=True,
            ),
        )
        sampler, processors = SeededSampler(), self._manager.logit_processor
        processors.logits_processor.append(sampler)
        processors.tensors_required += 1
        processors.supported_keys.update(sampler.supported_kwargs)
        processors.do_processing = True

    async def __aenter__(self) -> "Engine":
        self._manager.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._manager.stop, hard_stop=True)

    def generate(self, command: GenerateCommand) -> None:
        """Begin an answer; what is wrong with a request is said like an answer."""
        try:
            ids = self._ids(command)
            form = {} if command.schema is None else {FORM: self._forms.of(command.schema, len(ids))}
            room = self.longest - len(ids)
            if not ids or room < 1:
                detail = f"the prompt has {len(ids):,} tokens: give 1 to {self.longest - 1:,}"
                raise DataError("too-long" if ids else "empty", detail)
        except DataError as error:
            self._say(RefusedReport(command.id, error.code, error.detail))
            return
        most = min(command.tokens or room, room)
        calls = CallsApart() if command.tools else None
        self._answers[command.id] = _Answer(len(ids), TextStream(self._tokenizer, command.stops), calls)
        self._manager.register_result_handler(command.id, self._take)
        self._manager.add_request(
            ids,
            command.id,
            max_new_tokens=most,
            streaming=True,
            eos_token_id=self._ends or -1,
            **{SAMPLING: command.sampling, **form},
        )

    def cancel(self, request: str) -> None:
        """Nobody waits for an answer any more."""
        if self._answers.pop(request, None) is not None:
            self._manager.cancel_request(request)

    def _take(self, result: Any) -> None:
        """What has become of a request after a step."""
        answer = self._answers.get(result.request_id)
        if answer is None:
            return
        if result.error is not None:
            del self._answers[result.request_id]
            self._say(RefusedReport(result.request_id, "failed", str(result.error)[:500]))
            return
        tokens = result.generated_tokens
        new, answer.seen = tokens[answer.seen :], len(tokens)
        ended = bool(tokens) and tokens[-1] in self._ends
        text = answer.text.add([one for one in new if one not in self._ends])
        if over := result.is_finished() or answer.text.stopped:
            text += answer.text.end()
        asked: tuple[FunctionCall, ...] = ()
        if answer.calls is not None:
            text = answer.calls.add(text)
            if over:
                left, asked = answer.calls.end()
                text += left
        if text:
            self._say(TextReport(result.request_id, text))
        if over:
            del self._answers[result.request_id]
            if not result.is_finished():
                self._manager.cancel_request(result.request_id)
            reason: Literal["stop", "length"] = "stop" if ended or answer.text.stopped else "length"
            self._say(AnsweredReport(result.request_id, reason, answer.prompt, len(tokens), asked))

    def _ids(self, command: GenerateCommand) -> list[int]:
        """The prompt's tokens."""
        if not command.messages:
            return list(self._encode(command.prompt)["input_ids"])
        row: Mapping[str, Any] = {
            "messages": list(command.messages),
            "tools": list(command.tools) or None,
            "chat_template_kwargs": command.words or None,
        }
        talk = talk_of(row, "messages", "this request")
        if isinstance(talk, DataError):
            raise talk
        if not isinstance(talk, ChatMessages):
            raise DataError("bad-row", "this request has no messages with role and content: give at least one")
        if not self._chat.there:
            raise DataError("no-template", "this model has no chat template: have it continue the text, without chat")
        if command.tools and not self._chat.calls_as_tags:
            raise DataError(
                "no-tools", "this model's chat template has no functions that are known here: leave tools out"
            )
        text = self._chat.asked(talk, "this request")
        if isinstance(text, DataError):
            raise text
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _templates(given: Any) -> Any:
    """Several templates in the form that ``tokenizer_config.json`` has."""
    return [{"name": name, "template": text} for name, text in given.items()] if isinstance(given, dict) else given


def _cached_bytes(config: Any) -> int:
    """Of keys and values of a token, of all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * _FLOAT32)


def _ends(generation: Any, tokenizer: Any) -> list[int]:
    """Tokens that end an answer."""
    given = generation.eos_token_id
    named = given if isinstance(given, list) else [given]
    return sorted({int(one) for one in (*named, tokenizer.eos_token_id) if one is not None})
