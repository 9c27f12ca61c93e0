"""What a machine has no memory for ends the task with words that say so, and with a way out."""

import torch

from protocol.task import TaskFailed, TaskReport
from trainer.worker.thread_guard import guarded


class Said:
    def __init__(self) -> None:
        self.reports: list[TaskReport] = []

    def report(self, body: TaskReport, *_: bytes) -> None:
        self.reports.append(body)


def outcome(work: object) -> TaskFailed:
    said = Said()
    assert not guarded(said, work)  # type: ignore[arg-type]
    (report,) = said.reports
    assert isinstance(report, TaskFailed)
    return report


def test_more_than_main_memory_is_told_as_that() -> None:
    report = outcome(lambda: torch.empty(1 << 58))  # What torch says here, it says of any machine.
    assert report.cause == "memory"
    assert "training.memory lean" in report.reason


def test_so_is_more_than_a_card_has_also_behind_another_error() -> None:
    def work() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("while stepping") from error

    assert outcome(work).cause == "memory"


def test_another_error_is_the_machines() -> None:
    def work() -> None:
        raise RuntimeError("out of luck")

    report = outcome(work)
    assert (report.cause, report.reason) == ("machine", "RuntimeError: out of luck")
