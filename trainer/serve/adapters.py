"""Adapters (LoRA) of several jobs beside one model, whose requests share batches.

``y = x W + scale * (x A^T) B^T``: a layer's own product is made once for all tokens of a pass, and each adapter's for the tokens
of its requests, which are gathered for it and added back. Layers stay what they are: a hook adds to what comes out of them. So a
model whose matrices are kept in another way has adapters, too.

Source: LoRA, arXiv 2106.09685; batches of several adapters: Punica, arXiv 2310.18547.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from protocol.job.job import LoraSpec
from protocol.models.text_part import parameter_of
from trainer.errors import DataError, WeightsError
from trainer.export.adapter import ADAPTER, DESCRIBED, PREFIX, described_spec
from trainer.export.assemble import SETTINGS
from trainer.files.archives import ModelArchive, stage_tensors
from trainer.files.inputs import InputFile
from trainer.transfer import to_device, whole_numbers

_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"

AdapterRows = tuple[tuple[int, Tensor | None], ...]
"""Of a pass: each adapter's number, and which tokens are its requests'; None: all of them."""
_rows: ContextVar[AdapterRows] = ContextVar("adapter_rows", default=())


@contextmanager
def adapted(rows: AdapterRows) -> Iterator[None]:
    """Meanwhile this thread's passes have these adapters."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def choose(rows: AdapterRows) -> None:
    """From now on this thread's passes have these adapters."""
    _rows.set(rows)


def whole_pass(adapter: int) -> AdapterRows:
    """Of a pass whose tokens all belong to one request. ``adapter``: its number; 0: none."""
    return ((adapter, None),) if adapter else ()


def rows_of(parts: Iterable[tuple[int, int]], device: torch.device) -> AdapterRows:
    """Of a pass of several requests: the adapter's number and how many tokens of each, in order."""
    found: dict[int, list[int]] = {}
    begin = 0
    for adapter, count in parts:
        if adapter:
            found.setdefault(adapter, []).extend(range(begin, begin + count))
        begin += count
    return tuple(
        (adapter, None if len(places) == begin else whole_numbers(places, device)) for adapter, places in found.items()
    )


@dataclass(frozen=True)
class AdapterFiles:
    """One adapter as its files have it; its matrices are read when it is put beside a model.

    Attributes:
        spec: its rank and scale.
        matrices: by name what ``[...]`` makes a tensor of.
        template: its own chat template; None: the model's.
    """

    spec: LoraSpec
    matrices: Mapping[str, Any]
    template: Any = None

    @classmethod
    def of_archive(cls, file: InputFile) -> "AdapterFiles":
        """One in an archive; raises DataError, WeightsError: it is broken."""
        archive = ModelArchive(file, (DESCRIBED,))
        return cls._of(archive.small(DESCRIBED), archive.small(SETTINGS), archive.tensors())

    @classmethod
    def of_folder(cls, folder: Path) -> "AdapterFiles":
        """One in a folder, as ``trainer.export.assemble`` writes it; raises DataError, WeightsError: it is broken."""
        try:
            described, settings = (folder / DESCRIBED).read_bytes(), folder / SETTINGS
            return cls._of(
                described, settings.read_bytes() if settings.exists() else b"{}", stage_tensors(folder / ADAPTER)
            )
        except OSError as error:
            raise WeightsError("bad-adapter", f"the adapter cannot be read: {error}") from error

    @classmethod
    def _of(cls, described: bytes, settings: bytes, matrices: Mapping[str, Any]) -> "AdapterFiles":
        try:
            spec = described_spec(json.loads(described))
            template = json.loads(settings or b"{}").get("chat_template")
        except (ValueError, AttributeError, RecursionError) as error:
            raise WeightsError("bad-adapter", f"an adapter's files cannot be read: {error}") from error
        return cls(spec, matrices, template)

    @property
    def layers(self) -> dict[str, str]:
        """The layers that it changes, by the names of their parameters, and what its files call them."""
        pairs = [name.removesuffix(_DOWN) for name in self.matrices if name.endswith(_DOWN)]
        return {parameter_of(pair.removeprefix(PREFIX)): pair for pair in pairs}

    def pair(self, stored: str) -> tuple[Tensor, Tensor]:
        """What a layer is changed with, by its name in the files: ``[in, rank]`` and ``[rank, out]``, float32, the second scaled.

        Raises:
            WeightsError: one is missing, of another rank, or not finite.
        """
        try:
            down, up = (self.matrices[stored + side][...].float() for side in (_DOWN, _UP))
        except KeyError as error:
            raise WeightsError("missing-tensor", f"the adapter lacks {error}") from error
        except DataError as error:
            raise WeightsError(error.code, error.detail) from error
        if down.dim() != 2 or up.dim() != 2 or (down.shape[0], up.shape[1]) != (self.spec.rank, self.spec.rank):
            raise WeightsError("wrong-shape", f"{stored} is no adapter of rank {self.spec.rank}")
        if not bool(torch.isfinite(down).all() and torch.isfinite(up).all()):
            raise WeightsError("not-finite", f"{stored} of the adapter has numbers that are not finite")
        return down.T.contiguous(), (up.T * self.spec.scale).contiguous()


