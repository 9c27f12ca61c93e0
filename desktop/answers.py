"""What the agent answers its owner, who asks over a socket or a pipe: one schema for the agent, its commands and the windows.

All texts are bounded and safe to show. A reader ignores fields that it does not know, and kinds and causes are plain words:
the agent may be newer than whoever reads. Amounts are the token's smallest units, moments Unix seconds.
"""

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from common.token_worth import TokenWorth
from common.untrusted_text import Untrusted, View

MAX_TASKS = 64  # As many leases as a node may hold.

ShortText = Annotated[str, Meta(max_length=300)]
LongText = Annotated[str, Meta(max_length=4000)]
OthersShortText = Annotated[Untrusted, Meta(max_length=300)]
OthersText = Annotated[Untrusted, Meta(max_length=4000)]
Units = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, lt=2**31)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Reals = Annotated[float, Meta(ge=-1e15, le=1e15)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]

_NO_TEXT = Untrusted("")
_Settings = TypeVar("_Settings")
_Limits = TypeVar("_Limits")


class Task(View, frozen=True, kw_only=True):
    """One lease. ``stage`` and ``replica`` are None on a spare. ``share``: of the run's tokens that are done.

    ``shown``: after a crash, the last round whose work it shows, and it does nothing else. ``serves``: it answers with the
    model, and trains nothing. ``stages``: parts that the model is cut into, each of which a node holds. ``waits``: it is ready,
    and the other nodes that hold the model with it are not all there. ``loads``: it reads a model that it is to answer with.
    ``fetched``: how much of its files is here, where that is known. ``gpu``: on which card, where several are lent.
    """

    job: ShortText
    job_name: OthersShortText
    stage: Index | None
    replica: Index | None
    state: Literal["fetching", "starting", "running", "ended", "failed"]
    reason: OthersText
    round: Count | None = None
    step: Count | None = None
    loss: float | None = None
    share: Annotated[float, Meta(ge=0, le=1)] | None = None
    shown: Count | None = None
    serves: bool = False
    stages: Count = 1
    waits: bool = False
    loads: bool = False
    fetched: Annotated[float, Meta(ge=0, le=1)] | None = None
    gpu: ShortText = ""

    @property
    def is_live(self) -> bool:
        """It still wants the device."""
        return self.state in ("fetching", "starting", "running")


class GpuMeter(View, frozen=True):
    """One GPU; None: its driver does not tell. Memory in MB, power in watts; ``power_cap``: what the driver holds it to."""

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
    """How hard the computer works.

    ``processor``: percent of all processors, ``jobs_mb``: main memory that jobs hold; rates in bytes a second.
    """

    gpus: Annotated[tuple[GpuMeter, ...], Meta(max_length=64)] = ()
    processor: Reals | None = None
    jobs_mb: Count | None = None
    up: Reals = 0.0
    down: Reals = 0.0


class LendingReason(View, frozen=True):
    """Why it does not lend. ``detail``: the program, degrees, gigabytes; ``until``: when it ends by itself."""

    cause: ShortText
    detail: ShortText = ""
    until: Moment | None = None


class UpdateView(View, frozen=True):
    """Whether a newer version of the agent is there.

    Attributes:
        stage: off: not looked for; none: this is the newest; ready: a restart takes it; apt and by hand: its owner must;
            installed: it lies in this program's place and begins between jobs, or with a restart; "": not told.
        running: this version; ``version``: the new one.
        text: what to do, or what went wrong at the last look.
    """

    stage: ShortText = ""
    running: ShortText = ""
    version: ShortText = ""
    text: LongText = ""


class CardView(View, frozen=True, kw_only=True):
    """One of several cards that are lent. ``node``: as the coordinator knows it; ``on``: its switch; ``lending``: as a sentence.

    ``state``: as of ``AgentStatus``; ``jobs``: that hold it now; ``trouble``: why it is not lent though it is on.
    """

    gpu: ShortText
    name: OthersShortText
    node: ShortText
    on: bool
    state: ShortText = "off"
    lending: LongText = ""
    jobs: Count = 0
    trouble: OthersText = _NO_TEXT


