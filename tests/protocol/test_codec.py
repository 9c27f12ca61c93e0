"""Bytes that are not a message are refused with one error; bytes that are survive the round trip (row F27)."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import codec
from protocol.job.job import (
    RATE_FROM_RANDOM,
    RATE_OF_ADAPTERS,
    RATE_OF_PREFERENCES,
    RATE_OF_WEIGHTS,
    JobSpec,
    TrainingSpec,
    total_steps,
)
from protocol.job.rounds import total_rounds
from protocol.node import CoordinatorMessage, Goodbye, Heartbeat, HeldLease, NodeMessage, Report, Signal
from protocol.task import BeginRound, Layers, Member, Plan, Progress, RoundHolding
from protocol.worker import AgentMessage, WorkerMessage
from tests.protocol.storm import WireStorm, peak_mb

NODE = "1" * 32
PLAN = Plan(epoch=3, layers=(Layers(0, 2), Layers(2, 4)), members=(Member(0, 0, NODE), Member(1, 2, NODE)))
UNIONS = (NodeMessage, CoordinatorMessage, WorkerMessage, AgentMessage)


def test_hostile_bytes_are_a_message_or_the_one_error_and_leave_no_memory_behind() -> None:
    storm = WireStorm(seed=1)  # ``benchmarks/hostile/hostile_wire.py`` throws a million.
    storm.run(1_000)
    before = peak_mb()
    storm.run(4_000)
    assert peak_mb() - before < 16
    for parser in ("msgpack", "json", "frame", "stun", "description"):
        assert storm.ends[f"{parser} taken"] > 10, "some get through, or only the first byte was tried"
        assert storm.ends[f"{parser} refused"] > 100


def test_a_message_survives_the_round_trip() -> None:
    message = Report(lease="a" * 32, fence=7, seq=1, body=RoundHolding(epoch=1, round=2, held={0: "0" * 64}))
    assert codec.decode(codec.encode(message), NodeMessage) == message


def test_a_plan_knows_its_places() -> None:
    assert PLAN.node_of(1, 2) == NODE
    assert PLAN.node_of(1, 0) is None
    assert PLAN.replicas() == (0, 2)


@pytest.mark.parametrize("kind", UNIONS)
@given(data=st.binary(max_size=300))
def test_random_bytes_are_a_message_or_one_clear_error(kind: object, data: bytes) -> None:
    with contextlib.suppress(codec.MessageError):  # Any other error would fail the test.
        assert codec.encode(codec.decode(data, kind))


@pytest.mark.parametrize(
    "plain",
    [
        {"type": "heartbeat", "leases": [{"lease": "x" * 32, "fence": 1}]},
        {"type": "heartbeat", "leases": [{"lease": "a" * 32, "fence": 0}]},
        {"type": "heartbeat", "leases": [{"lease": "a" * 32, "fence": 2**63}]},
        {"type": "heartbeat", "leases": [{"lease": "a" * 32, "fence": 1}] * 65},
        {"type": "heartbeat", "leases": [], "more": 1},
        {"type": "heartbeat"},
        {"type": "shutdown"},
        {"type": "signal", "peer": "0OIl" * 10, "envelope": b""},
        {"type": "signal", "peer": NODE, "envelope": b"x" * (128 * 1024 + 1)},
        {"type": "goodbye", "reason": "a\x00b"},
        {"type": "report", "lease": "a" * 32, "fence": 1, "seq": -1, "body": {"type": "failed", "reason": ""}},
        [],
        7,
    ],
)
def test_a_message_out_of_its_bounds_is_refused(plain: object) -> None:
    with pytest.raises(codec.MessageError):
        codec.decode(msgspec.msgpack.encode(plain), NodeMessage)


def test_a_loss_that_is_no_number_is_refused() -> None:
    for loss in (float("nan"), float("inf"), 1e300):
        body = {"type": "progress", "epoch": 0, "round": 0, "step": 0, "tokens": 0, "loss": loss}
        data = msgspec.msgpack.encode({"type": "report", "lease": "a" * 32, "fence": 1, "seq": 0, "body": body})
        with pytest.raises(codec.MessageError):
            codec.decode(data, NodeMessage)


def test_an_oversized_message_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(codec.MessageError, match="at most"):
        codec.decode(b"\xc0" * (codec.MAX_MESSAGE + 1), NodeMessage)


@pytest.mark.parametrize(
    "data", [b'{"a":' * 20_000, b"[" * 100_000, b'"\xff"', b'{"reason": 1e999}', b'"\\ud800"', b"{} x"]
)
def test_hostile_json_gives_the_one_error(data: bytes) -> None:
    with pytest.raises(codec.MessageError):
        codec.decode_json(data, Goodbye)


def test_the_same_message_has_the_same_canonical_json() -> None:
    one = codec.encode_json(Heartbeat(leases=(HeldLease("a" * 32, 1),)))
    assert one == codec.encode_json(codec.decode_json(one, Heartbeat))


def test_an_envelope_is_opaque_bytes() -> None:
    message = Signal(peer=NODE, envelope=bytes(range(256)))
    assert codec.decode(codec.encode(message), CoordinatorMessage) == message


MINIMAL = {"name": "x", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": "0" * 64}, "budget": 1}


def test_a_minimal_job_document_has_sensible_defaults() -> None:
    spec = codec.convert(MINIMAL, JobSpec)
    assert spec.training == TrainingSpec(learning_rate=RATE_FROM_RANDOM)
    assert spec.parallel.stages is None


@pytest.mark.parametrize(
    ("training", "rate"),
    [
        ({}, RATE_OF_WEIGHTS),
        ({"lora": {}}, RATE_OF_ADAPTERS),
        ({"lora": {}, "preference": {}}, RATE_OF_PREFERENCES),
        ({"lora": {}, "learning_rate": 0.5}, 0.5),
    ],
)
@pytest.mark.parametrize("model", [{"config": {}, "weights": "b" * 64}, {"from_job": "b" * 32}], ids=["weights", "job"])
def test_what_has_learnt_already_learns_on_at_the_rate_of_its_method(
    model: dict[str, Any], training: dict[str, Any], rate: float
) -> None:
    spec = codec.convert(MINIMAL | {"model": model, "training": training}, JobSpec)
    assert spec.training.learning_rate == rate


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 0},
        {"budget": -1},
        {"budget": 2**63},
        {"budget": 1.5},
        {"name": ""},
        {"name": "a\nb"},
        {"dataset": {"artifact": "../../etc/passwd"}},
        {"training": {"tokens": 0}},
        {"training": {"learning_rate": float("nan")}},
        {"training": {"outer_momentum": 1.0}},
        {"parallel": {"stages": 0}},
        {"deadline_hours": 0},
        {"image": "evil"},
    ],
)
def test_a_job_document_out_of_its_bounds_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(codec.MessageError):
        codec.convert({**MINIMAL, **change}, JobSpec)


@given(
    tokens=st.integers(1, 10**9),
    batch=st.integers(1, 512),
    sequence=st.integers(8, 4096),
    replicas=st.integers(1, 64),
    inner=st.integers(1, 500),
)
def test_steps_and_rounds_cover_the_tokens_and_no_more_than_a_step_too_many(
    tokens: int, batch: int, sequence: int, replicas: int, inner: int
) -> None:
    training = TrainingSpec(tokens=tokens, batch=batch, sequence=sequence, inner_steps=inner)
    steps, rounds = total_steps(training, replicas), total_rounds(training, replicas)
    per_step = batch * sequence * replicas
    assert (steps - 1) * per_step < max(tokens, 1) <= steps * per_step
    assert (rounds - 1) * inner < steps <= rounds * inner


def test_begin_and_progress_are_told_apart_by_their_tags() -> None:
    begin = BeginRound(plan=PLAN, round=0, first_step=0, steps=5, total_steps=10)
    assert codec.decode(codec.encode(begin), BeginRound | Progress) == begin


def test_a_union_is_looked_through_once_however_many_messages_come() -> None:
    for decode, encode, made in (
        (codec.decode, codec.encode, codec._messagepack),
        (codec.decode_json, codec.encode_json, codec._json),
    ):
        made.cache_clear()
        for reason in ("one", "two", "three"):
            assert decode(encode(Goodbye(reason)), NodeMessage) == Goodbye(reason)
        assert made.cache_info().misses == 1
