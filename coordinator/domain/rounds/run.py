"""Rounds in a row: who takes part in the next one, from which state, and what remains of one that ended.

The *anchor* is the state that a round begins from, equal on all replicas of a stage. Who applied the round before has it;
everyone else (a joiner, a member that was late or diverged, everybody after a void round) begins from the state that peers keep,
or from a checkpoint. Not every round's state is stored with the coordinator: where a stage's newest state has died with all who
kept it, the run goes back to the last round that is stored whole (``Base``), which costs rounds, not the run.
"""

from collections.abc import Sequence

import msgspec

from coordinator.domain.arrays.tally import ArrayTally
from coordinator.domain.audits.quorum import ask
from coordinator.domain.privacy import next_clip
from coordinator.domain.rounds.round import Round, Seat, agreed, checkpoint, kept_state
from coordinator.domain.rounds.seat import Commitment
from coordinator.domain.rounds.straggler_deadline import LATENESS
from coordinator.domain.rounds.summing import RoundSum
from coordinator.domain.serving import Join, Served
from protocol.ids import Digest, NodeAddress
from protocol.job.federated import AdaptiveClipping
from protocol.job.job import CrossingPlan, TrainingSpec
from protocol.job.rounds import Schedule, Stretch
from protocol.task import KeptState, Layers

EVALUATORS = 3  # Replicas of as many owners measure the held-out loss: the fewest of which one can be outvoted.
MAX_STRETCH = 4  # A run of fixed-time rounds takes at most so many times the planned ones, however slow its nodes are.
MAX_POINTS = 16  # Stored states that are remembered: with one in four rounds, findings reach back 64 rounds.
RESTORED_EPOCHS = 10_000  # By which each restore jumps ahead: more than a job makes in all its life.
MAX_FETCH_FAILURES = 3  # Void rounds in a row from a state that peers keep: then it is taken for lost.


class Holder(msgspec.Struct, frozen=True):
    """A lease on a seat whose worker is ready. ``owner``, ``env_class``: as in ``Seat``."""

    lease: str
    node: NodeAddress
    stage: int
    replica: int
    owner: str = ""
    env_class: str = ""


class Base(msgspec.Struct, frozen=True):
    """A point that the run can go back to: all stages' states are stored with the coordinator.

    Attributes:
        done, progress: as in ``Run``, then.
    """

    done: int = 0
    progress: int = 0


class RunPoint(msgspec.Struct, frozen=True):
    """Where a run stood, and every stage's state then."""

    base: Base
    checkpoints: tuple[Digest, ...]


class Moments(msgspec.Struct, frozen=True):
    """A seat's optimizer: who held the seat keeps its moments, and would best hold it again."""

    stage: int
    replica: int
    kept: KeptState


class PriceFrom(msgspec.Struct, frozen=True):
    """Where the price that is left begins to be spread over tokens; not 0 once rounds have to be done again."""

    tokens: int = 0
    spent: int = 0


