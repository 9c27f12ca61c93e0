"""What a deployment costs, and whether the network can hold it."""

from collections.abc import Mapping, Sequence

from coordinator.client.text import money
from coordinator.config import Config
from coordinator.domain import serving as rules
from coordinator.domain.placement import MEGABYTE, Candidate
from coordinator.domain.serving import NodeUsage
from coordinator.services.jobs.quotes import OPENING_LAMPORTS, impossible
from coordinator.services.network.market_price import MarketRate
from coordinator.services.payments.payees import affordable
from protocol.job.job import JobSpec, ServeSpec
from protocol.models.model import ModelConfigError, ModelShape, inspect_config
from protocol.rest.api import Quote

MILLION = 1_000_000


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
    except ModelConfigError as error:
        return impossible(str(error), len(everybody))
    context = rules.context_of(shape, serve.context)
    needed = rules.needed(shape, context)
    able = [one for one in affordable(everybody, rate.per_petaflop) if one.holds(needed, 0)]
    hourly = rules.hour(shape.parameters, rate.per_petaflop)
    ready = max(1, int(serve.replicas * spec.deadline_hours * hourly))
    least = max(ready, limits.minimum_price)
    problems = []
    main = needed["main"][0] // MEGABYTE
    if not able:
        card = needed["card"][0] // MEGABYTE
        problems.append(f"no node holds the whole model with its cache: {main:,} MB are needed, {card:,} MB on a card")
    if spec.budget < least:
        problems.append(_short(spec, serve, ready, least))
    if (serve.context or 0) > context:
        problems.append(
            f"serve.context {serve.context:,} is more than the {context:,} tokens that this model reads here"
        )
    return Quote(
        operations=0.0,
        parameters=shape.parameters,
        tokens=0,
        stages=1,
        replicas=serve.replicas,
        nodes_available=len(able),
        rounds=0,
        hours=spec.deadline_hours,
        price=max(spec.budget, least),
        price_low=ready,
        price_high=max(spec.budget, least),
        memory_mb_per_stage=(main,),
        limit=_limit(len(able), serve.replicas),
        problems=tuple(problems),
        rate=rate.per_petaflop,
        price_likely=ready,
        fee_lamports=OPENING_LAMPORTS,
        reasons=(*filter(None, [rate.reason]), *_reasons(shape, spec, rate.per_petaflop, hourly)),
        hours_low=spec.deadline_hours,
        hours_high=spec.deadline_hours,
    )


def per_million(parameters: int, rate: int) -> tuple[int, int]:
    """The price of a million tokens of answers, and of prompts."""
    answers = rules.worth(parameters, rate, NodeUsage(tokens=MILLION))
    return answers, rules.worth(parameters, rate, NodeUsage(prompt=MILLION))


def _short(spec: JobSpec, serve: ServeSpec, ready: int, least: int) -> str:
    below = f"the budget {money(spec.budget)} is below {money(least)}"
    if least > ready:
        return f"{below}, the least that a job has in escrow here: raise it"
    nodes = "a node" if serve.replicas == 1 else f"{serve.replicas} nodes"
    return f"{below}, what {nodes} ready for {spec.deadline_hours:g} hours cost: raise it, or ask for less"


def _limit(able: int, replicas: int) -> str:
    if able >= replicas:
        return f"{able} nodes could answer"
    return f"{able} of the {replicas} nodes that are asked for could answer: the others are seated as they come"


def _reasons(shape: ModelShape, spec: JobSpec, rate: int, hourly: int) -> tuple[str, ...]:
    answers, prompts = per_million(shape.parameters, rate)
    return (
        f"a million tokens of answers cost {money(answers)}, of prompts {money(prompts)}",
        f"a node that is ready and asked nothing costs {money(hourly)} an hour",
        f"{money(spec.budget)} at most: the deployment ends when that is used up, and what is left goes back",
    )
