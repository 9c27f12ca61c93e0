"""Real workers of a lean stage that audit each other from anchors of their own, and store one where something is found."""

import hashlib
from typing import Any

import pytest
from safetensors.torch import load, save

from protocol.task import RoundApplied
from tests.trainer.router import MakeRouter, Place
from tests.trainer.small import job
from tests.trainer.worker.drawn import TOTAL, TWO_BY_TWO, audit

PLACES: list[Place] = [(0, 0), (1, 0), (0, 1), (1, 1)]


def without_moments(opening: bytes) -> bytes:
    return save({name: tensor for name, tensor in load(opening).items() if "moment" not in name})


@pytest.mark.parametrize("method", [{"pseudo_gradient": "coarse"}, {"outer": "streaming", "fragments": 2}])
async def test_a_lean_stage_is_audited_by_its_other_replica_from_an_anchor_of_its_own(
    method: dict[str, Any], routed: MakeRouter
) -> None:
    spec = job(memory="lean", precision="bf16", commit_every=2, **method)
    async with routed(spec) as router:
        await router.start(TWO_BY_TWO, [*PLACES, "spare"])
        for round_index in range(3):
            await router.round(TWO_BY_TWO, round_index, 4, TOTAL)
        for index, step in enumerate((0, 3)):
            for stage in range(2):
                name = f"{stage}{index}".rjust(32, "0")
                report = await audit(router, (stage, 0), 1 + index, step, (stage, 1), name=name, anchor_in="auditor")
                assert (report.verdict, report.anchor) == ("match", None), report.detail
        lost = await audit(router, (0, 0), 2, 1, name="c" * 32, anchor_in="auditor")
        assert (lost.verdict, lost.anchor) == ("malformed", None), "a spare has no anchor, nor one to show for it"

        found = await audit(router, (0, 0), 2, 1, (0, 1), name="d" * 32, anchor_in="auditor", bend=without_moments)
        assert found.verdict == "malformed"
        assert found.anchor == router.of((0, 0), RoundApplied, round=1)[0].parameters
        anchor = router.artifacts[found.anchor]
        assert hashlib.sha256(anchor).hexdigest() == found.anchor
        report = await audit(router, (0, 0), 2, 1, name="e" * 32, anchor_in="artifact", anchor=anchor)
        assert report.verdict == "match", report.detail