class Run(msgspec.Struct, frozen=True):
    """The course of a job.

    Attributes:
        layers: the cut, fixed for the job: checkpoints belong to it.
        replicas: seats are ``stages x replicas``; fewer may take part.
        done: complete rounds, which is also the number of the next one.
        next_step: global index of the next round's first inner step.
        progress: inner steps of all contributors so far.
        base, checkpoints: the last stored point, and its states by stage; empty before the first is stored.
        kept: the anchor of round ``done`` by stage, as peers keep it; empty before the first round is complete.
        moments: the optimizer's moments at the anchor of each seat whose holder keeps them.
        store_every: rounds between two stored states.
        round_seconds, lateness: see ``TrainingSpec``.
        price_from: see ``PriceFrom``.
        current: leases whose workers hold that anchor.
        local: what leases carry into round ``done`` beside the anchor, by digest; only of methods that carry something.
        residues: what leases keep of their shards' last results, by digest; only of codecs that lose much.
        sharded_from: see ``protocol.job.sharding``.
        restarts: void rounds since the last complete one.
        evaluate: rounds that begin with a validation. ``evaluators``: replicas of different owners that measure the loss.
        members: leases of the last complete round, where it lost and corrected nobody.
        advanced: when the last round was completed.
        stretches: the rounds' lengths where they are not all ``inner_steps``.
        together: replicas exchange in every step, so a round that loses a member is done again by all.
        points: stored points, oldest first, as far as they are remembered.
        rollbacks: times that the run went back before a forged round.
        undrawn: complete rounds, by epoch and number, whose audits wait for a block of the ledger.
        asked_from: nothing is asked of rounds before this epoch: the coordinator was restored, and nobody opens a step twice.
        shares: replicas that windows are dealt to, of jobs that read in epochs; None: each replica reads them all.
        crossing: what the plan settled for a job that left it open, fixed for the job: a step is re-run as it was made.
        served: of a job that answers, which has periods of pay in place of rounds.
        joins: of such a job in several stages, the replicas that are whole, by number. ``secret``: that keys of sketches are made
            of, in hexadecimal.
        apart: pairs of nodes that said different things of what crossed between them: they share no replica any more.
        tally: of an array job, which has periods of pay, too.
        least: replicas without which no round begins or counts.
        unjudged: nobody measures the held-out loss: the data is its owners'.
        clip: of the next round's updates, where it follows them as ``clipping`` says.
        released: rounds that were begun, of a job whose updates have a privacy budget: what was sent once is spent, whatever
            became of its round. ``most``: so many rounds fit the budget; None: it has none.
        summed: values of an update, of a job whose rounds end with a sum that nobody sees into; 0: of others.
    """

    layers: tuple[Layers, ...]
    replicas: int
    total_steps: int
    inner_steps: int
    evaluate: tuple[int, ...]
    epoch: int = 0
    done: int = 0
    next_step: int = 0
    progress: int = 0
    base: Base = Base()
    checkpoints: tuple[Digest, ...] = ()
    kept: tuple[KeptState, ...] = ()
    moments: tuple[Moments, ...] = ()
    store_every: int = 1
    round_seconds: float | None = None
    lateness: float | None = None
    price_from: PriceFrom = PriceFrom()
    current: tuple[str, ...] = ()
    local: dict[str, Digest] = {}
    residues: dict[str, Digest] = {}
    sharded_from: int = 0
    members: tuple[str, ...] = ()
    restarts: int = 0
    finished: bool = False
    round: Round | None = None
    fence: int = 0
    advanced: float = 0.0
    stretches: tuple[Stretch, ...] = ()
    together: bool = False
    points: tuple[RunPoint, ...] = ()
    rollbacks: int = 0
    undrawn: tuple[tuple[int, int], ...] = ()
    crossing: CrossingPlan | None = None
    evaluators: int = EVALUATORS
    shares: int | None = None
    asked_from: int = 0
    served: Served = Served()
    joins: dict[int, Join] = {}
    secret: str = ""
    apart: tuple[tuple[NodeAddress, NodeAddress], ...] = ()
    tally: ArrayTally = ArrayTally()
    least: int = 1
    unjudged: bool = False
    released: int = 0
    most: int | None = None
    clip: float | None = None
    clipping: AdaptiveClipping | None = None
    summed: int = 0

    @property
    def spent(self) -> bool:
        """Whether no further round fits the privacy budget."""
        return self.most is not None and self.released >= self.most

    @property
    def total_rounds(self) -> int:
        """Rounds that train, as planned; the validation after them is one more."""
        return self.schedule.rounds

    @property
    def schedule(self) -> Schedule:
        """The rounds of the job."""
        return Schedule(self.stretches or (Stretch(self.total_steps, self.inner_steps),))

    @property
    def trained(self) -> bool:
        """Whether nothing but the last validation is left."""
        if self.round_seconds is None:
            return self.done >= self.total_rounds or self.spent
        return self.progress >= self.total_steps * self.replicas or self.done >= MAX_STRETCH * self.total_rounds


def training_of(run: Run | None, training: TrainingSpec) -> TrainingSpec:
    """What workers do: the document's, with what its plan has settled."""
    if run is None:
        return training
    settled = training if run.crossing is None else run.crossing.applied(training)
    return settled if run.shares is None else msgspec.structs.replace(settled, shares=run.shares)


def lateness_of(training: TrainingSpec) -> float | None:
    """How late a replica may be; None: nobody is left behind."""
    return LATENESS if training.lateness is None and training.round_seconds is not None else training.lateness


def whole_replicas(run: Run, holders: Sequence[Holder]) -> tuple[int, ...]:
    """Replicas with a ready holder on every stage, in order."""
    seated = {(holder.stage, holder.replica) for holder in holders}
    stages = range(len(run.layers))
    return tuple(p for p in range(run.replicas) if all((s, p) in seated for s in stages))


