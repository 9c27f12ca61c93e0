"""The members of an outer round and what is known of each: the data that ``round`` folds events into."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from coordinator.domain.audits.quorum import Measured
from coordinator.domain.rounds.summing import RoundSum
from protocol.audit import OuterRecord, step_weights
from protocol.ids import Digest, NodeAddress
from protocol.rest.api import Agreement
from protocol.task import KeptState, Layers, Member, Plan, PreferenceScore

KEEPERS = 2  # A state that lies with fewer peers than this is stored with the coordinator as well.

Phase = Literal["training", "reducing", "applying", "complete", "void"]


class Commitment(msgspec.Struct, frozen=True):
    """What a member bound itself to, and when that came. ``carried``: what it takes into the next round if this one's counts.

    ``left_out``: steps that it says changed nothing, since half floats overflowed. ``unclipped``, ``heldout``: as in
    ``RoundCommit``.
    """

    root: Digest
    leaves: int
    pseudo_gradient: Digest
    loss: float | None
    carried: Digest | None = None
    at: float = 0.0
    left_out: int = 0
    unclipped: float | None = None
    heldout: float | None = None


class Seat(msgspec.Struct, frozen=True):
    """A member of the round, by its lease.

    Attributes:
        owner, env_class: whom its node is paid to, and what its worker is equal to bit for bit; empty: not known.
        state, kept, moments: what it begins from, where it has not got the anchor.
        local: what it had committed to carry into this round; ``None`` where it begins afresh.
        held: replica -> digest of its contribution; ``held_at``: when this member first said so.
        applied_at: when it came to ``parameters``; ``outer``: what its outer step did.
        manifest: of the state that it keeps since; ``own``: of its optimizer's moments.
        taken: of others' shards the replicas whose parts it holds; ``results``: shard -> digest of the result that it holds in
            the reduction's turn, ``results_at``: since when; ``reduced``: of those that it came to itself.
        residue: digest of what it keeps of its shard's last result; None: it begins.
    """

    lease: str
    node: NodeAddress
    stage: int
    replica: int
    state: Digest | None = None
    kept: KeptState | None = None
    moments: KeptState | None = None
    alive: bool = True
    commit: Commitment | None = None
    held: dict[int, Digest] = {}
    held_at: dict[int, float] = {}
    parameters: Digest | None = None
    applied_at: float = 0.0
    checkpoint: Digest | None = None
    manifest: Digest | None = None
    own: Digest | None = None
    outer: OuterRecord | None = None
    local: Digest | None = None
    owner: str = ""
    env_class: str = ""
    taken: dict[int, tuple[int, ...]] = {}
    results: dict[int, Digest] = {}
    results_at: dict[int, float] = {}
    reduced: dict[int, Digest] = {}
    residue: Digest | None = None


class ShardTask(msgspec.Struct, frozen=True):
    """A shard of a stage's contributions on its way.

    Attributes:
        reducer: the replica that is in charge of it, since ``since``; ``tried``: who was before.
        result: digest of what it was reduced to, and ``author`` the replica that said so; None: nobody has yet.
    """

    stage: int
    shard: int
    reducer: int
    since: float
    tried: tuple[int, ...] = ()
    author: int | None = None
    result: Digest | None = None


class Reduction(msgspec.Struct, frozen=True):
    """Shards that are reduced.

    Attributes:
        turn: how often contributors were chosen in the round.
        since: when they were.
    """

    turn: int
    contributors: tuple[int, ...]
    tasks: tuple[ShardTask, ...]
    since: float


class Round(msgspec.Struct, frozen=True):
    """A round in flight.

    Attributes:
        steps: inner steps of each replica, the most where the round has fixed ``seconds``; 0: only a validation ends the job.
        asked: replicas that measure the held-out loss, where it is to ``validate``; ``measured``: what they came to.
        validation: the loss that has a quorum, once ``measured`` was ``weighed``; ``agreement``: whose word it is;
            ``preference``: how pairs of answers are told apart, of the same word.
        rate_step: where the learning rate's schedule stands; None: at ``first_step``.
        lateness: see ``deadline.deadline``; None: nobody is left behind.
        store: every stage's state goes to the coordinator.
        decided: when the contributors were fixed.
        together: replicas exchange in every step, so without one none can go on.
        overdue: members that have not applied are not waited for any more.
        sharded: contributions are reduced by shards; ``reduction``: since their contributors were chosen.
        least: replicas without which it does not count.
        clip: of its updates, where that follows them.
        sum: of its updates, where nobody is to see more of them.
    """

    epoch: int
    number: int
    first_step: int
    steps: int
    total_steps: int
    validate: bool
    layers: tuple[Layers, ...]
    seats: tuple[Seat, ...]
    started: float
    phase: Phase = "training"
    contributors: tuple[int, ...] | None = None
    asked: tuple[int, ...] = ()
    measured: dict[int, Measured] = {}
    weighed: bool = False
    validation: float | None = None
    agreement: Agreement | None = None
    preference: PreferenceScore | None = None
    seconds: float | None = None
    rate_step: int | None = None
    lateness: float | None = None
    store: bool = True
    decided: float = 0.0
    overdue: bool = False
    together: bool = False
    sharded: bool = False
    reduction: Reduction | None = None
    least: int = 1
    clip: float | None = None
    sum: RoundSum | None = None

    @property
    def plan(self) -> Plan:
        """Who does what, as the members are told."""
        return Plan(self.epoch, self.layers, tuple(Member(s.stage, s.replica, s.node) for s in self.seats))

    def seat(self, lease: str) -> Seat | None:
        """The member that holds ``lease``."""
        return next((seat for seat in self.seats if seat.lease == lease), None)

    def stage(self, stage: int) -> tuple[Seat, ...]:
        """Members of a stage that are alive, lowest replica first."""
        living = (seat for seat in self.seats if seat.stage == stage and seat.alive)
        return tuple(sorted(living, key=lambda seat: seat.replica))

    def whole(self) -> tuple[int, ...]:
        """Replicas that have lost nobody, in order."""
        broken = {seat.replica for seat in self.seats if not seat.alive}
        return tuple(sorted({seat.replica for seat in self.seats} - broken))

    def steps_of(self, replica: int) -> int:
        """Inner steps that a replica has committed to; 0 while one of its stages has not, or where they differ."""
        said = {seat.commit.leaves if seat.commit else 0 for seat in self.seats if seat.replica == replica}
        return said.pop() if len(said) == 1 else 0

    @property
    def committed(self) -> frozenset[int]:
        """Replicas whose members have all committed to as many steps."""
        return frozenset(seat.replica for seat in self.seats if self.steps_of(seat.replica))

    @property
    def evaluators(self) -> tuple[int, ...]:
        """Replicas that measure the held-out loss."""
        return (self.asked or (min(seat.replica for seat in self.seats),)) if self.validate else ()

    @property
    def heard(self) -> bool:
        """Whether all have reported the held-out loss that still can, and somebody has."""
        return bool(self.measured) and set(self.evaluators).intersection(self.whole()) <= set(self.measured)

    def contributed(self) -> int:
        """Inner steps of all contributors together."""
        return sum(self.steps_of(replica) for replica in self.contributors or ())


def agreed(current: Round, stage: int) -> Digest | None:
    """The parameters that most members of a stage came to; a tie goes to the lowest replica. None: nobody applied."""
    return _most([s.parameters for s in _of_stage(current, stage)])


def checkpoint(current: Round, stage: int) -> Digest | None:
    """A checkpoint of the stage, from a member that agrees with the most."""
    majority = agreed(current, stage)
    return next((s.checkpoint for s in _of_stage(current, stage) if s.checkpoint and s.parameters == majority), None)


def kept_state(current: Round, stage: int) -> KeptState | None:
    """The state of the stage that most of those keep who agree with the most; None: nobody keeps any."""
    majority = agreed(current, stage)
    fitting = [s for s in _of_stage(current, stage) if s.parameters == majority]
    manifest = _most([s.manifest for s in fitting])
    if manifest is None:
        return None
    return KeptState(manifest, tuple(s.node for s in fitting if s.manifest == manifest and s.alive))


def is_safe(current: Round, stage: int) -> bool:
    """Whether the stage's new state outlives the round: with the coordinator, or with ``KEEPERS`` peers where that will do."""
    if checkpoint(current, stage) is not None:
        return True
    kept = kept_state(current, stage)
    return not current.store and kept is not None and len(kept.holders) >= KEEPERS


