"""How large an opened segment is, by part: float32, lean with its anchor, and lean for an auditor who trains the stage too.

The last of two stages of a model of 25 million parameters does a round of real steps on payloads that came once, and each of its
segments is opened by the code that workers use. Parameters of 1 and 7 billion are counted by the same bytes a parameter and by
the payloads that their shapes have, on the plans that ``cluster_sim`` makes of simulated homes.

``line``: what openings take of a home's upload of 20 Mbit/s, where 5 % of a proven node's rounds are drawn. ``arrives``: seconds
until one is there, beside those that the next round lasts.

    python -m benchmarks.trust.audit_bytes [--width 512] [--layers 8]
"""

import argparse
import json
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.learning._replica import llama
from benchmarks.planning.cluster_sim import SETUPS, TRAINING, case, shape_of
from coordinator.domain.audits.rate import FLOOR
from protocol.audit import StepLeaf, segment
from protocol.boundary import Position, crossings
from protocol.job.job import TrainingSpec
from protocol.models.boundary_bytes import recorded_bytes
from trainer.audit.environment import configure
from trainer.audit.opening_file import write_opening
from trainer.audit.step_leaves import RoundTrace, job_digest, made_after
from trainer.data.data import Windows
from trainer.outer import OuterState, local_digest, outer_method
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage, vector_digest
from trainer.stage.steps import Recorded, Recorder, accumulate, digests

UPLOAD = 20e6 / 8  # Bytes a second.
STEPS, BATCH, SEQUENCE, TOTAL = 30, 2, 128, 1000
BEFORE = 5  # Steps of the round before: moments are there when a round begins.
COARSE = {"pseudo_gradient": "coarse"}
LEAN = {"memory": "lean", "precision": "bf16"}
WAYS: Mapping[str, tuple[dict[str, Any], bool]] = {
    "float32": ({}, True),
    "float32, 400x": (COARSE, True),
    "lean, whole": (LEAN, True),
    "lean": (LEAN, False),
    "lean, 400x": (LEAN | COARSE, False),
    "lean, Muon, 400x": (LEAN | COARSE | {"optimizer": "muon"}, False),
}
"""Settings, and whether openings have their anchor."""
_PARTS = {"codes": "state", "units": "state", "parameters": "state", "head": "leaves", "received": "payloads"}
_LENGTH = struct.Struct("<Q")