def begin(run: Run, holders: Sequence[Holder], now: float) -> Run:
    """Put the next round in flight with every whole replica; unchanged if there is none, or one is in flight.

    The last round, which only validates, takes the replicas that measure the loss.
    """
    replicas = whole_replicas(run, holders)
    if run.round is not None or run.finished or len(replicas) < max(1, run.least):
        return run
    last = run.trained
    validate = last or run.done in run.evaluate
    asked = ask(_owners(holders, replicas), run.evaluators, f"{run.done}:{run.restarts}") if validate else ()
    replicas = asked if last else replicas
    planned, steps = run.schedule.round(run.done)
    taking = sorted((h for h in holders if h.replica in replicas), key=lambda h: (h.replica, h.stage))
    seats = tuple(_seat(run, h) for h in taking)
    # Other members, or a round that is done again, make another epoch: their messages cannot be mixed up.
    epoch = run.epoch if tuple(h.lease for h in taking) == run.members else run.epoch + 1
    if epoch == run.epoch:  # Other members cut other shards.
        seats = tuple(msgspec.structs.replace(seat, residue=run.residues.get(seat.lease)) for seat in seats)
    if run.round_seconds is not None:
        steps = 0 if last else _steps(run, len(replicas))
    started = Round(
        epoch=epoch,
        number=run.done,
        first_step=run.next_step,
        steps=steps,
        total_steps=run.total_steps,
        validate=validate,
        asked=asked,
        layers=run.layers,
        seats=seats,
        started=now,
        together=run.together and not last,
        sharded=0 < run.sharded_from <= len(replicas),
        seconds=run.round_seconds,
        rate_step=_rate_step(run, planned),
        lateness=run.lateness,
        store=_is_stored(run, steps),
        least=run.least,
        clip=run.clip,
        sum=RoundSum(run.summed, run.least) if run.summed else None,
    )
    return msgspec.structs.replace(run, epoch=epoch, round=started, released=run.released + 1)


def close(run: Run) -> Run:
    """Take the round that is complete or void out of flight; unchanged while it is neither.

    Where nobody measures the loss, the last one that trains, or that the budget allows, ends the run.
    """
    after = _closed(run)
    if after.unjudged and after.round is None and after.trained:
        return msgspec.structs.replace(after, finished=True)
    return after


def _closed(run: Run) -> Run:
    over = run.round
    if over is None or over.phase not in ("complete", "void"):
        return run
    if over.phase == "void":
        kept = run.current if over.steps == 0 else ()  # A validation changes nobody's parameters.
        return msgspec.structs.replace(run, round=None, current=kept, members=(), restarts=run.restarts + 1)
    if over.steps == 0:
        return msgspec.structs.replace(run, round=None, finished=True, restarts=0)
    stages = range(len(run.layers))
    majority = [agreed(over, stage) for stage in stages]
    current = tuple(s.lease for s in over.seats if s.alive and s.parameters == majority[s.stage])
    after = msgspec.structs.replace(
        run,
        round=None,
        done=run.done + 1,
        current=current,
        restarts=0,
        local=_carried(over, current),
        residues={s.lease: after for s in over.seats if (after := _residue(s)) is not None},
        members=current if len(current) == len(over.seats) else (),
        clip=_next_clip(run, over),
        next_step=over.first_step + over.steps,
        progress=run.progress + over.contributed(),
        kept=tuple(state for stage in stages if (state := kept_state(over, stage))),
        moments=tuple(
            Moments(s.stage, s.replica, KeptState(s.own, (s.node,))) for s in over.seats if s.own and s.lease in current
        ),
    )
    stored = tuple(digest for stage in stages if (digest := checkpoint(over, stage)))
    if len(stored) < len(run.layers):
        return after
    base = Base(after.done, after.progress)
    points = (*after.points, RunPoint(base, stored))[-MAX_POINTS:]
    return msgspec.structs.replace(after, checkpoints=stored, base=base, points=points)


def _next_clip(run: Run, over: Round) -> float | None:
    """Where the clip follows the updates: that after a round whose contributors have told whether theirs were within it."""
    if run.clip is None or run.clipping is None:
        return run.clip
    if over.sum is not None:
        mean = over.sum.beside.get("unclipped")
        told = [] if mean is None else [(1 + mean) / 2]
    else:
        told = [commit.unclipped for commit in counted(over) if commit.unclipped is not None]
    return next_clip(run.clip, told, run.clipping.quantile, run.clipping.rate)


def counted(over: Round) -> list[Commitment]:
    """What the contributors of a round have committed to."""
    chosen = over.contributors or ()
    return [seat.commit for seat in over.seats if seat.replica in chosen and seat.commit is not None]


def era(run: Run) -> int:
    """Epoch of what a job without rounds stores: that of the last restore, so that nothing has the number of what it forgot."""
    return run.epoch // RESTORED_EPOCHS * RESTORED_EPOCHS


def is_lost(run: Run, holders: Sequence[Holder]) -> bool:
    """Whether the next round's anchor cannot be had any more: some stage has nobody who keeps it, and it is not stored."""
    if run.round is not None or run.finished or run.done == run.base.done:
        return False
    if len(run.kept) < len(run.layers) or run.restarts >= MAX_FETCH_FAILURES:
        return True
    here = {(holder.stage, holder.node) for holder in holders}  # Peers of one stage are linked; others are not.
    return any(here.isdisjoint((stage, node) for node in state.holders) for stage, state in enumerate(run.kept))


