"""The loss chart, drawn as SVG on the server: the same picture with and without scripts, and on paper."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from coordinator.client.text import count
from transport.wire.api import Metric

MAX_POINTS = (
    400  # Of a line: more than the pixels of a phone, fewer than would weigh on a page that is fetched every second.
)
_MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 44, 14, 12, 28


@dataclass(frozen=True)
class Size:
    """A drawing: the class of its element, its size in user units, roughly how many ticks fit."""

    name: str
    width: int
    height: int
    ticks: int


SIZES = (Size("wide", 720, 340, 7), Size("narrow", 340, 240, 4))


@dataclass(frozen=True)
class _Plane:
    """From tokens and loss to user units."""

    size: Size
    tokens: int
    low: float
    high: float

    def x(self, tokens: float) -> float:
        room = self.size.width - _MARGIN_LEFT - _MARGIN_RIGHT
        return round(_MARGIN_LEFT + room * tokens / max(1, self.tokens), 1)

    def y(self, loss: float) -> float:
        room = self.size.height - _MARGIN_TOP - _MARGIN_BOTTOM
        return round(_MARGIN_TOP + room * (self.high - loss) / (self.high - self.low), 1)


def loss_chart(metrics: Sequence[Metric], tokens_total: int) -> Markup:
    """Both loss curves over the tokens of the job, in a wide and a narrow drawing of which style shows one.

    Args:
        metrics: points in any order.
        tokens_total: where the axis ends.
    """
    train = _thin(sorted((m for m in metrics if m.kind == "train"), key=lambda m: m.tokens))
    validation = _thin(sorted((m for m in metrics if m.kind == "validation"), key=lambda m: m.tokens))
    losses = [m.loss for m in (*train, *validation)]
    ticks = nice_ticks(min(losses, default=0.0), max(losses, default=1.0), 5)
    end = max([tokens_total, *(m.tokens for m in (*train, *validation))])
    return Markup("").join(_draw(_Plane(size, end, ticks[0], ticks[-1]), train, validation, ticks) for size in SIZES)


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers that enclose ``low`` and ``high``, at least two, about ``wanted``."""
    span = max(high - low, abs(high) * 1e-3, 1e-6)
    rough = span / max(1, wanted - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _thin(points: Sequence[Metric]) -> list[Metric]:
    """At most about ``MAX_POINTS`` of the points: every so many, and always the last."""
    stride = max(1, math.ceil(len(points) / MAX_POINTS))
    kept = list(points[::stride])
    if points and kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


def _draw(plane: _Plane, train: Sequence[Metric], validation: Sequence[Metric], ticks: Sequence[float]) -> Markup:
    size, bottom = plane.size, plane.size.height - _MARGIN_BOTTOM
    parts = [_grid(plane, ticks)] if train or validation else []
    for kind, points in (("train", train), ("validation", validation)):
        if len(points) > 1:
            line = " ".join(f"{plane.x(m.tokens)},{plane.y(m.loss)}" for m in points)
            parts.append(f'<polyline class="{kind}" points="{line}"/>')
    if len(validation) <= 60:
        parts += [
            f'<circle class="validation" cx="{plane.x(m.tokens)}" cy="{plane.y(m.loss)}" r="3.5"/>' for m in validation
        ]
    if not train and not validation:
        middle = (size.width + _MARGIN_LEFT) // 2
        parts.append(
            f'<text x="{middle}" y="{size.height // 2}" text-anchor="middle">The first point comes with the first steps.</text>'
        )
    return Markup(  # noqa: S704 - built from numbers alone; texts are escaped
        f'<svg class="{size.name}" viewBox="0 0 {size.width} {size.height}" id="loss-{size.name}" role="img" tabindex="0" '
        f'aria-label="{escape(_summary(train, validation))}" data-top="{_MARGIN_TOP}" data-bottom="{bottom}" '
        f'data-points="{escape(_readouts(plane, train, validation))}">{"".join(parts)}</svg>'
    )


def _grid(plane: _Plane, ticks: Sequence[float]) -> str:
    size, bottom = plane.size, plane.size.height - _MARGIN_BOTTOM
    digits = next((d for d in range(7) if all(abs(round(tick, d) - tick) < 1e-9 for tick in ticks)), 6)
    parts = []
    for tick in ticks:
        y = plane.y(tick)
        parts.append(f'<line class="grid" x1="{_MARGIN_LEFT}" x2="{size.width - _MARGIN_RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_MARGIN_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick:.{digits}f}</text>')
    for tick in nice_ticks(0, plane.tokens, plane.size.ticks):
        if tick <= plane.tokens:
            x, last = plane.x(tick), tick > plane.tokens * 0.97
            anchor = "end" if last else "start" if tick == 0 else "middle"
            parts.append(
                f'<text x="{x}" y="{bottom + 20}" text-anchor="{anchor}">{_short(tick)}{" tokens" if last else ""}</text>'
            )
    return "".join(parts)


def _short(number: float) -> str:
    for value, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= value:
            return f"{number / value:g}{unit}"
    return f"{number:g}"


def _readouts(plane: _Plane, train: Sequence[Metric], validation: Sequence[Metric]) -> str:
    named = [("training", m) for m in train] + [("validation", m) for m in validation]
    named.sort(key=lambda pair: pair[1].tokens)
    return json.dumps(
        [
            [
                plane.x(m.tokens),
                plane.y(m.loss),
                f"{name} loss {m.loss:.4f} after {count(m.tokens)} tokens (step {m.step})",
            ]
            for name, m in named
        ],
        separators=(",", ":"),
    )


def _summary(train: Sequence[Metric], validation: Sequence[Metric]) -> str:
    said = [
        f"{name} loss from {points[0].loss:.3f} to {points[-1].loss:.3f}"
        for name, points in (("training", train), ("validation", validation))
        if points
    ]
    return (
        "Chart of the loss over tokens: "
        + (", ".join(said) if said else "no points yet")
        + ". Arrow keys read single points."
    )