class CommonStatus(View, frozen=True, kw_only=True):
    """The whole agent; ``reason``: why it is not online.

    Attributes:
        lending: when it lends, as a sentence; ``paused``: because the owner asked for it; ``reasons``: the same for programs.
        on: the owner's switch. ``trouble``: why it went off by itself; ``trouble_cause``, ``trouble_detail``: the same for
            programs, as ``AgentError`` has them.
        today, week: verified today and in seven days.
        max_celsius, memory_mb, watts: the owner's limits, for the gauges of ``meters``.
        gpu: which one of ``meters`` is lent, "" for none.
        last_event: number of the newest event of ``GET /v1/activity``.
        electricity: what a kWh costs, in ``currency``, or in tokens where that is empty. ``worth``: of a token, where known.
        update: whether a newer version is there.
        renews: the agent begins anew once no job has a seat here; the switch stays as it is.
        cards: where several are lent, each of them; the rest tells of the first that works.
    """

    node: ShortText
    payout: ShortText
    name: ShortText
    coordinator: Annotated[str, Meta(max_length=2100)]
    reason: OthersText
    note: LongText
    verified: Units
    paid: Units
    lending: LongText = ""
    paused: bool = False
    on: bool = True
    trouble: OthersText = _NO_TEXT
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
    currency: ShortText = ""
    worth: TokenWorth | None = None
    update: UpdateView = UpdateView()
    renews: bool = False
    cards: Annotated[tuple[CardView, ...], Meta(max_length=16)] = ()


class PayReason(View, frozen=True):
    """Why a job stands as it does: ``why`` is one of ``desktop.agent.earnings.earnings.Why``.

    ``shares`` stand so, worth ``amount``; 0 shares: of the whole job. ``detail``: how it failed here.
    """

    why: ShortText
    shares: Count = 0
    amount: Units = 0
    detail: OthersText = _NO_TEXT


class JobEarnings(View, frozen=True):
    """What one job has brought; ``signature``: the ledger's receipt of the last payment.

    Attributes:
        first, changed: the first and the last news of it.
        seconds: how long this node held a seat in it.
        reasons: why it stands so, and why no more of it is paid; empty only where it works, or all of it is paid.
        proof: the command that checks the coordinator's word against the ledger.
    """

    coordinator: LongText
    job: ShortText
    verified: Units
    paid: Units
    signature: ShortText
    first: Moment
    changed: Moment
    name: OthersShortText = _NO_TEXT
    seconds: Reals = 0.0
    standing: Literal["working", "paid", "pending", "not paid"] = "pending"
    reasons: Annotated[tuple[PayReason, ...], Meta(max_length=64)] = ()
    proof: LongText = ""


class WalletView(View, frozen=True):
    """The payout wallet as the ledger showed it at ``seen``."""

    address: ShortText
    balance: Units
    seen: Moment


class EarningsDay(View, frozen=True):
    """What was verified on one local day, ``2026-11-22``."""

    day: ShortText
    verified: Units


class EarningsSummary(View, frozen=True):
    """Everything earned, newest job first. ``days``: the last local days, the oldest first; ``today`` is the last."""

    verified: Units
    paid: Units
    wallet: WalletView | None
    jobs: Annotated[tuple[JobEarnings, ...], Meta(max_length=1000)]
    today: Units = 0
    week: Units = 0
    days: Annotated[tuple[EarningsDay, ...], Meta(max_length=400)] = ()


class ActivityEvent(View, frozen=True):
    """One thing that happened. ``text``: in words; ``detail``: the same for programs, by ``kind``."""

    number: Count
    at: Moment
    severity: Literal["info", "warning", "error"]
    kind: ShortText
    text: OthersText
    detail: dict[str, str] = msgspec.field(default_factory=dict)


class ActivityEvents(View, frozen=True):
    """The newest events, the newest first."""

    events: Annotated[tuple[ActivityEvent, ...], Meta(max_length=1000)]


class SelfTestStep(View, frozen=True):
    """One step. ``code``: what was found, one word or two; ``detail``: its numbers; ``text``: in words, with the way out."""

    name: ShortText
    state: Literal["waiting", "running", "good", "warning", "bad"] = "waiting"
    code: ShortText = ""
    text: LongText = ""
    detail: dict[str, str] = msgspec.field(default_factory=dict)


