"""Honest steps replay bit for bit; every lie is caught."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from protocol.audit import MAX_AUDIT_BYTES, state_interval
from protocol.boundary import Position
from protocol.contradiction import stands
from protocol.job.job import LoraSpec, TrainingSpec
from protocol.job.learning_rate import learning_rate
from protocol.models.model import KEEPS_EMBEDDING
from protocol.task import AuditReport, Layers, Plan, ReplayOuter, ReplayStep
from tests.trainer.router import make_plan
from tests.trainer.small import (
    ENV,
    FAMILY_CONFIGS,
    SEQUENCE,
    Committed,
    Pipeline,
    commit_round,
    config_of,
    cuts,
    pipeline,
    training,
)
from trainer.audit.replay import OpeningReplayer, state_before
from trainer.codecs import encode
from trainer.data.data import TokenFile, heldout_parts
from trainer.files.inputs import InputFolder
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import contribution_name, outer_step, write_outer
from trainer.stage.stage import Stage, StageState, vector_digest
from trainer.stage.steps import Recorded, Recorder, accumulate, digests, heldout_loss

AUDIT = "a" * 32
TOTAL = 12


def auditor(folder: Path, spec: TrainingSpec, env: str = ENV, family: str = "llama") -> OpeningReplayer:
    return OpeningReplayer(config_of(family), spec, folder / "train.bin", None, env, "cpu")


def command(done: Committed, step: int, **changes: Any) -> ReplayStep:
    edges = [(cut.first, cut.last) for cut in cuts(3, done.position.stages)]
    values: dict[str, Any] = {
        "audit": AUDIT,
        "plan": make_plan(edges, [0, 1]),
        "stage": done.position.stage,
        "replica": 0,
        "round": min(1, done.trace.first_step),
        "first_step": done.trace.first_step,
        "step": step,
        "total_steps": done.total,
        "root": done.root,
        "leaves": len(done.trace.leaves),
        "pseudo_gradient": done.trace.leaves[-1].pseudo_gradient,
        "anchor": vector_digest(done.trace.anchor),
        "opening": "0" * 64,
    }
    return ReplayStep(**(values | changes))


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("activations", ["int8", "fp32"])
def test_every_honest_step_of_every_stage_matches(
    stage: int, activations: Any, folder: Path, tokens: TokenFile
) -> None:
    spec = training(activations=activations)
    line = pipeline("llama", 3, tokens, spec)
    commit_round(line, stage, 3, TOTAL)
    done = commit_round(line, stage, 4, TOTAL, first_step=3)
    for step in range(4):
        report = auditor(folder, spec).judge(command(done, step), done.opening(step))
        assert report.verdict == "match", report.detail
        assert report.operations > 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_every_family_replays(family: str, folder: Path, tokens: TokenFile) -> None:
    spec = training()
    done = commit_round(pipeline(family, 2, tokens, spec), 1, 2, TOTAL)
    assert auditor(folder, spec, family=family).judge(command(done, 1), done.opening(1)).verdict == "match"


def test_another_environment_class_is_incomparable_and_not_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 0, 2, TOTAL)
    report = auditor(folder, training(), env="another").judge(command(done, 1), done.opening(1))
    assert report.verdict == "incomparable"
    assert ENV in report.detail
    assert "another" in report.detail


# --- lies about the computation ---------------------------------------------------------------------------------------

Lie = Callable[[Stage, np.ndarray[Any, Any], float], tuple[np.ndarray[Any, Any], float]]


def wrong_labels(stage: Stage, windows: Any, rate: float) -> tuple[Any, float]:
    windows = windows.copy()
    windows[0, -1] = (windows[0, -1] + 1) % 300
    return windows, rate


def other_data(stage: Stage, windows: Any, rate: float) -> tuple[Any, float]:
    return (windows + 1) % 300, rate


def half_the_batch_twice(stage: Stage, windows: Any, rate: float) -> tuple[Any, float]:
    return np.concatenate([windows[:2], windows[:2]]), rate


def rate_off_by_one_percent(stage: Stage, windows: Any, rate: float) -> tuple[Any, float]:
    return windows, rate * 1.01


def noise(stage: Stage, windows: Any, rate: float) -> tuple[Any, float]:
    stage.parameters.add_(torch.randn(stage.parameters.shape, generator=torch.Generator().manual_seed(3)), alpha=1e-4)
    return windows, rate


def one_bit(stage: Stage, windows: Any, rate: float) -> tuple[Any, float]:
    stage.parameters.view(torch.int32)[0] ^= 1
    return windows, rate


def half_precision(stage: Stage, windows: Any, rate: float) -> tuple[Any, float]:
    stage.parameters.copy_(stage.parameters.bfloat16().float())
    return windows, rate


LIES: list[Lie] = [
    wrong_labels,
    other_data,
    half_the_batch_twice,
    rate_off_by_one_percent,
    noise,
    one_bit,
    half_precision,
]


def lie_in_step(done: Committed, line: Pipeline, step: int, lie: Lie) -> Committed:
    """Do ``step`` again as a liar would, who commits to what came of it and opens it faithfully."""
    spec, stage = done.spec, line.stages[done.position.stage]
    stage.restore(done.trace.states[step])
    windows, _ = line.tokens.sample(spec.seed, done.trace.first_step + step, 0, spec.batch)
    rate = learning_rate(spec, done.trace.first_step + step, done.total)
    windows, rate = lie(stage, windows, rate)
    recorder = Recorder(Recorded(done.trace.payloads[step]))
    loss = accumulate(stage, done.position, windows, recorder)
    stage.adam_step(rate)
    done.trace.leaves[step] = msgspec.structs.replace(
        done.trace.leaves[step],
        after=stage.state_digest(),
        loss=loss,
        sent=digests(recorder.sent, done.position.produced(spec.micro_batches)),
    )
    return done


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_step_that_was_done_otherwise_is_a_mismatch(lie: Lie, folder: Path, tokens: TokenFile) -> None:
    line = pipeline("llama", 2, tokens, training())
    done = lie_in_step(commit_round(line, 1, 3, TOTAL), line, 1, lie)
    report = auditor(folder, training()).judge(command(done, 1), done.opening(1))
    assert report.verdict == "mismatch", lie.__name__
    assert report.detail


def test_a_skipped_step_is_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 3, TOTAL)
    leaf = done.trace.leaves[1]
    done.trace.leaves[1] = msgspec.structs.replace(leaf, after=leaf.before)
    assert auditor(folder, training()).judge(command(done, 1), done.opening(1)).verdict == "mismatch"


def test_gradients_turned_around_are_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    line = pipeline("llama", 1, tokens, training())
    original, liar = line.step, line.stages[0]
    line.step = lambda step, total, turned=None: original(step, total, liar)  # type: ignore[method-assign]
    done = commit_round(line, 0, 2, TOTAL)
    for step in range(2):
        assert auditor(folder, training()).judge(command(done, step), done.opening(step)).verdict == "mismatch"


def test_samples_of_another_replica_are_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    report = auditor(folder, training()).judge(command(done, 1, replica=1), done.opening(1))
    assert report.verdict == "mismatch"
    assert "samples" in report.detail


def test_a_step_that_does_not_begin_where_the_last_ended_is_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 3, TOTAL)
    done.trace.leaves[0] = msgspec.structs.replace(done.trace.leaves[0], after="1" * 64)
    report = auditor(folder, training()).judge(command(done, 1), done.opening(1))
    assert report.verdict == "mismatch"
    assert "one before" in report.detail


def test_a_round_that_does_not_begin_with_its_anchor_is_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    done.trace.leaves = [msgspec.structs.replace(leaf, anchor="1" * 64) for leaf in done.trace.leaves]
    for step in range(2):
        report = auditor(folder, training()).judge(command(done, step), done.opening(step))
        assert report.verdict == "mismatch"
        assert "anchor" in report.detail


def test_a_pseudo_gradient_that_the_round_does_not_give_is_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    done.trace.bind("2" * 64)
    report = auditor(folder, training()).judge(command(done, 1), done.opening(1))
    assert report.verdict == "mismatch"
    assert "pseudo-gradient" in report.detail


# --- contributions that were sent before the round's end ---------------------------------------------------------------

EARLY = {"outer": "streaming", "fragments": 2, "mixing": 0.5, "inner_steps": 5, "overlap": 2}
MADE = 2  # Of five steps, the third from the end.


def early_round(tokens: TokenFile) -> Committed:
    return commit_round(pipeline("llama", 2, tokens, training(**EARLY)), 1, 5, TOTAL)


def judged(folder: Path, done: Committed, step: int) -> AuditReport:
    asked = command(done, step, carried=done.trace.leaves[-1].carried)
    return auditor(folder, training(**EARLY)).judge(asked, done.opening(step))


def test_the_step_that_made_the_contribution_shows_it_and_the_last_one_what_is_carried_on(
    folder: Path, tokens: TokenFile
) -> None:
    done = early_round(tokens)
    bound = [leaf.pseudo_gradient is not None for leaf in done.trace.leaves]
    assert bound == [False, False, True, False, True]
    for step in range(5):
        report = judged(folder, done, step)
        assert report.verdict == "match", report.detail


def test_a_contribution_of_another_step_than_it_was_due_at_is_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = early_round(tokens)
    late = commit_round(pipeline("llama", 2, tokens, training(**(EARLY | {"overlap": 1}))), 1, 5, TOTAL)
    assert late.trace.leaves[-1].pseudo_gradient != done.trace.leaves[-1].pseudo_gradient
    carried = done.trace.leaves[-1].carried
    assert late.trace.leaves[-1].carried == carried, "what a replica goes on with is that of the round's end either way"
    done.trace.bind(str(late.trace.leaves[-1].pseudo_gradient), carried, MADE)
    report = judged(folder, done, MADE)
    assert report.verdict == "mismatch"
    assert "not what the round gives" in report.detail


def test_two_leaves_that_bind_two_contributions_are_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = early_round(tokens)
    true = done.trace.leaves[MADE]
    done.trace.bind("2" * 64, done.trace.leaves[-1].carried, MADE)
    done.trace.leaves[MADE] = true
    report = judged(folder, done, MADE)
    assert report.verdict == "mismatch"
    assert "another one than the last leaf" in report.detail


def test_what_is_carried_on_is_that_of_the_last_step(folder: Path, tokens: TokenFile) -> None:
    done = early_round(tokens)
    done.trace.leaves[-1] = msgspec.structs.replace(done.trace.leaves[-1], carried="2" * 64)
    report = judged(folder, done, 4)
    assert report.verdict == "mismatch"
    assert "carried into the next round" in report.detail


# --- what was committed to beside the tree -----------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("env", [ENV, "another"])
def test_a_committed_pseudo_gradient_that_the_last_leaf_does_not_bind_is_found_at_every_step(
    stage: int, env: str, folder: Path, tokens: TokenFile
) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), stage, 3, TOTAL)
    for step in range(3):
        asked = command(done, step, pseudo_gradient="3" * 64)
        report = auditor(folder, training(), env=env).judge(asked, done.opening(step))
        assert report.verdict == "mismatch", "a false class does not help: two digests compare anywhere"
        assert "pseudo-gradient 3333333333333333" in report.detail
        assert done.trace.leaves[-1].pseudo_gradient is not None
        assert done.trace.leaves[-1].pseudo_gradient[:16] in report.detail
        assert report.proof[-1].leaf == done.trace.leaves[-1]
        assert all(stands(leaf, asked) for leaf in report.proof), "who reads the report needs no opening"


def test_a_round_whose_last_leaf_binds_no_pseudo_gradient_is_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 3, TOTAL)
    committed = done.trace.leaves[-1].pseudo_gradient
    done.trace.leaves[-1] = msgspec.structs.replace(done.trace.leaves[-1], pseudo_gradient=None)
    for step in range(3):
        asked = command(done, step, pseudo_gradient=committed)
        report = auditor(folder, training()).judge(asked, done.opening(step))
        assert report.verdict == "mismatch"
        assert "binds none" in report.detail


@pytest.mark.parametrize("env", [ENV, "another"])
def test_an_anchor_that_was_not_agreed_on_is_found_at_every_step(env: str, folder: Path, tokens: TokenFile) -> None:
    line = pipeline("llama", 2, tokens, training())
    commit_round(line, 1, 2, TOTAL)
    done = commit_round(line, 1, 3, TOTAL, first_step=2)  # Faithful to an anchor of its own choice.
    for step in range(3):
        honest = auditor(folder, training()).judge(command(done, step), done.opening(step))
        assert honest.verdict == "match", honest.detail
        asked = command(done, step, anchor="4" * 64)
        report = auditor(folder, training(), env=env).judge(asked, done.opening(step))
        assert report.verdict == "mismatch"
        assert "agreed on was 4444444444444444" in report.detail


def test_leaves_that_name_two_anchors_are_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 3, TOTAL)
    done.trace.leaves[2] = msgspec.structs.replace(done.trace.leaves[2], anchor="5" * 64)
    for step in range(2):
        report = auditor(folder, training()).judge(command(done, step, anchor=None), done.opening(step))
        assert report.verdict == "mismatch"
        assert "another 5555555555555555" in report.detail


def test_the_first_round_begins_with_the_jobs_own_weights_though_no_round_before_says_so(
    folder: Path, tokens: TokenFile
) -> None:
    line = pipeline("llama", 2, tokens, training())
    line.stages[1].parameters.mul_(1.5)
    done = commit_round(line, 1, 2, TOTAL)
    for step in range(2):
        report = auditor(folder, training()).judge(command(done, step, anchor=None), done.opening(step))
        assert report.verdict == "mismatch"
        assert "initial weights" in report.detail


def test_after_a_checkpoint_of_unknown_content_the_anchor_is_not_compared(folder: Path, tokens: TokenFile) -> None:
    line = pipeline("llama", 2, tokens, training())
    commit_round(line, 1, 2, TOTAL)
    done = commit_round(line, 1, 2, TOTAL, first_step=2)
    report = auditor(folder, training()).judge(command(done, 1, anchor=None), done.opening(1))
    assert report.verdict == "match", report.detail


# --- openings that do not belong to the commitment --------------------------------------------------------------------


def test_a_forged_root_is_malformed(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    forged = hashlib.sha256(b"forged").hexdigest()
    assert auditor(folder, training()).judge(command(done, 1, root=forged), done.opening(1)).verdict == "malformed"


@pytest.mark.parametrize("change", [{"step": 0}, {"leaves": 3}, {"leaves": 1}, {"stage": 0}])
def test_an_opening_of_something_else_is_malformed(change: dict[str, int], folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    asked = msgspec.structs.replace(command(done, 1), **change)
    assert auditor(folder, training()).judge(asked, done.opening(1)).verdict == "malformed"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["parameters", "first_moment", "second_moment", "received.0", "received.1", "anchor"])
@pytest.mark.parametrize("how", ["removed", "changed", "reshaped", "retyped"])
def test_a_tampered_part_never_matches(name: str, how: str, folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    tensors = load(done.opening(1))
    if how == "removed":
        del tensors[name]
    elif how == "changed":
        tensors[name] = tensors[name].clone()
        tensors[name][40] += 1
    elif how == "reshaped":
        tensors[name] = tensors[name][:-1].clone()
    else:
        tensors[name] = tensors[name].to(torch.float64)
    report = auditor(folder, training()).judge(command(done, 1), save(tensors))
    assert report.verdict == ("mismatch" if (name, how) == ("anchor", "changed") else "malformed")


def rewrite_head(opening: bytes, **changes: Any) -> bytes:
    """The opening with other values in its head."""
    tensors = load(opening)
    head = msgspec.msgpack.decode(tensors["head"].numpy().tobytes()) | changes
    changed = np.frombuffer(bytearray(msgspec.msgpack.encode(head)), dtype=np.uint8)
    return save(tensors | {"head": torch.from_numpy(changed)})


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_last_leaf_that_is_not_in_the_tree_is_malformed(step: int, folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 3, TOTAL)
    forged = msgspec.structs.replace(done.trace.leaves[-1], pseudo_gradient="6" * 64)
    tree = done.trace.tree()
    for changes in (
        {"last": msgspec.to_builtins(forged)},
        {"last": msgspec.to_builtins(done.trace.leaves[0]), "last_path": tree.proof(0).path},
        {"last_path": ()},
    ):
        opening = rewrite_head(done.opening(step), **changes)
        report = auditor(folder, training()).judge(command(done, step, pseudo_gradient="6" * 64), opening)
        assert report.verdict == "malformed"
        assert "the last leaf does not stand at place 2 of 3" in report.detail


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=400))
def test_noise_is_malformed(noise: bytes, folder: Path) -> None:
    edges = [(0, 1), (1, 3)]
    none = "0" * 64
    replay = ReplayStep(AUDIT, make_plan(edges, [0]), 1, 0, 0, 0, 0, TOTAL, none, 2, none, None, none)
    assert auditor(folder, training()).judge(replay, noise).verdict == "malformed"


def test_any_cut_off_opening_is_malformed(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    opening = done.opening(1)
    for length in (0, 7, 8, 100, len(opening) // 2, len(opening) - 1):
        assert auditor(folder, training()).judge(command(done, 1), opening[:length]).verdict == "malformed"


def test_a_head_that_is_no_message_is_malformed(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    for head in (b"", b"\xc1", b"\x80", b"x" * (2 << 20)):
        tensors = load(done.opening(1)) | {"head": torch.tensor(list(head), dtype=torch.uint8)}
        assert auditor(folder, training()).judge(command(done, 1), save(tensors)).verdict == "malformed"


def test_payloads_that_no_neighbour_could_have_sent_are_a_mismatch(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    garbage = b"garbage"
    done.trace.payloads[1]["activation", 0] = garbage
    leaf = done.trace.leaves[1]
    named = (hashlib.sha256(garbage).hexdigest(), *leaf.received[1:])
    done.trace.leaves[1] = msgspec.structs.replace(leaf, received=named)
    report = auditor(folder, training()).judge(command(done, 1), done.opening(1))
    assert report.verdict == "mismatch"
    assert "received" in report.detail


# --- states between those that are kept -------------------------------------------------------------------------------


def test_a_state_that_was_not_kept_is_found_again_by_running(tokens: TokenFile) -> None:
    spec = training(activations="int8")
    done = commit_round(pipeline("llama", 2, tokens, spec), 0, 4, TOTAL)
    kept = dict(done.trace.states)
    done.trace.states = {0: kept[0], 2: kept[2]}
    scratch = Stage(config_of(), cuts(3, 2)[0], spec, initialise=False)
    for step in range(4):
        found: StageState = state_before(done.trace, step, scratch, Position(0, 2), tokens, 0, TOTAL)
        assert found.digest() == kept[step].digest()


def test_as_many_states_are_kept_as_the_budget_allows() -> None:
    assert state_interval(100, 1 << 20, 0) == 1
    assert state_interval(100, MAX_AUDIT_BYTES // 4, 0) == 50
    assert state_interval(10, MAX_AUDIT_BYTES, 0) == 10
    assert state_interval(10, 1 << 20, MAX_AUDIT_BYTES) == 10


def test_a_verdict_is_a_bounded_message(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training()), 1, 2, TOTAL)
    report = auditor(folder, training()).judge(command(done, 1), done.opening(1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=AuditReport) == report


def test_an_audit_that_runs_while_a_validation_waits_still_has_gradients(tokens: TokenFile) -> None:
    class Busy:
        """A neighbour that is slow enough for the waiting thread to do an audit."""

        def arrived(self, kind: str, micro: int) -> bool:
            return False

        def receive(self, kind: str, micro: int) -> bytes:
            assert torch.is_grad_enabled()
            return encode(torch.zeros(parts[micro].shape[0], SEQUENCE, 32), "fp32")

        def send(self, kind: str, micro: int, payload: bytes, naive: int) -> None:
            """Nobody listens."""

    parts = heldout_parts(tokens, training())
    heldout_loss(Stage(config_of(), cuts(3, 2)[1], training()), parts, Busy())


@pytest.mark.parametrize("memory", ["float32", "lean"])
@pytest.mark.parametrize("quantize", ["none", "nf4", "tied"])
def test_an_outer_step_takes_nothing_of_what_is_frozen(quantize: Any, memory: Any, tmp_path: Path) -> None:
    """An auditor has fetched the frozen model of those stages only whose inner steps it has run again."""
    precision = "bf16" if memory == "lean" else "fp32"
    config, lora = config_of(), LoraSpec(rank=4, quantize=quantize)
    if quantize == "tied":
        config, lora = config | {KEEPS_EMBEDDING: True}, None
    spec = training(lora=lora, memory=memory, precision=precision)
    cut = cuts(3, 2)[1]
    stage = Stage(config, cut, spec)
    method = outer_method(spec, stage.slots, stage.size)
    before = OuterState.first(stage.values().clone(), spec)
    given = {p: method.contribution(before.anchor, before.anchor + 0.01 * (p + 1), {}, 0).data for p in (0, 1)}
    after, record = outer_step(method, stage, before, given, 0)
    opening = b"".join(write_outer(before, {contribution_name(p): data for p, data in given.items()}))
    agreed = {p: hashlib.sha256(data).hexdigest() for p, data in given.items()}
    plan = Plan(0, (Layers(0, cut.first), Layers(cut.first, cut.last)), ())
    digest = hashlib.sha256(opening).hexdigest()
    command = ReplayOuter("a" * 32, plan, 1, 0, agreed, record, after.anchor_digest, digest)
    nowhere = InputFolder(tmp_path / "nowhere", {})
    auditor = OpeningReplayer(config, spec, tmp_path / "train.bin", nowhere, ENV, "cpu")
    assert auditor.judge_outer(command, opening).verdict == "match"
    wrong = msgspec.structs.replace(command, parameters="0" * 64)
    assert auditor.judge_outer(wrong, opening).verdict == "mismatch"
