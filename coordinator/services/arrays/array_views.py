"""An array job as its owner reads it."""

from collections.abc import Sequence

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.text import money
from coordinator.domain.arrays.tally import ArrayTally
from coordinator.domain.arrays.votes import ElementCourse
from coordinator.domain.job import ENDINGS, LIVE, Job, JobState, Wish
from coordinator.domain.lease import Lease
from protocol.job.array import ArrayElement
from protocol.rest.api import JobView
from protocol.rest.arrays import ArrayView, ElementStateName, ElementView


def with_array(view: JobView, job: Job, leases: Sequence[Lease], tally: ArrayTally) -> JobView:
    """The view of a job that runs containers."""
    assert job.spec.array is not None
    held = [lease for lease in leases if lease.state != "ended"]
    array = ArrayView(
        count=job.spec.array.count,
        done=tally.done,
        failed=tally.failed,
        nodes=sum(lease.state == "ready" for lease in held),
        starting=sum(lease.state == "starting" for lease in held),
        runs=tally.paid,
        checked=sum(track.checked for track in tally.nodes.values()),
        wrong=sum(track.wrong for track in tally.nodes.values()),
        looked=sum(track.looked for track in tally.nodes.values()),
        refused=sum(track.refused for track in tally.nodes.values()),
    )
    return msgspec.structs.replace(
        view,
        sentence=untrusted(sentence(job, view.reason, array)),
        cost_projected=view.cost,
        eta_seconds=None,
        array=array,
    )


def sentence(job: Job, reason: str, array: ArrayView) -> str:
    """Where it stands, in one sentence that is true. ``reason``: of its state, as people read it."""
    so_far = f"{array.done:,} of {array.count:,} elements are done" + (
        f", {array.failed:,} failed" if array.failed else ""
    )
    if job.wish in ENDINGS and job.state in LIVE:
        return f"Ending, since {reason or 'it was asked for'}: what is verified is paid, the rest goes back."
    if job.wish is not Wish.NONE and job.state in LIVE:
        return f"{'Stopping' if job.wish is Wish.STOP else 'Pausing'}: {so_far}."
    match job.state:
        case JobState.CREATED:
            return f"Waiting for {money(job.spec.budget)} in escrow: until then nothing runs and nothing is spent."
        case JobState.FUNDED:
            return "Waiting for a free node that runs containers."
        case JobState.PLANNED:
            return (
                f"Getting ready: {array.starting} {'node fetches' if array.starting == 1 else 'nodes fetch'} the image."
            )
        case JobState.RUNNING:
            return f"Running on {array.nodes} {'node' if array.nodes == 1 else 'nodes'}: {so_far}."
        case JobState.PAUSED:
            return f"Paused: {so_far}. Nothing runs and nothing is spent."
        case JobState.VERIFYING:
            return f"Over: {so_far}, and the last payments are made."
        case JobState.SETTLED:
            return f"Over: {so_far}, and it cost {money(job.paid)}."
        case JobState.FAILED | JobState.CANCELLED:
            word = "Failed" if job.state is JobState.FAILED else "Cancelled"
            return f"{word}: {reason or 'no reason was given'}. {so_far}; they are paid, the rest goes back."


def element_view(course: ElementCourse, element: ArrayElement) -> ElementView:
    """What became of an element."""
    running = course.running
    last = next((one for one in reversed(course.tries) if one.ended), None)
    shown = next((one for one in course.tries if one.paid), last)
    if course.state == "failed" and (said := [one for one in course.tries if one.of is not None and one.paid]):
        shown = said[-1]  # What refused it has more to say than what was refused.
    under_way: ElementStateName = "running" if running else "waiting"
    return ElementView(
        index=course.index,
        number=course.settled,
        name=untrusted(element.name),
        state=under_way if course.state == "open" else course.state,
        result=course.result,
        size=course.size,
        files=course.files,
        seconds=0.0 if shown is None else shown.seconds,
        runs=sum(one.ended and one.of is None for one in course.tries),
        code=None if shown is None or shown.outcome != "exited" else shown.code,
        reason=course.reason,
        tail=() if shown is None or course.state == "done" else shown.tail,
        nodes=tuple(dict.fromkeys(one.node for one in course.tries if one.paid and one.of is None)),
    )
