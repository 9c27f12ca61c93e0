"""What a deployment costs, and whether the network can hold it."""

from collections.abc import Mapping, Sequence

from coordinator.client.deployments import held_by, hours, nodes
from coordinator.client.text import money
from coordinator.config import Config
from coordinator.domain import serving as rules
from coordinator.domain import teams
from coordinator.domain.placement import MEGABYTE, Candidate, Needed
from coordinator.domain.serving import HeldModel, NodeUsage
from coordinator.domain.teams import TeamWishes
from coordinator.services.jobs.quotes import OPENING_LAMPORTS, impossible
from coordinator.services.network.market_price import MarketRate
from coordinator.services.payments.payees import affordable
from protocol.job.job import JobSpec, ServeSpec
from protocol.models.model import ModelConfigError, ModelShape, inspect_config
from protocol.rest.api import Quote

MILLION = 1_000_000
NOBODY = "no node lends itself to this network yet: start one, or try again once one is connected"


def quote(
    spec: JobSpec,
    serve: ServeSpec,
    config: Mapping[str, object],
    everybody: Sequence[Candidate],
    limits: Config,
    rate: MarketRate,
) -> Quote:
    """Price and problems. ``everybody``: nodes that lend themselves, busy or not; ``config``: the model's."""
    try:
        shape = inspect_config(config)
        held = rules.held_model(shape, serve)
    except ModelConfigError as error:
        return impossible(str(error), len(everybody))
    if held.draft is not None and held.draft.vocabulary != shape.vocabulary:
        return impossible(_other_tokens(held.draft, shape), len(everybody))
    willing = affordable(everybody, rate.per_petaflop)
    found = teams.first_team(held, willing, serve.stages, TeamWishes())
    cut = found[0] if found is not None else teams.cut_for(held.shape, serve.stages or 1)
    if cut is None:
        return impossible(
            f"serve.stages {serve.stages} is more than the {shape.layers} layers of this model: each stage has one at least",
            len(everybody),
        )
    needed = rules.needed(held, cut)
    able = [one for one in willing if any(one.holds(needed, stage) for stage in range(len(cut)))]
    hourly = rules.hour(shape.distinct_parameters, rate.per_petaflop)
    ready = max(1, int(serve.replicas * spec.deadline_hours * hourly))
    least = max(ready, limits.minimum_price)
    problems = []
    if found is None:
        problems.append(_too_large(serve, needed, len(willing)) if everybody else NOBODY)
    if spec.budget < least:
        problems.append(_short(spec, serve, ready, least, len(cut)))
    if (serve.context or 0) > held.context:
        problems.append(
            f"serve.context {serve.context:,} is more than the {held.context:,} tokens that this model reads here"
        )
    return Quote(
        operations=0.0,
        parameters=shape.distinct_parameters,
        tokens=0,
        stages=len(cut),
        replicas=serve.replicas,
        nodes_available=len(able),
        rounds=0,
        hours=spec.deadline_hours,
        price=max(spec.budget, least),
        price_low=ready,
        price_high=max(spec.budget, least),
        memory_mb_per_stage=tuple(size // MEGABYTE for size in needed["main"]),
        limit=_limit(len(able), serve.replicas, len(cut)),
        problems=tuple(problems),
        rate=rate.per_petaflop,
        price_likely=ready,
        fee_lamports=OPENING_LAMPORTS,
        reasons=(
            *filter(None, [rate.reason]),
            *_reasons(shape, spec, rate.per_petaflop, hourly, len(cut)),
            *_beside(shape, held.shape, serve),
            *_drafts(held, len(cut)),
        ),
        hours_low=spec.deadline_hours,
        hours_high=spec.deadline_hours,
        weights=serve.weights,
    )


def per_million(parameters: int, rate: int) -> tuple[int, int]:
    """The price of a million tokens of answers, and of prompts."""
    answers = rules.worth(parameters, rate, NodeUsage(tokens=MILLION))
    return answers, rules.worth(parameters, rate, NodeUsage(prompt=MILLION))


def _short(spec: JobSpec, serve: ServeSpec, ready: int, least: int, stages: int) -> str:
    below = f"the budget {money(spec.budget)} is below {money(least)}"
    if least > ready:
        return f"{below}, the least that a job has in escrow here: raise it"
    several = serve.replicas > 1 or stages > 1
    held = held_by(stages, serve.replicas) if several else "a node"
    cost = f"ready for {hours(spec.deadline_hours)} {'cost' if several else 'costs'}"
    return f"{below}, what {held} {cost}: raise it, or ask for less"


def _too_large(serve: ServeSpec, needed: Needed, here: int) -> str:
    main, card = ([size // MEGABYTE for size in needed[kind]] for kind in ("main", "card"))
    if len(main) > max(1, here):
        return f"{nodes(len(main))} are needed, {here} {'is' if here == 1 else 'are'} here"
    if len(main) > 1:
        sizes = " and ".join(f"{size:,}" for size in main)
        return f"no {len(main)} nodes hold the model together with its cache: {sizes} MB are needed"
    whole = f"no node holds the whole model with its cache: {main[0]:,} MB are needed, {card[0]:,} MB on a card"
    return whole if serve.stages else f"{whole}; nor do up to {teams.MOST_STAGES} nodes together"


def _limit(able: int, replicas: int, stages: int) -> str:
    if stages > 1:
        return f"{stages} nodes hold the model together, of {able} that could hold a part of it"
    if able >= replicas:
        return f"{able} nodes could answer"
    return f"{able} of the {replicas} nodes that are asked for could answer: the others are seated as they come"


def _beside(shape: ModelShape, held: ModelShape, serve: ServeSpec) -> tuple[str, ...]:
    if not serve.adapters:
        return ()
    count = len(serve.adapters)
    answer = "1 adapter answers" if count == 1 else f"{count} adapters answer"
    return (f"{answer} beside the model: {held.parameters - shape.parameters:,} parameters more in memory",)


def _drafts(held: HeldModel, stages: int) -> tuple[str, ...]:
    if held.draft is None:
        return ()
    if stages == 1:
        return (
            "one node holds the whole model, and answers without the draft model: there are no turns that it would spare",
        )
    size = sum(rules.draft_bytes(held.draft, held.context)) // MEGABYTE
    return (
        f"a draft model of {held.draft.distinct_parameters:,} parameters: {size:,} MB more on the first node of a replica",
    )


def _other_tokens(draft: ModelShape, shape: ModelShape) -> str:
    return (
        f"serve.draft knows {draft.vocabulary:,} tokens and the model {shape.vocabulary:,}: "
        "name a model that was trained with this one's tokenizer"
    )


def _reasons(shape: ModelShape, spec: JobSpec, rate: int, hourly: int, stages: int) -> tuple[str, ...]:
    answers, prompts = per_million(shape.distinct_parameters, rate)
    idle = "a node that is ready and asked nothing costs"
    if stages > 1:
        idle = f"{nodes(stages)} that hold the model together, ready and asked nothing, cost"
    return (
        f"a million tokens of answers cost {money(answers)}, of prompts {money(prompts)}",
        f"{idle} {money(hourly)} an hour",
        f"{money(spec.budget)} at most: the deployment ends when that is used up, and what is left goes back",
    )
