"""What a stage holds, in bytes a parameter: float32 and lean beside plain torch with AdamW and with torchao's 8-bit AdamW.

Each way builds its model in a process of its own and does real steps. ``kept`` are the tensors that live from step to step,
counted by their storages: weights, gradients, moments, and whatever else belongs to them. ``grown`` is by how much the process
grew until after its last step, and ``peak`` until its largest moment, activations and loss included. A graphics card
holds what is ``kept``, and for a moment what a step makes. With ``--device cuda`` it is one: ``grown`` and ``peak`` are what
torch's allocator handed out there, ``context`` what the driver took beside it, and ``planned`` what the planner counts with for
such a card; of main memory, ``beside`` is the most that the process held.

``QLoRA`` adapts a model in 4 bits, of random weights: its bytes are of that model's parameters, not of the adapter's.

``host`` is what the planner counts for a worker beside its stage: anchors, outer momenta, what is carried over, and rounds that
can be audited, for ``diloco`` with ``coarse`` updates and 20 steps a round.

    python -m benchmarks.learning.stage_memory [--sizes 5M,25M,135M,1.2B] [--device cuda]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common import publish
from benchmarks.learning._replica import llama, of_card
from coordinator.domain.placement.layers import beside_of, stage_memory
from protocol.boundary import Position
from protocol.job.job import LoraSpec, ModelSpec, TrainingSpec
from protocol.models.model import inspect_config, resolve
from protocol.task import Layers
from tests.support.published_configs import LLAMA_3_2_1B, SMOLLM2_135M
from trainer.audit.environment import configure
from trainer.outer.inner_update import update
from trainer.stage.model import Cut, build_module, full_name
from trainer.stage.quantized import matrices
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate

STEPS = 2
COLUMNS = ("kept", "grown", "peak", "reserved", "context", "planned", "beside", "host")
SEQUENCE, BATCH = 128, 2
WAYS: Mapping[str, dict[str, Any] | None] = {
    "float32": {},
    "lean": {"memory": "lean", "precision": "bf16"},
    "lean, Muon": {"memory": "lean", "precision": "bf16", "optimizer": "muon"},
    "lean, QLoRA": {"memory": "lean", "precision": "bf16", "lora": LoraSpec(rank=16, alpha=32.0, quantize="nf4")},
    "torch, AdamW": None,
    "torch, torchao AdamW8bit on bf16": None,
}
SIZES: Mapping[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "5M": (lambda: llama(256, 6), 1),
    "25M": (lambda: llama(512, 8), 1),
    "135M": (lambda: resolve(ModelSpec(config=SMOLLM2_135M), 49_152), 1),
    "1.2B": (lambda: resolve(ModelSpec(config=LLAMA_3_2_1B), 128_256), 2),
}
"""Configs, and stages; of two the last one is measured, which has the head."""


class Ours:
    """A stage as a worker holds it; it gets and gives random hidden states where it is not the only one."""

    def __init__(
        self, config: dict[str, Any], cut: Cut, training: TrainingSpec, device: str, weights: Path | None
    ) -> None:
        self._stage = stage = Stage(config, cut, training, weights, device)
        frozen = sum(value.numel() for value in stage.frozen().values())
        self.learnt, self.parameters = stage.parameter_count, frozen or stage.parameter_count

    def step(self, windows: np.ndarray[Any, Any], number: int) -> None:
        """One whole step."""
        stage = self._stage
        if stage.cut.is_first:
            accumulate(stage, Position(0, 1), windows, Recorded({}))
        else:
            rows = torch.from_numpy(windows).to(stage.device)
            hidden = torch.randn(*rows[:, 1:].shape, stage.shape.hidden, device=stage.device).requires_grad_()
            stage.backward(stage.summed_loss(hidden, rows[:, 1:]) / rows[:, 1:].numel())
        update(stage, Position(0, 1), Recorded({}), number, STEPS)

    def tensors(self) -> list[Tensor]:
        """All that lives from step to step."""
        stage = self._stage
        own = [value for value in vars(stage).values() if isinstance(value, Tensor)]
        narrow = [part for _, matrix in matrices(stage.module) for part in (matrix.codes, matrix.scales, matrix.groups)]
        return [*own, *narrow, *stage.module.parameters(), *stage.module.buffers()]


class Plain:
    """The same layers as transformers has them, with an optimizer of somebody else's."""

    def __init__(self, config: dict[str, Any], cut: Cut, eight_bits: bool, device: str) -> None:
        self._module, shape = build_module(config, cut)
        self._module.to_empty(device=device)
        self._cut, self._hidden, self._device = cut, shape.hidden, device
        for parameter in self._module.parameters():
            nn.init.normal_(parameter, 0.0, 0.02)
        if eight_bits:
            from torchao.optim import AdamW8bit

            torch.compiler.set_stance("force_eager")
            self._module.bfloat16()
            self._optimizer: torch.optim.Optimizer = AdamW8bit(
                self._module.parameters(), lr=1e-4, bf16_stochastic_round=True
            )
        else:
            self._optimizer = torch.optim.AdamW(self._module.parameters(), lr=1e-4)
        self.parameters = sum(parameter.numel() for parameter in self._module.parameters())

    def step(self, windows: np.ndarray[Any, Any], number: int) -> None:
        """One whole step; gradients stay, as where several micro-batches add to them."""
        rows = torch.from_numpy(windows).to(self._device)
        width = next(self._module.parameters()).dtype
        given: dict[str, Tensor] = {"input_ids": rows[:, :-1]}
        if not self._cut.is_first:
            shape = *rows[:, 1:].shape, self._hidden
            given = {"inputs_embeds": torch.randn(shape, dtype=width, device=self._device)}
        logits = self._module(**given, use_cache=False).logits
        functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)

    def tensors(self) -> list[Tensor]:
        """All that lives from step to step."""
        found = [*self._module.parameters(), *self._module.buffers()]
        found += [p.grad for p in self._module.parameters() if p.grad is not None]
        for state in self._optimizer.state.values():
            for value in state.values():
                parts = [getattr(value, name) for name in getattr(value, "tensor_attrs", [])]
                found += parts or [value]
        return found


