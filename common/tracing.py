"""Spans of what a program does, sent by OpenTelemetry where its standard variables name a receiver; else nothing at all.

``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) switches it on, for OTLP over HTTP. Until ``start`` finds it,
OpenTelemetry is not imported, and ``span`` is one look at a variable.

A round of a job is one trace, whoever takes part in it. Its number follows from job, epoch and round: so a coordinator that was
started anew, or took over, goes on with the same one, and what a node says of a trace can be compared with what it must be.
Source: W3C Trace Context (traceparent, version 00); OpenTelemetry's specification of the SDK's environment variables.
"""

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

P = ParamSpec("P")
T = TypeVar("T")

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
FINISH_S: Final = 3.0  # A receiver that does not answer keeps nobody from ending.
Fact = str | int | float | bool


class TracingError(Exception):
    """Traces were asked for and cannot be sent; the text says what to do."""


class OpenSpan:
    """What a span's owner may add to it."""

    def __init__(self, span: "Span | None" = None) -> None:
        self._span = span

    def add(self, **facts: Fact) -> None:
        """More of what it is about; names as in ``span``."""
        if self._span is not None:
            self._span.set_attributes(_named(facts))


_NOTHING: Final[AbstractContextManager[OpenSpan]] = nullcontext(OpenSpan())
_PROVIDER: "TracerProvider | None" = None
_TRACER: "Tracer | None" = None
_WANTED: ContextVar[tuple[int, int] | None] = ContextVar("wanted", default=None)


def start(service: str) -> bool:
    """Send spans from now on, where the environment says where to; returns whether it does.

    Args:
        service: what this program is called, where ``OTEL_SERVICE_NAME`` says nothing.
    Raises:
        TracingError: OpenTelemetry is not installed, or another protocol is asked for.
    """
    environment = os.environ
    if not any(environment.get(name) for name in ENDPOINTS) or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    protocol = next((found for name in _PROTOCOLS if (found := environment.get(name))), "http/protobuf")
    if protocol != "http/protobuf":
        raise TracingError(
            f"{protocol} is not spoken here: set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf, port 4318"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    except ImportError as error:
        raise TracingError(
            f"{error.name} is not installed: pip install 'cottage[traces]', or take OTEL_EXPORTER_OTLP_ENDPOINT away"
        ) from error

    class Ids(RandomIdGenerator):
        """Random ones, but for a round's first span."""

        def generate_span_id(self) -> int:
            wanted = _WANTED.get()
            return super().generate_span_id() if wanted is None else wanted[1]

        def generate_trace_id(self) -> int:
            wanted = _WANTED.get()
            return super().generate_trace_id() if wanted is None else wanted[0]

    named = Resource.create({"service.name": environment.get("OTEL_SERVICE_NAME") or service})
    provider = TracerProvider(resource=named, shutdown_on_exit=False, id_generator=Ids())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use(provider)
    return True


def use(provider: "TracerProvider | None") -> None:
    """Have ``provider`` take the spans, as ``start`` does; None: nobody."""
    global _PROVIDER, _TRACER
    _PROVIDER, _TRACER = provider, None if provider is None else provider.get_tracer("cottage")


def finish() -> None:
    """Send what is left, for a few seconds at most, and stop."""
    provider = _PROVIDER
    if provider is not None:
        use(None)
        last = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(FINISH_S)


def is_on() -> bool:
    """Whether spans are sent."""
    return _TRACER is not None


def span(name: str, parent: str | None = None, **facts: Fact) -> AbstractContextManager[OpenSpan]:
    """A span as long as the block; those within are its children.

    Args:
        name: one of few words of ours, never of somebody else's.
        parent: a traceparent to go on from; empty: a trace of its own; None: whatever goes on here.
        facts: what it is about: ``job`` becomes the attribute ``cottage.job``; a few have standard names (``_STANDARD``).
    """
    return _NOTHING if _TRACER is None else _span(_TRACER, name, parent, facts)


def traced(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """A span around each call of a coroutine function."""

    def wrap(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return await function(*args, **kwargs)

        return call

    return wrap


def emit(name: str, parent: str, began: float, ended: float, **facts: Fact) -> str:
    """A span of something that is over, such as a worker's; returns its traceparent, empty where none are sent.

    Args:
        began, ended: Unix seconds.
    """
    if _TRACER is None:
        return ""
    made = _TRACER.start_span(name, _context(parent), attributes=_named(facts), start_time=int(began * 1e9))
    made.end(int(max(began, ended) * 1e9))
    return _parent_of(made)


def here() -> str:
    """The traceparent of what goes on now; empty where there is none."""
    if _TRACER is None:
        return ""
    from opentelemetry.trace import get_current_span

    return _parent_of(get_current_span())


def trace_here() -> str:
    """The number of the trace that goes on now, 32 hexadecimal digits, for lines of a log; empty where there is none."""
    return here()[3:35]


def round_of(job: str, epoch: int, number: int) -> str:
    """The traceparent of a round of a job; empty where no spans are sent."""
    if _PROVIDER is None:
        return ""
    trace, first = _numbers(job, epoch, number)
    sampled = bool(_PROVIDER.sampler.should_sample(None, trace, "round").decision.is_sampled())  # type: ignore[no-untyped-call]
    return f"00-{trace:032x}-{first:016x}-{int(sampled):02x}"


def end_round(job: str, epoch: int, number: int, began: float, ended: float) -> None:
    """The span that all others of a round are under."""
    if _TRACER is None:
        return
    token = _WANTED.set(_numbers(job, epoch, number))
    try:
        emit("round", "", began, ended, job=job, epoch=epoch, round=number)
    finally:
        _WANTED.reset(token)


def within(trace: str, whole: str) -> str:
    """``trace`` where it is part of the same trace as ``whole``; else ``whole``: a stranger's word leads nowhere else."""
    return trace if trace[:35] == whole[:35] else whole


def _numbers(job: str, epoch: int, number: int) -> tuple[int, int]:
    digest = hashlib.sha256(f"cottage round {job} {epoch} {number}".encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


@contextlib.contextmanager
def _span(tracer: "Tracer", name: str, parent: str | None, facts: Mapping[str, Fact]) -> Iterator[OpenSpan]:
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.status import StatusCode

    made = tracer.start_span(name, None if parent is None else _context(parent), attributes=_named(facts))
    token = attach(set_span_in_context(made))
    try:
        yield OpenSpan(made)
    except BaseException as error:
        # Its text may be a stranger's, or a secret.
        made.set_attribute("error.type", type(error).__name__)
        made.set_status(StatusCode.ERROR)
        raise
    finally:
        detach(token)
        made.end()


def _context(parent: str) -> "Context":
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent}, Context())


def _parent_of(made: "Span") -> str:
    known = made.get_span_context()
    return f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}" if known.is_valid else ""


_STANDARD: Final = {
    "http_request_method": "http.request.method",
    "http_response_status_code": "http.response.status_code",
    "http_route": "http.route",
    "db_system_name": "db.system.name",
}
"""Facts that OpenTelemetry's semantic conventions have names for."""


def _named(facts: Mapping[str, Any]) -> dict[str, Fact]:
    return {_STANDARD.get(key, f"cottage.{key}"): value for key, value in facts.items()}
