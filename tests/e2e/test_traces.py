"""One trace through a coordinator, agents and workers that are processes of their own, seen by a receiver of OTLP."""

from pathlib import Path

import pytest

from tests.common.otlp_receiver import SeenSpan, receiving
from tests.e2e.test_demo import LEAST, demo

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]


def test_a_round_is_one_trace_through_coordinator_agents_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as received:
        for name, value in received.environment.items():
            monkeypatch.setenv(name, value)
        document = demo(tmp_path, *LEAST)
    spans = received.spans
    rounds = [one for one in spans if one.name == "round"]
    assert {one.service for one in rounds} == {"cottage-coordinator"}
    assert len(rounds) >= len({commit["round"] for commit in document["commitments"]})
    seats = {(commit["node"], commit["stage"]) for commit in document["commitments"]}
    for whole in (one for one in rounds if one.facts["cottage.epoch"] == "0"):
        of = [one for one in spans if one.trace == whole.trace]
        by_id = {one.id: one for one in of}
        applied = [one for one in of if one.name == "report RoundApplied"]
        if int(whole.facts["cottage.round"]) >= len({commit["round"] for commit in document["commitments"]}):
            continue  # The last one only measures.
        assert len(applied) == len(seats), "each seat's last word of the round"
        for last in applied:
            way = path(last, by_id)
            assert [one.name for one in way][-3:] == ["worker apply", "agent applied", "report RoundApplied"]
            assert way[0] == whole
            services = {one.service for one in way}
            assert services == {"cottage-coordinator", "cottage-node"}
            assert all(whole.began - 1 <= one.began <= one.ended for one in way)
        worked = [one for one in of if one.name == "worker begin"]
        assert len(worked) == len(seats)
        assert all(one.ended > one.began for one in worked)
        assert {one.facts["cottage.job"] for one in worked} == {document["job"]}
    names = {one.name for one in spans if one.service == "cottage-coordinator"}
    assert {"transaction", "settle", "ledger settle", "node connects"} <= names
    assert any(name.startswith("POST /api/v1/") for name in names)
    assert not any(document["job"] in one.name for one in spans), "names are few: ids are attributes"


def path(span: SeenSpan, by_id: dict[str, SeenSpan]) -> list[SeenSpan]:
    """From the first of a trace down to a span; every one between is there."""
    way = [span]
    while way[0].parent:
        way.insert(0, by_id[way[0].parent])
    return way
