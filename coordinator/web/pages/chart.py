"""Charts, drawn as SVG on the server: the same picture with and without scripts, and on paper."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from markupsafe import Markup, escape

from coordinator.client.text import amount

# Of a line: more than the pixels of a phone, fewer than would weigh on a page that is fetched every second.
MAX_POINTS = 400
MAX_DOTS = 60
_MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 52, 14, 12, 28

Words = Callable[[Sequence[float]], list[str]]
"""Ticks as they are written."""


@dataclass(frozen=True)
class Size:
    """A drawing: the class of its element, its size in user units, roughly how many ticks fit."""

    name: str
    width: int
    height: int
    ticks: int


SIZES = (Size("wide", 720, 340, 7), Size("narrow", 340, 240, 4))
HALF = (Size("wide", 520, 230, 5), Size("narrow", 340, 190, 4))
"""Of two charts side by side."""
FULL = (Size("wide", 1060, 240, 10), Size("narrow", 340, 190, 4))
"""Over the whole width."""
_TIME_STEPS = (
    60,
    300,
    900,
    1800,
    3600,
    3 * 3600,
    6 * 3600,
    12 * 3600,
    86_400,
    2 * 86_400,
    7 * 86_400,
    28 * 86_400,
    365 * 86_400,
)


@dataclass(frozen=True)
class ChartPoint:
    """One value, and how it is read out."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class ChartLine:
    """A curve. ``look``: its class in the style; ``dots``: single points are marked where there are few."""

    name: str
    look: str
    points: Sequence[ChartPoint]
    dots: bool = False


@dataclass(frozen=True)
class Axes:
    """What a chart is of.

    Attributes:
        name: of its elements on the page.
        title: what it shows, for who does not see it.
        start, end: of the horizontal axis; the points may widen it.
        unit: written after the last tick.
        steps: where the horizontal axis has ticks; ``across`` and ``up`` are how ticks are written.
        zero: the vertical axis begins with zero.
    """

    name: str
    title: str
    start: float = 0.0
    end: float = 0.0
    unit: str = ""
    steps: Callable[[float, float, int], list[float]] = field(
        default=lambda low, high, wanted: nice_ticks(low, high, wanted)
    )
    across: Words = field(default=lambda ticks: [short(tick) for tick in ticks])
    up: Words = field(default=lambda ticks: decimals(ticks))
    zero: bool = False
    empty: str = "The first point comes with the first steps."
    sizes: tuple[Size, ...] = SIZES


@dataclass(frozen=True)
class _Plane:
    """From values to user units."""

    size: Size
    start: float
    end: float
    low: float
    high: float

    def x(self, value: float) -> float:
        room = self.size.width - _MARGIN_LEFT - _MARGIN_RIGHT
        return round(_MARGIN_LEFT + room * (value - self.start) / ((self.end - self.start) or 1.0), 1)

    def y(self, value: float) -> float:
        room = self.size.height - _MARGIN_TOP - _MARGIN_BOTTOM
        return round(_MARGIN_TOP + room * (self.high - value) / (self.high - self.low), 1)


def draw(axes: Axes, lines: Sequence[ChartLine]) -> Markup:
    """A chart in a wide and a narrow drawing, of which style shows one."""
    thin = [ChartLine(line.name, line.look, _thin(sorted(line.points, key=lambda p: p.x)), line.dots) for line in lines]
    points = [point for line in thin for point in line.points]
    heights = [point.y for point in points] + ([0.0] if axes.zero else [])
    ticks = nice_ticks(min(heights, default=0.0), max(heights, default=1.0), 5)
    start = min([axes.start, *(point.x for point in points)])
    end = max([axes.end, *(point.x for point in points)])
    planes = (_Plane(size, start, end, ticks[0], ticks[-1]) for size in axes.sizes)
    return Markup("").join(_draw(axes, plane, thin, ticks) for plane in planes)