class SelfTest(View, frozen=True):
    """All steps. ``running``: some are still to come. ``can_lend``: nothing that was found forbids it."""

    checks: Annotated[tuple[SelfTestStep, ...], Meta(max_length=32)]
    running: bool = False
    can_lend: bool = False


class ImageView(View, frozen=True):
    """The image that jobs run in: ``done`` of ``size`` bytes while it is ``fetching`` or ``loading`` (0: not known yet).

    ``own``: this build names nobody whose image it takes. ``text``: why it ``failed``.
    """

    stage: Literal["own", "missing", "fetching", "loading", "here", "failed"]
    done: Count = 0
    size: Count = 0
    text: OthersText = _NO_TEXT


class WithdrawalDenial(View, frozen=True):
    """Why it cannot be, or was not, sent: ``reason`` is one of ``desktop.agent.app.status.DenialReason``.

    ``text``: in English, with the way out; ``amount``, ``seconds``: as in ``protocol.rest.withdrawals.WithdrawalRefusal``.
    """

    reason: ShortText
    text: OthersText
    amount: Units = 0
    seconds: Units = 0


class WalletWithdrawal(View, frozen=True):
    """What sending ``amount`` of the ``held`` ones to ``target`` costs, or has cost; amount = arrives + fee.

    Attributes:
        opens: the receiver has no account for this token yet, and ``fee`` or ``lamports`` pay for one.
        lamports: that the wallet's own SOL pays; 0 where the coordinator does.
        signature: of the transaction; "" until it is sent.
        denied: why it cannot be, or was not.
    """

    target: ShortText
    amount: Units
    held: Units
    fee: Units = 0
    arrives: Units = 0
    opens: bool = False
    lamports: Units = 0
    signature: ShortText = ""
    denied: WithdrawalDenial | None = None


class SettingsAnswer(View, Generic[_Settings], frozen=True):
    """The settings as they were given, and what this computer has. ``effect``: how the last change takes effect.

    Attributes:
        address: the node's own wallet, which ``payout`` "" stands for.
        processors, memory_mb_here: what this computer has; ``gpus`` likewise.
        cap, cap_why: how ``watts`` is held now, and what the driver said against it.
        networks: invitations to networks that are known, the newest first.
        effect: ``now``; ``rejoin``: it connects anew and keeps its jobs; ``restart``: what runs is handed over first.
    """

    settings: _Settings
    address: ShortText
    processors: Count
    memory_mb_here: Count
    gpus: Annotated[tuple[GpuMeter, ...], Meta(max_length=64)]
    version: ShortText = ""
    effect: Literal["now", "rejoin", "restart"] = "now"
    cap: Literal["", "driver", "pauses", "not"] = ""
    cap_why: LongText = ""
    networks: Annotated[tuple[LongText, ...], Meta(max_length=32)] = ()


class LimitsAnswer(View, Generic[_Limits], frozen=True):
    """The limits of the line, and the bytes ``used`` in this ``month``, both ways. ``applied``: an agent keeps to them."""

    limits: _Limits
    month: ShortText
    used: Count
    applied: bool = True


class SupportReport(msgspec.Struct, frozen=True):
    """The report for somebody who helps, of many lines."""

    text: Annotated[str, Meta(max_length=1 << 20)]


class BackupDone(View, frozen=True):
    """The node whose backup ``file`` is; "" where words were."""

    file: LongText
    address: ShortText


class KeyWords(View, frozen=True):
    """The node's key as 24 words; only ever given over the owner's socket."""

    words: ShortText


class PublisherView(View, frozen=True):
    """Somebody whose images run here. ``since``: Unix seconds; ``own``: Cottage itself, which stays."""

    key: str
    name: str
    since: float = 0.0
    own: bool = False


class AskedImage(View, frozen=True):
    """An image that a job has asked this computer to run: what it is, whose, and what it asked for.

    ``size``: bytes, unpacked; ``accepted``: its publisher is; ``here``: the engine has it.
    """

    name: str
    publisher: str
    size: int
    memory_mb: int
    gpu: bool
    accepted: bool
    here: bool


class PublishersView(View, frozen=True):
    """Whose images run here, and which were asked for, the latest first."""

    publishers: tuple[PublisherView, ...]
    images: tuple[AskedImage, ...] = ()
