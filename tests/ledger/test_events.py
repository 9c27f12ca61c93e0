"""Lifecycle events: a closed union that always fits one memo."""

from __future__ import annotations

import pytest

from ledger import events, merkle
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
    events.Rounded(job=JOB, epoch=LAST, round=LAST, assigned=LAST, committed=LAST, audited=LAST, root=DIGEST),
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
    ["", "{}", "[]", "null", "hello", '{"event":"paid"}', '{"event":"funded"}', "x" * (MAX_MEMO_BYTES + 1),
     f'{{"event":"funded","job":"{JOB}","amount":1,"more":1}}', f'{{"event":"funded","job":"{JOB}","amount":1.5}}'],
)  # fmt: skip
def test_memos_of_others_are_no_events(text: str) -> None:
    with pytest.raises(EventError):
        events.decode(text)


@pytest.mark.parametrize("count", [1, MAX_NODES, MAX_NODES + 1, 20])
def test_any_number_of_nodes_is_told_in_as_many_events_as_needed(count: int) -> None:
    nodes = [NODE[:-2] + f"{index + 11:02d}".replace("0", "a") for index in range(count)]
    told = events.assignments(JOB, 1, nodes)
    assert [node for event in told for node in event.nodes] == nodes
    assert all(len(events.encode(event)) <= MAX_MEMO_BYTES for event in told)


def _round() -> list[events.Frequent]:
    nodes = [NODE[:-1] + letter for letter in "abc"]
    told: list[events.Frequent] = [*events.assignments(JOB, 1, nodes)]
    told += [events.Committed(job=JOB, round=3, node=node, root=DIGEST) for node in nodes]
    verdict = events.Verified(job=JOB, epoch=0, round=3, step=5, node=nodes[0], auditor=nodes[1], verdict="match")
    return [*told, verdict]


def test_one_memo_binds_every_event_of_a_round_whatever_their_order() -> None:
    told = _round()
    memo = events.round_of(JOB, 0, 3, told)
    assert memo == events.round_of(JOB, 0, 3, told[::-1])
    assert (memo.assigned, memo.committed, memo.audited) == (1, 3, 1)
    leaves = events.round_leaves(told)
    for event in told:
        place = leaves.index(events.encode(event).encode())
        assert events.in_round(memo, event, merkle.prove(leaves, place))
    forged = events.Committed(job=JOB, round=3, node=NODE, root="d" * 64)
    assert not any(events.in_round(memo, forged, merkle.prove(leaves, place)) for place in range(len(leaves)))
    assert events.round_of(JOB, 0, 3, told[:-1]).root != memo.root


@pytest.mark.parametrize("lie", ["length", "place", "short path", "long path", "odd hash", "negative"])
def test_a_false_proof_of_a_rounds_event_is_false_and_raises_nothing(lie: str) -> None:
    told = _round()
    memo, leaves = events.round_of(JOB, 0, 3, told), events.round_leaves(told)
    proof = merkle.prove(leaves, 2)
    event = next(event for event in told if events.encode(event).encode() == leaves[2])
    forged = {
        "length": merkle.Proof(2, 6, proof.path),
        "place": merkle.Proof(3, 5, proof.path),
        "short path": merkle.Proof(2, 5, proof.path[:-1]),
        "long path": merkle.Proof(2, 5, (*proof.path, bytes(32))),
        "odd hash": merkle.Proof(2, 5, (proof.path[0][:-1], *proof.path[1:])),
        "negative": merkle.Proof(-1, 5, proof.path),
    }[lie]
    assert events.in_round(memo, event, proof)
    assert not events.in_round(memo, event, forged)


def test_a_round_tells_nothing_twice_and_nothing_of_another_job() -> None:
    told = _round()
    with pytest.raises(EventError, match="twice"):
        events.round_of(JOB, 0, 3, [*told, told[0]])
    with pytest.raises(EventError, match="is no event of job"):
        events.round_of("a" * 32, 0, 3, told)
