"""Products of few rows on a processor, by whichever of two ways reads the weights more quickly there.

An answer's next token is a row of its own, so a model's matrices are read once for one row, or for as many as there are answers
under way. ``functional.linear`` hands rows to the library as ``rows x weights``, which for 1 to 8 of them may take twice as long
as ``weights x rows``; it depends on the processor and on the width. So both are timed once, when a model is loaded.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_ROWS = 8  # Beyond, the usual way is at least as quick.
WORTH = 4 << 20  # Bytes of all matrices of a size: smaller ones stay in a processor's cache.
TIMED = 48 << 20  # Bytes that are read for one time: more than caches hold.
TIMES = 4  # Of which the shortest counts.
GAIN = 0.95  # Of the usual way's time: what another one must take less than.

Product = Callable[[Tensor, Tensor], Tensor]
Size = tuple[int, int, int]

_found: dict[Size, frozenset[int]] = {}
"""By outputs, inputs and threads: numbers of rows for which the weights go first."""


def weights_first(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows [t, in]`` by ``weight [out, in]``: ``[t, out]``."""
    # A single row would go to another routine, which is not quicker than that for two.
    given = rows if len(rows) > 1 else rows.repeat(2, 1)
    return torch.mm(weight, given.t())[:, : len(rows)].t().contiguous()


class FewRows:
    """Stands for ``forward`` of a linear layer."""

    def __init__(self, part: nn.Linear, first: frozenset[int]) -> None:
        """``first``: numbers of rows for which the weights go first."""
        self._part, self._first = part, first

    def __call__(self, inputs: Tensor) -> Tensor:
        """``[..., in]`` becomes ``[..., out]``."""
        part = self._part
        rows = inputs.numel() // inputs.shape[-1]
        if rows not in self._first:
            return functional.linear(inputs, part.weight, part.bias)
        made = weights_first(inputs.reshape(rows, -1), part.weight).view(*inputs.shape[:-1], -1)
        return made if part.bias is None else made + part.bias


def quicken(module: nn.Module) -> None:
    """Have the linear layers of a model that only answers compute few rows in the quickest way, where that pays."""
    sizes: dict[tuple[int, int], list[nn.Linear]] = {}
    for part in module.modules():
        if type(part) is nn.Linear and _plain(part):
            sizes.setdefault((part.out_features, part.in_features), []).append(part)
    for (outputs, inputs), parts in sizes.items():
        if sum(part.weight.nbytes for part in parts) < WORTH:
            continue
        size = (outputs, inputs, torch.get_num_threads())
        if size not in _found:
            _found[size] = _timed([part.weight for part in parts])
        if _found[size]:
            for part in parts:
                cast(Any, part).forward = FewRows(part, _found[size])


def as_usual(module: nn.Module) -> None:
    """Have all linear layers compute in the usual way, which hangs on no clock: machines of a class then agree bit for bit."""
    for part in module.modules():
        if isinstance(vars(part).get("forward"), FewRows):
            del part.forward


def _plain(part: nn.Linear) -> bool:
    weight = cast("Tensor | None", part.weight)  # A quantised layer has none.
    if weight is None or "forward" in vars(part):
        return False
    return (weight.device.type, weight.dtype) == ("cpu", torch.float32) and weight.is_contiguous()


@torch.inference_mode()
def _timed(weights: Sequence[Tensor]) -> frozenset[int]:
    """For which numbers of rows the weights should go first."""
    columns = weights[0].shape[1]
    # Of one that is larger, such as a vocabulary's, a part says how quickly it is read.
    most = max(1, TIMED // (columns * weights[0].element_size()))
    some = [weight[:most] for weight in weights[: max(1, TIMED // weights[0].nbytes)]]
    found = set()
    for count in range(1, MOST_ROWS + 1):
        rows = torch.ones(count, columns)
        # In turn, so that what else the machine does meets both.
        pairs = [(_seconds(functional.linear, rows, some), _seconds(weights_first, rows, some)) for _ in range(TIMES)]
        usual, first = (min(times) for times in zip(*pairs, strict=True))
        if first < GAIN * usual:
            found.add(count)
    return frozenset(found)


def _seconds(product: Product, rows: Tensor, weights: Sequence[Tensor]) -> float:
    began = time.perf_counter()
    for weight in weights:
        product(rows, weight)
    return time.perf_counter() - began
