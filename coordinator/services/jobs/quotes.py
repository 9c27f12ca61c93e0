"""What a job would take on the network as it is, and whether it can be taken at all."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.client.text import money
from coordinator.config import Config
from coordinator.domain import forecast, placement, pricing
from coordinator.domain.forecast import JobOutcome
from coordinator.domain.placement import MeasuredNetwork, NoPlacementError, Placement
from coordinator.domain.rounds import period
from coordinator.errors import CottageError
from coordinator.services.artifacts import harness
from coordinator.services.artifacts.model_files import Model
from coordinator.services.audits.auditor_capacity import Watching
from coordinator.services.network.market_price import MarketRate
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.payees import affordable, payable
from protocol.job.job import JobSpec, total_steps
from protocol.models.boundary_bytes import check_subspace
from protocol.models.model import ModelConfigError, ModelShape, inspect_config
from protocol.rest.api import Quote

OPENING_LAMPORTS = 5_000  # One signature. The escrow's rent comes back when it is closed.
ROUND_OVERHEAD_S = 1.0  # Commitments and outer step at the end of each round.


def quote(
    spec: JobSpec,
    model: Model,
    config_of: Config,
    nodes: Nodes,
    network: MeasuredNetwork | None = None,
    rate: MarketRate | None = None,
    outcomes: Sequence[JobOutcome] = (),
) -> Quote:
    """Price and plan; everything that forbids the job is in ``problems``.

    Args:
        model: what is known of it from its files.
        rate: the network's price of operations; None for the operator's own.
        network: what was measured of lines and ways.
        outcomes: of earlier jobs, for the ranges.
    """
    try:
        shape = inspect_config(model.config)
        shape.check_sequence(spec.training.sequence)
        shape.check_targets(spec.training.lora)
        check_subspace(shape, spec.training, weights=spec.model.weights is not None)
    except (ModelConfigError, CottageError) as error:
        return impossible(str(error), len(nodes.seatable()))
    problems = [
        *document_problems(spec),
        *_tokenizer_problems(spec),
        *filter(None, [harness.problem(spec, config_of.evaluation.names)]),
    ]
    rate = rate or MarketRate(config_of.price_per_petaflop, "")
    everybody = nodes.seatable()
    willing = affordable(everybody, rate.per_petaflop)
    reasons = [rate.reason] if rate.reason else []
    if len(willing) < len(everybody):
        reasons.append(f"{len(everybody) - len(willing)} nodes ask more than that and are not chosen")
    told = (*reasons, *model.warnings, *_warnings(spec))
    offer = _Offer(rate.per_petaflop, len(willing), told, tuple(outcomes), all(c.card for c in willing))
    try:
        here = payable(willing, frozenset())
        found = placement.choose(shape, spec.training, here, spec.parallel.stages, spec.parallel.replicas, network)
    except NoPlacementError as error:
        problem = "; ".join([str(error), *reasons[1:]])
        return _priced(spec, shape, None, [*problems, problem], config_of, offer)
    kinds = {candidate.node: candidate.env_class for candidate in here}
    classes = {seat: kinds[node] for seat, node in found.seats.items()}
    if unseen := Watching(config_of, nodes).unseen(shape, spec.training, found.layers, classes):
        problems.append(unseen)
    return _priced(spec, shape, found, problems, config_of, offer)


@dataclass(frozen=True)
class _Offer:
    """What the network asks: ``rate`` for 10^15 operations, ``nodes`` that work for it, and why.

    ``cards``: all of them compute on graphics cards.
    """

    rate: int
    nodes: int
    reasons: tuple[str, ...]
    outcomes: tuple[JobOutcome, ...]
    cards: bool


def document_problems(spec: JobSpec) -> list[str]:
    """What of a document can never be trained, in words."""
    training = spec.training
    if training.shares is not None:
        return ["training.shares is settled when the job is planned, one for each replica: leave it out"]
    if training.batch % training.micro_batches:
        return [
            f"training.batch {training.batch} cannot be divided into {training.micro_batches} micro_batches: "
            f"choose a batch that is a multiple of {training.micro_batches}, or training.micro_batches 1"
        ]
    return []


def _warnings(spec: JobSpec) -> list[str]:
    training = spec.training
    if training.warmup_steps < (steps := total_steps(training, spec.parallel.replicas or 1)):
        return []
    said = f"training.warmup_steps {training.warmup_steps:,} are more than the {steps:,} steps that there are"
    return [f"{said}: the learning rate ends before it is what was asked for"]


def _tokenizer_problems(spec: JobSpec) -> list[str]:
    if spec.model.weights is None or spec.model.from_job is not None or spec.tokenizer.kind != "bpe":
        return []
    return [
        "tokenizer.kind bpe makes tokens of its own, which mean nothing to weights that have learnt: bring the model's own "
        "tokenizer.json (tokenizer.kind file)"
    ]


def _priced(
    spec: JobSpec, shape: ModelShape, found: Placement | None, problems: list[str], config: Config, offer: _Offer
) -> Quote:
    training = spec.training
    stages = len(found.layers) if found else spec.parallel.stages or 1
    replicas = max(p for _, p in found.seats) + 1 if found else spec.parallel.replicas or 1
    tokens = total_steps(training, replicas) * training.batch * training.sequence * replicas
    operations = pricing.operations(shape.parameters, tokens, training.forward_passes)
    rounds = period.planned(training, replicas, found)
    least = max(config.minimum_price, pricing.ledger_cost(rounds.rounds, config.sol_price))
    price = pricing.price(operations, offer.rate, least)
    short = _short_budget(spec, price, rounds.rounds)
    problems = [*problems, *([short] if short and not _pauses(spec, price, rounds.rounds) else [])]
    seconds = period.seconds(training, rounds, found) + rounds.rounds * ROUND_OVERHEAD_S if found else 0.0
    takes = forecast.time(offer.outcomes)
    part = forecast.paid(
        offer.outcomes, replicas, stages * replicas, rounds.rounds, forecast.hours(seconds, takes.middle)
    )
    memory = (
        [
            placement.stage_memory(shape, training, found.layers, s, offer.cards) // placement.MEGABYTE
            for s in range(stages)
        ]
        if found
        else []
    )
    low, middle = max(pricing.least(price, replicas), int(price * part.low)), int(price * part.middle)
    return Quote(
        operations=float(operations),
        parameters=shape.distinct_parameters,
        tokens=tokens,
        stages=stages,
        replicas=replicas,
        nodes_available=offer.nodes,
        rounds=rounds.rounds,
        hours=forecast.hours(seconds, takes.middle),
        price=price,
        price_low=low,
        price_high=price,
        memory_mb_per_stage=tuple(memory),
        limit=found.limit if found else "no plan fits the network",
        problems=tuple(problems),
        rate=offer.rate,
        price_likely=middle,
        fee_lamports=OPENING_LAMPORTS,
        reasons=(
            *offer.reasons,
            *([short] if short and not problems else []),
            *_range_reasons(price, low, replicas, least, len(offer.outcomes)),
        ),
        hours_low=forecast.hours(seconds, takes.low),
        hours_high=forecast.hours(seconds, takes.high),
        hours_planned=seconds / 3600,
    )


def _pauses(spec: JobSpec, price: int, rounds: int) -> bool:
    """Whether a budget below the price is taken: the document says so, and it pays for a round at least."""
    return spec.over_budget == "pause" and spec.budget * max(1, rounds) >= price


def _short_budget(spec: JobSpec, price: int, rounds: int) -> str:
    """What a budget below the price means; empty where it covers it."""
    if spec.budget >= price:
        return ""
    below = f"the budget {money(spec.budget)} is below the price {money(price)}"
    if _pauses(spec, price, rounds):
        return f"{below}: the job pauses after about {spec.budget * rounds // price} of {rounds} rounds, until more is added"
    if spec.over_budget == "pause":
        return f"{below} and covers no round: raise it to {money(-(-price // max(1, rounds)))} at least"
    return f"{below}: raise it to {money(price)}, or say over_budget: pause to train as far as it goes"


def _range_reasons(price: int, low: int, replicas: int, least_price: int, seen: int) -> tuple[str, ...]:
    """Why a job may pay less than its price, and never more."""
    top = (
        "the least that a job of so many rounds costs here"
        if price == least_price
        else "every replica takes part in every round"
    )
    reasons = [f"{money(price)} at most: {top}, and nothing makes it more"]
    if low < price:
        leaving = (
            f"a node that leaves (taken to be once in {pricing.LEAVES_HOURS} hours) takes its replica's part along"
        )
        witness = f"the last {seen} jobs here and what" if seen else "what"
        reasons.append(f"{money(low)} or more in nine jobs of ten, from {witness} is assumed: {leaving}")
    if replicas > 1:
        least = money(pricing.least(price, replicas))
        reasons.append(f"{least} at least, where one replica alone does every round; what is not paid goes back")
    jobs = (
        f"the last {seen} jobs here took beside their plans" if seen else "is assumed, since no job has ended here yet"
    )
    reasons.append(f"the range of hours is what {jobs}" if seen else f"the range of hours {jobs}")
    reasons.append(
        f"the ledger takes {OPENING_LAMPORTS} lamports for opening the escrow; payouts cost the submitter nothing"
    )
    return tuple(reasons)


def impossible(problem: str, available: int) -> Quote:
    """A quote of what cannot be built."""
    return Quote(0.0, 0, 0, 0, 0, available, 0, 0.0, 0, 0, 0, (), "the model cannot be built", (problem,))
