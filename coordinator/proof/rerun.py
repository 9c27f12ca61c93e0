"""Runs an audited step again from its published records, in a process of the trainer, on this machine."""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coordinator.client.client import Client
from protocol.audit import AuditReport, ReplayStep, outer_claim
from protocol.codec import decode_json, encode_json
from protocol.evidence import CommitmentLeaf
from protocol.rest.records import ANCHOR, OPENING, AuditRecords

SECONDS = 3_600.0  # A segment of ten steps of a model that fits one machine takes minutes.
RECORDS = "records.json"
_THREADS = re.compile(r"\|threads-(\d{1,4})$")
_BAD_INPUT = 3


class RerunError(Exception):
    """The step cannot be run again here: the text says why."""


@asynccontextmanager
async def folder_of(wanted: Path | None) -> AsyncIterator[Path]:
    """The folder that records are kept in; one that goes away again where none was wanted."""
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="cottage-records-") as name:
        yield Path(name)


async def fetch(client: Client, job: str, audit: str, folder: Path) -> AuditRecords:
    """Have the records of an audit in a folder; what is there already with the right bytes is not fetched again.

    Raises:
        ClientError: the coordinator refuses (records are for those who may see the job), or does not answer.
    """
    records = await client.records(job, audit)
    for name in records.files:
        await client.download_record(records, name, folder)
    (folder / RECORDS).write_bytes(encode_json(records))
    return records


def read(folder: Path) -> AuditRecords:
    """The records that a folder holds.

    Raises:
        RerunError: it holds none.
    """
    try:
        found: AuditRecords = decode_json((folder / RECORDS).read_bytes(), AuditRecords)
    except FileNotFoundError:
        raise RerunError(
            f"{folder} holds no records: leave --from out once, and keep what comes with --records"
        ) from None
    return found


def hold(records: AuditRecords, leaf: CommitmentLeaf, step: int) -> None:
    """Check that the records are of a step of this commitment.

    Raises:
        RerunError: they are of something else.
    """
    replay = records.replay
    if isinstance(replay, ReplayStep):
        here = (replay.replica, replay.step, replay.root, replay.leaves, replay.pseudo_gradient)
        due = (leaf.replica, step, leaf.root, leaf.leaves, leaf.pseudo_gradient)
        fits = here == due
    else:
        fits = step == leaf.leaves and outer_claim(replay.record, replay.parameters) == leaf.outer
    if not fits or replay.stage != leaf.stage:
        raise RerunError("the records are of another step than the one that was named, or of another commitment")


async def rerun(records: AuditRecords, folder: Path, python: str = sys.executable) -> AuditReport:
    """Run the step again.

    Raises:
        RerunError: it cannot be done here.
    """
    if records.spec.model.weights is not None:
        raise RerunError("the job begins from weights that are not among its records: only its nodes can run it again")
    replay, job = folder / "replay.json", folder / "job.json"
    replay.write_bytes(encode_json(records.replay))
    job.write_bytes(encode_json(records.spec))
    threads = _THREADS.search(records.env_class)
    device = "cuda" if "|cuda-" in records.env_class else "cpu"
    arguments = [
        "audit",
        "--replay",
        str(replay),
        "--opening",
        str(folder / OPENING),
        *(["--anchor", str(folder / ANCHOR)] if ANCHOR in records.files else []),
        "--job",
        str(job),
        "--folder",
        str(folder),
        "--threads",
        threads[1] if threads else "1",
        "--device",
        device,
    ]
    process = await asyncio.create_subprocess_exec(
        python, "-m", "trainer", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        raise RerunError(f"the step took longer than {SECONDS:,.0f} s and was given up") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RerunError(_complaint(err, process.returncode))
    report: AuditReport = decode_json(out, AuditReport)
    return report


def _complaint(err: bytes, status: int | None) -> str:
    text = err.decode(errors="replace").strip()
    last = text.splitlines()[-1] if text else "nothing"
    if status == _BAD_INPUT:
        try:
            return f"the records cannot be used: {json.loads(last)['detail']}"
        except (ValueError, KeyError, TypeError):
            pass
    if "No module named" in text:
        return "the trainer is not installed here: pip install 'cottage[trainer]'"
    return f"the trainer ended with status {status}: {last[:300]}"
