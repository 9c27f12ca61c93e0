"""Draws ``build/bench/home_links.json`` as ``docs/images/home-links.svg``: ``python -m benchmarks.links._chart``."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {"cottage": "#1b7f5a", "aiortc": "#b5542c", "libdatachannel": "#7a5ba6", "iroh": "#3a6ea8", "tcp": "#7d7d7d"}
WIDTH, PANEL, HEIGHT, LEFT, TOP, GAP = 900, 250, 150, 50, 78, 30
LOSSES = ("0", "0.001", "0.01", "0.03")


def share(rows: dict[str, Any], rate: int, loss: str, system: str) -> float | None:
    """Rate as a share of the line at a round trip of 50 ms."""
    figures = rows.get(f"{rate}:50:{loss}", {}).get(system)
    return None if figures is None else min(1.0, float(figures["mbit_s"]) / rate)


def panel(rows: dict[str, Any], rate: int, x: float) -> list[str]:
    """Bars of one line rate."""
    parts = [f'<text x="{x}" y="{TOP - 12}" class="title">{rate:,} Mbit/s, 50 ms</text>']
    for percent in (0, 25, 50, 75, 100):
        y = TOP + HEIGHT * (1 - percent / 100)
        parts.append(f'<line x1="{x}" x2="{x + PANEL}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{percent}</text>')
    group, bar = PANEL / len(LOSSES), PANEL / len(LOSSES) / (len(COLOURS) + 1)
    for i, loss in enumerate(LOSSES):
        for k, (system, colour) in enumerate(COLOURS.items()):
            value = share(rows, rate, loss, system)
            if value is not None:
                tall = max(1.0, HEIGHT * value)
                left, top = x + i * group + (k + 0.5) * bar, TOP + HEIGHT - tall
                box = f'x="{left:.1f}" y="{top:.1f}" width="{bar * 0.9:.1f}" height="{tall:.1f}"'
                parts.append(f'<rect {box} fill="{colour}"><title>{system}: {value:.0%}</title></rect>')
        middle = x + (i + 0.5) * group
        parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{100 * float(loss):g} %</text>')
    return parts


def draw(document: dict[str, Any]) -> str:
    """The whole picture."""
    style = (
        "text{font:12px sans-serif;fill:#333}.title{font-weight:600}.grid{stroke:#ccc;stroke-width:.6}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#555}}"
    )
    total = TOP + HEIGHT + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" role="img">',
        f"<style>{style}</style>",
    ]
    parts.append("<title>Payload moved between two emulated homes, in percent of the line, by packet loss</title>")
    for k, (system, colour) in enumerate(COLOURS.items()):
        parts.append(f'<rect x="{LEFT + k * 130}" y="14" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 18 + k * 130}" y="24">{system}</text>')
    parts.append(f'<text x="{LEFT}" y="46">Payload in percent of the line, by share of packets lost</text>')
    for i, rate in enumerate((20, 100, 1000)):
        parts += panel(document["rates"], rate, LEFT + i * (PANEL + GAP))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    text = draw(json.loads((ROOT / "build" / "bench" / "home_links.json").read_text()))
    (ROOT / "docs" / "images" / "home-links.svg").write_text(text)
