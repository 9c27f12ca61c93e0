"""What a call of the process group returns: something to wait for."""

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.errors import GroupError

_NO_TIMEOUT_S = 0.0  # What c10d's kNoTimeout becomes; negative: unset.


class GroupWork(dist.Work):
    """A call under way.

    The future is complete before ``wait`` returns: torchft's chain of callbacks relies on that. Its callbacks run in a thread of
    their own, so they may call the group again, as PowerSGD's hook does.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        """Take the tensors that the call writes to."""
        super().__init__()
        self._outputs = list(outputs)
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future(
            devices=sorted({tensor.device for tensor in outputs if tensor.is_cuda}, key=str)
        )

    def finish(self, error: BaseException | None) -> None:
        """Say how it ended, once."""
        self._error = error
        try:
            if isinstance(error, Exception):
                self._future.set_exception(error)  # type: ignore[arg-type]  # torch says the type of the value
            else:
                self._future.set_result(self._outputs)
        finally:
            self._done.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the tensors are written.

        Raises:
            GroupError: the call failed, or takes longer than ``timeout``.
        """
        seconds = timeout.total_seconds() if timeout is not None else _NO_TIMEOUT_S
        if not self._done.wait(seconds if seconds > _NO_TIMEOUT_S else None):
            raise GroupError(f"not done within {seconds:g} s; the call goes on")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it is done and has not failed."""
        return self._done.is_set() and self._error is None

    def exception(self) -> Any:
        """Why it failed, or None."""
        return self._error

    def result(self) -> list[Tensor]:
        """The tensors that were written."""
        return self._outputs

    def synchronize(self) -> None:
        """The same as ``wait``: tensors on a GPU are written before a call is done."""
        self.wait()

    def get_future(self) -> Any:
        """Completed with the tensors, or with the error."""
        return self._future
