"""What a run says, as values. Definitions: docs/latencies.md. Times are seconds."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "lanewise.summary/1"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution in a few numbers. Over all requests a failure counts as infinite.

    A quantile without a sample is NaN.
    """

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @property
    def known(self) -> bool:
        """Whether there was any sample."""
        return self.n > 0


@dataclass(frozen=True, slots=True)
class Slo:
    """What makes one request good. Seconds."""

    ttft_short_s: float = 1.0
    ttft_long_s: float = 5.0
    tpot_s: float = 0.1


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """One length class, or all of them."""

    lane: str
    """short, long or all."""
    sent: int
    """Requests of this class that went out; every outcome is one of them."""
    outcomes: dict[str, int]
    """Count of every outcome, zeros included: ok, rejected, error, timeout, truncated, stalled, cancelled."""
    good: int
    """ok within every SLO."""
    goodput: float
    """good / sent; NaN when nothing was sent. What an interrupted run never sent is in neither."""
    ttft: Quantiles
    """Due time to first token, over ok."""
    ttft_all: Quantiles
    """The same over all sent, failures infinite."""
    ttft_send: Quantiles
    """From the send instead of the due time, over ok."""
    ttfot: Quantiles
    """Due time to first answer token, over ok."""
    tpot: Quantiles
    """(last token - first token) / (n - 1), over ok with n > 1."""
    icl: Quantiles
    """Gaps between token chunks, pooled over ok requests; max is the longest stall."""
    itl: Quantiles
    """The same gaps, only of requests whose every chunk is known to carry one token."""
    e2e: Quantiles
    """Due time to last token, over ok."""
    e2e_all: Quantiles
    stream_end: Quantiles
    """Due time to end of body, over ok."""
    reject: Quantiles
    """Due time to the answer, over rejected."""
    as_vllm_032: dict[str, Quantiles]
    """ttft, tpot, e2e by the rules of vLLM 0.32's own benchmark."""
    as_vllm_033: dict[str, Quantiles]
    """ttft, tpot, e2e, itl by the rules of vLLM 0.33's own benchmark."""
    output_tokens: int
    """Tokens of ok requests."""
    token_sources: dict[str, int]
    """ok requests by where n came from: usage or chunks."""
    unsent: int = 0
    """Planned requests of this class that an interrupted run never sent; no outcome counts them."""


@dataclass(frozen=True, slots=True)
class Caution:
    """Something a reader of the numbers has to know."""

    code: str
    """few_samples, client_limited, quantised_trace, warm_cache, incomplete, speed, prompt_length, chunks, ..."""
    message: str


@dataclass(frozen=True, slots=True)
class Summary:
    """One run."""

    label: str
    plan_hash: str
    complete: bool
    client_limited: bool
    speed: float
    slo: Slo
    window_s: float
    """Steady window: first to last due time of what went out."""
    drain_s: float
    """From the last due time to the last end."""
    asked_rate: float
    """Requests/s of the plan over the steady window."""
    sent_rate: float
    """Requests/s that went out over it."""
    completed_rate: float
    """ok requests/s that ended inside the steady window."""
    output_token_rate: float
    """Output tokens/s of requests that ended inside the steady window."""
    drained: int
    """ok requests that ended in the drain, which no rate counts."""
    lag: Quantiles
    """Send minus due, wall-clock seconds: the generator's own lateness."""
    lanes: dict[str, LaneSummary]
    """short, long, all."""
    warnings: tuple[Caution, ...]
    schema: str = SCHEMA
    notes: dict[str, Any] = field(default_factory=dict)
    """Numbers beside: lag in plan seconds, loop lag, prompt length error, prefix cache deltas."""

    def to_json(self) -> dict[str, Any]:
        """Return a document of plain values; infinite becomes "inf", undefined becomes None."""
        return {key: plain(value) for key, value in asdict(self).items()}


def plain(value: Any) -> Any:
    """Return the value with every infinite number as "inf" and every NaN as None, as JSON needs it."""
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf"
    return value
