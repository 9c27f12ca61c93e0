"""A model that answers on nodes: the document that asks for it, and the words for it on the pages and the command line."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from common.untrusted_text import Untrusted
from coordinator.client.errors import ProblemError
from coordinator.client.text import count, money
from protocol.asking import template_text
from protocol.job.job import ServeSpec
from protocol.rest import api

REPLICAS, HOURS = 1, 8.0
MOST_STAGES = 16  # As ``ServeSpec.stages``.
OFTEN = 2  # Where no budget is named: as much again for answers as being ready costs.
MOST_NAME = 100  # Characters of a job's name.
AT_HOMES = " at homes"
MEMORY_OF = "its cache for answers, and the programs"
WEIGHTS: Mapping[str, str] = {
    "float32": "the model in float32",
    "int8": "the model with its matrices in 8 bits (int8)",
    "nf4": "the model with its matrices in 4 bits (nf4)",
}
"""What nodes hold, by ``ServeSpec.weights``."""
WEIGHTS_LABELS: Mapping[str, str] = {"float32": "float32", "int8": "8 bits (int8)", "nf4": "4 bits (nf4)"}
QUESTION = "What colour is a lemon?"

SERVING_SENTENCES: dict[api.JobStateName, str] = {
    "created": "Waiting for its escrow: nothing runs and nothing is spent until it is funded.",
    "funded": "The budget is in escrow. Nodes are being chosen.",
    "planned": "Nodes are loading the model.",
    "running": "It answers.",
    "paused": "Paused: nothing answers and nothing is spent until it is resumed.",
    "verifying": "It answers no more. The last checks and payments are under way.",
    "settled": "Done: what was answered is paid, the rest is refunded.",
    "failed": "Failed: what was answered is paid, the rest is refunded.",
    "cancelled": "Cancelled: what was answered is paid, the rest is refunded.",
}

_POINT = re.compile(r"([0-9a-f]{32})@([1-9][0-9]{0,8})")
_READY = frozenset({"ready", "training", "waiting"})


def seat_word(node: api.JobNode, nodes: Sequence[api.JobNode], stages: int) -> str:
    """What a node's state is called where it answers with a model; ``stages``: of ``nodes`` that hold one replica."""
    if node.state not in _READY:
        return "loading" if node.state == "starting" else node.state
    ready = sum(other.replica == node.replica and other.state in _READY for other in nodes)
    return "answers" if ready >= stages else "waits for the others"


def deployment_document(
    model: str | Mapping[str, Any],
    budget: int,
    replicas: int = REPLICAS,
    hours: float = HOURS,
    round_: int | None = None,
    context: int | None = None,
    name: str = "",
    idle_minutes: int | None = None,
    stages: int | None = None,
    weights: str = "float32",
    adapters: Sequence[str] = (),
    draft: str | Mapping[str, Any] | None = None,
    draft_tokenizer: str | None = None,
) -> dict[str, Any]:
    """The job document that has a model answer on nodes.

    ``model``: a job that made it, or where its files are; ``draft``: the same of a draft model, with ``JOB@N`` for a checkpoint.
    ``draft_tokenizer``: the uploaded one of a draft model's files. ``adapters``: jobs whose adapters of it answer, too.
    """
    serve: dict[str, Any] = {
        "replicas": replicas,
        "context": context,
        "idle_minutes": idle_minutes,
        "stages": stages,
        "weights": weights,
    }
    if adapters:
        serve["adapters"] = [{"job": job} for job in adapters]
    if draft:
        job, after = point_of(draft) if isinstance(draft, str) else ("", None)
        point = {} if after is None else {"from_round": after}
        serve["draft"] = {"from_job": job, **point} if isinstance(draft, str) else dict(draft)
    if draft_tokenizer:
        serve["draft_tokenizer"] = draft_tokenizer
    given = {"from_job": model, "from_round": round_} if isinstance(model, str) else dict(model)
    return {
        "name": name or deployment_name(str(given.get("from_job") or "a model")[:8]),
        "model": given,
        "serve": serve,
        "budget": budget,
        "deadline_hours": hours,
    }


