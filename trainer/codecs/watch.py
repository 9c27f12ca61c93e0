"""Who watches tensors become bytes and back in this thread: the trace of a step, which records each as one operation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor

from trainer.codecs.framing import Codec


class Watcher(Protocol):
    """Told of every encoding and decoding; ``work`` does it."""

    def encoding(self, tensor: Tensor, codec: Codec, work: Callable[[], bytes]) -> bytes:
        """Of a tensor."""

    def decoding(self, data: bytes, shape: tuple[int, ...], codec: Codec, work: Callable[[], Tensor]) -> Tensor:
        """Of a payload."""


WATCHER: ContextVar[Watcher | None] = ContextVar("WATCHER", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Have ``watcher`` told of what this thread encodes and decodes."""
    token = WATCHER.set(watcher)
    try:
        yield
    finally:
        WATCHER.reset(token)
