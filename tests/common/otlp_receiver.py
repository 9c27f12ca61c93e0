"""A receiver of OTLP over HTTP on loopback, which keeps the spans that come."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class SeenSpan:
    """One span; ids in hexadecimal, times in seconds."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    began: float
    ended: float
    facts: dict[str, str]


@dataclass
class SpanReceiver:
    """What has come so far. ``environment``: what points a program here."""

    port: int
    spans: list[SeenSpan] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of OpenTelemetry's own."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}", "OTEL_BSP_SCHEDULE_DELAY": "200"}

    def take(self, body: bytes) -> None:
        """Decode one request."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    SeenSpan(
                        names["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano / 1e9,
                        span.end_time_unix_nano / 1e9,
                        {one.key: one.value.string_value or str(one.value.int_value) for one in span.attributes},
                    )
                    for span in scope.spans
                ]


@contextlib.contextmanager
def receiving() -> Iterator[SpanReceiver]:
    """A receiver, as long as the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            received.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = SpanReceiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
