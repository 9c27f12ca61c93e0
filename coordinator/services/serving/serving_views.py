"""A deployment as its owner reads it."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.deployments import who_answers
from coordinator.client.text import money
from coordinator.domain import serving as rules
from coordinator.domain.job import ENDINGS, LIVE, Job, JobState, Wish
from coordinator.domain.lease import Lease
from coordinator.domain.serving import Served
from coordinator.services.serving.homes import Homes
from coordinator.services.serving.offers import per_million
from protocol.rest.api import JobView, ServingView


def served(view: JobView, job: Job, leases: Sequence[Lease], done: Served, stages: int, homes: Homes) -> JobView:
    """The view of a job that answers; ``leases``: all of it. ``stages``: nodes of a replica."""
    held = [lease for lease in leases if lease.state != "ended" and lease.seat]
    by_replica = Counter(lease.replica for lease in held if lease.state == "ready")
    ready = sum(number == stages for number in by_replica.values())
    answering, waiting, usage = homes.now(job.id)
    answers, prompts = per_million(job.quote.parameters, job.quote.rate)
    all_of = done.plus(usage)
    serving = ServingView(
        ready=ready,
        loading=sum(lease.state == "starting" for lease in held),
        answering=answering,
        waiting=waiting,
        answers=all_of.answers,
        tokens=all_of.tokens,
        prompt_tokens=all_of.prompt,
        checked=done.checked,
        wrong=done.wrong,
        per_million=answers,
        per_million_prompt=prompts,
        per_hour=rules.hour(job.quote.parameters, job.quote.rate),
        stages=stages,
    )
    return msgspec.structs.replace(
        view,
        sentence=untrusted(sentence(job, view.reason, serving)),
        cost_projected=view.cost,
        eta_seconds=None,
        serving=serving,
    )


def sentence(job: Job, reason: str, serving: ServingView) -> str:
    """Where a deployment stands, in one sentence that is true. ``reason``: of its state, as people read it."""
    if job.wish in ENDINGS and job.state in LIVE:
        return (
            f"Ending, since {reason or 'it was asked for'}: the last answers are checked and paid, the rest goes back."
        )
    if job.wish is not Wish.NONE and job.state in LIVE:
        return (
            f"{'Stopping' if job.wish is Wish.STOP else 'Pausing'}: answers under way end first, for a minute at most."
        )
    match job.state:
        case JobState.CREATED:
            return f"Waiting for {money(job.spec.budget)} in escrow: until then nothing runs and nothing is spent."
        case JobState.FUNDED if serving.stages > 1:
            return f"Waiting for {serving.stages} free nodes that can hold the model together."
        case JobState.FUNDED:
            return "Waiting for a free node that can hold the model."
        case JobState.PLANNED:
            return _getting_ready(job, serving)
        case JobState.RUNNING:
            loads = "loads" if serving.loading == 1 else "load"
            more = f", {serving.loading} more {loads} the model" if serving.loading else ""
            return f"Serving: {who_answers(serving)}{more}."
        case JobState.PAUSED:
            return "Paused: no node holds the model, and nothing is spent."
        case JobState.VERIFYING:
            return "Over: the last answers are checked and paid."
        case JobState.SETTLED:
            return f"Over: {serving.tokens:,} tokens were answered, and it cost {money(job.paid)}."
        case JobState.FAILED | JobState.CANCELLED:
            word = "Failed" if job.state is JobState.FAILED else "Cancelled"
            return f"{word}: {reason or 'no reason was given'}. Right answers are paid, the rest goes back."


def _getting_ready(job: Job, serving: ServingView) -> str:
    if serving.loading:
        nodes = "1 node loads" if serving.loading == 1 else f"{serving.loading} nodes load"
        return f"Getting ready: {nodes} the model."
    if job.spec.serve is not None and job.spec.serve.idle_minutes is not None and not serving.waiting:
        return "Asleep: the next request has it seated again."
    return f"Waiting for nodes: {'none holds' if serving.stages == 1 else 'too few hold'} the model."
