"""What is stored of a member's commitment once its round is over."""

import msgspec

from coordinator.domain import pricing
from coordinator.domain.job import Job
from coordinator.domain.rounds.round import Round, Seat
from coordinator.store.records import CommitRecord
from protocol.ids import Digest


def commit_of(
    job: Job,
    over: Round,
    seat: Seat,
    payout: str,
    parameters: int,
    tokens: int,
    state: str,
    share: int,
    anchor: Digest | None,
) -> CommitRecord:
    """The record of a member that has committed; ``amount`` is its share while that may still be verified."""
    assert seat.commit is not None
    return msgspec.convert(
        {
            "job": job.id,
            "epoch": over.epoch,
            "round": over.number,
            "stage": seat.stage,
            "replica": seat.replica,
            "lease": seat.lease,
            "node": seat.node,
            "payout": payout,
            "root": seat.commit.root,
            "leaves": seat.commit.leaves,
            "pseudo_gradient": seat.commit.pseudo_gradient,
            "tokens": tokens,
            "operations": pricing.operations(parameters, tokens, job.spec.training.forward_passes),
            "drawable": state != "void",
            "state": state,
            "amount": share if state == "pending" else 0,
            "anchor": anchor,
            "carried": seat.commit.carried,
            "local": seat.local,
            "outer": seat.outer,
            "parameters": seat.parameters,
        },
        CommitRecord,
    )
