"""How an opening shows a state: a float32 stage's three vectors as they are, a lean one's in short form and compressed.

A lean state is said from the anchor that its round began with (``trainer.stage.short``). Who trains the stage too has that
anchor, and others may have it from those who do; where neither is so, the opening shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs.envelope import unwrap, wrap_parts
from trainer.errors import CodecError, OpeningError
from trainer.files.tensors import TakenTensors, bytes_of
from trainer.outer.method import Local
from trainer.stage.short import ShortValues, narrow
from trainer.stage.stage import Stage, StageState
from trainer.stage.storage import ALIGNMENT, StateLayout
from trainer.transfer import arriving

ANCHOR = "anchor"
_LOCAL = "local."
_VECTORS = ("parameters", "first_moment", "second_moment")
_CODES, _UNITS = "codes", "units"


@dataclass(frozen=True)
class PackedState:
    """A lean state as an opening shows it: ``shown`` by name, without what it is said from."""

    adam_steps: int
    shown: dict[str, bytearray]

    @classmethod
    def of(cls, stage: Stage) -> "PackedState":
        """That of a lean stage, of which a little at a time leaves its device. It says itself in short no more."""
        said = stage.said()
        assert isinstance(said, ShortValues)
        shown = _packed_said(said)
        del said
        stage.forget_said()
        for name in _VECTORS[1:]:
            shown[name] = _packed(getattr(stage, name))
        return cls(stage.adam_steps, shown)


def show_state(state: StageState | PackedState, prefix: str = "") -> dict[str, Tensor | bytearray]:
    """What an opening holds of a state, by name. A lean one has to be in short form."""
    if isinstance(state, PackedState):
        return {prefix + name: data for name, data in state.shown.items()}
    if isinstance(state.said, Tensor):
        return {prefix + name: getattr(state, name) for name in _VECTORS}
    moments = {name: _packed(getattr(state, name)) for name in _VECTORS[1:]}
    return {prefix + name: data for name, data in (moments | _packed_said(state.said)).items()}


def _packed_said(said: ShortValues) -> dict[str, bytearray]:
    if said.codes is None or said.units is None:
        return {}
    return {_CODES: _packed(said.codes), _UNITS: _packed(said.units)}


def read_state(
    tensors: Mapping[str, Tensor], prefix: str, layout: StateLayout, steps: int, base: Tensor | None
) -> StageState:
    """The state that ``show_state`` made this of.

    Args:
        base: what a lean state is said from, flat ``[n]`` float32: the anchor, or what the round began with.
    Raises:
        OpeningError: something is missing, or has another length or type.
    """
    if layout.parameters[0] == torch.float32:
        parameters, *moments = (
            read_vector(tensors, prefix + name, *kind) for name, kind in zip(_VECTORS, layout.vectors, strict=True)
        )
        return StageState(parameters, moments[0], moments[1], steps)
    if base is None or base.numel() != layout.size:
        raise OpeningError("what the state is said from is missing")
    first, second = (
        _unpacked(tensors, prefix + name, *kind) for name, kind in zip(_VECTORS[1:], layout.vectors[1:], strict=True)
    )
    said = ShortValues(base)
    if prefix + _CODES in tensors:
        codes = _unpacked(tensors, prefix + _CODES, torch.int8, layout.size)
        said = ShortValues(base, codes, _unpacked(tensors, prefix + _UNITS, torch.bfloat16, layout.size // ALIGNMENT))
    return StageState(said, first, second, steps)


def show_local(local: Local, lean: bool) -> dict[str, Tensor | bytearray]:
    """What an opening holds of what a replica carries; compressed where its stage is lean."""
    return {_LOCAL + name: _packed(vector) if lean else vector for name, vector in local.items()}


def read_local(tensors: Mapping[str, Tensor], like: Local, lean: bool) -> Local:
    """What ``show_local`` made this of; ``like``: what a replica carries that begins. Raises ``OpeningError``."""
    read = _unpacked if lean else read_vector
    return {name: read(tensors, _LOCAL + name, vector.dtype, vector.numel()) for name, vector in like.items()}


def read_vector(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, length: int) -> Tensor:
    """A vector of an opening; raises ``OpeningError`` as ``read_state``."""
    value = tensors.get(name)
    if value is None or value.dtype != dtype or tuple(value.shape) != (length,):
        raise OpeningError(f"{name} is missing, or not {length:,} {str(dtype).removeprefix('torch.')} values")
    return value.clone()


def read_anchor(tensors: Mapping[str, Tensor], length: int, name: str = ANCHOR) -> Tensor:
    """An anchor of ``[length]`` float32 of a lean stage, as ``OuterState`` has it; raises ``OpeningError`` as ``read_state``."""
    found: list[Tensor] = []

    def made(shown: Tensor) -> Tensor:
        if shown.dtype == torch.float32 and tuple(shown.shape) == (length,):
            kept = narrow(shown)
            found.append(shown.clone() if kept is shown else kept)
        return torch.empty(0)

    if isinstance(tensors, TakenTensors) and name in tensors:
        tensors.made(name, made)
    elif name in tensors:
        made(tensors[name])
    if not found:
        raise OpeningError(f"{name} is missing, or not {length:,} float32 values")
    return found[0]


def read_blob(tensors: Mapping[str, Tensor], name: str) -> bytes:
    """Bytes of an opening; raises ``OpeningError`` as ``read_state``."""
    value = tensors.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 1:
        raise OpeningError(f"{name} is missing, or not bytes")
    return value.numpy().tobytes()


def _packed(vector: Tensor) -> bytearray:
    size = vector.numel() * vector.element_size()
    return wrap_parts(lambda: (bytes_of(part) for _, part in arriving(vector.detach())), size)


def _unpacked(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, length: int) -> Tensor:
    size = length * dtype.itemsize
    try:
        data = unwrap(read_blob(tensors, name), size)
    except CodecError as error:
        raise OpeningError(f"{name} is not what it should be: {error}") from error
    if len(data) != size:
        raise OpeningError(f"{name} is not {length:,} {str(dtype).removeprefix('torch.')} values")
    return torch.frombuffer(bytearray(data), dtype=dtype) if length else torch.empty(0, dtype=dtype)
