"""What an operator sees and orders. Amounts are in millionths of the token, times in Unix seconds."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from common.untrusted_text import Told, Untrusted, View
from protocol.ids import NodeAddress
from protocol.rest.api import JobStateName

NodeOrder = Literal["drain", "undrain", "ban", "unban"]
AdminNodeState = Literal["online", "busy", "draining", "banned"]
AdminJobState = Literal[
    "live", "created", "funded", "planned", "running", "paused", "verifying", "settled", "failed", "cancelled"
]
AdminRowState = Literal["open", "failed"]
MAX_REASON: Final = 150  # Characters: beside a node's address there is no more room in a line of the trail.


class AdminOrder(Told, frozen=True, forbid_unknown_fields=True):
    """Why an operator does something. A ban, its end and the end of a job need a reason, the rest may have one."""

    reason: Annotated[Untrusted, Meta(max_length=MAX_REASON, pattern=r"^[^\x00]*$")] = Untrusted("")


class AdminLease(View, frozen=True):
    """What a node holds. ``stage`` None: it is a spare of the job, or looks at others' work. ``serves``: it is a deployment."""

    job: str
    stage: int | None
    replica: int | None
    state: str
    granted: float
    serves: bool = False


class AdminNode(View, frozen=True):
    """A node as its network's operator sees it.

    Attributes:
        busy: it holds something, or may come back with it.
        draining: its seats go to others as these come, and it gets no new one.
        reason: of its ban; empty where it is not banned.
        rounds: of its work that were verified since its last fault.
        address: where it is connected from; empty: it is not here.
        why_not: why it may not lend by the network's rule, as its owner is told; empty: it may.
        leases: what it holds now.
    """

    node: NodeAddress
    payout: NodeAddress
    name: Untrusted
    device: Untrusted
    online: bool
    busy: bool
    draining: bool
    banned: bool
    reason: Untrusted
    stake: int
    earned: int
    rounds: int
    faults: int
    since: float
    seen: float
    address: str
    leases: tuple[AdminLease, ...]
    why_not: Untrusted = Untrusted("")


class AdminJob(View, frozen=True):
    """A job of any account.

    Attributes:
        account: whose it is; ``owner``: what that account is called, empty where there are none.
        sentence: where it stands, and what it waits for.
        nodes: that have a seat in it now.
    """

    id: str
    name: Untrusted
    account: str
    owner: Untrusted
    state: JobStateName
    sentence: Untrusted
    created: float
    ended: float | None
    rounds_done: int
    rounds_total: int
    nodes: int
    escrow: int
    paid: int
    refunded: int


class AdminRow(View, frozen=True):
    """Something that the ledger is to be told, and has not confirmed. ``age``: in seconds; ``detail``: why it was given up."""

    id: int
    job: str
    kind: str
    state: Literal["queued", "sent", "failed"]
    amount: int
    detail: Untrusted
    created: float
    age: float
    attempts: int
    signature: str


LEAST_JOB_FILES_DAYS = 7  # Until then anybody may run a step again that an auditor found right.
MOST_DAYS = 3_650


class RemovableFile(View, frozen=True):
    """A file that the next sweep removes. ``size``: in bytes."""

    sha256: str
    size: int


class AdminStorage(View, frozen=True):
    """Room for files. All but the first four in bytes.

    Attributes:
        place: where artifacts lie: ``disk``, or the address of a bucket.
        counted: when files were counted, in Unix seconds: a while ago where that takes long.
        files: artifacts that are there.
        removable: of these, what nothing refers to any more: the next hourly sweep removes them.
        size, removable_size: of both.
        total: what the place may hold; ``free``: what it has room for now.
        kept_free: for the database and running jobs' files: below it submitters' uploads are refused.
        database: of the database's file; None: it is elsewhere.
        job_files_days, uploads_days: for how many days files stay, of which ``removable`` follows.
        largest: some of what the next sweep removes, the largest first.
    """

    place: str
    counted: float
    files: int
    removable: int
    size: int
    removable_size: int
    total: int
    free: int
    kept_free: int
    database: int | None
    job_files_days: int = 30
    uploads_days: int = 30
    largest: tuple[RemovableFile, ...] = ()
