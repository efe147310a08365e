"""The spans themselves, with OpenTelemetry's SDK: begun at the head of a request, ended in its last room.

Events have the stamps that the exchange took anyway, so nothing is measured twice. What a span says is what the log
says: words, numbers, the model; no text of a prompt or an answer, no key.
"""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy.exchange import Exchange
from proxy.policy.outcome import Outcome
from proxy.settings.tracing import Tracing
from proxy.tracing import Fields

GOODBYE_S = 3.0
"""How long the last spans may take to leave."""
_EXPORT_S = 5.0
"""How long one batch may take; it is sent by a thread of its own."""
_MODEL_CHARS = 128
_FAILED = frozenset({Outcome.BACKEND_ERROR.value, Outcome.BACKEND_TIMEOUT.value, Outcome.TRUNCATED.value})
_CONTEXT = TraceContextTextMapPropagator()

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Kept:
    """A span that has begun, and the fields that tell the engine of it."""

    span: Span
    fields: Fields


class OtelSpans:
    """Begins and ends spans, and sends them.

    Args:
        settings: where to, and how many.
    """

    def __init__(self, settings: Tracing) -> None:
        resource = Resource.create({SERVICE_VERSION: version("lanewise")})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):  # nobody has named it
            resource = resource.merge(Resource({SERVICE_NAME: "lanewise"}))
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample)), resource=resource, shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=_EXPORT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lanewise", version("lanewise"))

    def begin(self, exchange: Exchange, raw_headers: Fields) -> None:
        """Begin the span of a request whose head has come, as a child of the one that its client names."""
        carried = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in raw_headers
            if name.lower() in {b"traceparent", b"tracestate"}
        }
        span = self._tracer.start_span(
            exchange.method or "request",
            context=_CONTEXT.extract(carried) if carried else None,
            kind=SpanKind.SERVER,
            start_time=_ns(exchange.arrived_wall),
        )
        said: dict[str, str] = {}
        _CONTEXT.inject(said, context=set_span_in_context(span))
        if said:
            exchange.span = Kept(span, [(key.encode("ascii"), value.encode("latin-1")) for key, value in said.items()])

    def observe(self, exchange: Exchange) -> None:
        """End the span of a finished request with all that is known of it."""
        kept, exchange.span = exchange.span, None
        if not isinstance(kept, Kept):
            return
        span, ended = kept.span, exchange.ended or exchange.arrived
        if span.is_recording():
            outcome = "" if exchange.outcome is None else exchange.outcome.value
            span.update_name(f"{exchange.method} {exchange.path}".strip() if exchange.path else exchange.method)
            span.set_attributes(attributes(exchange))
            for name, at, until in phases(exchange):
                moment = _ns(exchange.arrived_wall + at - exchange.arrived)
                span.add_event(name, {"seconds": round(until - at, 6)}, moment)
            if outcome in _FAILED:
                span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(_ns(exchange.arrived_wall + ended - exchange.arrived))

    async def close(self) -> None:
        """Send what is left, within a bounded time: a collector that does not answer holds no shutdown up."""
        loop, gone = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop did not wait for this
                loop.call_soon_threadsafe(gone.set)

        # Not the loop's own threads: it waits for those at its end, however long they take.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await gone.wait()

    async def flush(self) -> None:
        """Send what has ended so far."""
        await asyncio.to_thread(self._provider.force_flush)


def phases(exchange: Exchange) -> list[tuple[str, float, float]]:
    """Return the phases that a request came to: name, begin and end in its own monotonic seconds."""
    ended = exchange.ended if exchange.ended is not None else exchange.arrived
    found = []
    if exchange.offered is not None:
        found.append(("queue", exchange.offered, exchange.granted if exchange.granted is not None else ended))
    if exchange.granted is not None:
        found.append(("prefill", exchange.granted, exchange.first_token or exchange.answered or ended))
    if exchange.first_token is not None:
        found.append(("decode", exchange.first_token, exchange.last_token or ended))
    return found


def attributes(exchange: Exchange) -> Mapping[str, Attribute]:
    """Return what a span says of a request; OpenTelemetry's names where it has some."""
    model = exchange.model
    known: dict[str, Attribute | None] = {
        "http.request.method": exchange.method,
        "http.route": exchange.path or None,
        "http.response.status_code": exchange.status,
        "gen_ai.request.model": None if model is None else model[:_MODEL_CHARS],
        "gen_ai.usage.input_tokens": exchange.prompt_tokens,
        "gen_ai.usage.output_tokens": exchange.output_tokens,
        "lanewise.request_id": exchange.request_id,
        "lanewise.lane": exchange.lane,
        "lanewise.tenant": exchange.tenant,
        "lanewise.outcome": None if exchange.outcome is None else exchange.outcome.value,
        "lanewise.reason": None if exchange.reason is None else exchange.reason.value,
        "lanewise.phase": None if exchange.phase is None else exchange.phase.value,
        "lanewise.mode": exchange.mode.value,
        "lanewise.config": exchange.config,
        "lanewise.backend": exchange.backend,
        "lanewise.attempts": exchange.attempts,
        "lanewise.parts": exchange.parts or None,
        "lanewise.prompt_tokens_estimated": exchange.prompt_tokens_estimated,
        "error.type": exchange.upstream_error.value if exchange.upstream_error is not None else None,
    }
    return {key: value for key, value in known.items() if value is not None}


def _ns(wall: float) -> int:
    return int(wall * 1e9)
