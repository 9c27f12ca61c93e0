"""Real worker processes behind real Unix sockets: whole rounds, losses of members, repeated commands, lies."""

import asyncio
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from protocol.audit import StepLeaf
from protocol.boundary import crossings, differences, position_of
from protocol.codec import decode
from protocol.job.job import JobSpec, LoraSpec, ModelSpec
from protocol.merkle import MerkleProof, verify_proof
from protocol.models.model import KEEPS_EMBEDDING
from protocol.models.weights import belongs, weights_name
from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    Layers,
    LeafShown,
    OpenStep,
    Progress,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    ShowLeaf,
    StepOpened,
    TaskFailed,
    TaskReady,
    Validation,
)
from protocol.worker import PeerDeliver, PeerSend, TensorName, write_frame
from tests.support.wait import HANGS_S
from tests.trainer.router import MakeRouter, Place, Router, make_plan, replace
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of, job, pipeline
from tests.trainer.worker.drawn import AUDIT, CUTS, TOTAL, TWO_BY_TWO, audit
from trainer.data.data import TokenFile, heldout_parts
from trainer.outer import OuterState, outer_method
from trainer.stage.model import Cut
from trainer.stage.stage import Stage, vector_digest
from trainer.stage.steps import Recorded, heldout_loss
from trainer.worker.checkpoint import read_checkpoint

PLACES: list[Place] = [(0, 0), (1, 0), (0, 1), (1, 1)]


def simulate(folder: Path, spec: JobSpec, rounds: int, replicas: int = 2) -> list[OuterState]:
    """The same job in this process: the outer state of the whole model after each round."""
    tokens = TokenFile(folder / "train.bin", SEQUENCE, VOCABULARY)
    steps = spec.training.inner_steps
    lines = [pipeline("llama", 1, tokens, spec.training) for _ in range(replicas)]
    anchor = lines[0].stages[0].state().parameters
    outer, states = OuterState(anchor, torch.zeros_like(anchor)), []
    method = outer_method(spec.training, lines[0].stages[0].slots, anchor.numel())
    local = [method.fresh(outer) for _ in lines]
    for round_index in range(rounds):
        given = {}
        for replica, line in enumerate(lines):
            line.replica = replica
            line.stages[0].parameters.copy_(method.start(outer, local[replica], round_index))
            for step in range(round_index * steps, (round_index + 1) * steps):
                line.step(step, TOTAL)
            made = method.contribution(outer.anchor, line.stages[0].parameters, local[replica], round_index)
            given[replica], local[replica] = made.data, made.local
        outer = method.apply(outer, given, round_index)
        states.append(outer)
    return states


def stage_of(state: OuterState, stage: int) -> torch.Tensor:
    """The anchor of one stage of ``CUTS``, cut out of the whole model's."""
    whole = Stage(config_of(), Cut(0, 3, True, True), job().training, initialise=False)
    cut = Cut(*CUTS[stage], stage == 0, stage == 1)
    part = Stage(config_of(), cut, job().training, initialise=False)
    slots = {slot.name: slice(slot.start, slot.start + slot.count) for slot in whole.slots}
    part.load_named({slot.name: state.anchor[slots[slot.name]] for slot in part.slots})
    return part.parameters


