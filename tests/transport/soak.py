"""A soak: two nodes at full rate, both ways, on every lane, over a line that loses, delays, reorders and doubles packets."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.testbed.homes import Link, Nat, homes
from tests.testbed.nodes import Program, nodes

LINE = Link(up=100e6, down=100e6, rtt_ms=40, loss=0.02, jitter_ms=3, reorder=0.01, duplicate=0.01)
SAMPLES = 20
STOP_LIMIT_S = 120.0  # For what is on its way at the end.
WARM_UP = 0.3  # Share of the time after which memory must not grow: pools, caches and windows are full by then.


@dataclass(frozen=True)
class Side:
    """What one node went through.

    Attributes:
        samples: figures at regular intervals, see ``soak_node``.
        end: figures when everything that was begun had been acknowledged.
    """

    samples: list[dict[str, Any]]
    end: dict[str, Any]

    @property
    def warm(self) -> list[dict[str, Any]]:
        """The samples after the warm-up."""
        return self.samples[int(len(self.samples) * WARM_UP) :]

    @property
    def growth(self) -> int:
        """How much more memory the last third of the warm samples used than the first, in bytes, by their least values."""
        resident = [sample["resident"] for sample in self.warm]
        third = max(1, len(resident) // 3)
        return min(resident[-third:]) - min(resident[:third])

    def figures(self, seconds: float) -> dict[str, Any]:
        """What is worth telling."""
        link = self.end["link"]
        return {
            "received_messages": sum(self.end["got"].values()),
            "received_mbit_s": round(self.end["bytes"] * 8 / seconds / 1e6, 1),
            "faults": self.end["faults"],
            "resident_mb": [round(sample["resident"] / 1e6, 1) for sample in self.samples],
            "growth_mb": round(self.growth / 1e6, 1),
            "cpu_share": round(self.end["cpu_s"] / seconds, 2),
            "control_messages": [sample["control"] for sample in self.samples],
            "control_median_ms": [round(1e3 * (sample["control_median_s"] or 0), 1) for sample in self.samples],
            "control_most_ms": [round(1e3 * (sample["control_most_s"] or 0), 1) for sample in self.samples],
            "links": link["links"],
            "loss": round(link["loss"], 4),
            "retransmitted": link["retransmitted"],
            "packets_sent": link["packets_sent"],
        }


async def soak(seconds: float) -> tuple[Side, Side]:
    """Run one for ``seconds`` seconds on a test-bed of its own."""
    async with (
        homes(2, nat=Nat.PORT_CONE, link=LINE) as bed,
        nodes(bed.home(1), bed.home(2), bed.relay.servers(), module="tests.transport.soak_node") as both,
    ):
        for node in both:
            node.tell(begin=True)
        samples: list[list[dict[str, Any]]] = [[], []]
        began = time.monotonic()
        for number in range(SAMPLES):
            await asyncio.sleep(max(0.0, began + (number + 1) * seconds / SAMPLES - time.monotonic()))
            for node, kept in zip(both, samples, strict=True):
                kept.append(await _sample(node))
        for node in both:
            node.tell(stop=True)
        async with asyncio.timeout(STOP_LIMIT_S):
            ends = await asyncio.gather(*(_ended(node) for node in both))
        # What one side sent last may have reached the other after that one's own end.
        last = [await _sample(node) for node in both]
        one, two = (
            Side(kept, end | {"got": now["got"], "bytes": now["bytes"]})
            for kept, end, now in zip(samples, ends, last, strict=True)
        )
        return one, two


async def _sample(node: Program) -> dict[str, Any]:
    node.tell(sample=True)
    sample: dict[str, Any] = (await node.wait_for("sample"))["sample"]
    return sample


async def _ended(node: Program) -> dict[str, Any]:
    while True:  # ``wait_for`` has a limit of its own, shorter than this one.
        with contextlib.suppress(TimeoutError):
            end: dict[str, Any] = (await node.wait_for("stopped"))["stopped"]
            return end


def problems(one: Side, two: Side, most_growth: int) -> Iterator[str]:
    """What a soak must not show."""
    for name, mine, theirs in (("left", one, two), ("right", two, one)):
        for fault in mine.end["faults"]:
            yield f"{name}: {fault}"
        if mine.end["got"] != theirs.end["sent"]:
            yield f"{name}: received {mine.end['got']} of {theirs.end['sent']}"
        if mine.end["link"]["links"] != 1:
            yield f"{name}: the link was made {mine.end['link']['links']} times"
        if silent := [number for number, sample in enumerate(mine.samples) if not sample["control"]]:
            yield f"{name}: no control message came through in the samples {silent}"
        if mine.growth > most_growth:
            yield f"{name}: {mine.growth} bytes of memory more than after the warm-up, at most {most_growth} were to be"
