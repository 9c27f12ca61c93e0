"""The boundary of a worker's threads: whatever goes wrong in one, the coordinator hears why."""

import logging
from collections.abc import Callable

from trainer.errors import TrainerError
from trainer.outbox import Outbox
from transport.text import untrusted
from transport.wire.codec import MessageError
from transport.wire.model import ModelConfigError
from transport.wire.task import TaskFailed

LOG = logging.getLogger("cottage.worker")


def guarded(outbox: Outbox, work: Callable[[], None]) -> bool:
    """Do ``work``; False where it failed, which is reported."""
    try:
        work()
    except (TrainerError, ModelConfigError, MessageError) as error:
        outbox.report(TaskFailed(untrusted(error)))
        return False
    except Exception as error:  # Nobody else would see it.
        LOG.exception("computing failed")
        outbox.report(TaskFailed(untrusted(f"{type(error).__name__}: {error}")))
        return False
    return True
