"""What the stages of a replica say crossed between them, kept until an answer is drawn again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from common.clock import Clock
from coordinator.domain.lease import Lease
from protocol.serving import SKETCH_BYTES, BoundarySketches, SketchReport
from protocol.task import Layers

MAX_KEPT = 64 << 20  # Bytes of all answers together; what comes beyond is as if it had not come.

Side = Literal["got", "sent"]


@dataclass
class _Expected:
    """Of one answer. ``most``: tokens that it can have, its prompt among them; ``keys``: of its stages' sketches."""

    stages: dict[str, int]
    keys: Sequence[bytes]
    most: int
    said: dict[tuple[int, Side], SketchReport] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(len(report.values) for report in self.said.values())


class AnswerSketches:
    """Sketches by request. Each stage says each side of it once, from its own lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expected: dict[str, _Expected] = {}
        self._kept = 0

    @property
    def kept(self) -> int:
        """Bytes of all answers."""
        return self._kept

    def expect(self, request: str, seats: Sequence[Lease], keys: Sequence[bytes], most: int) -> None:
        """An answer begins; ``most``: tokens of its prompt and its answer, at most."""
        self._expected[request] = _Expected({seat.id: stage for stage, seat in enumerate(seats)}, keys, most)

    def take(self, lease: str, report: SketchReport) -> None:
        """Keep what a stage says, where it is expected: of all tokens from the first on, or it could leave out what tells."""
        found = self._expected.get(report.id)
        stage = None if found is None else found.stages.get(lease)
        if found is None or stage is None or (stage, report.side) not in _sides(len(found.stages)):
            return
        size = len(report.values)
        fits = (
            report.first == 0
            and size <= SKETCH_BYTES * found.most
            and size % SKETCH_BYTES == 0
            and self._kept + size <= MAX_KEPT
        )
        if not fits or (stage, report.side) in found.said:
            return
        found.said[stage, report.side] = report
        self._kept += size
        if len(found.said) == len(_sides(len(found.stages))):
            found.complete.set()

    def drop(self, request: str) -> None:
        """Nobody draws this answer again."""
        found = self._expected.pop(request, None)
        if found is not None:
            self._kept -= found.size

    async def boundaries(
        self, request: str, layers: Sequence[Layers], until: float
    ) -> tuple[tuple[BoundarySketches, ...], tuple[int, ...]]:
        """What is said of each cut, and the stages that say nothing of some side, or less than others; late ones are waited for.

        Args:
            until: on the clock; then it is too late.
        """
        found = self._expected.get(request)
        if found is None:
            return (), ()
        try:
            async with self._clock.timeout(max(0.0, until - self._clock.now())):
                await found.complete.wait()
        except TimeoutError:
            pass
        self.drop(request)
        longest = max((len(report.values) for report in found.said.values()), default=1)
        whole = {side for side, report in found.said.items() if len(report.values) == longest}
        silent = sorted({stage for stage, side in _sides(len(layers)) if (stage, side) not in whole})
        cuts = [_boundary(found, stage, layers[stage].first) for stage in range(1, len(layers))]
        return tuple(cuts), tuple(silent)


def _sides(stages: int) -> list[tuple[int, Side]]:
    """What stages have to say: what they got, but the first; what they sent, but the last."""
    sent: list[tuple[int, Side]] = [(stage, "sent") for stage in range(stages - 1)]
    got: list[tuple[int, Side]] = [(stage, "got") for stage in range(1, stages)]
    return sent + got


def _boundary(found: _Expected, stage: int, layer: int) -> BoundarySketches:
    """What the two sides of the cut in front of a stage say."""
    sent, got = found.said.get((stage - 1, "sent")), found.said.get((stage, "got"))
    return BoundarySketches(
        layer,
        0,
        sent.values if sent else b"",
        got.values if got else b"",
        found.keys[stage - 1],
        found.keys[stage],
    )
