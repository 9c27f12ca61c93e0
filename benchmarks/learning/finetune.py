"""An adapter from homes is the adapter that everybody's program makes: Cottage beside ``trl`` and ``peft``, in one run.

A published model learns from conversations: ChatterBot's English ones (PyPI ``chatterbot-corpus``), in the model's own
template, packed so that no conversation sees another; answers alone are learnt. All start from the same adapter and read the
same windows in the same step, whether one process has them all or replicas share them. The loss is that of answers held out.

Replicas run one after the other in this process, which gives the same numbers as a network of them. ``ratio`` divides the
adapter's float32 gradients of every step by what a replica sends.

    python -m benchmarks.learning.finetune --model FOLDER [--steps 60] [--seeds 1,2,3]

FOLDER has ``config.json``, ``tokenizer.json`` with its settings, and ``model.safetensors``, as Hugging Face has them.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chatterbot_corpus
import datasets
import msgspec
import numpy as np
import torch
import yaml
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from benchmarks.common import publish
from benchmarks.learning._training_runs import NOBODY, Exchange
from coordinator.client.folders import tokenizer_files
from protocol.boundary import Position
from protocol.job.job import RATE_OF_ADAPTERS, LoraSpec, ModelSpec, TokenizerSpec, TrainingSpec
from protocol.job.rounds import schedule
from protocol.job.sharding import shard_count
from protocol.models.model import resolve
from trainer.audit.environment import configure
from trainer.data.data import TokenFile, Windows
from trainer.data.marks import IGNORED, learnt
from trainer.data.prepare import prepare
from trainer.formats.source import Dataset
from trainer.outer import Local, OuterState, outer_method
from trainer.outer.inner_update import update
from trainer.stage.adamw import BETAS
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import accumulate, heldout_loss

SEQUENCE, SHARES, ROWS = 128, 4, 2
"""A step reads so many windows for each of so many replicas; fewer replicas read more each."""
HELDOUT = 0.1
LORA = LoraSpec(rank=16, alpha=32.0)
PLAIN: dict[str, Any] = {
    "outer": "averaging",
    "outer_learning_rate": 1.0,
    "outer_momentum": 0.0,
    "pseudo_gradient": "fp32",
}
"""The mean of where all have ended, as it is."""
HUNDREDS: dict[str, Any] = {
    "pseudo_gradient": "coarse",
    "inner_steps": 15,
    "outer_learning_rate": 2.0,
    "outer_momentum": 0.5,
}
"""Replicas that read two windows a step each move half as far as one that reads eight, so the outer steps are long."""
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "1 replica": (1, {}),
    "2 replicas": (2, HUNDREDS),
    "4 replicas": (4, HUNDREDS),
    "4 replicas, averaging": (4, PLAIN | {"pseudo_gradient": "coarse", "inner_steps": 15}),
    "4 replicas, fp32": (4, HUNDREDS | {"outer_learning_rate": 0.7, "pseudo_gradient": "fp32"}),
    "4 replicas, steps of 0.7": (4, HUNDREDS | {"outer_learning_rate": 0.7}),
    "4 replicas, steps of 1.0": (4, HUNDREDS | {"outer_learning_rate": 1.0, "outer_momentum": 0.7}),
    "4 replicas, steps of 1.4": (4, HUNDREDS | {"outer_learning_rate": 1.4, "outer_momentum": 0.7}),
    "4 replicas, coarser": (4, HUNDREDS | {"outer_learning_rate": 0.7, "pseudo_gradient": "coarser", "inner_steps": 8}),
    "4 replicas, SparseLoCo": (
        4,
        {"outer": "sparseloco", "outer_learning_rate": 1.0, "outer_momentum": 0.0, "density": 0.03, "inner_steps": 3},
    ),
}
Figures = dict[str, Any]


def write_conversations(path: Path) -> None:
    """The package's English conversations, who asks and who answers in turn."""
    folder = Path(chatterbot_corpus.__file__).parent / "data" / "english"
    with path.open("w") as out:
        for file in sorted(folder.glob("*.yml")):
            for said in yaml.safe_load(file.read_text())["conversations"]:
                turns = [str(one) for one in said[: len(said) // 2 * 2]]
                roles = ("user", "assistant") * (len(turns) // 2)
                talk = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
                if talk:
                    out.write(json.dumps({"messages": talk}) + "\n")


class Bench:
    """A model, its data and what all ways share."""

    def __init__(self, model: Path, steps: int, scratch: Path) -> None:
        self.model, self.steps = model, steps
        given = json.loads((model / "config.json").read_text())
        self.config = resolve(ModelSpec(config=given, weights="0" * 64), int(given["vocab_size"]))
        tokenizer: dict[str, Any] = {"kind": "file", "file": "0" * 64}
        tokenizer_files(model, tokenizer)
        data = scratch / "conversations.jsonl"
        write_conversations(data)
        prepare(
            Dataset.of(data, "jsonl"), TokenizerSpec(**tokenizer), model / "tokenizer.json", HELDOUT, SEQUENCE, scratch
        )
        files = (
            TokenFile(scratch / f"{name}.bin", SEQUENCE, int(given["vocab_size"])) for name in ("train", "heldout")
        )
        self.train, heldout = files
        rows = heldout.heldout()
        self.judged = [rows[at : at + 8] for at in range(0, len(rows), 8)]

    def spec(self, seed: int, **changes: Any) -> TrainingSpec:
        """The training section of the job."""
        made = TrainingSpec(
            tokens=self.steps * SHARES * ROWS * SEQUENCE,
            sequence=SEQUENCE,
            batch=SHARES * ROWS,
            micro_batches=1,
            learning_rate=RATE_OF_ADAPTERS,
            warmup_steps=0,
            weight_decay=0.0,
            clip_norm=1.0,
            final_rate=0.0,
            sampling="epochs",
            seed=seed,
            lora=LORA,
        )
        return msgspec.structs.replace(made, **changes)

    def windows(self, seed: int, step: int, replica: int = 0, replicas: int = 1) -> Windows:
        """What a replica of so many reads in a step; together they always read the same."""
        shares = range(replica * SHARES // replicas, (replica + 1) * SHARES // replicas)
        found = [self.train.sample(seed, step, share, ROWS, "epochs", SHARES)[0] for share in shares]
        return np.concatenate(found)

    def stage(self, training: TrainingSpec, beside: Stage | None = None) -> Stage:
        """The whole model with its first adapter."""
        cut = Cut(0, int(self.config["num_hidden_layers"]), True, True)
        return Stage(self.config, cut, training, self.model, initialise=beside is None, beside=beside)

    def cottage(self, seed: int, replicas: int, changes: dict[str, Any]) -> Figures:
        """Rounds of the product's own steps, between replicas by its own outer method."""
        training = self.spec(seed, batch=SHARES * ROWS // replicas, **changes)
        first = self.stage(training)
        named = {slot.name: first.values()[slot.start : slot.start + slot.count].clone() for slot in first.slots}
        stages = [first, *(self.stage(training, first) for _ in range(replicas - 1))]
        for stage in stages[1:]:
            stage.load_named(named)
        method = outer_method(training, first.slots, first.size)
        state = OuterState.first(first.values().clone(), training)
        local: list[Local] = [method.fresh(state) for _ in stages]
        reducing, sent, began = Exchange(method, shard_count(training, replicas)), 0, time.perf_counter()
        plan = schedule(training, replicas)
        for index in range(plan.rounds):
            at, steps = plan.round(index)
            contributions = {}
            for replica, stage in enumerate(stages):
                stage.load(method.start(state, local[replica], index))
                for step in range(at, at + steps):
                    windows = self.windows(seed, step, replica, replicas)
                    accumulate(stage, Position(0, 1), windows, NOBODY)
                    update(stage, Position(0, 1), NOBODY, step, self.steps)
                made = method.contribution(state.anchor, stage.values(), local[replica], index, reducing.count)
                contributions[replica], local[replica] = made.pieces, made.local
                sent += sum(map(len, made.pieces)) if replica == 0 else 0
            state = reducing.apply(state, contributions, index)
        seconds = time.perf_counter() - began
        first.load(state.anchor)
        loss = heldout_loss(first, self.judged, NOBODY)
        naive = 4 * first.parameter_count * self.steps
        return {"loss": loss, "bytes": sent, "ratio": round(naive / sent, 1), "seconds": round(seconds, 1)}

    def theirs(self, seed: int, scratch: Path) -> Figures:
        """``trl``'s trainer over ``peft``'s adapter, from the same first values."""
        stage = self.stage(self.spec(seed))
        before = heldout_loss(stage, self.judged, NOBODY)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32),
            LoraConfig(
                r=LORA.rank, lora_alpha=LORA.alpha, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
            ),
        )
        own = dict(model.named_parameters())
        named = {f"base_model.model.{slot.name}".replace(".weight", ".default.weight"): slot for slot in stage.slots}
        assert named.keys() == {name for name, value in own.items() if value.requires_grad}
        for name, slot in named.items():
            own[name].data.copy_(stage.values()[slot.start : slot.start + slot.count].view(slot.shape))
        found = [row for step in range(self.steps) for row in _rows(self.windows(seed, step))]
        rows = datasets.Dataset.from_list(found).with_format("torch")
        trainer = SFTTrainer(model, _settings(seed, self.steps, scratch), _together, rows)
        trainer._get_train_sampler = lambda *_: SequentialSampler(rows)
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
        total, count = 0.0, 0
        with torch.no_grad():
            for windows in self.judged:
                micro = MicroBatch.of(windows)
                assert micro.positions is not None
                seen = {"position_ids": micro.positions, "attention_mask": _sight(micro.positions)}
                logits = model(input_ids=micro.ids, **seen, use_cache=False).logits
                loss = functional.cross_entropy(logits.flatten(0, 1), micro.targets.flatten(), reduction="sum")
                total, count = total + float(loss), count + learnt(windows)
        return {
            "loss": total / count,
            "before": before,
            "seconds": round(seconds, 1),
            "parameters": stage.parameter_count,
        }


def _rows(windows: Windows) -> Iterator[dict[str, list[int]]]:
    """As transformers has them: it shifts the labels itself, so the last target, which is never learnt, is left out."""
    micro = MicroBatch.of(windows)
    assert micro.positions is not None
    for ids, targets, positions in zip(micro.ids, micro.targets, micro.positions, strict=True):
        labels = [IGNORED, *targets[:-1].tolist()]
        yield {"input_ids": ids.tolist(), "labels": labels, "position_ids": positions.tolist()}


def _together(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return batch | {"attention_mask": _sight(batch["position_ids"])}


def _sight(positions: Tensor) -> Tensor:
    """What sees what, ``[b, 1, t, t]``: positions alone keep documents apart with FlashAttention only."""
    documents = (positions == 0).cumsum(1)
    return (documents[:, None, :, None] == documents[:, None, None, :]).tril()


def _settings(seed: int, steps: int, scratch: Path) -> SFTConfig:
    return SFTConfig(
        output_dir=str(scratch / "trl"),
        max_steps=steps,
        per_device_train_batch_size=SHARES * ROWS,
        learning_rate=RATE_OF_ADAPTERS,
        lr_scheduler_type="cosine",
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=seed,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


def shown(rows: dict[str, list[Figures]]) -> Table:
    """For people: means of the seeds."""
    table = Table(title="held-out answers after fine-tuning")
    for name in ("", "loss", "beside trl", "bytes fewer", "seconds"):
        table.add_column(name, justify="right" if name else "left")
    base = [row["loss"] for row in rows["trl"]]
    table.add_row("before", f"{np.mean([row['before'] for row in rows['trl']]):.4f}")
    for way, found in rows.items():
        losses = [row["loss"] for row in found]
        away = np.mean([loss / other - 1 for loss, other in zip(losses, base, strict=True)])
        ratio = f"{found[0]['ratio']:.0f}" if "ratio" in found[0] else ""
        seconds = np.mean([row["seconds"] for row in found])
        table.add_row(way, f"{np.mean(losses):.4f}", f"{away:+.2%}", ratio, f"{seconds:.0f}")
    return table


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", default="1,2,3")
    first = "1 replica; 2 replicas; 4 replicas; 4 replicas, averaging"
    parser.add_argument("--ways", default=first, help=f"some of {'; '.join(WAYS)}; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    configure(options.threads)
    ways = [way.strip() for way in options.ways.split(";")]
    rows: dict[str, list[Figures]] = {way: [] for way in ("trl", *ways)}
    console = Console(stderr=True)
    with _scratch() as scratch:
        bench = Bench(options.model, options.steps, scratch)
        for seed in map(int, options.seeds.split(",")):
            for way in rows:
                with console.status(f"seed {seed}, {way}"):
                    found = bench.theirs(seed, scratch) if way == "trl" else bench.cottage(seed, *WAYS[way])
                rows[way].append(found)
                console.print(f"seed {seed}, {way}: {found}")
    console.print(shown(rows))
    publish(
        "finetune",
        "one replica within 0.1 % of trl's answer loss, four with 400 times fewer bytes within 1 %",
        {"rows": rows},
    )


if __name__ == "__main__":
    main()
