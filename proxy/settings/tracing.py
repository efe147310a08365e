"""`tracing`: where the span of each request goes."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from proxy.settings.sections import Section


class Tracing(Section):
    """OpenTelemetry spans, one per request, sent over OTLP/HTTP. Needs `pip install 'lanewise[otel]'`.

    Trace context (`traceparent`, `tracestate`) is passed through whether this is on or not.
    """

    endpoint: str | None = Field(
        default=None,
        description="Where spans are sent, such as `http://127.0.0.1:4318/v1/traces`; an address without a path gets "
        "`/v1/traces`. Headers for it come from `OTEL_EXPORTER_OTLP_HEADERS`. Default: tracing is off and costs "
        "nothing.",
    )
    sample: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Share of the requests without a trace of their own that get a recorded span. A request that "
        "brings a `traceparent` is recorded when that says so.",
    )

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("write a URL such as http://127.0.0.1:4318/v1/traces")
        return value if parts.path.strip("/") else f"{value.rstrip('/')}/v1/traces"
