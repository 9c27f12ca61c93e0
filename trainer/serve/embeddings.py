"""Embeddings of texts: the mean of their tokens' last hidden states, of length 1. They are computed beside an engine's answers.

Models that were made for embeddings take the last token's state. Those here have learnt to write, and their last token says
what comes next; a mean has all tokens in it. Source: Sentence-BERT, arXiv 1908.10084, section 3: the mean is its default.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from protocol.serving import (
    AnsweredReport,
    CheckedReport,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    EngineReport,
    RefusedReport,
)
from trainer.errors import DataError
from trainer.serve.adapters import adapted, whole_pass
from trainer.serve.loading import LoadedModel
from trainer.serve.requests import Requests
from trainer.transfer import whole_numbers

PASS = 512  # Tokens that are computed at a time, as answers are.
REPORT_BYTES = 128 << 10  # Of vectors in a report: an agent's frame takes 192 KB.
TOLERANCE = 1e-3  # Between two vectors of length 1: a thousand times what rounding does.
FURTHEST = 2.0  # Two vectors of length 1 are no further apart.
MAX_DETAIL = 500  # Characters of what went wrong.

T = TypeVar("T")


class TextEmbedder:
    """Makes vectors with an engine's parameters."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Before anything changes how the model attends."""
        self._model, self._config = loaded.twin().base_model, loaded.config
        self._stopped = threading.Event()
        self._most = max(1, REPORT_BYTES // (4 * int(loaded.config.hidden_size)))

    def stop(self) -> None:
        """Give up what is under way."""
        self._stopped.set()

    def batch(self, rows: Sequence[Sequence[int]]) -> int:
        """How many of the first ``rows`` are computed together: so many as make a pass and fit into a report."""
        longest = 0
        for count, row in enumerate(rows[: self._most]):
            longest = max(longest, len(row))
            if count and (count + 1) * longest > PASS:
                return count
        return min(len(rows), self._most)

    def vectors(self, rows: Sequence[Sequence[int]], adapter: int = 0) -> Tensor:
        """Embeddings ``[texts, width]``, float32, of texts as tokens.

        Args:
            adapter: the number of one; 0: none.
        Raises:
            InterruptedError: it was given up. ValueError: a value is no number.
        """
        with adapted(whole_pass(adapter)):
            means: Tensor = self._mean_of_parts(rows[0])[None] if len(rows) == 1 else self._means(rows)
        made: Tensor = means / means.norm(dim=1, keepdim=True)
        if not bool(made.isfinite().all()):
            raise ValueError("the model's hidden states are no numbers, or all zero")
        return made

    @torch.no_grad()
    def _means(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Of several texts in one pass. A token attends to none behind it, so what fills a row up changes nothing."""
        device, longest = self._model.device, max(len(row) for row in rows)
        sizes = whole_numbers([len(row) for row in rows], device)
        tokens = whole_numbers([[*row, *[0] * (longest - len(row))] for row in rows], device)
        states = self._model(input_ids=tokens, use_cache=False).last_hidden_state.float()
        inside = torch.arange(longest, device=states.device)[None] < sizes[:, None]
        sums = torch.where(inside[..., None], states, 0.0).sum(1)
        made: Tensor = (sums / sizes[:, None]).cpu()
        return made

    @torch.no_grad()
    def _mean_of_parts(self, row: Sequence[int]) -> Tensor:
        """Of one text, in as many passes as it takes."""
        device, cache = self._model.device, DynamicCache(config=self._config)
        total: Any = 0.0
        for begin in range(0, len(row), PASS):
            if self._stopped.is_set():
                raise InterruptedError("the embeddings were given up")
            part = whole_numbers([row[begin : begin + PASS]], device)
            places = torch.arange(begin, begin + part.shape[1], device=device)[None]
            said = self._model(input_ids=part, position_ids=places, past_key_values=cache, use_cache=True)
            total = total + said.last_hidden_state[0].float().sum(0)
        made: Tensor = (total / len(row)).cpu()
        return made


@dataclass
class _TextsUnderWay:
    """A request. ``rows``: its texts as tokens, of which ``done`` have been told."""

    rows: list[list[int]]
    adapter: int
    done: int = 0


class EmbeddingQueue:
    """Requests for embeddings of one engine. One asyncio loop has it; they take turns on a thread, a batch each."""

    def __init__(self, loaded: LoadedModel, requests: Requests, say: Callable[[EngineReport], None]) -> None:
        """``say`` takes what comes of requests, on the loop's thread."""
        self._embedder, self._requests, self._say = TextEmbedder(loaded), requests, say
        self._under_way: dict[str, _TextsUnderWay] = {}
        self._thread = ThreadPoolExecutor(1, "embed")

    def begin(self, command: EmbedCommand) -> None:
        """Begin with the texts of a request; what is wrong with them is said."""
        try:
            rows = self._requests.rows(command)
        except DataError as error:
            self._say(RefusedReport(command.id, error.code, error.detail))
            return
        self._under_way[command.id] = _TextsUnderWay(rows, command.adapter)
        self._go_on(command.id)

    def cancel(self, request: str) -> None:
        """Nobody waits for it any more: the batch that is being computed is the last one."""
        self._under_way.pop(request, None)

    def check(self, command: CheckEmbeddingsCommand) -> None:
        """Begin to look at what are said to be this model's embeddings."""
        try:
            rows = self._requests.rows(command.asked)
        except DataError as error:
            detail = f"this request cannot have embeddings: {error.detail}"
            self._say(CheckedReport(command.id, detail[:MAX_DETAIL], FURTHEST))
            return
        self._compute(partial(self._checked, command, rows), command.id, self._say)

    async def close(self) -> None:
        """Give up what is under way, and wait for its thread."""
        self._embedder.stop()
        self._under_way.clear()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _go_on(self, request: str) -> None:
        asked = self._under_way[request]
        rows = asked.rows[asked.done :]
        batch = rows[: self._embedder.batch(rows)]
        self._compute(
            partial(self._embedder.vectors, batch, asked.adapter), request, partial(self._told, request, batch)
        )

    def _told(self, request: str, batch: Sequence[Sequence[int]], made: Tensor) -> None:
        """Say a batch's vectors, and go on behind it."""
        asked = self._under_way.get(request)
        if asked is None:
            return
        counts = tuple(map(len, batch))
        self._say(EmbeddedReport(request, counts, tuple(one.numpy().astype("<f4").tobytes() for one in made)))
        asked.done += len(batch)
        if asked.done < len(asked.rows):
            self._go_on(request)
            return
        del self._under_way[request]
        self._say(AnsweredReport(request, "stop", sum(map(len, asked.rows)), 0))

    def _checked(self, command: CheckEmbeddingsCommand, rows: list[list[int]]) -> CheckedReport:
        said = zip(command.tokens, command.vectors, strict=False)
        worst, whole = 0.0, len(rows)
        if not len(rows) == len(command.tokens) == len(command.vectors):
            return CheckedReport(command.id, f"{whole} texts have {len(command.vectors)} embeddings", FURTHEST)
        own = self._each(rows, command.asked.adapter)
        for number, (row, (count, given), made) in enumerate(zip(rows, said, own, strict=True), 1):
            if count != len(row):
                detail = f"text {number} of {whole} has {len(row):,} tokens, not {count:,}"
                return CheckedReport(command.id, detail, FURTHEST)
            away = distance(made, given)
            worst = max(worst, away)
            if away > TOLERANCE:
                detail = f"the embedding of text {number} of {whole} is {away:.4f} away from this model's"
                return CheckedReport(command.id, detail, worst)
        return CheckedReport(command.id, "", worst)

    def _each(self, rows: Sequence[Sequence[int]], adapter: int) -> Iterator[Tensor]:
        """Embeddings one after the other, computed in batches."""
        while rows:
            size = self._embedder.batch(rows)
            yield from self._embedder.vectors(rows[:size], adapter)
            rows = rows[size:]

    def _compute(self, work: Callable[[], T], request: str, then: Callable[[T], None]) -> None:
        """Do it on the thread, and hand on what it makes; a failure is said of the request."""
        loop = asyncio.get_running_loop()
        over = self._thread.submit(work)
        over.add_done_callback(lambda done: loop.call_soon_threadsafe(self._over, done, request, then))

    def _over(self, done: "Future[T]", request: str, then: Callable[[T], None]) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            then(done.result())
            return
        self._under_way.pop(request, None)
        self._say(RefusedReport(request, "failed", f"{type(error).__name__}: {error}"[:MAX_DETAIL]))


def distance(made: Tensor, given: bytes) -> float:
    """Between a vector ``[width]`` and one as it is said; ``FURTHEST`` where that is none of this model."""
    if len(given) != 4 * len(made):
        return FURTHEST
    away = float(np.linalg.norm(made.double().numpy() - np.frombuffer(given, "<f4").astype(np.float64)))
    return away if away < FURTHEST else FURTHEST  # Also of what is no number.
