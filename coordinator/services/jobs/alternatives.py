"""What a cheaper or a sooner choice would be: the same job with one thing changed, quoted again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from coordinator.client.text import count, duration, money
from protocol.job.job import MAX_PERIOD, TOGETHER, JobSpec
from protocol.models.model import PRESETS, inspect_config
from protocol.rest.api import Choice, Quote

WORTH = 0.05  # A choice that saves less of the price, or of the time, is not worth a line.
MOST = 4
BUDGET = "which the budget covers"
LONGER = 5  # Times as many steps between exchanges.

Changes = dict[str, str | int | float | None]
Quoter = Callable[[JobSpec], Awaitable[Quote]]


async def find_choices(spec: JobSpec, quote: Quoter) -> Sequence[Choice]:
    """The best few, those that save the most money first.

    Args:
        quote: prices a job on the network as it is.
    """
    now = await quote(msgspec.structs.replace(spec, budget=2**63 - 1))
    found = []
    for does, changes in _variants(spec, now):
        await asyncio.sleep(0)  # Each takes the planner some time: others are served in between.
        other = changed(spec, changes)
        if other is None:
            continue
        then = await quote(msgspec.structs.replace(other, budget=2**63 - 1))
        covers = BUDGET not in does or then.price <= spec.budget  # A job has a least price, whatever it trains on.
        if not then.problems and covers and (text := _gain(now, then)):
            found.append(Choice(f"{does}: {text}", changes, then))
    sooner = [choice for choice in found if choice.quote.price >= now.price]
    cheaper = [choice for choice in found if choice.quote.price < now.price]
    kept = sorted(cheaper, key=lambda choice: choice.quote.price)[:MOST]
    return [*kept, *sorted(sooner, key=lambda choice: choice.quote.hours)[:MOST]][: MOST + 2]


def changed(spec: JobSpec, changes: Changes) -> JobSpec | None:
    """The document with some fields changed; None where it cannot be so."""
    document = msgspec.to_builtins(spec)
    for path, value in changes.items():
        *parts, last = path.split(".")
        place = document
        for part in parts:
            place = place[part]
        place[last] = value
    try:
        return msgspec.convert(document, JobSpec)
    except (msgspec.ValidationError, ValueError):
        return None


def _variants(spec: JobSpec, now: Quote) -> Iterator[tuple[str, Changes]]:
    yield from _smaller(spec, now)
    training = spec.training
    if training.outer not in TOGETHER and training.round_seconds is None:
        longer = min(MAX_PERIOD, training.inner_steps * LONGER)
        yield f"{longer:,} steps between exchanges", {"training.inner_steps": longer}
    if training.pseudo_gradient in ("fp32", "int8"):
        yield "updates between replicas in 4 bits", {"training.pseudo_gradient": "int4"}
    if training.activations in ("fp32", "int8"):
        yield "activations between stages in 4 bits", {"training.activations": "int4"}
    if now.stages > 1 and training.batch % (2 * training.micro_batches) == 0:
        yield "twice as many micro-batches", {"training.micro_batches": 2 * training.micro_batches}
    if now.stages > 1 and training.lookahead == 0:
        yield "two micro-batches ahead", {"training.lookahead": 2}
    if spec.parallel.stages is not None or spec.parallel.replicas is not None:
        yield "stages and replicas left to the scheduler", {"parallel.stages": None, "parallel.replicas": None}


def _smaller(spec: JobSpec, now: Quote) -> Iterator[tuple[str, Changes]]:
    """Less work: fewer tokens, a smaller model."""
    training = spec.training
    if 0 < spec.budget < now.price and not now.problems:
        fit = training.tokens * spec.budget * 98 // (now.price * 100)
        if fit > training.batch * training.sequence:
            yield f"{count(fit)} tokens, {BUDGET}", {"training.tokens": fit}
    if training.tokens > 2 * training.batch * training.sequence:
        yield "half as many tokens", {"training.tokens": training.tokens // 2}
    preset = spec.model.preset
    if preset is not None and preset in PRESETS and not spec.model.weight_files:
        sizes = {name: inspect_config(config).parameters for name, config in PRESETS.items()}
        smaller = [name for name in sizes if sizes[name] < sizes[preset]]
        if smaller:
            yield (name := max(smaller, key=lambda name: sizes[name])) + " as the model", {"model.preset": name}
    if spec.tokenizer.kind == "bpe" and spec.tokenizer.vocabulary >= 1024:
        half = spec.tokenizer.vocabulary // 2
        yield f"a vocabulary of {half:,}", {"tokenizer.vocabulary": half}


def _gain(now: Quote, then: Quote) -> str:
    """What it is worth, or nothing."""
    costs = f"{money(then.price)} in place of {money(now.price)}" if then.price < now.price * (1 - WORTH) else ""
    takes = (
        f"about {duration(then.hours * 3600)} in place of {duration(now.hours * 3600)}"
        if now.hours
        and then.hours < now.hours * (1 - WORTH)
        and duration(then.hours * 3600) != duration(now.hours * 3600)
        else ""
    )
    slower = f", but about {duration(then.hours * 3600)}" if costs and then.hours > now.hours * (1 + WORTH) else ""
    dearer = f", but {money(then.price)}" if takes and then.price > now.price * (1 + WORTH) else ""
    return ", ".join(filter(None, (costs, takes))) + slower + dearer