def point_of(named: str) -> tuple[str, int | None]:
    """A job and its checkpoint, of ``JOB@N``; without one, or where it is no such name, what was named."""
    found = _POINT.fullmatch(named)
    return (named, None) if found is None else (found[1], int(found[2]))


def deployment_name(model: str) -> str:
    """What a deployment is called where nobody names it."""
    return f"{model[: MOST_NAME - len(AT_HOMES)]}{AT_HOMES}"


def usual_budget(quote: api.Quote) -> int:
    """The budget where none is named: what being ready for all the hours costs, and as much again for answers.

    ``quote``: of a budget that is too small, whose price is the least that there may be.
    """
    return max(1, quote.price, OFTEN * quote.price_low)


def usual_words(quote: api.Quote, budget: int) -> str:
    """What ``usual_budget`` is, in words."""
    if budget > OFTEN * quote.price_low:
        return "the least that a job has in escrow here"
    return "twice what being ready costs"


def memory_words(quote: api.Quote) -> str:
    """What a node must have room for: ``932 MB on each node: ...``."""
    if not quote.memory_mb_per_stage:
        return "not planned"
    return f"{max(quote.memory_mb_per_stage):,} MB on each node: {WEIGHTS[quote.weights]}, {MEMORY_OF}"


def bits_words(serve: ServeSpec) -> str:
    """What is said behind "the model" of how nodes hold it; empty: as float32."""
    return "" if serve.weights == "float32" else f", its matrices in {WEIGHTS_LABELS[serve.weights]}"


def draft_words(serve: ServeSpec) -> str:
    """Which model drafts, in words; empty: none does."""
    if (draft := serve.draft) is None:
        return ""
    if draft.from_job is not None:
        after = f" after round {draft.from_round}" if draft.from_round else ""
        return f"the model of job {draft.from_job}{after} drafts on the first node of a replica of several"
    called = f"{draft.hub} of the Hugging Face Hub" if draft.hub else "a small model that was sent for it"
    return f"{called} drafts on the first node of a replica of several"


def serves(document: Mapping[str, Any]) -> bool:
    """Whether a job document is one of a deployment."""
    return document.get("serve") is not None


def makes_none(job: str, of: str | None) -> str:
    """Why a deployment has no model that another job could have. ``of``: the job whose model it serves, if any."""
    return f"job {job} serves {'a model that was given to it' if of is None else 'the model of another job'} and makes none"


def check_served(source: api.JobView, round_: int | None, way_to_round: str = "--round {}") -> None:
    """See that a job has the model that is to be served.

    Args:
        way_to_round: how a checkpoint is named.
    Raises:
        ProblemError: it serves one itself, or has none yet.
    """
    if source.spec.array is not None:
        detail = f"job {source.id} runs containers and makes no model: name one that trains"
        raise ProblemError(422, "invalid", detail, "model.from_job")
    if source.spec.serve is not None:
        of, way = source.spec.model.from_job, "`cottage deploy` takes that model's folder, or its name on the Hub"
        way = way if of is None else f"name that one: {of}"
        raise ProblemError(422, "invalid", f"{makes_none(source.id, of)}: {way}", "model.from_job")
    if round_ is None and source.model is None:
        way = "it is served once it is verified"
        if source.checkpoint:
            way = f"its checkpoint after round {source.checkpoint} can be ({way_to_round.format(source.checkpoint)})"
        detail = f"job {source.id} is {source.state} and has no finished model: {way}"
        raise ProblemError(409, "conflict", detail, "model.from_job")


def adapter_models(view: api.JobView) -> list[tuple[str, Untrusted]]:
    """The names that a deployment's adapters have at ``/v1``, with what their jobs are called."""
    adapters = () if view.spec.serve is None else view.spec.serve.adapters
    return [(f"{view.id}:{one.job}", one.name or Untrusted(one.job[:8])) for one in adapters]


def answers(view: api.JobView) -> bool:
    """Whether a deployment's first node answers."""
    return view.state == "running" or (view.serving is not None and view.serving.ready > 0)


def chats(view: api.JobView) -> bool:
    """Whether a job's model has a chat template, as far as its document says so."""
    return bool(template_text(view.spec.tokenizer.settings))