def bar_chart(name: str, title: str, bars: Sequence[tuple[float, float]], up: Words) -> Markup:
    """A bar for each day: (Unix seconds of its start, value)."""
    ticks = nice_ticks(0.0, max(value for _, value in bars), 4)
    drawings = []
    for size in FULL:
        plane = _Plane(size, 0, len(bars), ticks[0], ticks[-1])
        parts, bottom = [_levels(plane, ticks, up(ticks))], plane.y(0)
        every = max(1, math.ceil(len(bars) / size.ticks))
        for place, (day, value) in enumerate(bars):
            left, width = plane.x(place) + 1, max(1.0, plane.x(1) - plane.x(0) - 2)
            word, worth = date(day), up([value])[0]
            parts.append(
                f'<rect class="bar" x="{left:g}" y="{plane.y(value)}" width="{width:g}" height="{bottom - plane.y(value):g}">'
                f"<title>{escape(word)}: {escape(worth)}</title></rect>"
            )
            if (len(bars) - 1 - place) % every == 0:
                parts.append(
                    f'<text x="{left + width / 2:g}" y="{bottom + 20:g}" text-anchor="middle">{word[5:]}</text>'
                )
        drawings.append(
            f'<svg class="{size.name}" viewBox="0 0 {size.width} {size.height}" id="{name}-{size.name}" role="img" '
            f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
        )
    return Markup("".join(drawings))  # noqa: S704 - built from numbers alone; texts are escaped


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers that enclose ``low`` and ``high``, at least two, about ``wanted``."""
    span = max(high - low, abs(high) * 1e-3, 1e-9)
    rough = span / max(1, wanted - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return [round(number * step, 12) for number in range(first, last + 1)]


def time_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Whole minutes, hours or days (UTC) between two times, about ``wanted``."""
    step = next((step for step in _TIME_STEPS if (high - low) / step <= wanted), _TIME_STEPS[-1])
    return [float(number * step) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def decimals(ticks: Sequence[float]) -> list[str]:
    """All ticks with as many decimals as the finest of them needs."""
    digits = next((d for d in range(7) if all(abs(round(tick, d) - tick) < 1e-9 for tick in ticks)), 6)
    return [f"{tick:.{digits}f}" for tick in ticks]


def powers(ticks: Sequence[float]) -> list[str]:
    """Small numbers such as learning rates."""
    return [f"{tick:.3g}" for tick in ticks]


def shorts(ticks: Sequence[float]) -> list[str]:
    """Large numbers such as tokens."""
    return [short(tick) for tick in ticks]


def amounts(ticks: Sequence[float]) -> list[str]:
    """Millionths of the token."""
    return [amount(round(tick)) for tick in ticks]


def dates(ticks: Sequence[float]) -> list[str]:
    """Unix seconds: the day, or within two days the time, both UTC."""
    within = max(ticks) - min(ticks) < 2 * 86_400
    return [datetime.fromtimestamp(tick, UTC).strftime("%H:%M" if within else "%m-%d") for tick in ticks]


def date(seconds: float) -> str:
    """A day, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def short(number: float) -> str:
    """A large number with its unit: ``120k``."""
    for value, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= value:
            return f"{number / value:g}{unit}"
    return f"{number:g}"


def _thin(points: Sequence[ChartPoint]) -> list[ChartPoint]:
    """At most about ``MAX_POINTS`` of the points: every so many, and always the last."""
    stride = max(1, math.ceil(len(points) / MAX_POINTS))
    kept = list(points[::stride])
    if points and kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


def _draw(axes: Axes, plane: _Plane, lines: Sequence[ChartLine], ticks: Sequence[float]) -> Markup:
    size, bottom = plane.size, plane.size.height - _MARGIN_BOTTOM
    parts = []
    if any(line.points for line in lines):
        parts += [_levels(plane, ticks, axes.up(ticks)), _across(axes, plane, bottom)]
    else:
        middle = (size.width + _MARGIN_LEFT) // 2
        parts.append(f'<text x="{middle}" y="{size.height // 2}" text-anchor="middle">{escape(axes.empty)}</text>')
    for line in lines:
        if len(line.points) > 1:
            way = " ".join(f"{plane.x(p.x)},{plane.y(p.y)}" for p in line.points)
            parts.append(f'<polyline class="{line.look}" points="{way}"/>')
        if len(line.points) == 1 or (line.dots and len(line.points) <= MAX_DOTS):
            parts += [
                f'<circle class="{line.look}" cx="{plane.x(p.x)}" cy="{plane.y(p.y)}" r="3.5"/>' for p in line.points
            ]
    return Markup(  # noqa: S704 - built from numbers alone; texts are escaped
        f'<svg class="{size.name}" viewBox="0 0 {size.width} {size.height}" id="{axes.name}-{size.name}" role="img" tabindex="0" '
        f'aria-label="{escape(_summary(axes, lines))}" data-top="{_MARGIN_TOP}" data-bottom="{bottom}" '
        f'data-points="{escape(_readouts(plane, lines))}">{"".join(parts)}</svg>'
    )


def _levels(plane: _Plane, ticks: Sequence[float], words: Sequence[str]) -> str:
    parts = []
    for tick, word in zip(ticks, words, strict=True):
        y = plane.y(tick)
        parts.append(
            f'<line class="grid" x1="{_MARGIN_LEFT}" x2="{plane.size.width - _MARGIN_RIGHT}" y1="{y}" y2="{y}"/>'
        )
        parts.append(f'<text x="{_MARGIN_LEFT - 8}" y="{y + 4:g}" text-anchor="end">{escape(word)}</text>')
    return "".join(parts)


def _across(axes: Axes, plane: _Plane, bottom: int) -> str:
    span = plane.end - plane.start
    ticks = [t for t in axes.steps(plane.start, plane.end, plane.size.ticks) if plane.start <= t <= plane.end]
    parts = []
    for tick, word in zip(ticks, axes.across(ticks) if ticks else (), strict=True):
        last = tick > plane.end - span * 0.03
        anchor = "end" if last else "start" if tick < plane.start + span * 0.03 else "middle"
        unit = f" {axes.unit}" if last and axes.unit else ""
        parts.append(
            f'<text x="{plane.x(tick)}" y="{bottom + 20}" text-anchor="{anchor}">{escape(word)}{escape(unit)}</text>'
        )
    return "".join(parts)


def _readouts(plane: _Plane, lines: Sequence[ChartLine]) -> str:
    points = sorted((point for line in lines for point in line.points), key=lambda point: point.x)
    return json.dumps([[plane.x(p.x), plane.y(p.y), p.text] for p in points], separators=(",", ":"))


def _summary(axes: Axes, lines: Sequence[ChartLine]) -> str:
    said = []
    for line in lines:
        if line.points:
            first, last = axes.up([line.points[0].y])[0], axes.up([line.points[-1].y])[0]
            said.append(f"{line.name} from {first} to {last}")
    return f"{axes.title}: {', '.join(said) if said else 'no points yet'}. Arrow keys read single points."
