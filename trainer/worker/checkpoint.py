"""Stage checkpoints: anchor and outer momentum of a stage at the beginning of a round, as safetensors.

Each named parameter appears as ``anchor.NAME`` and ``momentum.NAME``; ``round`` is one int64. Names are those of the whole
model, so a set of stage checkpoints is a whole model (``trainer.export.assemble``).

The optimizer's moments belong to one seat and are a file of their own: replicas share a checkpoint to the last bit, moments not.
"""

from collections.abc import Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from trainer.errors import CodecError, WeightsError
from trainer.outer import OuterState
from trainer.stage.stage import Stage, StageState
from trainer.stage.storage import Slot

ANCHOR, MOMENTUM, ROUND = "anchor.", "momentum.", "round"
STEPS, FIRST, SECOND = "adam_steps", "first_moment", "second_moment"


def write_checkpoint(state: OuterState, slots: Sequence[Slot], next_round: int) -> bytes:
    """A stage's checkpoint; ``next_round`` is the round that begins with this state."""
    tensors = {ROUND: torch.tensor([next_round])}
    for slot in slots:
        span = slice(slot.start, slot.start + slot.count)
        tensors[ANCHOR + slot.name] = state.anchor[span].view(slot.shape)
        tensors[MOMENTUM + slot.name] = state.momentum[span].view(slot.shape)
    return save(tensors)


def read_checkpoint(data: bytes, slots: Sequence[Slot], size: int) -> tuple[OuterState, int]:
    """The state of a stage, flat ``[size]``, and the round that begins with it.

    Raises:
        WeightsError: broken, of another stage or shape, or not finite.
    """
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise WeightsError("bad-safetensors", f"the checkpoint is no safetensors file: {error}") from error
    state = OuterState(torch.zeros(size), torch.zeros(size))
    for slot in slots:
        span = slice(slot.start, slot.start + slot.count)
        state.anchor[span] = _checked(tensors, ANCHOR + slot.name, slot.shape)
        state.momentum[span] = _checked(tensors, MOMENTUM + slot.name, slot.shape)
    rounds = tensors.get(ROUND)
    if rounds is None or rounds.dtype != torch.int64 or rounds.numel() != 1:
        raise WeightsError("wrong-shape", "the checkpoint does not say which round begins with it")
    return state, int(rounds[0])


def write_moments(of: Stage | StageState, next_round: int) -> bytes:
    """The moments of a seat's optimizer, as its stage keeps them; ``next_round`` is the round that begins with them."""
    return save(
        {
            ROUND: torch.tensor([next_round]),
            STEPS: torch.tensor([of.adam_steps]),
            FIRST: of.first_moment.detach().cpu(),
            SECOND: of.second_moment.detach().cpu(),
        }
    )


def read_moments(data: bytes, stage: Stage, values: Tensor, round_index: int, *, signed: bool = False) -> StageState:
    """The state of a seat that begins ``round_index`` with such parameters, ``[size]`` float32.

    Args:
        signed: its second moments may be negative.

    Raises:
        WeightsError: broken, of another round or size, or not finite.
    """
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise WeightsError("bad-safetensors", f"the moments are no safetensors file: {error}") from error
    counts = [tensors.get(name) for name in (ROUND, STEPS)]
    if any(count is None or count.dtype != torch.int64 or count.numel() != 1 for count in counts):
        raise WeightsError("wrong-shape", "the moments do not say of which round they are")
    of_round, steps = (int(tensors[name][0]) for name in (ROUND, STEPS))
    if of_round != round_index or steps < 0:
        raise WeightsError("wrong-shape", f"the moments are of round {of_round}, round {round_index} begins")
    first, second = (
        _checked(tensors, name, (length,), dtype)
        for name, (dtype, length) in zip((FIRST, SECOND), stage.layout.vectors[1:], strict=True)
    )
    if not signed and bool((second < 0).any()):
        raise WeightsError("not-finite", "a second moment is negative")
    try:
        return stage.state_of(values, first, second, steps)
    except CodecError as error:
        raise WeightsError("not-finite", str(error)) from error


def _checked(
    tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    value = tensors.get(name)
    if value is None or value.dtype != dtype or tuple(value.shape) != shape:
        found = "nothing" if value is None else f"{value.dtype} {tuple(value.shape)}"
        wanted = str(dtype).removeprefix("torch.")
        raise WeightsError("wrong-shape", f"the checkpoint has {found} for {name}, this stage needs {wanted} {shape}")
    if not bool(torch.isfinite(value).all()):
        raise WeightsError("not-finite", f"{name} of the checkpoint holds NaN or infinite values")
    return value.reshape(-1)
