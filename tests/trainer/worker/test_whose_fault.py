"""Whose fault a worker takes its end for: the job's own files, or the machine that reads them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.errors import SealedFileError
from protocol.codec import MessageError
from protocol.job.job import ModelSpec
from protocol.models.model import ModelConfigError, resolve, tensors_of
from tests.trainer.small import LLAMA, SEQUENCE, VOCABULARY, Pipeline, cuts, job_folder, training
from trainer import errors
from trainer.data.data import TokenFile, heldout_parts
from trainer.errors import DataError, InputError, NonFiniteError, TrainerError
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, heldout_loss
from trainer.worker.thread_guard import cause_of, guarded

OF_THE_JOB = [InputError, *InputError.__subclasses__(), ModelConfigError]
OF_ITS_NUMBERS = [NonFiniteError, *NonFiniteError.__subclasses__()]
OTHERS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type)
    and issubclass(value, TrainerError)
    and not issubclass(value, InputError | NonFiniteError)
]
MACHINES = [OSError(28, "No space left on device"), MemoryError(), SealedFileError("other bytes")]


def made(kind: type[Exception], text: str = "wte.weight is wrong") -> Exception:
    """One of a class, with the arguments that it takes."""
    if issubclass(kind, InputError):
        return kind("bad", text)
    return errors.RankLostError([1], text) if kind is errors.RankLostError else kind(text)


def raised(error: Exception, below: BaseException | None) -> Exception:
    error.__cause__ = below
    return error


@pytest.mark.parametrize("kind", OF_THE_JOB)
def test_what_a_job_brings_is_the_jobs(kind: type[Exception]) -> None:
    assert cause_of(made(kind)) == "inputs"
    assert cause_of(raised(made(kind), ValueError("a library's word"))) == "inputs"


@pytest.mark.parametrize("kind", OF_THE_JOB)
@pytest.mark.parametrize("below", MACHINES, ids=lambda error: type(error).__name__)
def test_a_file_that_this_machine_cannot_read_is_the_machines(kind: type[Exception], below: BaseException) -> None:
    assert cause_of(raised(made(kind), below)) == "machine"
    deeper = raised(DataError("bad", "a file"), below)
    assert cause_of(raised(made(kind), deeper)) == "machine"


def test_weights_that_are_numbers_and_overflow_are_no_machines_fault(tmp_path: Path) -> None:
    config = resolve(ModelSpec(config=LLAMA | {"vocab_size": VOCABULARY}, weights="0" * 64), 259)
    names = tensors_of(config).all().items()
    save_file({name: torch.full(shape, 1e19) for name, shape in names}, tmp_path / "model.safetensors")
    stage = Stage(config, cuts(3, 1)[0], training(), tmp_path / "model.safetensors")
    tokens = TokenFile(job_folder(tmp_path / "job") / "train.bin", SEQUENCE, VOCABULARY)
    with pytest.raises(NonFiniteError) as failed:
        Pipeline([stage], tokens).step(0, 8)
    assert cause_of(failed.value) == "numbers"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scale", [1e12, 1e15, 1e30], ids=["too large to be told", "larger", "not finite"])
def test_a_loss_that_no_message_can_carry_is_no_machines_fault(scale: float, tmp_path: Path) -> None:
    config = resolve(ModelSpec(config=LLAMA | {"vocab_size": VOCABULARY}, weights="0" * 64), 259)
    torch.manual_seed(1)
    weights = {name: torch.randn(shape) for name, shape in tensors_of(config).all().items()}
    weights["lm_head.weight"] *= scale
    save_file(weights, tmp_path / "model.safetensors")
    stage = Stage(config, cuts(3, 1)[0], training(), tmp_path / "model.safetensors")
    tokens = TokenFile(job_folder(tmp_path / "job") / "train.bin", SEQUENCE, VOCABULARY)
    with pytest.raises(NonFiniteError, match="the loss became") as failed:
        heldout_loss(stage, heldout_parts(tokens, training()), Recorded({}))
    assert cause_of(failed.value) == "numbers"
    with pytest.raises(NonFiniteError) as failed:
        Pipeline([stage], tokens).step(0, 8)
    assert cause_of(failed.value) == "numbers"


@pytest.mark.parametrize("kind", [*OTHERS, MessageError, OSError, MemoryError, RuntimeError])
def test_everything_else_is_the_machines(kind: type[Exception]) -> None:
    assert cause_of(made(kind)) == "machine"


@pytest.mark.parametrize("kind", OF_ITS_NUMBERS)
def test_numbers_that_grew_beyond_a_float_are_no_machines_fault(kind: type[Exception]) -> None:
    assert cause_of(made(kind)) == "numbers"


@pytest.mark.parametrize("kind", [*OF_THE_JOB, *OF_ITS_NUMBERS, *OTHERS, MemoryError, RuntimeError])
def test_a_workers_last_report_names_the_cause(kind: type[Exception]) -> None:
    reports: list[object] = []

    class Box:
        def report(self, body: object) -> None:
            reports.append(body)

    def work() -> None:
        raise made(kind)

    assert not guarded(Box(), work)  # type: ignore[arg-type]
    [failed] = reports
    others = "memory" if kind is MemoryError else "machine"
    whose = "inputs" if kind in OF_THE_JOB else "numbers" if kind in OF_ITS_NUMBERS else others
    assert failed.cause == whose  # type: ignore[attr-defined]
