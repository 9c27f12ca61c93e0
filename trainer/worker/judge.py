"""``python -m trainer judge``: what a coordinator asks of a process of its own when one operation is left of a dispute; and
``audit``: a committed step is run again by whoever holds its records.

With ``--inputs`` one operation is run from the file that a side showed. With ``--record`` the disputed step is run again up to an
operation, for the case that the sides differ in what operation stands there. Both need the environment class of the dispute.
Nothing in the files is trusted: memory and time end the process, and it does no more than the operations that it knows.
"""

import hashlib
import resource
from pathlib import Path
from typing import Any

from protocol.audit import AuditReport, ReplayOuter, ReplayStep
from protocol.codec import decode_json
from protocol.job.job import JobSpec
from trainer.audit.environment import configure, env_class
from trainer.audit.replay import OpeningReplayer
from trainer.data.folder import open_files
from trainer.errors import OperationError
from trainer.files.inputs import TRAIN, InputFolder
from trainer.operations.judge import judge
from trainer.worker.dispute_player import record_again

_STATM = Path("/proc/self/statm")


def limit(memory_mb: int, seconds: int) -> None:
    """End this process when it takes so much more memory than now, or so much processor time."""
    pages = int(_STATM.read_text().split()[0])
    most = pages * resource.getpagesize() + (memory_mb << 20)
    for what, value in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, seconds)):
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # Whoever started us may be stricter.
        resource.setrlimit(what, (value, value))


def judge_inputs(path: Path, threads: int, memory_mb: int, seconds: int) -> dict[str, Any]:
    """What the operation of a file writes, whether its own record says so, and the SHA-256 of that record: JSON.

    Raises:
        OperationError: the file is malformed, or no operation that is run by itself.
    """
    configure(threads)
    limit(memory_mb, seconds)
    try:
        judgement = judge(path.read_bytes())
    except MemoryError as error:
        raise OperationError(f"the operation takes more than {memory_mb:,} MB") from error
    writes = [vars(outcome) for outcome in judgement.outcomes]
    return {"name": judgement.name, "writes": writes, "agrees": judgement.agrees, "record": judgement.record}


def judge_record(
    index: int,
    step: int,
    replay_file: Path,
    opening: Path,
    job: Path,
    folder: Path,
    threads: int,
    limits: tuple[int, int],
    expected_class: str | None = None,
    anchor: Path | None = None,
) -> dict[str, Any]:
    """The SHA-256 of the record that belongs at place ``index`` of a step's trace: JSON.

    Args:
        expected_class: of the dispute; None: whatever this process is of will do.
        anchor: that the opening of a lean stage is said from, where that does not show it.
    Raises:
        OperationError: this process is of another class. TrainerError: files that cannot be used, or a step without such an
            operation.
    """
    configure(threads)
    if expected_class not in (None, env_class(threads, "cpu")):
        raise OperationError(
            f"this process is of environment class {env_class(threads, 'cpu')}, the dispute of {expected_class}: only a "
            "machine of that class can tell"
        )
    spec = decode_json(job.read_bytes(), JobSpec)
    replay = decode_json(replay_file.read_bytes(), ReplayStep)
    files = open_files(InputFolder(folder), spec)
    name = env_class(threads, "cpu")
    auditor = OpeningReplayer(files.config, spec.training, folder / TRAIN, files.weights, name, "cpu")
    if anchor is not None:
        auditor.offer_anchor(anchor.read_bytes())
    limit(*limits)
    leaf = record_again(auditor, replay, opening.read_bytes(), step, index)
    return {"index": index, "record": hashlib.sha256(leaf).hexdigest(), "bytes": leaf.hex(), "env_class": name}


def audit(
    replay_file: Path, opening: Path, job: Path, folder: Path, threads: int, device: str, anchor: Path | None = None
) -> AuditReport:
    """Run a committed step, or an outer step, again from its opening, and say whether it was done as committed.

    Args:
        replay_file: JSON of the ``ReplayStep`` or ``ReplayOuter``. folder: of the job. anchor: as in ``judge_record``.
    Raises:
        TrainerError, MessageError: files that cannot be used.
    """
    configure(threads, device)
    spec = decode_json(job.read_bytes(), JobSpec)
    command: ReplayStep | ReplayOuter = decode_json(replay_file.read_bytes(), ReplayStep | ReplayOuter)
    files = open_files(InputFolder(folder), spec)
    name = env_class(threads, device)
    auditor = OpeningReplayer(files.config, spec.training, folder / TRAIN, files.weights, name, device)
    if anchor is not None:
        auditor.offer_anchor(anchor.read_bytes())
    if isinstance(command, ReplayOuter):
        return auditor.judge_outer(command, opening.read_bytes())
    return auditor.judge(command, opening.read_bytes())
