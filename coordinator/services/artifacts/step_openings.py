"""What a step was opened with, for those who may see the job: all that it takes to run the step again somewhere else."""

import json
from pathlib import Path

import msgspec

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.errors import NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.context import Context
from coordinator.store.ports import col
from protocol.audit import MAX_RECORD_BYTES, ReplayOuter, ReplayStep
from protocol.rest.records import ANCHOR, FILES, OPENING, AuditRecords

MAX_HEADER = 4 << 20  # Of a safetensors file: names and places of its tensors.


class StepOpenings:
    """Finds the records of audits that are over; tests of auditors are not shown."""

    def __init__(self, context: Context, artifacts: ArtifactStore) -> None:
        self._context = context
        self._artifacts = artifacts

    async def records(self, job: str, audit: str) -> AuditRecords:
        """What an audit's step was opened with.

        Raises:
            NotFoundError: there is no such audit, or nothing was opened for it.
        """
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(
                Audit, col(Audit.id).equals(audit), col(Audit.job).equals(job), col(Audit.canary).equals(False)
            )
            jobs = await tx.find(Job, col(Job.id).equals(job))
        if not found or not jobs:
            raise NotFoundError(f"job {job} has no audit {audit}: the round's evidence names them", "audit")
        one = found[0]
        if not one.over or one.opening is None:
            why = "is not over yet" if not one.over else "was over before anything was opened for it"
            raise NotFoundError(f"audit {audit} {why}: another one of the step may have records", "audit")
        if one.anchor_in == "auditor":
            why = "was opened for somebody who trains the stage too, without what its states are said from"
            raise NotFoundError(f"audit {audit} {why}: challenge the step, and it is opened whole", "audit")
        replay = msgspec.structs.replace(one, state="replaying", auditor_lease=one.lease, afar=False).command_for(
            one.lease
        )
        assert isinstance(replay, ReplayStep | ReplayOuter)
        files = {name: jobs[0].files[name] for name in FILES if name in jobs[0].files}
        files[OPENING] = one.opening
        if one.anchor_in == "artifact" and one.anchor is not None:
            files[ANCHOR] = one.anchor
        return AuditRecords(one.id, one.job, one.env_class, replay, jobs[0].spec, files)

    async def file(self, job: str, audit: str, name: str) -> str:
        """The artifact of one of the files that the records name.

        Raises:
            NotFoundError: there is no such file, or it is not kept any more.
        """
        files = (await self.records(job, audit)).files
        if name not in files:
            raise NotFoundError(f"there is no file {name[:40]!r}: there are {', '.join(sorted(files))}", "name")
        return files[name]


def record_of(path: Path) -> bytes:
    """The tensor ``record`` of a safetensors file; empty where it has none, or is no such file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            return b""
        try:
            start, stop = json.loads(file.read(length))["record"]["data_offsets"]
            file.seek(8 + length + int(start))
            return file.read(min(max(0, int(stop) - int(start)), MAX_RECORD_BYTES))
        except (ValueError, KeyError, TypeError, RecursionError):
            return b""
