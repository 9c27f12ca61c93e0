"""Tasks and links as the status shows them."""

from collections.abc import Mapping

from common.untrusted_text import untrusted
from desktop.agent.app.status import LinkView, TaskView
from desktop.agent.arrays.held_array import HeldArray
from desktop.agent.jobs.tasks import HeldTask
from protocol.node import Assign
from transport.ice.stats import LinkStats


def task_view(task: HeldTask) -> TaskView:
    """One lease."""
    assign, progress, traffic = task.assign, task.bridge.progress, task.bridge.traffic
    return TaskView(
        lease=assign.lease,
        job=assign.job,
        job_name=assign.spec.name,
        stage=assign.stage,
        replica=assign.replica,
        state=task.state,
        reason=untrusted(task.reason),
        pid=task.pid,
        elements=task.done if isinstance(task, HeldArray) else None,
        round=progress.round if progress else None,
        step=progress.step if progress else None,
        loss=progress.loss if progress else None,
        activations=traffic.activations,
        bulk=traffic.bulk,
        wire=traffic.wire,
        naive=traffic.naive,
        artifacts=traffic.artifacts,
        dropped={verdict.value: count for verdict, count in task.bridge.dropped.items()},
        share=_share(assign, progress.step) if progress else None,
        shown=max(task.restored.rounds) if task.restored is not None else None,
        serves=task.serves,
        stages=len(assign.plan.layers),
        waits=task.waits and task.state == "running",
        loads=task.serves and task.loads and task.state in ("starting", "running"),
        fetched=task.tools.artifacts.arrived(assign.files.values()) if task.state == "fetching" else None,
    )


def _share(assign: Assign, step: int) -> float:
    """How much of the run's tokens is done after ``step`` steps of each replica."""
    training, replicas = assign.spec.training, {member.replica for member in assign.plan.members}
    return min(1.0, (step + 1) * training.batch * training.sequence * len(replicas) / training.tokens)


def link_views(links: Mapping[str, LinkStats]) -> tuple[LinkView, ...]:
    """The links, in the order of the peers' addresses."""
    return tuple(
        LinkView(
            peer=peer,
            state=str(link.state),
            rtt_ms=_milliseconds(link.rtt_s),
            route=link.pair,
            sent=link.wire_sent,
            received=link.wire_received,
            relayed=link.relayed,
            min_rtt_ms=_milliseconds(link.min_rtt_s),
            queue_ms=round(link.queue_s * 1000, 2),
            loss=link.loss,
            retransmitted=link.retransmitted,
            send_rate=link.send_rate,
            receive_rate=link.receive_rate,
            mtu=link.mtu,
            path_changes=link.path_changes,
        )
        for peer, link in sorted(links.items())
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
