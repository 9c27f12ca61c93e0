"""Lifecycle events: a closed union that always fits one memo."""

from __future__ import annotations

import pytest

from ledger import events
from ledger.errors import EventError
from ledger.events import MAX_MEMO_BYTES, MAX_NODES, Event

JOB, DIGEST, NODE = "f" * 32, "e" * 64, "Z" * 44
MOST, LAST = 2**63 - 1, 2**31 - 1
LARGEST: list[Event] = [
    events.Created(job=JOB, budget=MOST, document=DIGEST),
    events.Funded(job=JOB, amount=MOST),
    events.Assigned(job=JOB, attempt=LAST, nodes=(NODE,) * MAX_NODES),
    events.Committed(job=JOB, round=LAST, node=NODE, root=DIGEST),
    events.Verified(job=JOB, epoch=LAST, round=LAST, step=LAST, node=NODE, auditor=NODE, verdict="mismatch"),
    events.Settled(job=JOB, paid=MOST, refunded=MOST),
    events.Slashed(job=JOB, node=NODE, amount=MOST, reason=DIGEST),
]


@pytest.mark.parametrize("event", LARGEST, ids=lambda event: type(event).__name__)
def test_the_largest_event_of_each_kind_fits_a_memo_and_reads_back(event: Event) -> None:
    text = events.encode(event)
    assert len(text.encode()) <= MAX_MEMO_BYTES
    assert events.decode(text) == event
    assert f'"event":"{type(event).__name__.lower()}"' in text


@pytest.mark.parametrize(
    "event",
    [
        events.Funded(job="short", amount=1),
        events.Funded(job=JOB, amount=-1),
        events.Funded(job=JOB, amount=2**63),
        events.Assigned(job=JOB, attempt=0, nodes=()),
        events.Assigned(job=JOB, attempt=0, nodes=(NODE,) * (MAX_NODES + 1)),
        events.Committed(job=JOB, round=0, node="0OIl", root=DIGEST),
        events.Committed(job=JOB, round=0, node=NODE, root=DIGEST + "\n"),
    ],
)
def test_an_event_out_of_bounds_is_never_written(event: Event) -> None:
    with pytest.raises(EventError):
        events.encode(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "hello",
        '{"event":"paid"}',
        '{"event":"funded"}',
        "x" * (MAX_MEMO_BYTES + 1),
        f'{{"event":"funded","job":"{JOB}","amount":1,"more":1}}',
        f'{{"event":"funded","job":"{JOB}","amount":1.5}}',
    ],
)
def test_memos_of_others_are_no_events(text: str) -> None:
    with pytest.raises(EventError):
        events.decode(text)


@pytest.mark.parametrize("count", [1, MAX_NODES, MAX_NODES + 1, 20])
def test_any_number_of_nodes_is_told_in_as_many_events_as_needed(count: int) -> None:
    nodes = [NODE[:-2] + f"{index + 11:02d}".replace("0", "a") for index in range(count)]
    told = events.assignments(JOB, 1, nodes)
    assert [node for event in told for node in event.nodes] == nodes
    assert all(len(events.encode(event)) <= MAX_MEMO_BYTES for event in told)