def is_gone(current: Round, stage: int) -> bool:
    """Whether a stage's new state is lost: it is not stored, nobody alive has it, and nobody alive can come to it any more."""
    living, majority = current.stage(stage), agreed(current, stage)
    if checkpoint(current, stage) is not None or any(s.parameters and s.parameters == majority for s in living):
        return False
    if current.reduction is not None:
        due = {task.shard: task.result for task in current.reduction.tasks if task.stage == stage}
        having = {shard for s in living for shard, digest in s.results.items() if digest == due.get(shard)}
        return having != due.keys() or all(s.parameters for s in living)
    if current.sum is not None:  # It is stored: whoever is alive can come to the state.
        return all(s.parameters for s in living)
    senders = {s.replica for s in living}
    wanted = contributions(current, current.contributors or (), stage)
    return not any(
        s.parameters is None and all(p in senders or s.held.get(p) == digest for p, digest in wanted.items())
        for s in living
    )


def must_store(current: Round, seat: Seat) -> bool:
    """The lowest living member of each stage that agrees with the most delivers the new state, where it must be stored."""
    if checkpoint(current, seat.stage) is not None:
        return False
    majority, kept = agreed(current, seat.stage), kept_state(current, seat.stage)
    fitting = [
        s for s in current.stage(seat.stage) if s.parameters == majority or not (s.parameters or current.overdue)
    ]
    keepers = [s for s in fitting if s.parameters is None or (kept is not None and s.manifest == kept.manifest)]
    if not current.store and len(keepers) >= KEEPERS:
        return False
    return bool(fitting) and fitting[0].lease == seat.lease


def contributions(current: Round, replicas: Iterable[int], stage: int) -> dict[int, Digest]:
    """Replica -> committed digest, for one stage."""
    wanted = set(replicas)
    return {
        seat.replica: seat.commit.pseudo_gradient
        for seat in current.seats
        if seat.stage == stage and seat.replica in wanted and seat.commit is not None
    }


def weights(current: Round, replicas: Iterable[int]) -> dict[int, int]:
    """What the updates of these replicas weigh."""
    return step_weights({replica: current.steps_of(replica) for replica in replicas})


def holds(current: Round, seat: Seat, replicas: Sequence[int]) -> bool:
    """Whether a member holds what these replicas committed to."""
    wanted = contributions(current, replicas, seat.stage)
    return all(seat.held.get(replica) == digest for replica, digest in wanted.items())


def _of_stage(current: Round, stage: int) -> list[Seat]:
    return sorted((s for s in current.seats if s.stage == stage), key=lambda s: s.replica)


def _most(digests: Sequence[Digest | None]) -> Digest | None:
    """The most frequent one, the first of those in a tie."""
    found = [digest for digest in digests if digest is not None]
    return max(found, key=found.count) if found else None
