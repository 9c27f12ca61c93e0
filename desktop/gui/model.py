"""The agent's answers as bounded types, and what the windows are told."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from desktop.gui.errors import AnswerError

MAX_TASKS = 64  # As many leases as a node may hold.
MAX_SHOWN = 300  # Characters of foreign text on a line of the window; the agent's log has the rest.

ShortText = Annotated[str, Meta(max_length=300)]
LongText = Annotated[str, Meta(max_length=4000)]
Units = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, lt=2**31)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Profile(msgspec.Struct, frozen=True):
    """The device that is lent."""

    device: ShortText
    kind: ShortText
    memory_mb: Count
    sandbox: ShortText


class Task(msgspec.Struct, frozen=True):
    """One lease. ``stage`` and ``replica`` are None on a spare."""

    job: ShortText
    job_name: ShortText
    stage: Index | None
    replica: Index | None
    state: Literal["fetching", "starting", "running", "ended", "failed"]
    reason: LongText
    round: Count | None = None
    step: Count | None = None
    loss: float | None = None

    @property
    def is_live(self) -> bool:
        """It still wants the device."""
        return self.state in ("fetching", "starting", "running")


class Status(msgspec.Struct, frozen=True):
    """The whole agent. Fields that this window does not know are ignored: the agent may be newer. Amounts are smallest units."""

    node: ShortText
    payout: ShortText
    name: ShortText
    coordinator: Annotated[str, Meta(max_length=2100)]
    state: Literal["starting", "connecting", "online", "away", "refused", "stopping"]
    reason: LongText
    note: LongText
    profile: Profile
    tasks: Annotated[tuple[Task, ...], Meta(max_length=MAX_TASKS)]
    verified: Units
    paid: Units
    lending: LongText = ""
    lending_state: Literal["off", "lending", "finishing", "paused", "away"] = "lending"
    paused: bool = False

    @property
    def live(self) -> tuple[Task, ...]:
        """The tasks that want the device, running ones first."""
        return tuple(sorted((task for task in self.tasks if task.is_live), key=lambda task: task.state != "running"))


_DECODER = msgspec.json.Decoder(Status)


def read_status(body: bytes) -> Status:
    """Understand the answer to ``GET /v1/status``.

    Raises:
        AnswerError: it is no status, or out of bounds; the text says where.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(str(error)) from error


def plain(text: str, limit: int = MAX_SHOWN) -> str:
    """Foreign text as one line that can be shown: no control characters or direction overrides, at most ``limit`` long."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)


class Phase(Enum):
    """What is known of the agent. TROUBLE: something answers in its place, but not usably."""

    OFF = "off"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    TROUBLE = "trouble"


@dataclass(frozen=True)
class Snapshot:
    """All that the windows show at one moment. ``status`` is there while RUNNING; ``detail`` says why, where that is known."""

    phase: Phase
    status: Status | None = None
    detail: str = ""

    @property
    def is_on(self) -> bool:
        """How the switch stands: on wherever there is something that flipping it could stop."""
        return self.phase in (Phase.STARTING, Phase.RUNNING, Phase.TROUBLE)
