"""Records turned into the resources of the interface."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from common.untrusted_text import Untrusted, untrusted
from coordinator.domain.arrays.tally import ArrayTally
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, Evaluated, Job, JobState
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.run import Run
from coordinator.domain.serving import Served
from coordinator.services.views import job_summary
from coordinator.store.records import CommitRecord, EventRecord, MetricRecord, NodeRecord, OutboxRecord, RoundRecord
from protocol.evaluation import EvaluationView
from protocol.job.job import total_steps
from protocol.rest import api
from protocol.task import Traffic

NodeState = Literal["starting", "ready", "training", "waiting", "spare", "auditor", "lost", "rejected", "done"]
TrafficOf = Callable[[Lease], Traffic | None]
NO_TRAFFIC = Traffic(0, 0, 0, 0, 0)


class JobResources(msgspec.Struct, frozen=True):
    """What a job's view takes from beyond the job itself.

    Attributes:
        now: in Unix seconds. cost: of all work so far, in millionths.
        position: among the jobs that wait for nodes, from 1. checkpoint: rounds in the newest one.
        looks: steps that wait for one of the operator's auditors.
        served: what a deployment has done, in periods that were counted. ``stages``: nodes of a replica of it.
        tally: what an array job has come to. ``run``: its course, once it has one.
    """

    now: float
    cost: int = 0
    position: int | None = None
    checkpoint: int = 0
    looks: int = 0
    served: Served = Served()
    stages: int = 1
    tally: ArrayTally = ArrayTally()
    run: Run | None = None


def job_view(job: Job, leases: Sequence[Lease], traffic_of: TrafficOf, reason: str, place: JobResources) -> api.JobView:
    """A job with everything that its page shows at the top. ``reason``: the job's, as people read it."""
    training, replicas = job.spec.training, job.quote.replicas
    per_step = training.batch * training.sequence * replicas if job.spec.trains else 0
    total = total_steps(training, max(1, replicas)) * per_step
    traffic = [traffic_of(lease) or NO_TRAFFIC for lease in leases]
    ready = job_summary.ready(job, place.now)
    return api.JobView(
        id=job.id,
        name=job.name,
        state=job.state.value,
        reason=untrusted(reason),
        spec=job.spec,
        submitter=job.submitter,
        created=job.created,
        ended=job.ended,
        quote=job.quote,
        rounds_total=job.quote.rounds,
        rounds_done=job.rounds_done,
        tokens_done=job.tokens_done,
        tokens_total=total,
        tokens_per_second=job.tokens_per_second,
        train_loss=job.train_loss,
        validation_loss=job.validation_loss,
        first_validation_loss=job.first_validation_loss,
        escrow=job.escrow,
        paid=job.paid,
        refunded=job.refunded,
        bytes_sent=sum(t.wire for t in traffic),
        bytes_naive=sum(t.naive for t in traffic),
        bytes_artifacts=sum(t.artifacts for t in traffic),
        audits=job.audits,
        model=job.model if job.state is JobState.SETTLED else None,  # Before, its payment could still go back.
        eta_seconds=None if ready is None else max(0.0, ready.likely - job.pace.at),
        sentence=untrusted(job_summary.sentence(job, leases, place.position, reason, place.looks)),
        queue_position=place.position,
        wish=job.wish.value,
        ready_likely=None if ready is None else ready.likely,
        ready_low=None if ready is None else ready.low,
        ready_high=None if ready is None else ready.high,
        cost=place.cost,
        cost_projected=job_summary.projected(job, place.cost),
        cap=min(job.quote.price, job.spec.budget),
        checkpoint=place.checkpoint,
        shared=job.shared,
        agreement=job.agreement,
        preference=job.preference,
        evaluation=_evaluation(job),
    )


def _evaluation(job: Job) -> EvaluationView | None:
    """None where no tasks are asked for, or there is no model to try."""
    if not job.evaluating or job.state in (JobState.FAILED, JobState.CANCELLED):
        return None
    found = job.evaluated or Evaluated()
    return EvaluationView(job.evaluating, found.rows, found.note)