def _cut(size: str) -> tuple[dict[str, Any], Cut]:
    make, stages = SIZES[size]
    config = make()
    layers = inspect_config(config).layers
    return config, Cut(layers // 2 if stages > 1 else 0, layers, stages == 1, True)


def write_weights(size: str, path: Path) -> None:
    """Random weights of what is measured, in bf16."""
    config, cut = _cut(size)
    module, _ = build_module(config, cut)
    module.bfloat16().to_empty(device="cpu")
    named = {full_name(name, cut): nn.init.normal_(value.data, 0.0, 0.02) for name, value in module.named_parameters()}
    save_file(named, path)


def measured(size: str, way: str, device: str, weights: Path | None) -> dict[str, Any]:
    """Figures of one way, of this process."""
    configure(1, device)
    config, cut = _cut(size)
    stages = SIZES[size][1]
    shape = inspect_config(config)
    begun = _memory("VmRSS")
    more = WAYS[way]
    if more is None:
        model: Ours | Plain = Plain(config, cut, "torchao" in way, device)
    else:
        training = TrainingSpec(sequence=SEQUENCE, batch=BATCH, micro_batches=BATCH, clip_norm=1.0, **more)
        model = Ours(config, cut, training, device, weights)
    built = _memory("VmHWM")
    chance = np.random.default_rng(1)
    for number in range(STEPS):
        model.step(chance.integers(0, shape.vocabulary, (BATCH, SEQUENCE + 1), dtype=np.int64), number)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.tensors()}
    kept = sum(storages.values())
    figures = {"parameters": model.parameters, "kept": kept}
    if device == "cpu":
        figures |= {"grown": _memory("VmRSS") - begun, "peak": _memory("VmHWM") - begun, "loading": built - begun}
    else:
        figures |= _of_card()
    if isinstance(model, Plain) or more is None:
        return figures
    if device != "cpu":
        parts = [Layers(0, cut.first), Layers(cut.first, cut.last)] if stages > 1 else [Layers(0, cut.last)]
        figures["planned"] = stage_memory(shape, training, parts, stages - 1, card=True)
    return figures | {"host": _host(config, model.learnt, more)}


def _of_card() -> dict[str, int]:
    """What this process has of its graphics card, in bytes."""
    torch.cuda.synchronize()
    return {
        "grown": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "context": of_card(os.getpid()) - torch.cuda.memory_reserved(),
        "beside": _memory("VmHWM"),
    }


def _host(config: dict[str, Any], parameters: int, more: dict[str, Any]) -> int:
    """What the planner counts beside a stage, the process itself and recorded payloads not counted."""
    training = TrainingSpec(
        sequence=SEQUENCE, batch=1, micro_batches=1, pseudo_gradient="coarse", outer_momentum=0.5, **more
    )
    shape = inspect_config(config)
    return beside_of(shape, training, 2 * parameters, 1) - beside_of(shape, training, parameters, 1)


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def elsewhere(size: str, way: str, device: str) -> dict[str, Any]:
    """Figures of one way, of a fresh process."""
    program = (sys.executable, "-m", "benchmarks.learning.stage_memory")
    command = [*program, "--sizes", size, "--way", way, "--device", device]
    with tempfile.TemporaryDirectory() as folder:
        if (WAYS[way] or {}).get("lora"):
            command += ["--weights", f"{folder}/model.safetensors"]
            subprocess.run([*command, "--write"], check=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(rows: Mapping[str, dict[str, Any]]) -> Table:
    """For people, in bytes a parameter."""
    table = Table(title="bytes a parameter")
    columns = [key for key in COLUMNS if any(key in row for row in rows.values())]
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        if "failed" in row:
            table.add_row(name, row["failed"])
            continue
        cells = [f"{row[key] / row['parameters']:.2f}" if key in row else "" for key in columns]
        table.add_row(name, *cells)
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="5M,25M,135M", help=f"of {','.join(SIZES)}; 1.2B takes 15 GB")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ways", default="; ".join(WAYS), help="default: %(default)s")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_weights(options.sizes, options.weights)
        return
    if options.way:
        print(json.dumps(measured(options.sizes, options.way, options.device, options.weights)))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no graphics card that CUDA drives is in this machine")
    console = Console(stderr=True)
    rows = {}
    for size in options.sizes.split(","):
        for way in (one.strip() for one in options.ways.split(";")):
            with console.status(f"{size}, {way}"):
                rows[f"{size}, {way}"] = elsewhere(size, way, options.device)
    console.print(shown(rows))
    publish("stage_memory", "a lean stage keeps at most 10 bytes a parameter on its card", {"rows": rows})


if __name__ == "__main__":
    main()
