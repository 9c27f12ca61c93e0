"""What coordinator and node say of the elements of an array job (``protocol.job.array``).

A node that can run containers says so (``NodeProfile.containers``). It holds one lease (``Assign``) of an array job:
``Assign.spec.array`` has the command and its bounds, and ``Assign.files["image"]`` the image. The seat is stage 0 of some
replica, which only is its number. No worker speaks these messages: the agent itself does, and runs one container after the
other, or several at a time::

    coordinator             agent
                       <-   ArrayReady       the image is here and runs: so many elements at a time
      RunElements      ->     runs them in their order, ``slots`` at a time. Each has a *run number*, unique in its job
                       <-   ElementsMoved    which have begun, which have ended and how (several at once)
      DropElements     ->     ends these runs, or forgets them: nothing more is said of them
      StopTask         ->     ends everything, as for every task
                       <-   TaskFailed       this node cannot run the image at all: it is broken, too large, not accepted here

**Run numbers are fences.** The same element may run again, here or elsewhere: always under another, higher number. The
coordinator takes one end for each run number, and only of the lease that it gave that number to.

**Everything is idempotent.** After a connection is lost, or the coordinator has started anew, it sends all runs again that it
knows of and that have not ended: the agent ignores numbers that it has, or had, under this lease. Reports have sequence numbers
and are sent until they are acknowledged, as every report that is not lossy.

**Inputs** are artifacts: ``GET artifacts/{digest}`` is open for those of runs that were sent (and for ``ArraySpec.inputs`` and
the images, and a result that a run is to check). An agent keeps what it has fetched in its cache: the next run of the job often
needs the same.

**A result** is one archive (``protocol.job.results``), made of ``/out`` after the command has ended with 0. One of at most
``INLINE_BYTES`` goes within the report, as long as the report stays below ``MAX_REPORT_BYTES``. A larger one is stored first:
``PUT artifacts/{digest}?lease=...&answers=result-{run}`` (``protocol.artifacts.result_answer``), then reported.
Of an element that fails nothing is stored but the end of its log.

**Checks.** A run with ``check`` is one of the array's checker (``Assign.files["checker"]``, where that is another image than the
array's), with the files of a result in ``/in/result`` beside the inputs. It has an end and a result as every run: together they
are its verdict.

**Batches.** Where ``ArraySpec.batch`` is above 1, so many runs may share a container, one after the other, unless one is
``alone``. Only a success counts that came of it: what ends otherwise there is run again in a container of its own before anything
is said of it.

**Order and time.** An agent begins runs in the order in which they came, each at most ``ArraySpec.seconds`` long (a check
``CheckerSpec.seconds``), counted from the start of its container without fetching inputs. It reports beginnings and ends
together at most every ``TOGETHER_S``, so that short elements cost little. The coordinator keeps enough of them in an agent's
queue (``MAX_QUEUED``).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted
from protocol.ids import Digest, Mark
from protocol.job.array import ArrayElement, ElementIndex

MAX_TOGETHER = 64  # Runs in one message.
MAX_QUEUED = 512  # Runs of one lease that have not ended.
MAX_SLOTS = 256
TOGETHER_S = 0.25  # Ends wait so long for others, to be one report.
INLINE_BYTES = 16 << 10  # A result that goes within its report.
MAX_REPORT_BYTES = 160 << 10  # Of all results in one report; a frame that a node sends has 256 KiB at most.
MAX_RESULT_BYTES = 1 << 40
MAX_RESULT_FILES = 100_000
TAIL_LINES, TAIL_TEXT = 20, 300  # Of an element's log, its last lines.

RunNumber = Annotated[int, Meta(ge=1, le=2**53)]


LookSeed = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
"""The same for all who look at a result; drawn once it was there."""


class ElementRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run of one element; ``run``: its number, unique in the job.

    ``check``: the archive of a result of the element, at which the array's checker looks; None: the element itself runs.
    ``seed``: of that look. ``alone``: it has a container of its own, though the array has ``batch``.
    """

    run: RunNumber
    index: ElementIndex
    element: ArrayElement
    check: Digest | None = None
    seed: LookSeed | None = None
    alone: bool = False


class RunElements(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="run_elements"):
    """Run these, behind those that wait already."""

    runs: Annotated[tuple[ElementRun, ...], Meta(min_length=1, max_length=MAX_TOGETHER)]


class DropElements(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="drop_elements"):
    """Nobody waits for these runs any more: they end, and are not reported."""

    runs: Annotated[tuple[RunNumber, ...], Meta(min_length=1, max_length=MAX_QUEUED)]


class ArrayReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="array_ready"):
    """The image is here. ``slots``: elements that this node runs at a time, by its memory, processors and cards."""

    env_class: Mark
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] = 1


ElementOutcome = Literal["exited", "time", "memory", "disk", "inputs", "owner"]
"""How a run ended.

``exited``: by itself, with a code; ``time``: at its limit; ``memory``: killed for want of it; ``disk``: it wrote more than it
may, or what is no plain file; ``inputs``: they could not be had; ``owner``: the node's owner needed the machine, or its worker
died: nothing is to be said of the element, and another node runs it.
"""


class ElementEnd(Told, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a run ended.

    Attributes:
        code: exit code of ``exited``, negative of a signal. With 0 there is a result.
        result: SHA-256 of the result's archive. size: its bytes. files: in it.
        data: the archive itself where it is small; None: it was stored as an artifact before.
        seconds: from the container's start to its end. tail: the last lines that it wrote, standard output and error together.
    """

    run: RunNumber
    outcome: ElementOutcome
    code: Annotated[int, Meta(ge=-255, le=255)] = 0
    result: Digest | None = None
    size: Annotated[int, Meta(ge=0, le=MAX_RESULT_BYTES)] = 0
    files: Annotated[int, Meta(ge=0, le=MAX_RESULT_FILES)] = 0
    data: Annotated[bytes, Meta(max_length=INLINE_BYTES)] | None = None
    seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    tail: Annotated[tuple[Annotated[Untrusted, Meta(max_length=TAIL_TEXT)], ...], Meta(max_length=TAIL_LINES)] = ()

    def __post_init__(self) -> None:
        """Refuse a result without success, and success without one."""
        super().__post_init__()
        succeeded = self.outcome == "exited" and self.code == 0
        if succeeded != (self.result is not None):
            raise ValueError(
                f"run {self.run} ended by {self.outcome} with code {self.code}: 0 has a result, nothing else has"
            )
        if self.data is not None and (self.result is None or len(self.data) != self.size):
            raise ValueError(f"run {self.run} has {len(self.data):,} bytes of a result of {self.size:,}")


class ElementsMoved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="elements_moved"):
    """Runs that have begun since the last report, and that have ended. One may be in both. ``slots``: runs at a time from now on,
    where that has changed."""

    begun: Annotated[tuple[RunNumber, ...], Meta(max_length=MAX_QUEUED)] = ()
    ended: Annotated[tuple[ElementEnd, ...], Meta(max_length=MAX_TOGETHER)] = ()
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] | None = None


ArrayCommand = RunElements | DropElements
ArrayReport = ArrayReady | ElementsMoved