def job_nodes(
    job: Job,
    run: Run | None,
    leases: Sequence[Lease],
    commits: Sequence[CommitRecord],
    audits: Sequence[Audit],
    paid_rows: frozenset[int],
    nodes: Sequence[NodeRecord],
    traffic_of: TrafficOf,
) -> list[api.JobNode]:
    """Each node's part: its newest lease says where it is, all its leases and commits what it did."""
    by_node: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        by_node[lease.node].append(lease)
    profiles = {node.address: node.profile for node in nodes}
    found: list[api.JobNode] = []
    for node, held in by_node.items():
        newest = next((lease for lease in held if lease.state != "ended"), held[-1])
        done = [c for c in commits if c.node == node and c.state != "void"]
        good = [c for c in done if c.state == "verified"]
        judged = [audit.state for audit in audits if audit.node == node and not audit.canary]
        checked, wrong = (0, 0) if run is None else run.served.nodes.get(node, (0, 0))
        found.append(
            api.JobNode(
                node=node,
                name=profiles[node].name if node in profiles else untrusted(""),
                device=profiles[node].device if node in profiles else untrusted(""),
                stage=newest.stage,
                replica=newest.replica,
                state=_node_state(job, run, newest, auditor=node in profiles and profiles[node].auditor),
                rounds=len(done),
                steps=sum(c.leaves for c in done),
                tokens=sum(c.tokens for c in done),
                operations=sum(c.operations for c in done),
                audits_passed=judged.count("passed") + checked - wrong,
                audits_failed=judged.count("failed") + wrong,
                verified=sum(c.amount for c in good),
                paid=sum(c.amount for c in good if c.settlement in paid_rows),
                bytes_sent=sum((traffic_of(lease) or NO_TRAFFIC).wire for lease in held),
            )
        )
    return sorted(found, key=lambda n: (n.stage is None, n.replica or 0, n.stage or 0, n.node))


def round_view(record: RoundRecord) -> api.RoundView | None:
    """A round that counts; None for one that was done again."""
    if record.state == "void":
        return None
    return api.RoundView(
        round=record.number,
        epoch=record.epoch,
        state=record.state,
        tokens=record.tokens,
        train_loss=record.train_loss,
        validation_loss=record.validation_loss,
        contributors=record.contributors,
        started=record.started,
        ended=record.ended,
        agreement=record.agreement,
        preference=record.preference,
    )


def commit_view(record: CommitRecord, signature: str) -> api.CommitView:
    """A commitment. ``signature``: of what paid it."""
    return api.CommitView(
        round=record.round,
        epoch=record.epoch,
        stage=record.stage,
        replica=record.replica,
        node=record.node,
        root=record.root,
        leaves=record.leaves,
        tokens=record.tokens,
        operations=record.operations,
        drawable=record.drawable,
        state=record.state,
        amount=record.amount,
        signature=signature,
    )


def audit_view(audit: Audit, detail: Untrusted) -> api.AuditView:
    """An audit; the auditor shown is the one at work, or the last that judged. ``detail``: as people read it."""
    last = audit.verdicts[-1].auditor if audit.verdicts else None
    return api.AuditView(
        audit=audit.id,
        round=audit.round,
        step=audit.step,
        stage=audit.stage,
        replica=audit.replica,
        node=audit.node,
        auditor=audit.auditor or last,
        state=audit.state,
        detail=detail,
        blame=audit.blame,
        deadline=audit.deadline if audit.unopened else None,
        away=audit.away if audit.unopened else None,
    )


def receipt(record: OutboxRecord, detail: Untrusted) -> api.Receipt:
    """A ledger transaction. ``detail``: as people read it."""
    return api.Receipt(record.kind, record.signature, record.state, record.amount, record.created, detail, record.id)


def event_view(record: EventRecord, text: Untrusted) -> api.JobEvent:
    """A line of the timeline. ``text``: as people read it."""
    return api.JobEvent(record.id, record.time, record.kind, text)


def metric_view(record: MetricRecord) -> api.Metric:
    """A point of a loss curve."""
    return api.Metric(record.round, record.step, record.tokens, record.kind, record.loss, record.time)


def node_view(record: NodeRecord, online: bool, busy: bool) -> api.NodeView:
    """A node as the network page shows it."""
    profile = record.profile
    return api.NodeView(
        node=record.address,
        payout=record.payout,
        name=profile.name,
        device=profile.device,
        kind=profile.kind,
        memory_mb=profile.memory_mb,
        flops=profile.flops,
        sandbox=profile.sandbox,
        online=online,
        busy=busy,
        banned=record.banned,
        stake=record.stake,
        earned=record.earned,
        since=record.since,
        auditor=profile.auditor,
    )


def _node_state(job: Job, run: Run | None, lease: Lease, *, auditor: bool) -> NodeState:
    """One word for where a node is in a job."""
    if lease.state == "ended":
        return "done" if lease.end in ("stopped", "replaced") else "rejected" if lease.end == "rejected" else "lost"
    if lease.state == "starting":
        return "starting"
    if lease.seat is None:
        return "auditor" if auditor else "spare"
    current = run.round if run is not None and job.state in LIVE else None
    seat = current.seat(lease.id) if current is not None else None
    if current is None or seat is None:
        return "waiting" if job.rounds_done else "ready"
    return "training" if seat.commit is None and seat.replica in current.whole() else "waiting"