@pytest.mark.long
@pytest.mark.slow
async def test_two_by_two_workers_train_as_one_process_would(routed: MakeRouter, folder: Path) -> None:
    spec = job(pseudo_gradient="int8", activations="fp32")
    expected = simulate(folder, spec, 3)
    async with routed(spec, by_command=True) as router:
        await router.start(TWO_BY_TWO, PLACES)
        for round_index in range(3):
            await router.round(TWO_BY_TWO, round_index, 4, TOTAL, validate=round_index == 0)
            for stage in range(2):
                digest = vector_digest(stage_of(expected[round_index], stage))
                assert router.of((stage, 0), RoundApplied, round=round_index)[0].parameters == digest
        await router.begin(TWO_BY_TWO, 3, 12, 0, 12, validate=True)
        losses = [await router.validation(TWO_BY_TWO, round_index) for round_index in (0, 3)]
        assert losses[1].loss < losses[0].loss
        assert losses[1].weights == vector_digest(stage_of(expected[2], 1))
        whole = Stage(config_of(), Cut(0, 3, True, True), spec.training)
        whole.parameters.copy_(expected[2].anchor)
        parts = heldout_parts(TokenFile(folder / "heldout.bin", SEQUENCE, VOCABULARY), spec.training)
        sums: list[float] = []
        assert losses[1].loss == heldout_loss(whole, parts, Recorded({}), sums)
        assert losses[1].sums == hashlib.sha256(struct.pack(f"<{len(parts)}d", *sums)).hexdigest()
        assert losses[1].tokens == sum(part[:, 1:].size for part in parts)
        assert [await router.stop(place) for place in PLACES] == [0] * 4