@dataclass(frozen=True)
class LayerAdapters:
    """Adapters of one linear layer by number, as a hook on it."""

    pairs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __deepcopy__(self, _: object) -> "LayerAdapters":
        """Of a model's twin: the same matrices."""
        return self

    def __call__(self, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """``output`` ``[..., tokens, out]`` of ``inputs[0]`` ``[..., tokens, in]``, with what the adapters add."""
        for number, places in _rows.get():
            if number not in self.pairs:
                continue
            down, up = self.pairs[number]
            given = inputs[0].reshape(-1, inputs[0].shape[-1])
            made = output.view(-1, output.shape[-1])
            if places is None:
                made += given @ down @ up
            else:
                made.index_add_(0, places, given[places] @ down @ up)
        return output


def put_beside(
    adapters: Sequence[AdapterFiles], layers: Mapping[str, nn.Module], device: torch.device, whole: bool
) -> int:
    """Put adapters beside a model's layers, numbered from 1; returns how many scalars they have there.

    Args:
        layers: modules by the names of their parameters.
        whole: these are all layers of the model; else what an adapter changes beyond them is left out.
    Raises:
        WeightsError: an adapter is broken, or of another model.
    """
    hooks: dict[str, LayerAdapters] = {}
    count = 0
    for number, adapter in enumerate(adapters, 1):
        for name, stored in adapter.layers.items():
            if name not in layers:
                if whole:
                    raise WeightsError("missing-tensor", f"adapter {number} changes {name}, which this model has not")
                continue
            down, up = adapter.pair(stored)
            _check_sizes(layers[name], down, up, f"adapter {number} at {name}")
            if name not in hooks:
                hooks[name] = LayerAdapters()
                layers[name].register_forward_hook(hooks[name])
            hooks[name].pairs[number] = (to_device(down, device), to_device(up, device))
            count += down.numel() + up.numel()
    return count


def keep_apart(cache: Any, adapter_of: Callable[[str], int], vocabulary: int) -> None:
    """Have a cache of ``transformers``' continuous batching share pages between requests of one adapter only.

    The same words have other keys and values with another adapter. So to what finds equal pages, which hashes tokens as 32 bits,
    each adapter writes in an alphabet of its own.

    Args:
        adapter_of: its number, by request.
    """
    find, mark = cache.search_prefix_match, cache.mark_complete_blocks

    def own(tokens: Sequence[int], adapter: int) -> list[int]:
        return [token + adapter * vocabulary for token in tokens]

    def marked(state: Any, complete: Any) -> None:
        number = adapter_of(state.request_id)
        known = SimpleNamespace(
            request_id=state.request_id,
            status=state.status,
            initial_tokens=own(state.initial_tokens, number),
            generated_tokens=own(state.generated_tokens, number),
        )
        mark(known, complete)

    cache.search_prefix_match = lambda request, tokens: find(request, own(tokens, adapter_of(request)))
    cache.mark_complete_blocks = marked


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Modules of a whole model by the names of their parameters."""
    return {parameter_of(name): module for name, module in model.named_modules() if name}


def _check_sizes(layer: nn.Module, down: Tensor, up: Tensor, called: str) -> None:
    """See that matrices fit a layer, as far as it says how wide it is."""
    inputs = getattr(layer, "in_features", getattr(layer, "nx", down.shape[0]))
    outputs = getattr(layer, "out_features", getattr(layer, "nf", up.shape[1]))
    if (down.shape[0], up.shape[1]) != (inputs, outputs):
        detail = f"{called} is from {down.shape[0]} to {up.shape[1]}, the model's layer from {inputs} to {outputs}"
        raise WeightsError("wrong-shape", detail)
