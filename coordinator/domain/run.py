"""Rounds in a row: who takes part in the next one, from which state, and what remains of one that ended.

The *anchor* is the state that a round begins from, equal on all replicas of a stage. Who applied the round before has it;
everyone else (a joiner, a member that diverged, everybody after a void round) begins from the stage's checkpoint.
"""

from collections.abc import Sequence

import msgspec

from coordinator.domain.round import Round, Seat, agreed, checkpoint
from transport.wire.ids import Digest, NodeAddress
from transport.wire.rounds import Schedule, Stretch
from transport.wire.task import Layers


class Holder(msgspec.Struct, frozen=True):
    """A lease on a seat whose worker is ready."""

    lease: str
    node: NodeAddress
    stage: int
    replica: int


class Run(msgspec.Struct, frozen=True):
    """The course of a job.

    Attributes:
        layers: the cut, fixed for the job: checkpoints belong to it.
        replicas: seats are ``stages x replicas``; fewer may take part.
        done: complete rounds, which is also the number of the next one.
        checkpoints: the anchor of round ``done`` by stage; empty before the first round is complete.
        current: leases whose workers hold that anchor.
        local: what leases carry into round ``done`` beside the anchor, by digest; only of methods that carry something.
        restarts: void rounds since the last complete one.
        evaluate: rounds that begin with a validation.
        members: leases of the last complete round, where it lost and corrected nobody.
        advanced: when the last round was completed.
        stretches: the rounds' lengths where they are not all ``inner_steps``.
        together: replicas exchange in every step, so a round that loses a member is done again by all.
    """

    layers: tuple[Layers, ...]
    replicas: int
    total_steps: int
    inner_steps: int
    evaluate: tuple[int, ...]
    epoch: int = 0
    done: int = 0
    checkpoints: tuple[Digest, ...] = ()
    current: tuple[str, ...] = ()
    local: dict[str, Digest] = {}
    members: tuple[str, ...] = ()
    restarts: int = 0
    finished: bool = False
    round: Round | None = None
    fence: int = 0
    advanced: float = 0.0
    stretches: tuple[Stretch, ...] = ()
    together: bool = False

    @property
    def total_rounds(self) -> int:
        """Rounds that train; the validation after them is one more."""
        return self.schedule.rounds

    @property
    def schedule(self) -> Schedule:
        """The rounds of the job."""
        return Schedule(self.stretches or (Stretch(self.total_steps, self.inner_steps),))


def whole_replicas(run: Run, holders: Sequence[Holder]) -> tuple[int, ...]:
    """Replicas with a ready holder on every stage, in order."""
    seated = {(holder.stage, holder.replica) for holder in holders}
    stages = range(len(run.layers))
    return tuple(p for p in range(run.replicas) if all((s, p) in seated for s in stages))


def begin(run: Run, holders: Sequence[Holder], now: float) -> Run:
    """Put the next round in flight with every whole replica; unchanged if there is none, or one is in flight.

    The last round, which only validates, takes one replica: the lowest whole one.
    """
    replicas = whole_replicas(run, holders)
    if run.round is not None or run.finished or not replicas:
        return run
    last = run.done >= run.total_rounds
    replicas = replicas[:1] if last else replicas
    first, steps = run.schedule.round(run.done)
    taking = sorted((h for h in holders if h.replica in replicas), key=lambda h: (h.replica, h.stage))
    seats = tuple(_seat(run, holder) for holder in taking)
    # Other members, or a round that is done again, make another epoch: their messages cannot be mixed up.
    epoch = run.epoch if tuple(h.lease for h in taking) == run.members else run.epoch + 1
    started = Round(
        epoch=epoch,
        number=run.done,
        first_step=first,
        steps=steps,
        total_steps=run.total_steps,
        validate=last or run.done in run.evaluate,
        layers=run.layers,
        seats=seats,
        started=now,
        together=run.together and not last,
    )
    return msgspec.structs.replace(run, epoch=epoch, round=started)


def close(run: Run) -> Run:
    """Take the round that is complete or void out of flight; unchanged while it is neither."""
    over = run.round
    if over is None or over.phase not in ("complete", "void"):
        return run
    if over.phase == "void":
        kept = run.current if over.steps == 0 else ()  # A validation changes nobody's parameters.
        return msgspec.structs.replace(run, round=None, current=kept, members=(), restarts=run.restarts + 1)
    if over.steps == 0:
        return msgspec.structs.replace(run, round=None, finished=True, restarts=0)
    majority = [agreed(over, stage) for stage in range(len(run.layers))]
    current = tuple(s.lease for s in over.seats if s.alive and s.parameters == majority[s.stage])
    digests = tuple(digest for stage in range(len(run.layers)) if (digest := checkpoint(over, stage)))
    members = current if len(current) == len(over.seats) else ()
    return msgspec.structs.replace(
        run, round=None, done=run.done + 1, checkpoints=digests, current=current, members=members, restarts=0,
        local=_carried(over, current),
    )  # fmt: skip


def beyond_repair(run: Run) -> frozenset[str]:
    """Leases to end before a void round is done again.

    Before the first checkpoint nothing can put a worker that has applied an update back to the beginning but a new start.
    """
    over = run.round
    if over is None or over.phase != "void" or run.checkpoints:
        return frozenset()
    return frozenset(seat.lease for seat in over.seats if seat.alive and seat.parameters is not None)


def evaluations(total_rounds: int, between: int) -> tuple[int, ...]:
    """Rounds that begin with a validation: the first, and ``between`` more spread over the job."""
    return tuple(sorted({0} | {total_rounds * i // (between + 1) for i in range(1, between + 1)}))


def _carried(over: Round, current: tuple[str, ...]) -> dict[str, Digest]:
    """What living members carry on: what they committed to where that counted, else what they had brought."""
    carried = {}
    for seat in over.seats:
        counted = seat.commit is not None and seat.replica in (over.contributors or ())
        local = seat.commit.carried if counted and seat.commit is not None else seat.local
        if seat.lease in current and local is not None:
            carried[seat.lease] = local
    return carried


def _seat(run: Run, holder: Holder) -> Seat:
    state = _state(run, holder)
    local = run.local.get(holder.lease) if state is None else None
    return Seat(holder.lease, holder.node, holder.stage, holder.replica, state, local=local)


def _state(run: Run, holder: Holder) -> Digest | None:
    if holder.lease in run.current or not run.checkpoints:
        return None
    return run.checkpoints[holder.stage]
