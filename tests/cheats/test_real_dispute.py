"""A dispute over real training: real openings, real players on both sides, and the operation run by a real judge process."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from coordinator.domain.audits import dispute as disputes
from coordinator.domain.audits.dispute import SIDES, Dispute, Side
from coordinator.domain.job import Job
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import TrainerTools
from cottage.demo.lying_worker import Meddle, StubbornPlayer
from protocol.audit import BisectQuery, InputsAnswer
from protocol.identity import NodeKey
from tests.trainer.audit.test_disputes import flip
from tests.trainer.audit.test_replay import auditor, command
from tests.trainer.small import Committed, commit_round, job, pipeline, training
from trainer.audit.environment import env_class
from trainer.data.data import TokenFile
from trainer.data.folder import load_config
from trainer.files.inputs import InputFolder
from trainer.operations.tracer import record_of
from trainer.worker.dispute_player import DisputePlayer

STEPS = 3


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


def player(done: Committed, folder: Path, meddle: Callable[[], Meddle] | None = None) -> DisputePlayer:
    told = auditor(folder, done.spec), command(done, STEPS - 1), done.opening(STEPS - 1)
    return DisputePlayer(*told) if meddle is None else StubbornPlayer(*told, meddle)


def product_of(done: Committed, folder: Path) -> int:
    """A product of matrices on the way forward: all after it rests on it, while AdamW's first step hides much of a gradient."""
    leaves = player(done, folder).leaves(0, 200)
    return next(index for index in range(100, len(leaves)) if "mm" in record_of(leaves[index]).name)


async def played(dispute: Dispute, players: dict[Side, DisputePlayer], artifacts: ArtifactStore) -> Dispute:
    while disputes.question(dispute) is not None:
        for side in SIDES:
            query = disputes.query_for(dispute, side)
            if query is None:
                continue
            answer, artifact = players[side].answer(BisectQuery(dispute.id, dispute.replay, query.ask))
            if isinstance(answer.answer, InputsAnswer):
                await artifacts.put(chunks(artifact), answer.answer.artifact, len(artifact))
            dispute = disputes.answered(dispute, side, answer, 0.0)
    return dispute


@pytest.mark.long
async def test_one_wrong_bit_of_a_real_step_is_found_and_a_process_of_its_own_says_whose_it_is(
    folder: Path, tokens: TokenFile, tmp_path: Path
) -> None:
    """The challenger accuses an honest prover: in its own re-run one bit of one operation is another."""
    done = commit_round(pipeline("llama", 2, tokens, training(commit_every=STEPS)), 1, STEPS, 12)
    artifacts = DiskArtifacts(tmp_path / "artifacts")
    lied = product_of(done, folder)
    players: dict[Side, DisputePlayer] = {
        "prover": player(done, folder),
        "challenger": player(done, folder, flip(lied)),
    }
    prover, challenger = (NodeKey(bytes([number]) * 32).address for number in (1, 2))
    begun = Dispute("d" * 32, prover, challenger, command(done, STEPS - 1), 0, 0.0)
    over = await played(begun, players, artifacts)
    assert (over.phase, over.step, over.index) == ("judging", 0, lied), over.detail
    trace = over.said["prover"].trace
    assert trace is not None
    assert over.questions <= 1 + (STEPS - 1).bit_length() + 1 + (trace.operations - 1).bit_length() + 1 + 1
    tools = TrainerTools(artifacts, tmp_path / "scratch", 120.0, 8_192)
    verdicts = {}
    for side in SIDES:
        inputs = over.said[side].inputs
        assert inputs is not None
        verdicts[side] = await tools.agrees(inputs, over.said[side].record)
        assert await tools.agrees(inputs, over.said[disputes.other(side)].record) is None, "inputs of another record"
    assert verdicts == {"prover": True, "challenger": False}


@pytest.mark.long
async def test_where_both_sides_do_what_they_say_the_step_is_run_again_to_see_whose_operation_it_is(
    folder: Path, tokens: TokenFile, tmp_path: Path
) -> None:
    """The records differ in what was done, not in what came of it: only the step itself says which one belongs there."""
    done = commit_round(pipeline("llama", 2, tokens, training(commit_every=STEPS)), 1, STEPS, 12)
    at = product_of(done, folder)
    record = player(done, folder).leaves(1, at)[at]
    other = record.replace(b"aten.", b"atem.", 1)
    assert other != record
    artifacts = DiskArtifacts(tmp_path / "artifacts")
    spec = msgspec.structs.replace(job(), training=done.spec)
    (folder / "config.json").write_text(json.dumps(load_config(InputFolder(folder), spec)))
    files = {name: await artifacts.put_file(folder / name) for name in ("config.json", "train.bin", "heldout.bin")}
    opening = done.opening(STEPS - 1)
    digest = hashlib.sha256(opening).hexdigest()
    await artifacts.put(chunks(opening), digest, len(opening))
    replay = msgspec.structs.replace(command(done, STEPS - 1), opening=digest)
    prover, challenger = (NodeKey(bytes([number]) * 32).address for number in (1, 2))
    dispute = Dispute("d" * 32, prover, challenger, replay, 0, 0.0, step=1, index=at)
    tools = TrainerTools(artifacts, tmp_path / "scratch", 240.0, 16_384)
    stored = cast(Job, SimpleNamespace(spec=spec, files=files))
    here = env_class(1, "cpu")
    assert await tools.belongs(stored, dispute, here, record) is True
    assert await tools.belongs(stored, dispute, here, other) is False
    assert await tools.belongs(stored, dispute, here.replace("torch-", "torch-0"), record) is None
    assert await tools.belongs(stored, dispute, "NVIDIA H100|cuda-13", record) is None
