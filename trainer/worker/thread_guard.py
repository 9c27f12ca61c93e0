"""The boundary of a worker's threads: whatever goes wrong in one, the coordinator hears why."""

import logging
from collections.abc import Callable

from common.errors import SealedFileError
from common.untrusted_text import untrusted
from protocol.codec import MessageError
from protocol.models.model import ModelConfigError
from protocol.task import FailureCause, TaskFailed
from trainer.errors import InputError, NonFiniteError, TrainerError
from trainer.memory import lacks_memory
from trainer.worker.outbox import WorkerOutbox

LOG = logging.getLogger("cottage.worker")

LACKS_MEMORY = (
    "the stage does not fit into this machine's memory; with training.memory lean, training.recompute, more "
    "training.micro_batches or a shorter training.sequence it would take less"
)
SAID = 200  # Characters of what torch says: a card's complaint goes on for a page.


def guarded(outbox: WorkerOutbox, work: Callable[[], None], lacking: str = LACKS_MEMORY) -> bool:
    """Do ``work``; False where it failed, which is reported. ``lacking``: what is said where memory is short."""
    try:
        work()
    except (TrainerError, ModelConfigError, MessageError) as error:
        outbox.report(TaskFailed(untrusted(error), cause=cause_of(error)))
        return False
    except Exception as error:  # Nobody else would see it.
        LOG.exception("computing failed")
        if lacks_memory(error):
            said = str(error)[:SAID] or type(error).__name__
            outbox.report(TaskFailed(untrusted(f"{lacking} ({said})"), cause="memory"))
        else:
            outbox.report(TaskFailed(untrusted(f"{type(error).__name__}: {error}")))
        return False
    return True


def cause_of(error: BaseException) -> FailureCause:
    """Whose fault it is: "inputs" where the job's own files cannot be used on any machine, "numbers" where training diverged.

    A file that this machine cannot read, has no memory for, or has other bytes of, is the machine's, whatever was made of it.
    """
    if isinstance(error, NonFiniteError):
        return "numbers"
    if not isinstance(error, InputError | ModelConfigError):
        return "machine"
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError | MemoryError | SealedFileError):
            return "machine"
        below = below.__cause__
    return "inputs"
