"""Draws a table of ``build/bench/training.json`` as ``docs/images/training.svg``.

    python -m benchmarks.learning._training_chart

Left: held-out loss over steps. Right: what each method costs (loss over DDP) for what it saves (times fewer bytes).
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COLOURS = ("#7d7d7d", "#b5542c", "#3a6ea8", "#1b7f5a", "#7a5ba6", "#a8893a", "#c0407a", "#3aa0a8")
WIDTH, HEIGHT, PANEL, LEFT, TOP, GAP = 900, 250, 370, 50, 60, 70
MAX_CURVES = len(COLOURS)
Row = dict[str, Any]


def scale(value: float, low: float, high: float, length: float) -> float:
    """Place of a value on an axis."""
    return length * (value - low) / (high - low if high > low else 1.0)


def axes(x: float, title: str, ticks: list[tuple[float, str]], floor: list[tuple[float, str]]) -> list[str]:
    """A panel's frame: horizontal lines with their labels, and labels below."""
    parts = [f'<text x="{x}" y="{TOP - 12}" class="title">{title}</text>']
    for y, label in ticks:
        parts.append(f'<line x1="{x}" x2="{x + PANEL}" y1="{TOP + y:.1f}" y2="{TOP + y:.1f}" class="grid"/>')
        parts.append(f'<text x="{x - 6}" y="{TOP + y + 4:.1f}" text-anchor="end">{label}</text>')
    parts += [
        f'<text x="{x + place:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{label}</text>'
        for place, label in floor
    ]
    return parts


def curves(rows: list[Row], x: float) -> list[str]:
    """Loss over steps."""
    points = [point for row in rows for point in row["curve"]]
    steps, losses = [point[0] for point in points], [point[1] for point in points]
    low, high = min(losses), max(losses)
    ticks = [(HEIGHT * (1 - part / 4), f"{low + (high - low) * part / 4:.2f}") for part in range(5)]
    floor = [(scale(step, 0, max(steps), PANEL), f"{step:,}") for step in sorted(set(rows[0]["curve_steps"]))[1::2]]
    parts = axes(x, "Held-out loss (nats a token) over steps", ticks, floor)
    for row, colour in zip(rows, COLOURS, strict=False):
        path = " ".join(
            f"{x + scale(step, 0, max(steps), PANEL):.1f},{TOP + HEIGHT - scale(loss, low, high, HEIGHT):.1f}"
            for step, loss in row["curve"]
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return parts


def trade(rows: list[Row], x: float) -> list[str]:
    """Loss over DDP against the ratio of bytes, on a logarithmic axis."""
    points = [(row, row["ratio"], row["gap"]) for row in rows if row.get("ratio") and "gap" in row]
    most, worst = max(ratio for _, ratio, _ in points), max(1.0, max(gap for *_, gap in points))
    decades = max(1, math.ceil(math.log10(most)))
    ticks = [(HEIGHT * (1 - part / 4), f"{worst * part / 4:.1f}") for part in range(5)]
    floor = [(PANEL * power / decades, f"{10**power:,}x") for power in range(decades + 1)]
    parts = axes(x, "Loss over DDP in percent, by times fewer bytes", ticks, floor)
    for row, ratio, gap in points:
        left = x + PANEL * math.log10(max(1.0, ratio)) / decades
        top = TOP + HEIGHT - scale(max(0.0, gap), 0, worst, HEIGHT)
        colour = row["colour"]
        parts.append(
            f'<circle cx="{left:.1f}" cy="{top:.1f}" r="5" fill="{colour}"><title>{row["name"]}</title></circle>'
        )
    return parts


def draw(rows: list[Row]) -> str:
    """The whole picture."""
    kept = [row for row in rows if row.get("curve")][:MAX_CURVES]
    for row, colour in zip(kept, COLOURS, strict=False):
        row["colour"], row["curve_steps"] = colour, [step for step, _ in row["curve"]]
    style = (
        "text{font:12px sans-serif;fill:#333}.title{font-weight:600}.grid{stroke:#ccc;stroke-width:.6}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#555}}"
    )
    total = TOP + HEIGHT + 30 + 18 * -(-len(kept) // 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" role="img">',
        f"<style>{style}</style>",
        "<title>Held-out loss of four replicas by method, and what each method saves</title>",
        *curves(kept, LEFT),
        *trade(kept, LEFT + PANEL + GAP),
    ]
    for index, row in enumerate(kept):
        left, top = LEFT + (index % 4) * 210, TOP + HEIGHT + 30 + 18 * (index // 4)
        parts.append(f'<rect x="{left}" y="{top}" width="12" height="12" fill="{row["colour"]}"/>')
        parts.append(f'<text x="{left + 18}" y="{top + 10}">{row["name"]}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    tables = json.loads((ROOT / "build" / "bench" / "training.json").read_text())["tables"]
    chosen = sys.argv[1] if len(sys.argv) > 1 else next(iter(tables))
    (ROOT / "docs" / "images" / "training.svg").write_text(draw(tables[chosen]))
