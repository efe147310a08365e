"""Tracing: one OpenTelemetry span for each request, where the operator has said where to.

This module knows no OpenTelemetry: `proxy.tracingspans` does, and is imported only when tracing is on.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from proxy.exchange import Exchange
from proxy.settings import Settings

Fields = Sequence[tuple[bytes, bytes]]


class TracingError(Exception):
    """Tracing cannot begin; the text is for people."""


class Spans(Protocol):
    """Keeps a span for each request from its first room to its last."""

    def begin(self, exchange: Exchange, raw_headers: Fields) -> None:
        """Begin the span of a request whose head has come: `exchange.span`."""
        ...

    def observe(self, exchange: Exchange) -> None:
        """End the span of a finished request (`proxy.account.Observer`)."""
        ...

    async def close(self) -> None:
        """Send what is left, within a bounded time."""
        ...


class Traced(Protocol):
    """What an exchange carries while it is traced."""

    @property
    def fields(self) -> Fields:
        """The trace fields that go to the engine."""
        ...


def start(settings: Settings) -> Spans | None:
    """Return what keeps the spans; None where tracing is off.

    Raises:
        TracingError: OpenTelemetry is not installed.
    """
    if settings.tracing.endpoint is None:
        return None
    try:
        from proxy.tracingspans import OtelSpans  # noqa: PLC0415 - an optional extra, and slow to import
    except ModuleNotFoundError as error:
        raise TracingError(
            f"tracing.endpoint is set, but {error.name} is not installed: run pip install 'lanewise[otel]', or take "
            "tracing.endpoint out of the configuration"
        ) from None
    return OtelSpans(settings.tracing)


def with_fields(raw_headers: Iterable[tuple[bytes, bytes]], traced: Traced) -> tuple[tuple[bytes, bytes], ...]:
    """Return the fields of a client with the trace context of our span instead of its own."""
    kept = (field for field in raw_headers if field[0].lower() not in {b"traceparent", b"tracestate"})
    return (*kept, *traced.fields)