def opened(config: dict[str, Any], layers: int, way: str) -> dict[str, Any]:
    """Bytes of each segment's opening by part, of a round that was really done."""
    settings, anchored = WAYS[way]
    training = TrainingSpec(sequence=SEQUENCE, batch=BATCH, micro_batches=1, inner_steps=STEPS, **settings)
    stage, position = Stage(config, Cut(layers // 2, layers, False, True), training), Position.of(1, 2, training)
    rows: Windows = torch.randint(0, stage.shape.vocabulary, (BATCH, SEQUENCE + 1)).numpy()
    hidden = torch.randn(BATCH, SEQUENCE, stage.shape.hidden)
    recorded = Recorded({("activation", 0): stage.crossing.encode(hidden, "forward")})
    method, keeper, micros = outer_method(training, stage.slots, stage.size), SnapshotKeeper(), crossings(training)
    start = stage.values().clone()
    local = method.fresh(OuterState(start, torch.zeros_like(start)))
    for index in range(BEFORE):
        accumulate(stage, position, rows, Recorder(recorded))
        update(stage, position, Recorder(recorded), index, TOTAL)
    stage.shorten(start)
    given = method.contribution(start, stage.values(), local, 0)
    anchor, local = stage.values().clone(), given.local
    stage.load(anchor)
    trace = RoundTrace(STEPS, anchor, training.commit_every, local, segment=training.commit_every)
    common: dict[str, Any] = {"env_class": "bench", "samples": "0" * 64, "before": None, "after": None}
    common["anchor"] = vector_digest(anchor)
    for index in range(STEPS):
        trace.before_step(stage, keeper)
        recorder = Recorder(recorded)
        loss = accumulate(stage, position, rows, recorder)
        update(stage, position, recorder, STEPS + index, TOTAL)
        received = digests(recorder.received, position.expected(micros))
        sent = digests(recorder.sent, position.produced(micros))
        leaf = StepLeaf(step=STEPS + index, received=received, sent=sent, loss=loss, job=job_digest(training), **common)
        trace.add(leaf, recorder.received)
        if (index + 1) % training.commit_every == 0:
            stage.shorten(anchor)
    trace.after_steps(stage, keeper)
    given = method.contribution(anchor, stage.values(), local, 1)
    trace.bind("0" * 64, local_digest(given.local))
    sizes = {}
    for name, step in (("first", 0), ("middle", STEPS // 2), ("last", STEPS - 1)):
        first, _ = segment(step, training.commit_every, STEPS)
        made = made_after(training, STEPS)
        pieces = write_opening(trace, step, trace.states[first], position, micros, method, made, None, anchored)
        sizes[name] = by_part(b"".join(pieces))
    return {"way": way, "parameters": stage.parameter_count, "openings": sizes}


def by_part(opening: bytes) -> dict[str, int]:
    """Bytes of what an opening holds."""
    (length,) = _LENGTH.unpack(opening[: _LENGTH.size])
    found: Counter[str] = Counter(leaves=_LENGTH.size + length)
    for name, place in json.loads(opening[_LENGTH.size : _LENGTH.size + length]).items():
        part = name.partition(".")[0]
        found[_PARTS.get(part, "moments" if part.endswith("moment") else part)] += (
            place["data_offsets"][1] - place["data_offsets"][0]
        )
    return dict(found)


def planned(plan: dict[str, Any], each: float) -> dict[str, Any]:
    """What openings of ``each`` bytes a parameter, and their payloads, take of the lines of a plan of ``cluster_sim``."""
    model, homes = plan["model"], plan["homes"]
    shape, stages = shape_of(model), plan["stages"]
    parameters = shape.parameters / stages
    payloads = 0.0
    if stages > 1:
        payloads = TrainingSpec().commit_every * recorded_bytes(shape, TRAINING, TRAINING.batch * TRAINING.sequence)
    size = each * parameters + payloads
    return {
        "model": model,
        "homes": homes,
        "plan": f"{stages} x {plan['replicas']}",
        "round_s": plan["round_s"],
        "opening_mb": round(size / 1e6),
        "payloads_mb": round(payloads / 1e6),
        "line": round(FLOOR / 1e6 * size / (UPLOAD * plan["round_s"]), 4),
        "arrives_s": round(size / UPLOAD),
    }


def main() -> None:
    """Measure, print, and write ``build/bench/audit_bytes.json``."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    configure(1)
    torch.manual_seed(0)
    config = llama(options.width, options.layers)
    table = Table("opening of", "segment", "bytes a parameter", "state", "moments", "anchor", "carried", "payloads, MB")
    rows = []
    for way in WAYS:
        rows.append(row := opened(config, options.layers, way))
        count = row["parameters"]
        for name, parts in row["openings"].items():
            payloads = parts.get("payloads", 0)
            each = {part: f"{parts.get(part, 0) / count:.2f}" for part in ("state", "moments", "anchor", "local")}
            whole = (sum(parts.values()) - payloads) / count
            table.add_row(way, name, f"{whole:.2f}", *each.values(), f"{payloads / 1e6:.1f}")
    Console(width=120).print(table)
    mean = {}
    for row in rows:
        found = [sum(parts.values()) - parts.get("payloads", 0) for parts in row["openings"].values()]
        mean[row["way"]] = sum(found) / len(found) / row["parameters"]
    plans = [
        planned(plan, mean[way]) | {"way": way}
        for plan in (case(model, homes, SETUPS[1]) for model, homes in (("1B", 64), ("7B", 64), ("7B", 512)))
        for way in ("float32, 400x", "lean, whole", "lean, 400x")
    ]
    publish("audit_bytes", str(__doc__).splitlines()[0], {"rows": rows, "mean": mean, "plans": plans})


if __name__ == "__main__":
    main()
