"""The agent's answers as the windows read them, and what the windows are told."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from common.untrusted_text import Untrusted, View, untrusted
from desktop.answers import MAX_TASKS, CommonStatus, Count, LimitsAnswer, SettingsAnswer, ShortText, Task
from desktop.gui.errors import AnswerError

MAX_REFUSAL = 1000
MAX_SHOWN = 300  # Characters of foreign text on a line of the window; the agent's log has the rest.


class DeviceProfile(View, frozen=True):
    """The device that is lent."""

    device: ShortText
    kind: ShortText
    memory_mb: Count
    sandbox: ShortText


class Status(CommonStatus, frozen=True, kw_only=True):
    """The whole agent, as far as the window shows it."""

    state: Literal["off", "starting", "connecting", "online", "away", "refused", "stopping"]
    lending_state: Literal["off", "lending", "finishing", "paused", "away"] = "lending"
    profile: DeviceProfile
    tasks: Annotated[tuple[Task, ...], Meta(max_length=MAX_TASKS)]

    @property
    def live(self) -> tuple[Task, ...]:
        """The tasks that want the device, running ones first."""
        return tuple(sorted((task for task in self.tasks if task.is_live), key=lambda task: task.state != "running"))


class RulesView(View, frozen=True):
    """When it lends; pages know the names of ``rules``."""

    rules: dict[str, str | int | float | bool | list[str]]
    bound: bool = True


class _Refusal(View, frozen=True):
    detail: str


SettingsView = SettingsAnswer[dict[str, str | int | float | bool | list[str]]]
"""The owner's settings; pages know the names of ``settings``."""
LimitsView = LimitsAnswer[dict[str, int | bool | None]]
"""How much of the line; bytes."""

_T = TypeVar("_T")


def read(body: bytes, kind: type[_T]) -> _T:
    """Understand one of the agent's documents.

    Raises:
        AnswerError: it is none, or out of bounds; the text says where.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(str(error)) from error


def read_status(body: bytes) -> Status:
    """Understand the answer to ``GET /v1/status``; raises AnswerError."""
    return read(body, Status)


def read_refusal(body: bytes) -> str:
    """The agent's reason, or what it said instead of one."""
    try:
        return plain(read(body, _Refusal).detail, MAX_REFUSAL)
    except AnswerError:
        return plain(body.decode(errors="replace"), 80)


def plain(text: str, limit: int = MAX_SHOWN) -> Untrusted:
    """Foreign text as one line that can be shown, at most ``limit`` long."""
    return untrusted(text, limit)


class AgentPhase(Enum):
    """What is known of the agent. TROUBLE: something answers in its place, but not usably."""

    OFF = "off"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    TROUBLE = "trouble"


@dataclass(frozen=True)
class Snapshot:
    """All that the windows show at one moment. ``status`` is there while RUNNING; ``detail`` says why, where that is known.

    ``wanted``: the agent is being started in order to lend.
    """

    phase: AgentPhase
    status: Status | None = None
    detail: str = ""
    wanted: bool = False

    @property
    def is_on(self) -> bool:
        """How the switch stands: on wherever there is something that flipping it could stop."""
        if self.status is not None and self.phase is AgentPhase.RUNNING:
            return self.status.on
        return self.phase is AgentPhase.TROUBLE or (self.phase is AgentPhase.STARTING and self.wanted)
