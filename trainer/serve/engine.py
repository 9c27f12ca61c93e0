"""A model folder that answers several requests at a time, by ``transformers``' continuous batching. One asyncio loop has it.

Prompts and answers share batches: a new request waits for the next step, not for others' ends. Keys and values lie in pages,
and what prompts begin with alike is computed once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from protocol.job.job import ServedWeights
from protocol.serving import (
    CACHE_BYTES,
    MAX_ADAPTERS,
    AnsweredReport,
    CancelCommand,
    CheckCommand,
    CheckedReport,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EngineCommand,
    EngineReport,
    GenerateCommand,
    PingCommand,
    PongReport,
    ProveCommand,
    ProvenReport,
    RefusedReport,
    TextReport,
    longest_of,
)
from trainer.audit.environment import configure, env_class
from trainer.errors import DataError
from trainer.serve.adapters import AdapterFiles, choose, keep_apart, layers_of, put_beside, rows_of
from trainer.serve.checking import AnswerChecker, leads_fault
from trainer.serve.embeddings import EmbeddingQueue
from trainer.serve.loading import load
from trainer.serve.proving import AnswerProver
from trainer.serve.requests import AskedAnswer, Requests
from trainer.serve.sampling import ADAPTER, FORM, LIKELIHOODS, SAMPLING, SeededSampler

PAGE = 32  # Tokens of a page of the cache.
BATCH = 512  # Tokens that are computed at a time: a long prompt comes in parts, so that answers under way go on.
MAX_DETAIL = 500  # Characters of what went wrong.
NOTHING = "0" * 64  # The digest of nothing.
_FLOAT32 = 4

LOG = logging.getLogger(__name__)

Say = Callable[[EngineReport], None]


class Engine:
    """A model with its tokenizer. An async context: leaving it ends its threads.

    Attributes:
        longest: tokens of a prompt with its answer.
        parameters: of the model.
    """

    def __init__(
        self,
        folder: Path,
        threads: int,
        say: Say,
        device: str = "cpu",
        context: int | None = None,
        weights: Mapping[str, Any] | None = None,
        held: ServedWeights = "float32",
        adapters: Sequence[AdapterFiles] = (),
    ) -> None:
        """Load a model.

        Args:
            say: takes what comes of requests, on the loop's thread.
            context: bounds ``longest``.
            weights: see ``trainer.serve.loading``; ``held``, too.
            adapters: that requests may ask for, numbered from 1.
        Raises:
            WeightsError: the model is not whole, or an adapter is of another one.
        """
        configure(threads, device)
        self._say = say
        self._answers: dict[str, AskedAnswer] = {}
        loaded = load(folder, device, weights, held)
        put_beside(adapters, layers_of(loaded.model), loaded.model.device, whole=True)
        each = _cached_bytes(loaded.config)
        self.longest = longest_of(each, int(loaded.config.max_position_embeddings), context)
        self.parameters = loaded.parameters
        self._ends = loaded.ends
        self._requests = Requests(loaded, self.longest, [one.template for one in adapters])
        self._checker, self._prover = AnswerChecker(loaded), AnswerProver(loaded, env_class(threads, device))
        self._checks = ThreadPoolExecutor(1, "check")
        self._embeddings = EmbeddingQueue(loaded, self._requests, say)
        pages = max(-(-self.longest // PAGE) + 1, CACHE_BYTES // (each * PAGE))
        self._manager = loaded.model.init_continuous_batching(
            cast(Any, GenerationConfig)(do_sample=False, max_new_tokens=self.longest, pad_token_id=0),
            # What draws tokens keeps its rows beside the batch, which neither a graph nor a second batch in flight allows.
            ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=min(pages, 64 * (-(-self.longest // PAGE) + 1)),
                max_batch_tokens=BATCH,
                use_cuda_graph=False,
                use_async_batching=False,
                per_request_processors=True,
                auto_switch_to_flash=False,
                allow_block_sharing=True,
            ),
        )
        sampler, processors = SeededSampler(), self._manager.logit_processor
        processors.logits_processor.append(sampler)
        processors.tensors_required += 1
        processors.supported_keys.update(sampler.supported_kwargs)
        processors.do_processing = True
        if adapters:
            loaded.model.register_forward_pre_hook(self._choose_adapters)
            made = self._manager._create_batch_processor
            cast(Any, self._manager)._create_batch_processor = lambda: self._with_pages_apart(made(), loaded.vocabulary)

    async def __aenter__(self) -> "Engine":
        self._manager.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._checker.stop()
        self._prover.stop()
        await asyncio.to_thread(self._checks.shutdown, cancel_futures=True)
        await self._embeddings.close()
        await asyncio.to_thread(self._manager.stop, hard_stop=True)

    async def beside(self, reading: Coroutine[Any, Any, None]) -> BaseException | None:
        """Compute until ``reading``, which asks, is over; what ended the computing before that, if anything did."""
        asking = asyncio.ensure_future(reading)
        ended = asyncio.ensure_future(asyncio.to_thread(self._manager._generation_thread.join))
        waited: set[asyncio.Future[None]] = {asking, ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
            return None
        asking.cancel()
        return self._manager.background_thread_status.fatal_error or RuntimeError("the model computes no more")

    def ask(self, command: EngineCommand) -> None:
        """Begin what is asked; what comes of it is said."""
        match command:
            case GenerateCommand():
                self.generate(command)
            case CancelCommand():
                self.cancel(command.id)
            case CheckCommand():
                self.check(command)
            case ProveCommand():
                self.prove(command)
            case EmbedCommand():
                self._embeddings.begin(command)
            case CheckEmbeddingsCommand():
                self._embeddings.check(command)
            case PingCommand():  # Of a whole model answers tell as much; only stages are watched by the time of a pass.
                self._say(PongReport(command.id, 0.0))

    def generate(self, command: GenerateCommand) -> None:
        """Begin an answer, or go on with one; what is wrong with a request is said like an answer."""
        try:
            asked = self._requests.read(command)
            self._requests.check_known(command.begun, "the answer that has begun")
            asked.text.add(command.begun)  # Who drew these has told them.
            if asked.text.reason is None and asked.form is not None:
                asked.form.begin(command.begun)
        except DataError as error:
            self._say(RefusedReport(command.id, error.code, error.detail))
            return
        if asked.text.reason is not None:
            self._over(command.id, asked)
            return
        begun = len(command.begun)
        self._answers[command.id] = asked
        self._manager.register_result_handler(command.id, lambda result: self._take(result, begun))
        more: dict[str, object] = {} if asked.form is None else {FORM: asked.form}
        more |= {} if asked.likelihoods is None else {LIKELIHOODS: asked.likelihoods}
        added = self._manager.add_request(
            [*asked.prompt, *command.begun],
            command.id,
            max_new_tokens=asked.most - begun,
            streaming=True,
            eos_token_id=self._ends or -1,
            **{SAMPLING: command.sampling, ADAPTER: command.adapter, **more},
        )
        if added is None:
            del self._answers[command.id]
            self._say(RefusedReport(command.id, "failed", "the model computes nothing any more"))

    def _with_pages_apart(self, processor: Any, vocabulary: int) -> Any:
        """What computes batches, whose pages are shared by requests of one adapter only."""

        def adapter_of(request: str) -> int:
            asked = self._answers.get(request)  # One that nobody waits for any more shares nothing.
            return MAX_ADAPTERS + 1 if asked is None else asked.adapter

        keep_apart(processor.cache, adapter_of, vocabulary)
        return processor

    def _choose_adapters(self, model: Any, _: object) -> None:
        """Before a pass of the manager's: which of its tokens have which adapter."""
        batch = self._manager.batch_processor.inputs_and_outputs.requests_in_batch
        parts = [(one.state.logit_processor_kwargs.get(ADAPTER, 0), one.query_length) for one in batch]
        choose(rows_of(parts, model.device))

    def cancel(self, request: str) -> None:
        """Nobody waits for an answer any more."""
        if self._answers.pop(request, None) is not None:
            self._manager.cancel_request(request)
        self._embeddings.cancel(request)

    def check(self, command: CheckCommand) -> None:
        """Begin to look at what is said to be this model's answer; one at a time, beside those under way."""
        try:
            asked = self._requests.read(command.asked, command.context)
            self._requests.check_known((*command.asked.begun, *command.tokens), "the answer")
        except DataError as error:
            self._say(leads_fault(command, f"this request cannot have this answer: {error.detail}"))
            return
        self._look(command.id, lambda: self._checker.check(command, asked))

    def prove(self, command: ProveCommand) -> None:
        """Begin to look whether no rounding explains an answer, as ``check``."""
        self._look(command.id, lambda: self._proven(command))

    def _proven(self, command: ProveCommand) -> ProvenReport:
        check = command.check
        try:
            self._requests.check_known((*check.asked.begun, *check.tokens), "the answer")
            return self._prover.prove(command, lambda one: self._requests.read(one.asked, one.context))
        except DataError as error:  # Another version may read what this one cannot: it proves nothing.
            LOG.warning("an answer that cannot be read is not looked at: %s", error.detail)
            return self._prover.proven(command.id, "", NOTHING)

    def _look(self, request: str, work: Callable[[], CheckedReport | ProvenReport]) -> None:
        loop = asyncio.get_running_loop()
        looking = self._checks.submit(work)
        looking.add_done_callback(lambda done: loop.call_soon_threadsafe(self._checked, request, done))

    def _checked(self, request: str, done: Future[CheckedReport | ProvenReport]) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            self._say(done.result())
        else:  # It is this machine that failed, so it says nothing of the answer.
            self._say(RefusedReport(request, "failed", f"{type(error).__name__}: {error}"[:MAX_DETAIL]))

    def _take(self, result: Any, begun: int) -> None:
        """What has become of a request after a step."""
        asked = self._answers.get(result.request_id)
        if asked is None:
            return
        if result.error is not None:
            del self._answers[result.request_id]
            self._say(RefusedReport(result.request_id, "failed", str(result.error)[:MAX_DETAIL]))
            return
        before, tokens = asked.text.count - begun, result.generated_tokens
        text = asked.text.add(tokens[before:])
        if new := tuple(tokens[before : asked.text.count - begun]):
            said = len(new) - (new[-1] in self._ends)
            told = () if asked.likelihoods is None else asked.likelihoods.take(said, self._requests.tokenizer)
            self._say(TextReport(result.request_id, text, new, told))
        if asked.text.reason is not None:
            del self._answers[result.request_id]
            if not result.is_finished():
                self._manager.cancel_request(result.request_id)
            self._over(result.request_id, asked)

    def _over(self, request: str, asked: AskedAnswer) -> None:
        text = asked.text
        assert text.reason is not None
        self._say(AnsweredReport(request, text.reason, len(asked.prompt), text.count, text.calls))


def _cached_bytes(config: Any) -> int:
    """Of keys and values of a token, of all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * _FLOAT32)
