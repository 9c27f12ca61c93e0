"""The drawing of a job's pipeline: stages across, replicas down, and the links between them as they were measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from protocol.rest.api import JobNode
from protocol.rest.market import Link

MAX_DRAWN = 96  # Seats; beyond it nobody can read the drawing, and the table below has them all.
_LABEL, _WIDTH, _HEIGHT, _ACROSS, _DOWN, _TOP = 78, 184, 66, 92, 52, 30
_NAME_LENGTH = 21  # What fits a box.


@dataclass(frozen=True)
class Pipeline:
    """Who does what: ``rows`` of (replica, its seats by stage, None where nobody sits yet); ``others`` have no seat."""

    stages: tuple[int, ...]
    rows: tuple[tuple[int, tuple[JobNode | None, ...]], ...]
    others: tuple[JobNode, ...]


def pipeline(nodes: Sequence[JobNode]) -> Pipeline:
    """A job's nodes by their seats."""
    placed = {(node.replica, node.stage): node for node in nodes if node.stage is not None and node.replica is not None}
    stages = tuple(sorted({stage for _, stage in placed if stage is not None}))
    replicas = sorted({replica for replica, _ in placed if replica is not None})
    rows = tuple((replica, tuple(placed.get((replica, stage)) for stage in stages)) for replica in replicas)
    return Pipeline(stages, rows, tuple(node for node in nodes if node.stage is None or node.replica is None))


def drawing(shape: Pipeline, links: Sequence[Link], looks: Mapping[str, tuple[str, str]]) -> Markup:
    """The pipeline as SVG; empty where it has no seats or too many. ``looks``: state -> icon, class."""
    if not shape.rows or len(shape.rows) * len(shape.stages) > MAX_DRAWN:
        return Markup("")
    measured = {frozenset((link.one, link.other)): link for link in links}
    width = _LABEL + len(shape.stages) * (_WIDTH + _ACROSS) - _ACROSS + 2
    height = _TOP + len(shape.rows) * (_HEIGHT + _DOWN) - _DOWN + 2
    parts = []
    for column, stage in enumerate(shape.stages):
        x = _LABEL + column * (_WIDTH + _ACROSS)
        parts.append(f'<text class="axis" x="{x + _WIDTH / 2:g}" y="14" text-anchor="middle">Stage {stage}</text>')
    for row, (replica, seats) in enumerate(shape.rows):
        y = _TOP + row * (_HEIGHT + _DOWN)
        parts.append(f'<text class="axis" x="0" y="{y + _HEIGHT / 2 + 4:g}">Replica {replica}</text>')
        for column, seat in enumerate(seats):
            x = _LABEL + column * (_WIDTH + _ACROSS)
            if column + 1 < len(seats):
                parts.append(_way(seat, seats[column + 1], measured, (x + _WIDTH, y), across=True))
            if row + 1 < len(shape.rows):
                parts.append(_way(seat, shape.rows[row + 1][1][column], measured, (x, y + _HEIGHT), across=False))
            parts.append(_box(seat, x, y, looks))
    return Markup(  # noqa: S704 - numbers and escaped texts
        f'<svg class="pipeline" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group" '
        f'aria-label="Pipeline: {len(shape.stages)} stages across, {len(shape.rows)} replicas down">{"".join(parts)}</svg>'
    )


def _box(seat: JobNode | None, x: int, y: int, looks: Mapping[str, tuple[str, str]]) -> str:
    frame = f'<rect x="{x + 1}" y="{y + 1}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" rx="10"/>'
    if seat is None:
        text = f'<text x="{x + _WIDTH / 2:g}" y="{y + _HEIGHT / 2 + 4:g}" text-anchor="middle">nobody yet</text>'
        return f'<g class="seat free">{frame}{text}</g>'
    look = looks.get(seat.state, ("", ""))[1]
    name, device = seat.name or "unnamed", seat.device
    return (
        f'<a class="seat {look}" href="/nodes/{escape(seat.node)}" id="seat-{seat.replica}-{seat.stage}">'
        f"<title>{escape(name)}, {escape(device)}: {escape(seat.state)}</title>{frame}"
        f'<text class="name" x="{x + 14}" y="{y + 24}">{escape(_cut(name))}</text>'
        f'<text class="state" x="{x + 14}" y="{y + 41}">{escape(seat.state)}</text>'
        f'<text x="{x + 14}" y="{y + 57}">{escape(_cut(device.removeprefix("NVIDIA "), 24))}</text></a>'
    )


def _way(
    one: JobNode | None,
    other: JobNode | None,
    measured: Mapping[frozenset[str], Link],
    at: tuple[int, int],
    *,
    across: bool,
) -> str:
    """The line between two neighbours, with its round trip: arrows for activations, dashes between replicas."""
    link = measured.get(frozenset((one.node, other.node))) if one and other else None
    words = f"{link.rtt_ms:.3g} ms" if link else ""
    kind = " relay" if link and link.kind == "relay" else ""
    if across:
        x, y = at[0], at[1] + _HEIGHT // 2
        line = f"M{x + 4} {y}h{_ACROSS - 8}m-7 -5l7 5l-7 5M{x + 11} {y - 5}l-7 5l7 5"
        label = (x + _ACROSS // 2, y - 9, "middle")
    else:
        x, y = at[0] + _WIDTH // 2, at[1]
        line = f"M{x} {y + 4}v{_DOWN - 8}"
        label = (x + 10, y + _DOWN // 2 + 4, "start")
    said = f"<title>{escape(_told(link))}</title>" if link else ""
    text = f'<text x="{label[0]}" y="{label[1]}" text-anchor="{label[2]}">{words}</text>' if words else ""
    return f'<g class="way{" down" if not across else ""}{kind}">{said}<path d="{line}"/>{text}</g>'


def _told(link: Link) -> str:
    way = "through a relay" if link.kind == "relay" else "direct"
    return f"{way}, round trip {link.rtt_ms:.3g} ms, {link.loss * 100:.2g} % of packets lost"


def _cut(text: str, length: int = _NAME_LENGTH) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
