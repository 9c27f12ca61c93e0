"""Who of several stages made a wrong answer: what each says crossed is held against a pass of one's own.

An honest stage's sketches are off by the rounding of half floats, 0.03 % of a state's length (SmolLM2-135M); those of weights in
int8 by 1 to 2 %, of one layer in int8 by 0.5 %.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protocol.serving import BoundarySketches
from trainer.serve.stages.sketches import NUMBERS, read_sketches, sketch_vectors
from trainer.transfer import HostCopy, to_device

AT_ONE = 0.002  # Of a state's length, that sketches may be off at a place.
AT_ALL = 0.001  # Of the same, root mean square of all places.
_MOST_HALF = 65504.0

Numbers = npt.NDArray[np.float32]


@dataclass
class OwnSketches:
    """Of a pass of one's own at a boundary, with the vectors of one side: ``values`` ``[places, NUMBERS]``, and how large states
    are, ``sizes`` ``[places]``."""

    values: Numbers
    sizes: Numbers

    def off(self, told: Numbers) -> bool:
        """Whether sketches of these places are of other states."""
        sizes = np.maximum(self.sizes, np.finfo(np.float32).tiny)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.clip(told, -_MOST_HALF, _MOST_HALF) - np.clip(self.values, -_MOST_HALF, _MOST_HALF)
            shares = np.sqrt((apart**2).mean(1)) / sizes
            return not (bool((shares <= AT_ONE).all()) and float(np.sqrt((shares**2).mean())) <= AT_ALL)


class BoundaryWatch:
    """Sketches what goes into some layers of a whole model."""

    def __init__(self, model: Any, request: str, boundaries: Sequence[BoundarySketches]) -> None:
        """``request``: whose vectors are used."""
        self._layers = next(one for one in model.get_decoder().children() if isinstance(one, nn.ModuleList))
        self._request, self._boundaries = request, boundaries
        self._seen: list[list[HostCopy]] = [[] for _ in boundaries]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile the model's passes, which go through one text from its first token on, are noted."""
        hooks = []
        for boundary, seen in zip(self._boundaries, self._seen, strict=True):
            if boundary.layer < len(self._layers):
                hook = self._hook(boundary, seen)
                hooks.append(self._layers[boundary.layer].register_forward_pre_hook(hook, with_kwargs=True))
        try:
            yield
        finally:
            for one in hooks:
                one.remove()

    def stages(self) -> tuple[int, ...]:
        """Who can have made the answer that was passed: see ``CheckedReport``."""
        for before, (boundary, seen) in enumerate(zip(self._boundaries, self._seen, strict=True)):
            if found := _at(boundary, seen, before):
                return found
        return (len(self._boundaries),)

    def _hook(self, boundary: BoundarySketches, seen: list[HostCopy]) -> Any:
        made: list[Tensor] = []

        def note(_layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            states = (args[0] if args else named["hidden_states"])[0].float()
            if not made:
                sides = (boundary.sent_key, boundary.got_key)
                both = torch.cat([sketch_vectors(self._request, states.shape[-1], key) for key in sides], 1)
                made.append(to_device(both, states.device))
            sizes = torch.linalg.vector_norm(states, dim=1) / states.shape[-1] ** 0.5
            seen.append(HostCopy(torch.cat((states @ made[0], sizes[:, None]), 1)))

        return note


def _at(boundary: BoundarySketches, seen: list[HostCopy], before: int) -> tuple[int, ...]:
    """Who made what is wrong at a boundary behind stage ``before``; nobody, where nothing is.

    What was sent is right and what was got is not: one of the two lies, or the sender sent what its own sketches do not see.
    """
    nothing = np.zeros((0, 2 * NUMBERS + 1), np.float32)
    both = np.concatenate([nothing, *(one.arrived().numpy() for one in seen)])[boundary.first :]
    values, sizes = both[:, :-1], both[:, -1]
    own = OwnSketches(values[:, :NUMBERS], sizes), OwnSketches(values[:, NUMBERS:], sizes)
    sent, got = (read_sketches(one)[: len(sizes)] for one in (boundary.sent, boundary.got))
    if len(sent) < len(sizes) or own[0].off(sent):
        return (before,)
    if len(got) < len(sizes):
        return (before + 1,)
    return (before, before + 1) if own[1].off(got) else ()
