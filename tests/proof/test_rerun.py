"""A step is run again from records that somebody kept: by the trainer's own process, from a folder."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from coordinator.proof import rerun
from coordinator.proof.rerun import RECORDS, RerunError
from protocol.codec import encode_json
from protocol.evidence import CommitmentLeaf
from protocol.identity import NodeKey
from protocol.rest.records import OPENING, AuditRecords
from tests.trainer import small
from tests.trainer.audit.test_replay import command
from tests.trainer.conftest import folder as folder
from tests.trainer.conftest import tokens as tokens
from tests.trainer.small import Committed, commit_round, job, pipeline, training
from trainer.audit.environment import env_class
from trainer.data.data import TokenFile
from trainer.data.folder import load_config
from trainer.files.inputs import InputFolder

STEPS, STEP = 3, 1
NODE = NodeKey(bytes([1]) * 32).address


def kept(done: Committed, folder: Path) -> AuditRecords:
    """The records of a step in a folder, as the command leaves them there."""
    spec = msgspec.structs.replace(job(), training=done.spec)
    (folder / "config.json").write_text(json.dumps(load_config(InputFolder(folder), spec)))
    (folder / OPENING).write_bytes(done.opening(STEP))
    files = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in (OPENING, "config.json", "train.bin", "heldout.bin")
    }
    replay = command(done, STEP, opening=files[OPENING])
    records = AuditRecords("a" * 32, "b" * 32, env_class(1, "cpu"), replay, spec, files)
    (folder / RECORDS).write_bytes(encode_json(records))
    return records


def leaf(done: Committed) -> CommitmentLeaf:
    last = done.trace.leaves[-1].pseudo_gradient
    assert last is not None
    return CommitmentLeaf(1, 0, NODE, NODE, done.root, STEPS, last, 1, 1, 50_000)


@pytest.mark.long
async def test_honest_work_is_found_right_and_a_changed_opening_wrong(
    folder: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "ENV", env_class(1, "cpu"))
    done = commit_round(pipeline("llama", 2, tokens, training(commit_every=1)), 1, STEPS, 12)
    kept(done, folder)
    records = rerun.read(folder)
    rerun.hold(records, leaf(done), STEP)
    first = await rerun.rerun(records, folder)
    assert first.verdict == "match", first.detail
    damaged = bytearray((folder / "train.bin").read_bytes())
    damaged[:] = bytes(len(damaged))  # The samples are other ones than were due.
    (folder / "train.bin").write_bytes(damaged)
    assert (await rerun.rerun(records, folder)).verdict == "mismatch"
    (folder / OPENING).write_bytes(b"nothing")
    assert (await rerun.rerun(records, folder)).verdict == "malformed"


def test_records_of_another_step_or_commitment_are_refused(folder: Path, tokens: TokenFile) -> None:
    done = commit_round(pipeline("llama", 2, tokens, training(commit_every=1)), 1, STEPS, 12)
    records = kept(done, folder)
    due = leaf(done)
    others = (
        (due, STEP + 1),
        (due, STEPS),
        (msgspec.structs.replace(due, root="0" * 64), STEP),
        (msgspec.structs.replace(due, pseudo_gradient="0" * 64), STEP),
        (msgspec.structs.replace(due, stage=0), STEP),
        (msgspec.structs.replace(due, replica=1), STEP),
    )
    for other, step in others:
        with pytest.raises(RerunError, match="another step"):
            rerun.hold(records, other, step)


async def test_what_cannot_be_run_here_says_why(folder: Path, tokens: TokenFile, tmp_path: Path) -> None:
    with pytest.raises(RerunError, match="holds no records"):
        rerun.read(tmp_path)
    done = commit_round(pipeline("llama", 2, tokens, training(commit_every=1)), 1, STEPS, 12)
    records = kept(done, folder)
    weights = msgspec.structs.replace(records.spec.model, weights=("0" * 64,))
    foreign = msgspec.structs.replace(records, spec=msgspec.structs.replace(records.spec, model=weights))
    with pytest.raises(RerunError, match="begins from weights"):
        await rerun.rerun(foreign, folder)
    (folder / "train.bin").unlink()
    with pytest.raises(RerunError, match="cannot be used"):
        await rerun.rerun(records, folder)
