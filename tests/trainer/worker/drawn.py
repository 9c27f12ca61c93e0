"""Audits of workers in tests: a plan of two stages and two replicas, and one step that is drawn, opened and judged."""

from collections.abc import Callable
from typing import Any

from protocol.audit import AnchorPlace
from protocol.task import (
    AuditReport,
    OpenStep,
    ReplayAcross,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    StepOpened,
    TaskReady,
)
from tests.trainer.router import Place, Router, make_plan

CUTS = [(0, 1), (1, 3)]
TWO_BY_TWO = make_plan(CUTS, [0, 1])
AUDIT = "b" * 32
TOTAL = 12


async def audit(
    router: Router,
    place: Place,
    round_index: int,
    step: int,
    auditor: Any = "spare",
    steps: int = 4,
    name: str = AUDIT,
    across: bool = False,
    anchor_in: AnchorPlace = "opening",
    bend: Callable[[bytes], bytes] = bytes,
    anchor: bytes = b"",
) -> AuditReport:
    """Draw one step: the member opens it, the auditor judges it.

    Args:
        across: as if it were of another class. bend: what becomes of the opening on its way. anchor: that comes with it.
    """
    anchored = anchor_in == "opening"
    await router.command(place, OpenStep(name, 0, round_index, step, across, anchored))
    await router.until(lambda: router.of(place, StepOpened, audit=name))
    opened = router.of(place, StepOpened, audit=name)[0]
    assert opened.opening is not None, opened.reason
    commit = router.of(place, RoundCommit, round=round_index)[0]
    before = router.of(place, RoundApplied, round=round_index - 1)
    earlier = router.of(place, RoundCommit, round=round_index - 1)
    where = (name, TWO_BY_TWO, *place, round_index, round_index * steps, step, TOTAL)
    body = ReplayStep(
        *where,
        commit.root,
        commit.leaves,
        commit.pseudo_gradient,
        before[0].parameters if before else None,
        opened.opening,
        carried=commit.carried,
        local=earlier[0].carried if earlier else None,
        anchor_in=anchor_in,
    )
    env_class = router.of(place, TaskReady)[0].env_class
    asked = ReplayAcross(body, env_class) if across else body
    opening = bend(router.artifacts[opened.opening])
    await router.command(auditor, asked, opening + anchor, len(opening) if anchor else 0)
    await router.until(lambda: router.of(auditor, AuditReport, audit=name))
    report: AuditReport = router.of(auditor, AuditReport, audit=name)[0]
    return report
