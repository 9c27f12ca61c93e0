"""The agent's answers as bounded types, and what the windows are told."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from common.untrusted_text import Untrusted, View, untrusted
from desktop.gui.errors import AnswerError

MAX_TASKS = 64  # As many leases as a node may hold.
MAX_REFUSAL = 1000
MAX_SHOWN = 300  # Characters of foreign text on a line of the window; the agent's log has the rest.

ShortText = Annotated[str, Meta(max_length=300)]
LongText = Annotated[str, Meta(max_length=4000)]
Units = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, lt=2**31)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Profile(View, frozen=True):
    """The device that is lent."""

    device: ShortText
    kind: ShortText
    memory_mb: Count
    sandbox: ShortText


class Task(View, frozen=True):
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
    share: Annotated[float, Meta(ge=0, le=1)] | None = None

    @property
    def is_live(self) -> bool:
        """It still wants the device."""
        return self.state in ("fetching", "starting", "running")


Reals = Annotated[float, Meta(ge=-1e15, le=1e15)]


class GpuMeter(View, frozen=True):
    """One GPU; None: not told. Memory in MB, power in watts."""

    index: Index
    name: ShortText
    memory_mb: Count
    percent: Count | None = None
    used_mb: Count | None = None
    celsius: Annotated[int, Meta(ge=-100, le=1000)] | None = None
    watts: Reals | None = None
    power_cap: Reals | None = None
    uuid: ShortText = ""


class Meters(View, frozen=True):
    """How hard the computer works; rates in bytes a second."""

    gpus: Annotated[tuple[GpuMeter, ...], Meta(max_length=64)] = ()
    processor: Reals | None = None
    jobs_mb: Count | None = None
    up: Reals = 0.0
    down: Reals = 0.0


class LendingReason(View, frozen=True):
    """Why it does not lend; ``until``: Unix seconds."""

    cause: ShortText
    detail: ShortText = ""
    until: Annotated[float, Meta(ge=0, le=1e11)] | None = None


class UpdateView(View, frozen=True):
    """Whether a newer version of the agent is there; ``stage`` as ``desktop.agent.updates`` has it, "" from an older agent."""

    stage: ShortText = ""
    running: ShortText = ""
    version: ShortText = ""
    text: LongText = ""


class Status(View, frozen=True):
    """The whole agent. Fields that this window does not know are ignored: the agent may be newer. Amounts are smallest units."""

    node: ShortText
    payout: ShortText
    name: ShortText
    coordinator: Annotated[str, Meta(max_length=2100)]
    state: Literal["off", "starting", "connecting", "online", "away", "refused", "stopping"]
    reason: LongText
    note: LongText
    profile: Profile
    tasks: Annotated[tuple[Task, ...], Meta(max_length=MAX_TASKS)]
    verified: Units
    paid: Units
    lending: LongText = ""
    lending_state: Literal["off", "lending", "finishing", "paused", "away"] = "lending"
    paused: bool = False
    on: bool = True
    trouble: LongText = ""
    trouble_cause: ShortText = ""
    trouble_detail: dict[str, str] = msgspec.field(default_factory=dict)
    reasons: Annotated[tuple[LendingReason, ...], Meta(max_length=32)] = ()
    today: Units = 0
    week: Units = 0
    meters: Meters | None = None
    max_celsius: Count = 0
    memory_mb: Count = 0
    watts: Count = 0
    gpu: ShortText = ""
    last_event: Count = 0
    electricity: Units = 0
    update: UpdateView = UpdateView()
    renews: bool = False

    @property
    def live(self) -> tuple[Task, ...]:
        """The tasks that want the device, running ones first."""
        return tuple(sorted((task for task in self.tasks if task.is_live), key=lambda task: task.state != "running"))


class PayReason(View, frozen=True):
    """Why a job stands as it does: ``why`` as ``desktop.agent.earnings.earnings`` has it, of so many shares and so much."""

    why: ShortText
    shares: Count = 0
    amount: Units = 0
    detail: LongText = ""


class JobEarnings(View, frozen=True):
    """What one job has brought; ``standing`` and ``reasons`` as ``desktop.agent.earnings.earnings`` has them."""

    job: ShortText
    verified: Units
    paid: Units
    first: Reals
    changed: Reals
    name: ShortText = ""
    seconds: Reals = 0.0
    standing: Literal["working", "paid", "pending", "not paid"] = "pending"
    reasons: Annotated[tuple[PayReason, ...], Meta(max_length=64)] = ()
    proof: LongText = ""


class Wallet(View, frozen=True):
    """The payout wallet as the ledger showed it."""

    address: ShortText
    balance: Units


class Day(View, frozen=True):
    """``day``: 2026-11-22."""

    day: ShortText
    verified: Units


class Summary(View, frozen=True):
    """Everything earned."""

    verified: Units
    paid: Units
    wallet: Wallet | None
    jobs: Annotated[tuple[JobEarnings, ...], Meta(max_length=1000)]
    today: Units = 0
    week: Units = 0
    days: Annotated[tuple[Day, ...], Meta(max_length=400)] = ()


class Event(View, frozen=True):
    """Something that happened."""

    number: Count
    at: Reals
    severity: Literal["info", "warning", "error"]
    kind: ShortText
    text: LongText
    detail: dict[str, str] = msgspec.field(default_factory=dict)


class Events(View, frozen=True):
    """The newest first."""

    events: Annotated[tuple[Event, ...], Meta(max_length=1000)]


class Check(View, frozen=True):
    """One step of a self-test."""

    name: ShortText
    state: Literal["waiting", "running", "good", "warning", "bad"] = "waiting"
    code: ShortText = ""
    text: LongText = ""
    detail: dict[str, str] = msgspec.field(default_factory=dict)


class SelfTest(View, frozen=True):
    """All steps."""

    checks: Annotated[tuple[Check, ...], Meta(max_length=32)]
    running: bool = False
    can_lend: bool = False


class WithdrawalDenial(View, frozen=True):
    """Why it cannot be sent: ``reason`` for a sentence of the window's own, ``text`` in the agent's words."""

    reason: ShortText
    text: LongText
    amount: Units = 0
    seconds: Units = 0


class Withdrawal(View, frozen=True):
    """What sending costs, or has cost: amount = arrives + fee."""

    target: ShortText
    amount: Units
    held: Units
    fee: Units = 0
    arrives: Units = 0
    opens: bool = False
    signature: ShortText = ""
    denied: WithdrawalDenial | None = None


class SettingsView(View, frozen=True):
    """The owner's settings as they are, and what this computer has; pages know the names of ``settings``."""

    settings: dict[str, str | int | float | bool]
    address: ShortText
    processors: Count
    memory_mb_here: Count
    gpus: Annotated[tuple[GpuMeter, ...], Meta(max_length=64)]
    version: ShortText = ""
    effect: Literal["now", "rejoin", "restart"] = "now"
    cap: Literal["", "driver", "pauses", "not"] = ""
    cap_why: LongText = ""


class RulesView(View, frozen=True):
    """When it lends; pages know the names of ``rules``."""

    rules: dict[str, str | int | float | bool | list[str]]
    bound: bool = True


class LimitsView(View, frozen=True):
    """How much of the line; bytes."""

    limits: dict[str, int | bool | None]
    month: ShortText
    used: Count


class Support(msgspec.Struct, frozen=True):
    """A report for somebody who helps."""

    text: Annotated[str, Meta(max_length=1 << 20)]


class BackupDone(View, frozen=True):
    """A backup was written."""

    file: LongText
    address: ShortText


class Words(View, frozen=True):
    """The key as words."""

    words: ShortText


class _Refusal(View, frozen=True):
    detail: str


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
