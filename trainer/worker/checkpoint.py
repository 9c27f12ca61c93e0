"""Stage checkpoints: anchor and outer momentum of a stage at the beginning of a round, as safetensors.

Each named parameter appears as ``anchor.NAME`` and ``momentum.NAME``; ``round`` is one int64. Names are those of the whole
model, so a set of stage checkpoints is a whole model (``trainer.export.assemble``). An anchor whose values have no more than 16
bits, as those of lean stages after an outer step, is written as the upper half of its float32, int16: nothing is lost.

The optimizer's moments belong to one seat and are a file of their own: replicas share a checkpoint to the last bit, moments not.
"""

from collections.abc import Sequence

import torch
from safetensors import SafetensorError
from torch import Tensor

from trainer.errors import CodecError, WeightsError
from trainer.files.tensors import Piece, TensorFile, file_in_pieces, parts_of, tensors_in, tensors_within
from trainer.outer import OuterState
from trainer.stage.short import narrow
from trainer.stage.stage import Stage, StageState
from trainer.stage.storage import Slot
from trainer.transfer import fetched

ANCHOR, MOMENTUM, ROUND = "anchor.", "momentum.", "round"
STEPS, FIRST, SECOND = "adam_steps", "first_moment", "second_moment"


def write_checkpoint(state: OuterState, slots: Sequence[Slot], next_round: int) -> bytes:
    """A stage's checkpoint; ``next_round`` is the round that begins with this state."""
    return b"".join(parts_of(checkpoint_pieces(state, slots, next_round)))


def checkpoint_pieces(state: OuterState, slots: Sequence[Slot], next_round: int) -> list[Piece]:
    """The same in pieces, most of them the memory of ``state``."""
    tensors: dict[str, Tensor | bytes] = {ROUND: torch.tensor([next_round])}
    for slot in slots:
        span = slice(slot.start, slot.start + slot.count)
        upper = narrow(state.anchor[span])
        kept = upper.view(torch.int16) if upper.dtype == torch.bfloat16 else upper
        tensors[ANCHOR + slot.name] = kept.view(slot.shape)
        tensors[MOMENTUM + slot.name] = state.momentum[span].view(slot.shape)
    return file_in_pieces(tensors)


def read_checkpoint(
    data: bytes | bytearray | memoryview,
    slots: Sequence[Slot],
    size: int,
    momentum: torch.dtype | None = torch.float32,
    *,
    lean: bool = False,
) -> tuple[OuterState, int]:
    """The state of a stage, flat ``[size]``, and the round that begins with it.

    Args:
        momentum: its type (``momentum_type``); None: it is left out.
        lean: an anchor of 16 bits stays so.

    Raises:
        WeightsError: broken, of another stage or shape, or not finite.
    """
    tensors = _opened(data, "checkpoint is")
    kept = torch.bfloat16 if lean else torch.float32
    state = OuterState(torch.zeros(size, dtype=kept), torch.zeros(0 if momentum is None else size, dtype=momentum))
    for slot in slots:
        span = slice(slot.start, slot.start + slot.count)
        values = _anchor(tensors, ANCHOR + slot.name, slot.shape)
        if values.dtype == torch.float32:
            state.anchor = state.anchor.float()
        state.anchor[span] = values
        if momentum is not None:
            state.momentum[span] = _checked(tensors, MOMENTUM + slot.name, slot.shape, momentum)
    number = _number(tensors, ROUND)
    if number is None:
        raise WeightsError("wrong-shape", "the checkpoint does not say which round begins with it")
    return state, number


def _anchor(tensors: "_Opened", name: str, shape: tuple[int, ...]) -> Tensor:
    """``[n]``, float32 or bf16 as it was written; raises as ``_checked``."""
    value = tensors.get(name)
    if value is None or value.dtype != torch.int16 or tuple(value.shape) != shape:
        return _checked(tensors, name, shape)
    return _finite(value.reshape(-1).view(torch.bfloat16), name)


def moments_pieces(of: Stage | StageState, next_round: int) -> list[Piece]:
    """The moments of a seat's optimizer, as its stage keeps them; ``next_round`` is the round that begins with them."""
    return file_in_pieces(
        {
            ROUND: torch.tensor([next_round]),
            STEPS: torch.tensor([of.adam_steps]),
            FIRST: fetched(of.first_moment),
            SECOND: fetched(of.second_moment),
        }
    )


def write_moments(of: Stage | StageState, next_round: int) -> bytes:
    """The same in one piece."""
    return b"".join(parts_of(moments_pieces(of, next_round)))


def read_moments(
    data: bytes | bytearray | memoryview,
    stage: Stage,
    values: Tensor,
    round_index: int,
    *,
    signed: bool = False,
    within: bool = False,
) -> StageState:
    """The state of a seat that begins ``round_index`` with such parameters, ``[size]``, as ``Stage.state_of`` takes them.

    Args:
        signed: its second moments may be negative.
        within: the state is to be the memory of ``data``, a bytearray that nobody changes any more.

    Raises:
        WeightsError: broken, of another round or size, or not finite.
    """
    tensors = _opened(data, "moments are", within=within)
    of_round, steps = _number(tensors, ROUND), _number(tensors, STEPS)
    if of_round is None or steps is None:
        raise WeightsError("wrong-shape", "the moments do not say of which round they are")
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


class _Opened:
    """Tensors of a file, each read when it is asked for."""

    def __init__(self, file: TensorFile, what: str) -> None:
        self._file, self._what, self._names = file, what, frozenset(file.keys())

    def get(self, name: str) -> Tensor | None:
        """A tensor, where there is one of this name; raises ``WeightsError``."""
        try:
            return self._file.get_tensor(name) if name in self._names else None
        except SafetensorError as error:
            raise _broken(self._what, error) from error


def _opened(data: bytes | bytearray | memoryview, what: str, *, within: bool = False) -> _Opened:
    try:
        if within and isinstance(data, bytearray):
            return _Opened(tensors_within(data), what)
        return _Opened(tensors_in(data), what)
    except SafetensorError as error:
        raise _broken(what, error) from error


def _broken(what: str, error: SafetensorError) -> WeightsError:
    return WeightsError("bad-safetensors", f"the {what} no safetensors file: {error}")


def _number(tensors: _Opened, name: str) -> int | None:
    value = tensors.get(name)
    return None if value is None or value.dtype != torch.int64 or value.numel() != 1 else int(value.reshape(-1)[0])


def _checked(tensors: _Opened, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    value = tensors.get(name)
    if value is None or value.dtype != dtype or tuple(value.shape) != shape:
        found = "nothing" if value is None else f"{value.dtype} {tuple(value.shape)}"
        wanted = str(dtype).removeprefix("torch.")
        raise WeightsError("wrong-shape", f"the checkpoint has {found} for {name}, this stage needs {wanted} {shape}")
    return _finite(value.reshape(-1), name)


def _finite(value: Tensor, name: str) -> Tensor:
    if not bool(torch.isfinite(value).all()):
        raise WeightsError("not-finite", f"{name} of the checkpoint holds NaN or infinite values")
    return value
