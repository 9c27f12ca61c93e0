"""Which charts the pages have: a job's curves, several jobs beside each other, the price, a wallet's days."""

from collections.abc import Sequence

from markupsafe import Markup

from coordinator.client.text import count, money
from coordinator.web.pages import chart
from coordinator.web.pages.chart import Axes, ChartLine, ChartPoint
from protocol.job.job import total_steps
from protocol.job.learning_rate import learning_rate
from protocol.rest.api import JobView, Metric, RoundView
from protocol.rest.market import Earned, PricePoint

MAX_COMPARED = 6
RATE_POINTS = 200


def loss_chart(metrics: Sequence[Metric], tokens_total: int) -> Markup:
    """Both loss curves over the tokens of the job. ``tokens_total``: where the axis ends."""
    return chart.draw(
        Axes("loss", "Chart of the loss over tokens", end=tokens_total, unit="tokens", up=_losses),
        [
            ChartLine("training loss", "train", _points(metrics, "train", "training loss")),
            ChartLine("validation loss", "validation", _points(metrics, "validation", "validation loss"), dots=True),
        ],
    )


def rate_chart(job: JobView) -> Markup:
    """The schedule of the learning rate over the tokens of the job: what it was and will be."""
    training = job.spec.training
    steps = max(1, total_steps(training, job.quote.replicas))
    points = []
    for place in range(min(RATE_POINTS, steps)):
        step = place * (steps - 1) // max(1, min(RATE_POINTS, steps) - 1)
        rate = learning_rate(training, step, steps)
        tokens = job.tokens_total * step / steps
        points.append(ChartPoint(tokens, rate, f"learning rate {rate:.3g} at {count(tokens)} tokens (step {step + 1})"))
    done = [point for point in points if point.x <= job.tokens_done] if job.tokens_done else []
    axes = Axes(
        "rate",
        "Chart of the learning rate over tokens",
        end=job.tokens_total,
        unit="tokens",
        up=chart.powers,
        zero=True,
        sizes=chart.HALF,
    )
    return chart.draw(
        axes, [ChartLine("planned learning rate", "planned", points), ChartLine("learning rate", "train", done)]
    )


def speed_chart(rounds: Sequence[RoundView], tokens_total: int) -> Markup:
    """Tokens a second of each round that is complete."""
    points, tokens = [], 0
    for one in sorted(rounds, key=lambda one: one.round):
        if one.state == "complete" and one.ended is not None and one.tokens:
            tokens += one.tokens
            speed = one.tokens / max(1e-3, one.ended - one.started)
            points.append(ChartPoint(tokens, speed, f"{count(speed)} tokens/s in round {one.round + 1}"))
    axes = Axes(
        "speed",
        "Chart of the tokens a second of each round",
        end=tokens_total,
        unit="tokens",
        up=chart.shorts,
        zero=True,
        empty="The first point comes with the first round.",
        sizes=chart.HALF,
    )
    return chart.draw(axes, [ChartLine("tokens a second", "second", points, dots=True)])


def compare_chart(runs: Sequence[tuple[JobView, Sequence[Metric]]], kind: str) -> Markup:
    """One kind of loss of several jobs over their tokens, each in its own look."""
    lines = [
        ChartLine(view.name, f"run{place}", _points(metrics, kind, f"{view.name}: loss"), dots=kind == "validation")
        for place, (view, metrics) in enumerate(runs)
    ]
    end = max((view.tokens_done for view, _ in runs), default=0)
    axes = Axes(
        f"compare-{kind}", f"Chart of the {kind} loss over tokens", end=end, unit="tokens", up=_losses, sizes=chart.HALF
    )
    return chart.draw(axes, lines)


def price_chart(history: Sequence[PricePoint]) -> Markup:
    """What 10^15 operations cost over time."""
    points = [ChartPoint(p.time, p.rate, f"{money(p.rate)} at {chart.dates([p.time])[0]}") for p in history]
    axes = Axes(
        "price",
        "Chart of the price of 10 to the 15 operations over time, UTC",
        start=history[0].time,
        steps=chart.time_ticks,
        across=chart.dates,
        up=chart.amounts,
        zero=True,
        sizes=chart.FULL,
    )
    return chart.draw(axes, [ChartLine("price", "train", points)])


def earned_chart(days: Sequence[Earned]) -> Markup:
    """What was paid on each day."""
    bars = [(float(day.day), float(day.amount)) for day in days]
    paid = sum(day.amount for day in days)
    return chart.bar_chart(
        "days", f"Chart of the last {len(days)} days: {money(paid)} paid in all", bars, chart.amounts
    )


def _points(metrics: Sequence[Metric], kind: str, words: str) -> list[ChartPoint]:
    return [
        ChartPoint(m.tokens, m.loss, f"{words} {m.loss:.4f} after {count(m.tokens)} tokens (step {m.step})")
        for m in metrics
        if m.kind == kind
    ]


def _losses(ticks: Sequence[float]) -> list[str]:
    return [f"{ticks[0]:.3f}"] if len(ticks) == 1 else chart.decimals(ticks)