async def test_the_reports_of_a_round_are_complete(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        ready = router.of((1, 0), TaskReady)[0]
        checkpoints = await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        for stage, replica in PLACES:
            commit = router.of((stage, replica), RoundCommit)[0]
            assert commit.leaves == 4
            assert commit.tokens == 4 * 4 * SEQUENCE
            assert commit.operations == 6 * router.of((stage, replica), TaskReady)[0].parameters * commit.tokens
            assert (commit.loss is not None) == (stage == 1)
            progress = router.of((stage, replica), Progress)
            assert [report.step for report in progress] == [0, 1, 2, 3]
            assert [report.tokens for report in progress] == [64, 128, 192, 256]
        assert "torch-" in ready.env_class
        assert "threads-1" in ready.env_class
        part = Stage(config_of(), Cut(1, 3, False, True), job().training)
        state, next_round = read_checkpoint(checkpoints[1], part.slots, part.parameters.numel())
        assert next_round == 1
        assert vector_digest(state.anchor) == router.of((1, 0), RoundApplied)[0].parameters
        pseudo = [
            message for source, message, _ in router.sent if message.name.kind == "pseudo_gradient" and source == (1, 0)
        ]
        assert [message.naive for message in pseudo] == [4 * 4 * ready.parameters]
        activations = [message for _, message, _ in router.sent if message.name.kind == "activation"]
        assert {message.naive for message in activations} == {2 * SEQUENCE * 32 * 4}
        assert len(activations) == 2 * 4 * 2


async def test_int8_activations_quarter_the_bytes_and_still_replay(routed: MakeRouter) -> None:
    async with routed(job(activations="int8")) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        sizes = [
            (message.naive, size) for _, message, size in router.sent if message.name.kind in ("activation", "gradient")
        ]
        assert sum(size for _, size in sizes) < 0.31 * sum(naive for naive, _ in sizes)
        report = await audit(router, (0, 1), 0, 2)
        assert report.verdict == "match", report.detail


CROSSINGS: list[dict[str, Any]] = [
    {"activations": "aq4", "sampling": "epochs", "boundary_gradients": "int4", "schedule": "zero-bubble"},
    {"activations": "int4", "boundary_gradients": "int4", "subspace": 8, "clip_norm": 1.0, "lookahead": 1},
    {"activations": "aq4", "sampling": "epochs", "shares": 2, "boundary_gradients": "int4"},
]


@pytest.mark.parametrize("ways", CROSSINGS, ids=["cached", "subspace", "dealt"])
async def test_every_way_of_crossing_works_between_workers_and_replays(
    ways: dict[str, Any], routed: MakeRouter, folder: Path
) -> None:
    """Eight windows of text: with four a step, the second round sees nothing new."""
    file = folder / "train.bin"
    file.write_bytes(file.read_bytes()[: 4 * (8 * SEQUENCE + 1)])
    async with routed(job(**ways)) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        for round_index in range(2):
            await router.round(TWO_BY_TWO, round_index, 4, TOTAL, validate=round_index == 0)
        for place, step in (((0, 0), 1), ((1, 1), 3)):
            report = await audit(router, place, 1, step, name=f"{step:032x}")
            assert report.verdict == "match", report.detail
        sent = [
            (message.naive, size)
            for _, message, size in router.sent
            if message.name.kind in ("activation", "gradient") and message.name.round == 1 and size > 8
        ]
        assert sum(size for _, size in sent) < 0.25 * sum(naive for naive, _ in sent)


# --- audits -----------------------------------------------------------------------------------------------------------


async def test_every_step_of_the_last_two_rounds_can_be_opened_and_matches(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        for round_index in range(3):
            await router.round(TWO_BY_TWO, round_index, 4, TOTAL)
        for index, (place, round_index, step) in enumerate(
            [((0, 0), 1, 0), ((1, 1), 1, 3), ((0, 1), 2, 1), ((1, 0), 2, 2)]
        ):
            report = await audit(router, place, round_index, step, name=f"{index:032x}")
            assert report.verdict == "match", report.detail
        report = await audit(router, (1, 0), 2, 3, name="b" * 32, across=True)
        assert (report.verdict, " 0 away" in report.detail) == ("match", True), report.detail
        await router.command((0, 0), OpenStep("c" * 32, 0, 0, 0))
        await router.command((0, 0), OpenStep("d" * 32, 0, 2, 4))
        await router.until(lambda: len(router.of((0, 0), StepOpened, opening=None)) == 2)
        reasons = {report.audit[0]: report.reason for report in router.of((0, 0), StepOpened, opening=None)}
        assert "only the last 2" in reasons["c"]
        assert "there is no step 4" in reasons["d"]


async def test_neighbours_show_leaves_that_say_the_same_of_what_crossed_between_them(routed: MakeRouter) -> None:
    spec = job(outer="gradients", clip_norm=1.0, inner_steps=1)
    async with routed(spec) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        await router.round(TWO_BY_TWO, 0, 2, TOTAL)
        leaves = {}
        for place in [*PLACES, "spare"]:
            await router.command(place, ShowLeaf(AUDIT, 0, 0, 1))
            await router.until(lambda place=place: router.of(place, LeafShown))  # type: ignore[misc]
            answer = router.of(place, LeafShown)[0]
            if place == "spare":
                assert answer.leaf is None
                continue
            root = bytes.fromhex(router.of(place, RoundCommit, round=0)[0].root)
            assert verify_proof(root, answer.leaf, MerkleProof(1, 2, answer.path))
            position = position_of(TWO_BY_TWO, *place, spec.training)
            leaves[place] = position, decode(answer.leaf, StepLeaf)
        micros = crossings(spec.training)
        pairs = [(a, b) for a in PLACES for b in PLACES if leaves[a][0].hands(leaves[b][0], micros)]
        assert len(pairs) == 8, "each has a pipeline neighbour and another replica"
        for one, other in pairs:
            assert differences(leaves[one], leaves[other], micros) == ()
        position, leaf = leaves[0, 0]
        lied = position, msgspec.structs.replace(leaf, sent=leaf.sent[::-1])
        assert differences(lied, leaves[1, 0], micros)
        await router.command((0, 0), ShowLeaf("e" * 32, 0, 0, 2))
        await router.until(lambda: router.of((0, 0), LeafShown, audit="e" * 32, leaf=None))


@pytest.mark.parametrize(
    "kept", [{}, {"memory": "lean", "precision": "bf16", "optimizer": "muon"}], ids=["float32", "lean"]
)
async def test_coarse_updates_replay_with_what_was_carried_over(kept: dict[str, Any], routed: MakeRouter) -> None:
    async with routed(job(pseudo_gradient="coarse", **kept)) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        for round_index in range(2):
            await router.round(TWO_BY_TWO, round_index, 4, TOTAL)
        for stage in range(2):
            one, other = (router.of((stage, replica), RoundApplied, round=1)[0] for replica in range(2))
            assert one.parameters == other.parameters
            carried = [router.of((stage, 0), RoundCommit, round=index)[0].carried for index in range(2)]
            assert None not in carried
            assert carried[0] != carried[1]
            for round_index, step in ((0, 0), (1, 3)):
                name = f"{stage}{round_index}{step}".rjust(32, "0")
                report = await audit(router, (stage, 0), round_index, step, name=name)
                assert report.verdict == "match", report.detail
        last = await audit(router, (0, 1), 1, 3, auditor=(1, 0))
        assert last.verdict == "match", last.detail


@pytest.mark.parametrize("frozen", ["model", "embedding"])
@pytest.mark.parametrize("stage", [0, 1])
async def test_beside_what_is_frozen_workers_learn_and_audits_find_what_they_began_with(
    stage: int, frozen: str, routed: MakeRouter, folder: Path
) -> None:
    adapters = frozen == "model"
    whole = Stage(config_of(), Cut(0, 3, True, True), job().training)
    values = {s.name: whole.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in whole.slots}
    for index, (first, last) in enumerate(CUTS):
        layers = Layers(first, last)
        names = belongs(values, layers, index == 0, index == 1)
        save_file({name: values[name] for name in names}, folder / weights_name(layers))
    spec = msgspec.structs.replace(job(), model=ModelSpec(config=config_of(), weights="0" * 64))
    lora = LoraSpec(rank=4) if adapters else None
    learning = msgspec.structs.replace(spec.training, lora=lora, clip_norm=0.5, precision="bf16", decay="wsd")
    if not adapters:
        config = config_of() | {KEEPS_EMBEDDING: True}
        (folder / "config.json").write_text(json.dumps(config))
    async with routed(msgspec.structs.replace(spec, training=learning)) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        for round_index in range(2):
            await router.round(TWO_BY_TWO, round_index, 4, TOTAL)
        sent = [size for _, message, size in router.sent if message.name.kind == "pseudo_gradient"]
        assert max(sent) < 4 * sum(value.numel() for value in values.values()) / (10 if adapters else 4)
        for round_index, step in ((0, 0), (0, 2), (1, 3)):
            report = await audit(router, (stage, 0), round_index, step, name=f"{round_index}{step}".rjust(32, "0"))
            assert report.verdict == "match", report.detail


async def test_an_audit_is_served_while_the_pipeline_stands_still(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        router.deliver = lambda source, to, message, payload: None
        await router.begin(TWO_BY_TWO, 1, 4, 4, TOTAL)
        await router.until(lambda: any(message.name.round == 1 for _, message, _ in router.sent))
        report = await audit(router, (0, 0), 0, 1, auditor=(1, 1))
        assert report.verdict == "match", report.detail


@pytest.mark.parametrize(
    ("lie", "step", "verdict"),
    [
        ("gradient", 0, "mismatch"),
        ("commitment", 1, "malformed"),
        ("lazy", 1, "mismatch"),
        *(("substitute", step, "mismatch") for step in range(4)),
    ],
)
async def test_a_lying_worker_is_caught(lie: str, step: int, verdict: str, routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES, lies={(0, 1): lie})
        await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        caught = await audit(router, (0, 1), 0, step, auditor=(1, 0))
        assert caught.verdict == verdict
        honest = await audit(router, (1, 1), 0, step, auditor=(0, 0), name="e" * 32)
        assert honest.verdict == "match", honest.detail


async def test_an_exaggerated_contribution_is_sent_held_and_applied_before_its_audit_finds_it(
    routed: MakeRouter,
) -> None:
    honest: list[torch.Tensor] = []
    steered: list[torch.Tensor] = []
    for lies, states in (({}, honest), ({(0, 1): "substitute"}, steered)):
        async with routed(job(pseudo_gradient="fp32")) as router:
            await router.start(TWO_BY_TWO, PLACES, lies=lies)
            checkpoints = await router.round(TWO_BY_TWO, 0, 4, TOTAL)
            commit = router.of((0, 1), RoundCommit)[0]
            assert router.of((0, 0), RoundHolding)[-1].held[1] == commit.pseudo_gradient
            part = Stage(config_of(), Cut(0, 1, True, False), job().training)
            states.append(
                read_checkpoint(checkpoints[0], part.slots, part.parameters.numel())[0].anchor - part.state().parameters
            )
    assert steered[0].norm() > 4 * honest[0].norm()


# --- losing members ---------------------------------------------------------------------------------------------------


async def test_a_killed_member_costs_its_replica_one_round_and_a_joiner_rebuilds_it(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        router.deliver = lambda s, to, m, payload: None if to == (1, 1) and m.name.step >= 6 else payload
        await router.begin(TWO_BY_TWO, 1, 4, 4, TOTAL)
        await router.until(lambda: router.of((0, 1), Progress, round=1, step=5))
        await router.kill((1, 1))
        await router.command((0, 1), AbandonRound(0, 1))
        survivors = replace(TWO_BY_TWO, members=tuple(m for m in TWO_BY_TWO.members if (m.stage, m.replica) != (1, 1)))
        commits = await router.wait_commits(survivors, 1, [0])
        states = await router.apply(survivors, 1, commits)
        again = replace(TWO_BY_TWO, epoch=1)
        router.deliver = lambda source, to, message, payload: payload
        await router.start(again, [(1, 1)])
        await router.begin(again, 2, 8, 4, TOTAL, only=[(0, 0), (1, 0), (0, 1)])
        await router.begin(again, 2, 8, 4, TOTAL, states=states, only=[(1, 1)])
        await router.apply(again, 2, await router.wait_commits(again, 2))
        assert not router.of((0, 1), RoundCommit, round=1)
        assert router.of((1, 1), RoundCommit, round=2, epoch=1)


async def test_a_round_restarted_from_its_checkpoints_gives_the_same_bits(routed: MakeRouter) -> None:
    """All replicas lose a member: everybody begins the round again from the last one whose checkpoints are complete."""
    spec = job()
    async with routed(spec) as router:
        await router.start(TWO_BY_TWO, PLACES)
        states = await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        fresh = replace(TWO_BY_TWO, epoch=1)
        await router.begin(fresh, 1, 4, 4, TOTAL, states=states)
        first = await router.apply(fresh, 1, await router.wait_commits(fresh, 1))
        await router.begin(replace(fresh, epoch=2), 2, 8, 4, TOTAL)
        await router.until(lambda: router.of((0, 0), Progress, epoch=2))
        for place in PLACES[2:]:
            await router.kill(place)
        last = replace(TWO_BY_TWO, epoch=3)
        await router.start(last, PLACES[2:])
        await router.begin(last, 1, 4, 4, TOTAL, states=states)
        second = await router.apply(last, 1, await router.wait_commits(last, 1))
        assert first == second


async def test_a_replica_that_was_given_up_takes_the_others_update_and_goes_on(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        router.deliver = lambda s, to, m, payload: None if m.name.kind == "activation" and s[1] == 1 else payload
        await router.begin(TWO_BY_TWO, 0, 0, 4, TOTAL)
        await router.until(lambda: any(source == (0, 1) for source, _, _ in router.sent))
        for stage in (0, 1):
            await router.command((stage, 1), AbandonRound(0, 0))
        await router.apply(TWO_BY_TWO, 0, await router.wait_commits(TWO_BY_TWO, 0, [0]))
        router.deliver = lambda source, to, message, payload: payload
        onward = replace(TWO_BY_TWO, epoch=1)
        await router.begin(onward, 1, 4, 4, TOTAL)
        await router.apply(onward, 1, await router.wait_commits(onward, 1))


async def test_a_new_epoch_interrupts_a_round_that_stands_still(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        states = await router.round(TWO_BY_TWO, 0, 4, TOTAL)
        router.deliver = lambda s, to, m, payload: None if m.name.epoch == 0 else payload
        await router.begin(TWO_BY_TWO, 1, 4, 4, TOTAL)
        await router.until(lambda: any(message.name.round == 1 for _, message, _ in router.sent))
        fresh = replace(TWO_BY_TWO, epoch=1)
        await router.begin(fresh, 1, 4, 4, TOTAL, states=states)
        await router.apply(fresh, 1, await router.wait_commits(fresh, 1))


# --- repeated, stale and early messages -------------------------------------------------------------------------------


async def test_a_repeated_begin_does_nothing_twice_and_says_again_what_is_known(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        for _ in range(2):
            await router.begin(TWO_BY_TWO, 0, 0, 4, TOTAL, validate=True)
        commits = await router.wait_commits(TWO_BY_TWO, 0)
        await router.begin(TWO_BY_TWO, 0, 0, 4, TOTAL, validate=True)
        await router.until(lambda: len(router.of((1, 0), RoundCommit)) == 3 and len(router.of((1, 0), Validation)) == 3)
        assert len(set(router.of((1, 0), RoundCommit))) == 1
        assert (await router.validation(TWO_BY_TWO, 0)).sums is not None
        assert [report.step for report in router.of((1, 0), Progress)] == [0, 1, 2, 3]
        for _ in range(2):
            await router.apply(TWO_BY_TWO, 0, commits)
        await router.until(lambda: all(len(router.of(place, RoundApplied)) == 2 for place in PLACES))
        first, again = router.of((0, 0), RoundApplied)
        assert first == again
        await router.round(TWO_BY_TWO, 1, 4, TOTAL)


async def test_payloads_twice_late_and_early_change_nothing(routed: MakeRouter) -> None:
    spec = job()
    async with routed(spec) as router:
        await router.start(TWO_BY_TWO, PLACES)
        seen: list[tuple[Place, Place, PeerSend, bytes]] = []
        router.deliver = lambda s, to, m, payload: seen.append((s, to, m, payload)) or payload  # type: ignore[func-returns-value]
        await router.begin(TWO_BY_TWO, 0, 0, 4, TOTAL, only=[(0, 0), (0, 1), (1, 1)])
        await router.until(lambda: router.of((0, 1), RoundCommit) and any(to == (1, 0) for _, to, _, _ in seen))
        await router.begin(TWO_BY_TWO, 0, 0, 4, TOTAL, only=[(1, 0)])  # Its neighbour's payloads waited for it.
        first = await router.apply(TWO_BY_TWO, 0, await router.wait_commits(TWO_BY_TWO, 0))
        for source, to, message, payload in seen:
            await write_frame(router.workers[to].writer, PeerDeliver(*source, message.name), payload)
        plain = await router.round(TWO_BY_TWO, 1, 4, TOTAL)
    async with routed(spec) as router:
        await router.start(TWO_BY_TWO, PLACES)
        assert await router.round(TWO_BY_TWO, 0, 4, TOTAL) == first
        assert await router.round(TWO_BY_TWO, 1, 4, TOTAL) == plain


async def test_payloads_from_strangers_and_nonsense_are_dropped(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        nonsense = b"nonsense" * 50
        for kind in ("activation", "gradient", "pseudo_gradient", "validation"):
            name = TensorName(kind, 0, 0, 0, 0)  # type: ignore[arg-type]
            for stage, replica in ((0, 1), (1, 1), (5, 9)):
                await write_frame(router.workers[1, 0].writer, PeerDeliver(stage, replica, name), nonsense)
        await router.round(TWO_BY_TWO, 0, 4, TOTAL, validate=True)


async def test_a_pseudo_gradient_changed_on_the_way_is_not_held(routed: MakeRouter) -> None:
    def poison(source: Place, to: Place, message: PeerSend, payload: bytes) -> bytes:
        if message.name.kind == "pseudo_gradient" and source == (1, 1):
            return payload[:16] + b"\xff\xff\xff\x7f" + payload[20:]  # A scale that is not a number.
        return payload

    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, PLACES)
        router.deliver = poison
        await router.begin(TWO_BY_TWO, 0, 0, 4, TOTAL)
        await router.apply(TWO_BY_TWO, 0, await router.wait_commits(TWO_BY_TWO, 0, [0]))
        assert set(router.of((1, 0), RoundHolding)[-1].held) == {0}


async def test_the_epoch_of_the_past_is_ignored(routed: MakeRouter) -> None:
    plan = replace(TWO_BY_TWO, epoch=3)
    async with routed(job()) as router:
        await router.start(plan, PLACES)
        await router.round(plan, 0, 4, TOTAL)
        await router.begin(TWO_BY_TWO, 5, 20, 4, TOTAL)
        for place in PLACES:
            await router.command(place, AbandonRound(2, 9))
            await router.command(place, ApplyRound(2, 9, {0: "0" * 64}))
        await router.round(plan, 1, 4, TOTAL)


# --- failing honestly -------------------------------------------------------------------------------------------------


async def failure(router: Router, place: Place, code: int = 1) -> str:
    async with asyncio.timeout(30), router.changed:
        await router.changed.wait_for(lambda: router.of(place, TaskFailed))
    assert await router.workers[place].process.wait() == code
    return str(router.of(place, TaskFailed)[0].reason)


ONE = make_plan([(0, 3)], [0])


async def test_a_round_that_the_worker_has_no_parameters_for_is_a_failure_in_words(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(ONE, [(0, 0)])
        await router.begin(ONE, 5, 20, 4, TOTAL)
        assert "round 5 needs a state" in await failure(router, (0, 0))


async def test_a_state_that_is_no_checkpoint_is_a_failure_in_words(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(ONE, [(0, 0)])
        await router.begin(ONE, 1, 4, 4, TOTAL, states={0: b"noise" * 30})
        assert "no safetensors file" in await failure(router, (0, 0))


async def test_a_diverging_job_is_a_failure_in_words(routed: MakeRouter) -> None:
    async with routed(job(learning_rate=1.0, warmup_steps=0, weight_decay=1.0, tokens=10**6)) as router:
        await router.start(ONE, [(0, 0)])
        body = BeginRound(ONE, 0, 0, 2, 10, state=None)
        await router.command((0, 0), body)
        await router.until(lambda: router.of((0, 0), RoundCommit))  # Large, but finite: the loss says so.
        assert router.of((0, 0), RoundCommit)[0].loss > 5


async def test_a_folder_without_its_files_is_a_failure_in_words(routed: MakeRouter, folder: Path) -> None:
    (folder / "train.bin").unlink()
    async with routed(job()) as router:
        with pytest.raises(AssertionError, match=r"train\.bin cannot be read"):
            await router.start(ONE, [(0, 0)])


async def test_a_config_that_cannot_be_is_a_failure_in_words(routed: MakeRouter, folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": 33}')
    async with routed(job()) as router:
        with pytest.raises(AssertionError, match="num_hidden_layers is None"):
            await router.start(ONE, [(0, 0)])


async def test_a_worker_whose_agent_dies_ends_by_itself(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(TWO_BY_TWO, [(0, 0)])
        await router.begin(TWO_BY_TWO, 0, 0, 4, TOTAL, only=[(0, 0)])  # It waits for a neighbour that never comes.
        router.workers[0, 0].writer.close()
        async with asyncio.timeout(HANGS_S):
            assert await router.workers[0, 0].process.wait() == 0


async def test_a_spare_has_nothing_to_open(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(ONE, ["spare"])
        assert router.of("spare", TaskReady)[0].parameters == 0
        await router.command("spare", OpenStep(AUDIT, 0, 0, 0))
        await router.until(lambda: router.of("spare", StepOpened))
        assert router.of("spare", StepOpened)[0].opening is None
        assert await router.stop("spare") == 0


async def test_a_checkpoint_is_named_by_its_content(routed: MakeRouter) -> None:
    async with routed(job()) as router:
        await router.start(ONE, [(0, 0)])
        states = await router.round(ONE, 0, 4, TOTAL)
        assert router.of((0, 0), RoundApplied)[0].checkpoint == hashlib.sha256(states[0]).hexdigest()