def go_back(run: Run, before: int | None = None) -> Run:
    """Begin again from the last stored point, or the last one that nothing of round ``before`` went into.

    That is the very beginning where no such point is remembered. The round in flight, if any, is given up. ``next_step`` stays:
    rounds that are done again take other samples, or whoever kept what it had sent could send it again and be paid twice.
    """
    points = run.points
    base, checkpoints = run.base, run.checkpoints
    if before is not None:
        points = tuple(point for point in points if point.base.done <= before)
        base, checkpoints = (points[-1].base, points[-1].checkpoints) if points else (Base(), ())
    return msgspec.structs.replace(
        run,
        base=base,
        checkpoints=checkpoints,
        points=points,
        round=None,
        done=base.done,
        progress=base.progress,
        current=(),
        members=(),
        local={},
        residues={},
        kept=(),
        moments=(),
    )


def beyond_repair(run: Run) -> frozenset[str]:
    """Leases to end before a void round is done again.

    Before the first checkpoint nothing can put a worker that has applied an update back to the beginning but a new start. Once
    it was decided who contributes, each may have applied it, whether its report has come or not.
    """
    over = run.round
    if over is None or over.phase != "void" or run.checkpoints or run.kept or over.contributors is None:
        return frozenset()
    return frozenset(seat.lease for seat in over.seats if seat.alive)


def evaluations(total_rounds: int, between: int) -> tuple[int, ...]:
    """Rounds that begin with a validation: the first, and ``between`` more spread over the job."""
    return tuple(sorted({0} | {total_rounds * i // (between + 1) for i in range(1, between + 1)}))


def _owners(holders: Sequence[Holder], replicas: Sequence[int]) -> dict[int, frozenset[str]]:
    """Whose computers each replica is made of; a node whose owner is not known counts for itself."""
    return {p: frozenset(h.owner or h.node for h in holders if h.replica == p) for p in replicas}


def _carried(over: Round, current: tuple[str, ...]) -> dict[str, Digest]:
    """What living members carry on: what they committed to where that counted, else what they had brought."""
    carried = {}
    for seat in over.seats:
        counted = seat.commit is not None and seat.replica in (over.contributors or ())
        local = seat.commit.carried if counted and seat.commit is not None else seat.local
        if seat.lease in current and local is not None:
            carried[seat.lease] = local
    return carried


def _residue(seat: Seat) -> Digest | None:
    """What a member keeps of its own shard."""
    reduced = () if seat.outer is None else seat.outer.reduced
    return next((record.after for record in reduced if record.shard == seat.replica), None)


def _rate_step(run: Run, planned: int) -> int | None:
    """Where the learning rate's schedule stands, if not at the next step's global index."""
    if run.round_seconds is not None:
        return min(run.total_steps, run.progress // run.replicas)
    return None if planned == run.next_step else planned


def _steps(run: Run, replicas: int) -> int:
    """The most steps of a round of fixed time."""
    return min(run.inner_steps, -(-(run.total_steps * run.replicas - run.progress) // replicas))


def _is_stored(run: Run, steps: int) -> bool:
    """Every few rounds, and whenever this may be the last one: the model is put together from what is stored."""
    ends = run.done + 1 >= run.total_rounds if run.round_seconds is None else _may_end(run, steps)
    ends = ends or (run.most is not None and run.released + 1 >= run.most)
    return steps > 0 and (ends or (run.done + 1) % run.store_every == 0)


def _may_end(run: Run, steps: int) -> bool:
    return (
        run.progress + steps * run.replicas >= run.total_steps * run.replicas
        or run.done + 1 >= MAX_STRETCH * run.total_rounds
    )


def _seat(run: Run, holder: Holder) -> Seat:
    """A member of the next round, with the state that it needs."""
    seat = Seat(holder.lease, holder.node, holder.stage, holder.replica, owner=holder.owner, env_class=holder.env_class)
    if holder.lease in run.current:
        return msgspec.structs.replace(seat, local=run.local.get(holder.lease))
    stored = run.checkpoints[holder.stage] if run.checkpoints and run.base.done == run.done else None
    kept = run.kept[holder.stage] if len(run.kept) == len(run.layers) else None
    if kept is not None and not kept.holders:
        kept = None  # All who kept it have left; it is stored, or the run would have gone back.
    own = next((m.kept for m in run.moments if (m.stage, m.replica) == (holder.stage, holder.replica)), None)
    return msgspec.structs.replace(seat, state=stored, kept=kept, moments=own)
