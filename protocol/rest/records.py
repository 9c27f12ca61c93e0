"""The records of an audited step, as the interface hands them to those who may see its job."""

import msgspec

from protocol.audit import ReplayOuter, ReplayStep
from protocol.ids import AuditId, Digest, JobId, Mark
from protocol.job.job import JobSpec

OPENING = "opening"
ANCHOR = "anchor"
FILES = ("config.json", "train.bin", "heldout.bin")  # Of a job, which a re-run reads.


class AuditRecords(msgspec.Struct, frozen=True):
    """What it takes to run an audited step again: the command that its auditor had, and files by the names of its folder.

    ``env_class``: of the node that did the step; only a machine of the same one gives the same bits. ``files``: name -> SHA-256.
    """

    audit: AuditId
    job: JobId
    env_class: Mark
    replay: ReplayStep | ReplayOuter
    spec: JobSpec
    files: dict[str, Digest]
