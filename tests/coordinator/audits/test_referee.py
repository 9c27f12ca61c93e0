"""What the referee does with the operation that is left of a dispute: whose it is, where both sides' own do what they say."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.domain.audits.dispute import SIDES, Dispute, Side, Spoken
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.errors import UnavailableError
from coordinator.services.audits.disputes import Judge, Referee
from protocol.audit import ReplayStep
from protocol.identity import NodeKey
from tests.coordinator.audits.test_trust import AUDIT, opened
from tests.coordinator.fakes import digest

RECORDS: dict[Side, bytes] = {"prover": b"the prover's", "challenger": b"the challenger's"}


class Bench:
    """A judge to whom every operation gives what its own record says, and who knows which one belongs there."""

    def __init__(self, due: bytes | None, agree: bool | None = True, fails: bool = False) -> None:
        self.due, self.agree, self.fails = due, agree, fails
        self.classes: list[str] = []

    async def agrees(self, inputs: str, record: bytes) -> bool | None:
        return self.agree

    async def belongs(self, job: Job, dispute: Dispute, env_class: str, record: bytes) -> bool | None:
        self.classes.append(env_class)
        if self.fails:
            raise UnavailableError("out of memory")
        return None if self.due is None else record == self.due


async def rule(judge: Bench) -> tuple[Side | None, str]:
    audit: Audit = opened()
    replay = ReplayStep(
        audit.id, audit.plan, 0, 0, 2, 4, 1, 8, audit.root, 2, audit.pseudo_gradient, None, str(audit.opening)
    )
    prover, challenger = (NodeKey(bytes([number]) * 32).address for number in (1, 2))
    said = {side: Spoken(record=RECORDS[side], inputs=digest(side)) for side in SIDES}
    dispute = Dispute(AUDIT.id, prover, challenger, replay, 0, 0.0, phase="judging", step=1, index=3, said=said)
    desk = cast(Any, SimpleNamespace(on_stored=lambda _: None))
    referee = Referee(cast(Any, None), desk, cast(Any, None), cast(Any, None), cast(Judge, judge))
    return await referee._rule(cast(Job, None), audit, dispute)


@pytest.mark.parametrize("side", SIDES)
async def test_the_record_that_belongs_there_wins_where_both_operations_do_what_they_say(side: Side) -> None:
    judge = Bench(RECORDS[side])
    assert await rule(judge) == (side, f"operation 3 of step 1 is the one that the {side} recorded")
    assert set(judge.classes) == {AUDIT.env_class}


@pytest.mark.parametrize(
    "judge",
    [Bench(None), Bench(b"neither's"), Bench(RECORDS["prover"], fails=True)],
    ids=["not here", "neither", "failed"],
)
async def test_nobody_loses_where_the_step_cannot_tell_either(judge: Bench) -> None:
    assert await rule(judge) == (None, "operation 3 of step 1 does not tell who is right")


async def test_an_operation_that_cannot_be_run_by_itself_is_found_in_its_step() -> None:
    assert (await rule(Bench(RECORDS["prover"], agree=None)))[0] == "prover"