def never_chats(view: api.JobView) -> bool:
    """Whether a deployment is known to have no chat template; its document says so once it is created."""
    return view.spec.serve is not None and view.spec.tokenizer.kind == "file" and not chats(view)


def texts_only(chat: bool) -> str:
    """What is told of a model that has no chat template; empty of one that has."""
    return (
        "" if chat else "it has no chat template: programs ask it at /v1/completions, /v1/chat/completions refuses them"
    )


def curl_of(address: str, model: str, chat: bool) -> str:
    """A command that asks a model. ``address``: of the coordinator."""
    said = f'"messages": [{{"role": "user", "content": "{QUESTION}"}}]' if chat else '"prompt": "Once upon a time"'
    body = f'{{"model": "{model}", {said}}}'
    way = "chat/completions" if chat else "completions"
    return f"curl {address}/v1/{way} -H 'Authorization: Bearer KEY' -H 'Content-Type: application/json' -d '{body}'"


def nodes_sentence(serving: api.ServingView) -> str:
    """Who answers, in words: ``2 nodes answer, 1 loads the model``."""
    said = who_answers(serving)
    if serving.loading:
        said += f", {serving.loading} {'loads' if serving.loading == 1 else 'load'} the model"
    return said


def who_answers(serving: api.ServingView) -> str:
    """How many nodes, or replicas of several: ``1 replica of 2 nodes answers``."""
    if serving.stages == 1:
        return {0: "no node answers", 1: "1 node answers"}.get(serving.ready, f"{serving.ready} nodes answer")
    of = f"of {serving.stages} nodes"
    several = f"{serving.ready} replicas {of} answer"
    return {0: f"no replica {of} answers", 1: f"1 replica {of} answers"}.get(serving.ready, several)


def under_way(serving: api.ServingView) -> str:
    """What is being answered now."""
    return f"{_answers(serving.answering)} under way, {count(serving.waiting)} waiting"


def answered(serving: api.ServingView) -> str:
    """What was answered so far, in words."""
    tokens = f"{count(serving.tokens)} tokens, for prompts of {count(serving.prompt_tokens)}"
    return f"{_answers(serving.answers)} of {tokens}" if serving.answers else "no answer yet"


def drawn_again(serving: api.ServingView) -> str:
    """What checks came to: ``12 answers were drawn again, none was wrong``."""
    if not serving.checked:
        return "no answer was drawn again yet"
    if serving.checked == 1:
        return f"1 answer was drawn again, and was {'wrong' if serving.wrong else 'right'}"
    wrong = {0: "none was", 1: "1 was"}.get(serving.wrong, f"{count(serving.wrong)} were")
    return f"{count(serving.checked)} answers were drawn again, {wrong} wrong"


def prices(serving: api.ServingView) -> str:
    """What it costs, in words."""
    tokens = f"{money(serving.per_million)} a million tokens of answers, {money(serving.per_million_prompt)} of prompts"
    return f"{tokens}, {money(serving.per_hour)} an hour of {whose_hour(serving)}"


def whose_hour(serving: api.ServingView) -> str:
    """What ``per_hour`` pays for: ``a ready node``, or several that hold the model together."""
    return "a ready node" if serving.stages == 1 else f"{nodes(serving.stages)} that are ready together"


def seconds_left(view: api.JobView, now: float) -> float:
    """Until a deployment's hours are over."""
    return max(0.0, view.created + view.spec.deadline_hours * 3600 - now)


def hours(number: float) -> str:
    """A number of hours as one says it: ``8 hours``, ``1 hour``, ``1.5 hours``."""
    whole = f"{number:g}" if not math.isclose(number, round(number)) else f"{round(number)}"
    return f"{whole} {'hour' if whole == '1' else 'hours'}"


def held_by(stages: int, replicas: int) -> str:
    """``2 nodes``, or ``2 times 3 nodes`` where several hold the model together."""
    if stages == 1:
        return nodes(replicas)
    return nodes(stages) if replicas == 1 else f"{replicas} times {nodes(stages)}"


def nodes(number: int) -> str:
    """A number of nodes in words."""
    return f"{number} {'node' if number == 1 else 'nodes'}"


def _answers(number: int) -> str:
    return f"{count(number)} {'answer' if number == 1 else 'answers'}"
