"""Traces: off unless asked for, never in anybody's way, and never led elsewhere by a stranger's word."""

import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from common import tracing
from common.log_lines import JsonLines
from coordinator.metrics import Metrics
from coordinator.services.core.trace_parts import parent_of, trace_of
from coordinator.web.monitoring.requests import measured
from desktop.agent.jobs.round_traces import RoundTraces
from protocol.codec import MessageError, decode, encode
from protocol.node import Command, NodeMessage, Report
from protocol.task import ApplyRound, Progress, RoundApplied
from protocol.worker import WorkTime
from tests.common.otlp_receiver import SpanReceiver, receiving

JOB, DIGEST = "ab" * 16, "cd" * 32
APPLY, APPLIED = ApplyRound(0, 3, {}), RoundApplied(0, 3, DIGEST)
FOREIGN = f"00-{'e' * 32}-{'f' * 16}-01"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanReceiver]:
    """Spans are sent until the test ends, or calls ``finish``."""
    with receiving() as received:
        for name, value in received.environment.items():
            monkeypatch.setenv(name, value)
        assert tracing.start("test")
        try:
            yield received
        finally:
            tracing.finish()


def test_nothing_is_imported_where_nobody_asked_for_traces() -> None:
    code = (
        "import sys, coordinator.app, coordinator.cli, desktop.agent.app.service, common.tracing as t;"
        "print(t.start('x'), t.is_on(), [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "False False []\n", done.stderr


def test_where_they_are_off_a_span_is_always_the_same_nothing() -> None:
    assert tracing.span("one", job=JOB) is tracing.span("other")
    with tracing.span("one") as span:
        span.add(job=JOB)
    assert tracing.emit("one", "", 0, 1) == tracing.here() == tracing.trace_here() == tracing.round_of(JOB, 0, 3) == ""
    tracing.end_round(JOB, 0, 3, 0, 1)
    tracing.finish()


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
)
def test_the_standard_variables_switch_them_off(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    assert not tracing.start("test")
    assert not tracing.is_on()


def test_another_protocol_and_a_missing_package_are_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(tracing.TracingError, match="grpc is not spoken here: set OTEL_EXPORTER_OTLP_PROTOCOL"):
        tracing.start("test")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(tracing.TracingError, match=r"pip install 'cottage\[traces\]'"):
        tracing.start("test")
    assert not tracing.is_on()


def test_a_receiver_that_is_not_there_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert tracing.start("test")
    with tracing.span("one"):
        pass
    began = time.monotonic()
    tracing.finish()
    assert time.monotonic() - began < tracing.FINISH_S + 1
    assert not tracing.is_on()


def test_spans_nest_have_plain_facts_and_no_text_of_an_error(receiver: SpanReceiver) -> None:
    def fail() -> None:
        with tracing.span("outer", job=JOB) as outer:
            outer.add(http_response_status_code=503)
            with tracing.span("inner"):
                raise ValueError("a stranger's secret")

    with pytest.raises(ValueError):
        fail()
    with tracing.span("apart", ""):
        pass
    tracing.finish()
    inner, outer_seen, apart = receiver.spans
    assert [one.name for one in receiver.spans] == ["inner", "outer", "apart"]
    assert (inner.parent, inner.trace) == (outer_seen.id, outer_seen.trace)
    assert apart.trace != outer_seen.trace
    assert outer_seen.facts == {"cottage.job": JOB, "http.response.status_code": "503", "error.type": "ValueError"}
    assert {one.service for one in receiver.spans} == {"test"}


def test_lines_of_a_json_log_say_which_trace_they_are_of(receiver: SpanReceiver) -> None:
    def line() -> dict[str, str]:
        handler = logging.StreamHandler(io.StringIO())
        handler.setFormatter(JsonLines())
        handler.emit(logging.LogRecord("x", logging.INFO, "", 0, "hello", (), None))
        found: dict[str, str] = json.loads(handler.stream.getvalue())
        return found

    assert "trace" not in line()
    with tracing.span("one"):
        assert line()["trace"] == tracing.trace_here()
        assert len(tracing.trace_here()) == 32


def test_a_round_has_the_same_trace_in_each_process_and_a_span_above_all_others(receiver: SpanReceiver) -> None:
    whole = tracing.round_of(JOB, 0, 3)
    assert whole == tracing.round_of(JOB, 0, 3)
    assert len({whole[:35], tracing.round_of(JOB, 1, 3)[:35], tracing.round_of("ba" * 16, 0, 3)[:35]}) == 3
    tracing.emit("part", whole, 10.0, 11.0)
    tracing.end_round(JOB, 0, 3, 9.0, 12.0)
    tracing.finish()
    part, above = receiver.spans
    assert f"00-{above.trace}-{above.id}-01" == whole
    assert (above.parent, part.parent) == ("", above.id)
    assert (above.began, above.ended) == (9.0, 12.0)


def test_rounds_that_are_not_sampled_are_sampled_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    with receiving() as received:
        for name, value in received.environment.items():
            monkeypatch.setenv(name, value)
        assert tracing.start("test")
        wholes = [tracing.round_of(JOB, 0, number) for number in range(40)]
        for number, whole in enumerate(wholes):
            tracing.emit("part", whole, 1, 2)
            tracing.end_round(JOB, 0, number, 1, 2)
        tracing.finish()
    chosen = {whole[3:35] for whole in wholes if whole.endswith("-01")}
    assert 5 < len(chosen) < 35
    assert {one.trace for one in received.spans} == chosen
    assert len(received.spans) == 2 * len(chosen)


def test_a_nodes_word_counts_within_the_trace_of_its_round_alone(receiver: SpanReceiver) -> None:
    whole = tracing.round_of(JOB, 0, 3)
    mine = f"{whole[:36]}{'1' * 16}-01"
    assert parent_of(JOB, Report("ef" * 16, 1, 7, APPLIED, mine)) == mine
    for foreign in (FOREIGN, "", tracing.round_of(JOB, 0, 4)):
        assert parent_of(JOB, Report("ef" * 16, 1, 7, APPLIED, foreign)) == whole
    assert parent_of(JOB, Report("ef" * 16, 1, 7, Progress(0, 3, 1, 2), FOREIGN)) == ""
    with tracing.span("elsewhere"):
        assert trace_of(JOB, APPLY) == whole
    with tracing.span("a report", mine):
        assert trace_of(JOB, APPLY) == tracing.here() != whole


def test_a_worker_can_name_no_other_trace_and_no_times_but_ours(receiver: SpanReceiver) -> None:
    traces = RoundTraces(JOB, 1)
    before = time.time()
    traces.told(APPLY, tracing.round_of(JOB, 0, 3))
    handed = traces.handed(APPLY)
    traces.worked(APPLIED, WorkTime(FOREIGN, 1.0, 2.0))
    traces.worked(RoundApplied(0, 4, DIGEST), WorkTime(handed, 1.0, 2.0))
    traces.worked(APPLIED, WorkTime(handed, 1.0, 9e11))
    said = traces.said(APPLIED)
    assert traces.said(APPLIED) == "", "once"
    tracing.finish()
    assert [one.name for one in receiver.spans] == ["agent apply", "worker apply", "agent applied"]
    assert said.split("-")[2] == receiver.spans[-1].id
    assert {one.trace for one in receiver.spans} == {said[3:35]}
    assert all(before - 0.001 <= one.began <= one.ended <= time.time() for one in receiver.spans)


async def test_a_request_is_a_trace_of_its_own_named_by_its_route(receiver: SpanReceiver) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.match_info["job"] == "none":
            raise web.HTTPNotFound
        return web.Response()

    app = web.Application(middlewares=[measured(Metrics())])
    app.router.add_get("/api/v1/jobs/{job}", answer)
    app.router.add_get("/healthz", answer)
    async with TestClient(TestServer(app)) as client:
        for place in (f"/api/v1/jobs/{JOB}", "/api/v1/jobs/none", f"/strange/{JOB}"):
            await client.get(place, headers={"traceparent": FOREIGN})
    tracing.finish()
    names = [one.name for one in receiver.spans]
    assert names == ["GET /api/v1/jobs/{job}"] * 2 + ["GET nothing"]
    assert not any("error.type" in one.facts for one in receiver.spans)
    assert [one.facts["http.response.status_code"] for one in receiver.spans] == ["200", "404", "404"]
    assert len({one.trace for one in receiver.spans} | {"e" * 32}) == 4
    assert not any(JOB in str(one.facts) for one in receiver.spans)


def test_messages_without_a_trace_are_as_they_were_before() -> None:
    plain = encode(Report("ef" * 16, 1, 7, APPLIED))
    assert b"trace" not in plain
    assert b"trace" not in encode(Command("ef" * 16, 1, APPLY))
    assert decode(plain, NodeMessage) == Report("ef" * 16, 1, 7, APPLIED)


@pytest.mark.parametrize("bad", ["x", FOREIGN + "0", FOREIGN.upper(), f"01{FOREIGN[2:]}", FOREIGN[:-2] + "ff"])
def test_what_is_no_traceparent_is_refused_at_the_door(bad: str) -> None:
    with pytest.raises(MessageError):
        decode(encode(Report("ef" * 16, 1, 7, APPLIED, bad)), NodeMessage)
