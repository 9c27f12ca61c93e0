"""Records of audited steps: whole once the audit is over, and never those of a test of an auditor."""

import itertools
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.errors import NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.step_openings import StepOpenings
from coordinator.services.core.context import Context
from protocol.rest.records import AuditRecords
from tests.coordinator.fakes import FakeArtifacts, digest
from tests.sim.test_faults import read, run_world
from tests.sim.world import World


@pytest.fixture
async def world() -> tuple[World, str]:
    made = World(3, nodes=6, faults=0.0, settings={"canaries": 1_000_000, "audits_per_round": 2})
    made.crashes = False
    job, _ = await run_world(made, 2, 2)
    return made, job


async def test_what_an_audit_was_opened_with_is_named_whole(world: tuple[World, str]) -> None:
    made, job = world
    store = cast(Any, FakeArtifacts())
    context = cast(Context, SimpleNamespace(everywhere=made.records))
    openings = StepOpenings(context, cast(ArtifactStore, store))
    audits: list[Audit] = await read(made, Audit, job)
    shown = [audit for audit in audits if not audit.canary and audit.opening is not None]
    assert shown
    for audit in itertools.islice(shown, 5):
        records: AuditRecords = await openings.records(job, audit.id)
        assert (records.audit, records.env_class) == (audit.id, audit.env_class)
        assert (records.replay.round, records.replay.stage, records.replay.opening) == (
            audit.round,
            audit.stage,
            audit.opening,
        )
        assert records.files["opening"] == audit.opening
        assert await openings.file(job, audit.id, "opening") == audit.opening
        with pytest.raises(NotFoundError, match="there is no file"):
            await openings.file(job, audit.id, "../coordinator.key")
    canaries = [audit for audit in audits if audit.canary]
    assert canaries
    for audit in (canaries[0], msgspec.structs.replace(shown[0], id=digest("nobody")[:32])):
        with pytest.raises(NotFoundError, match="has no audit"):
            await openings.records(job, audit.id)
    with pytest.raises(NotFoundError, match="has no audit"):
        await openings.records("f" * 32, shown[0].id)


async def test_an_audit_under_way_or_without_an_opening_shows_nothing(world: tuple[World, str]) -> None:
    made, job = world
    openings = StepOpenings(
        cast(Context, SimpleNamespace(everywhere=made.records)), cast(ArtifactStore, FakeArtifacts())
    )
    one = next(a for a in await read(made, Audit, job) if not a.canary)
    others = {
        "is not over yet": msgspec.structs.replace(one, id="1" * 32, state="replaying", version=0),
        "before anything was opened": msgspec.structs.replace(one, id="2" * 32, opening=None, version=0),
    }
    for words, audit in others.items():
        async with made.records.transaction() as tx:
            await tx.insert(audit)
        with pytest.raises(NotFoundError, match=words):
            await openings.records(job, audit.id)
