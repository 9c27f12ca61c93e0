"""Copies between main memory and a graphics card for which nobody waits longer than he must.

A plain copy waits until the card has done all that it was told, whichever way it goes, and only then are further orders given.
So what goes there goes through memory that the card reads by itself (*pinned*), behind what was ordered before. What leaves goes
by a stream of its own, beside computing, and whoever needs it waits for it alone. On the processor nothing is copied.

Source: torch's notes on CUDA semantics, "Use pinned memory buffers" and "CUDA streams".
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

_PART = 1 << 24
"""Bytes of a long vector that are under way at once; two such parts are pinned."""


class HostCopy:
    """Values of a card on their way into main memory."""

    def __init__(self, values: Tensor, dtype: torch.dtype | None = None) -> None:
        """They leave when all that was ordered until now is done; nobody may change them before they have ``arrived``.

        Args:
            dtype: as which they arrive; None: as they are.
        """
        source = values.detach().to(dtype or values.dtype)
        self._done: Any = None
        if source.device.type == "cpu":
            self._source, self._there = source, source
            return
        self._source = source = source.contiguous()
        module, side = torch.get_device_module(source.device), _side(source.device)
        side.wait_stream(module.current_stream(source.device))
        self._there = torch.empty(source.shape, dtype=source.dtype, pin_memory=_pins(source.device))
        with module.stream(side):
            self._there.copy_(source, non_blocking=True)
            self._done = module.Event()
            self._done.record(side)

    def arrived(self) -> Tensor:
        """The values in main memory, once they are there; where they were there already, themselves."""
        if self._done is not None:
            self._done.synchronize()
            self._done, self._source = None, self._there
        return self._there


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """``values`` on ``device``; they may be changed at once."""
    if values.device.type == device.type or device.type == "cpu":
        return values.to(device)
    return (values.pin_memory() if _pins(device) else values).to(device, non_blocking=True)


def whole_numbers(values: Sequence[Any], device: torch.device) -> Tensor:
    """A list of whole numbers on ``device``, or of lists that are as long as one another: int64."""
    return to_device(torch.tensor(values, dtype=torch.int64), device)


def fill(into: Tensor, values: Tensor) -> None:
    """Copy ``[n]`` of main memory into a vector of the same type, wherever that is; ``values`` may be changed at once."""
    if into.device.type == "cpu":
        into.copy_(values)
        return
    module = torch.get_device_module(into.device)
    under_way: deque[Any] = deque()
    for part in _parts(values):
        if len(under_way) == 2:
            under_way.popleft().synchronize()
        into[part].copy_(to_device(values[part], into.device))
        event = module.Event()
        event.record()
        under_way.append(event)


def arriving(values: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """A vector ``[n]`` in parts in main memory, to be read only; while one is used the next comes."""
    parts: deque[tuple[slice, HostCopy]] = deque()
    for part in _parts(values):
        parts.append((part, HostCopy(values[part])))
        if len(parts) == 2:
            span, departure = parts.popleft()
            yield span, departure.arrived()
    for span, departure in parts:
        yield span, departure.arrived()


def fetched(values: Tensor, into: Tensor | None = None) -> Tensor:
    """A copy of ``[n]`` in main memory; ``into``: memory of the same type that it takes."""
    if into is None:
        into = torch.empty(values.shape, dtype=values.dtype)
    if values.device.type == "cpu":
        return into.copy_(values.detach())
    for span, part in arriving(values):
        into[span] = part
    return into


def numbers(values: Sequence[Tensor]) -> list[float]:
    """Single numbers of one device and type, for which a card is waited for once."""
    found: list[float] = torch.stack(list(values)).cpu().tolist() if values else []
    return found


def _parts(values: Tensor) -> Iterator[slice]:
    count = max(1, _PART // values.element_size())
    return (slice(start, min(start + count, len(values))) for start in range(0, len(values), count))


def _pins(device: torch.device) -> bool:
    return device.type == "cuda"


@cache
def _side(device: torch.device) -> Any:
    """The stream by which values leave a card."""
    return torch.get_device_module(device).Stream(device)
