"""The errors of training.

::

    TrainerError
    ├── InputError                  what the job brings cannot be used; ``code`` is stable, for programs
    │   ├── DataError               dataset or token files
    │   └── WeightsError            a safetensors file to start or continue from
    ├── CodecError                  bytes that are not the tensor expected here
    │   └── NonFiniteError          NaN or Inf where training needs numbers
    ├── ScheduleError               stages and micro-batches that no schedule can run
    ├── OperationError              an operation of a step that cannot be recorded, shown or judged
    ├── RoundRecordError            a record that a round cannot be restored from
    ├── OpeningError                an opened step that does not belong to its commitment
    ├── GroupError                  a torch.distributed process group cannot do what it was asked (a RuntimeError, too)
    │   └── RankLostError           a rank is gone or did not answer in time; ``ranks`` names it
    └── RoundError                  a command that the state of this worker does not allow
        └── AbandonedError          the round in progress was given up
"""

from collections.abc import Collection


class TrainerError(Exception):
    """Any failure of training that is not a defect of the program."""


class InputError(TrainerError):
    """What the job brings cannot be used.

    Attributes:
        code: stable word for programs, such as ``empty-dataset``.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class DataError(InputError):
    """A dataset or token file cannot be used."""


class WeightsError(InputError):
    """A safetensors file does not fit the model, or is broken."""


class CodecError(TrainerError):
    """Bytes that are not the tensor expected here."""


class NonFiniteError(CodecError):
    """A tensor holds NaN or Inf."""


class ScheduleError(TrainerError):
    """Stages and micro-batches that no schedule can run."""


class OpeningError(TrainerError):
    """An opened step does not belong to its commitment."""


class RoundRecordError(TrainerError):
    """A record of a round is damaged, or of something else."""


class OperationError(TrainerError):
    """An operation of a step cannot be recorded, shown or judged."""


class GroupError(TrainerError, RuntimeError):
    """A process group cannot do what it was asked; torch's users expect a RuntimeError."""


class RankLostError(GroupError):
    """A rank is gone, or did not answer in time.

    Attributes:
        ranks: who, by number in the group.
    """

    def __init__(self, ranks: Collection[int], detail: str) -> None:
        super().__init__(detail)
        self.ranks = frozenset(ranks)


class RoundError(TrainerError):
    """A command that the state of this worker does not allow."""


class AbandonedError(RoundError):
    """The round in progress was given up."""


class RoundEndedError(RoundError):
    """The replica's round of fixed time is over: the step that was about to begin is none of it."""
