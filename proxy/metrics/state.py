"""Gauges of the moment: what the Dispatcher, the backends and the recorder say when a scrape asks."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from proxy.backends import BackendView, State
from proxy.metrics.series import counter, gauge
from proxy.policy.installments import Mode
from proxy.policy.snapshot import BackendSnapshot, LaneSnapshot, Snapshot
from proxy.recorder import Counts

_LANE = ("lane",)
_BACKEND = ("backend",)
_BREAKER = ("closed", "half_open", "open", "draining")


def scheduler_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield what the Dispatcher holds."""
    yield from _queue_families(snapshot.lanes)
    yield from _deadline_families(snapshot.lanes)
    yield _affinity_family(snapshot.lanes)
    yield from _dispatch_families(snapshot.backends, tuple(lane.name for lane in snapshot.lanes))
    yield from _installment_families(snapshot.backends)


def _queue_families(lanes: Sequence[LaneSnapshot]) -> Iterator[Metric]:
    yield gauge("queue_depth", "Requests that wait.", _LANE, (((of.name,), of.waiting_requests) for of in lanes))
    yield gauge("queue_limit", "Requests that may wait.", _LANE, (((of.name,), of.limit_requests) for of in lanes))
    yield gauge("queue_tokens", "Prompt tokens that wait.", _LANE, (((of.name,), of.waiting_tokens) for of in lanes))
    yield gauge(
        "queue_tokens_limit", "Prompt tokens that may wait.", _LANE, (((of.name,), of.limit_tokens) for of in lanes)
    )
    yield gauge("queue_bytes", "Body bytes that wait.", _LANE, (((of.name,), of.waiting_bytes) for of in lanes))
    yield gauge("queue_bytes_limit", "Body bytes that may wait.", _LANE, (((of.name,), of.limit_bytes) for of in lanes))
    yield gauge(
        "queue_oldest_wait_seconds",
        "Age of the oldest request that waits.",
        _LANE,
        (((of.name,), of.oldest_wait_s) for of in lanes),
    )
    yield gauge(
        "prefill_seconds_per_token",
        "Learned engine time per prompt token.",
        _LANE,
        (((of.name,), of.prefill_s_per_token) for of in lanes),
    )


def _deadline_families(lanes: Sequence[LaneSnapshot]) -> Iterator[Metric]:
    yield counter(
        "deadline_outcomes",
        "Requests by what their deadline did to them: sent on time, sent although late (demoted), dropped from the "
        "queue.",
        ("lane", "outcome"),
        (
            ((of.name, word), value)
            for of in lanes
            for word, value in (("on_time", of.granted_on_time), ("demoted", of.granted_late), ("dropped", of.dropped))
        ),
    )


def _affinity_family(lanes: Sequence[LaneSnapshot]) -> Metric:
    return counter(
        "prefix_affinity",
        "Requests that several backends serve, by where the beginning of their prompt lies: hit (they went to the "
        "backend that was sent most of it before), miss (none was), spill (another holds more of it and was full or "
        "had more to do). All 0 with one backend.",
        ("lane", "result"),
        (((of.name, result), count) for of in lanes for result, count in of.affinity.items()),
    )


def _dispatch_families(backends: Sequence[BackendSnapshot], lanes: tuple[str, ...]) -> Iterator[Metric]:
    yield gauge(
        "inflight_requests",
        "Sequences that run on a backend: a request counts as its prompts times n.",
        _BACKEND,
        (((of.name,), of.in_flight) for of in backends),
    )
    yield gauge(
        "concurrency_limit",
        "Sequences that may run on a backend now; all lanes share it. Fewer while it comes back.",
        _BACKEND,
        (((of.name,), of.allowed) for of in backends),
    )
    yield counter(
        "concurrency_limit_changes",
        "Changes of that limit: down because time per output token was high, up because it was good and all that "
        "might run did, either way because it was configured.",
        ("backend", "direction", "cause"),
        (
            ((of.name, direction.value, cause.value), count)
            for of in backends
            for (direction, cause), count in of.limit_changes.items()
        ),
    )
    yield gauge(
        "prefill_budget_used_tokens",
        "Prompt tokens sent to a backend whose first token is still to come.",
        ("lane", "backend"),
        (
            ((lane, of.name), tokens)
            for of in backends
            for lane, tokens in zip(lanes, of.prefill_tokens_by_lane, strict=True)
        ),
    )
    yield gauge(
        "prefill_budget_limit_tokens",
        "Prompt tokens that may be outstanding on a backend; no series without a budget.",
        _BACKEND,
        (((of.name,), of.prefill_budget) for of in backends if of.prefill_budget is not None),
    )
    yield gauge(
        "inflight_tokens",
        "KV tokens that what runs on a backend is expected to fill.",
        _BACKEND,
        (((of.name,), of.kv_tokens) for of in backends),
    )
    yield gauge(
        "inflight_limit_tokens",
        "KV tokens that what runs on a backend may be expected to fill: `scheduling.kv_fraction` of its KV cache; no "
        "series where its size is not known.",
        _BACKEND,
        (((of.name,), of.kv_limit) for of in backends if of.kv_limit is not None),
    )


def _installment_families(backends: Sequence[BackendSnapshot]) -> Iterator[Metric]:
    yield counter(
        "installments",
        "Parts of long prompts that were sent ahead of them, by what the engine's prefix cache held of what was sent "
        "before: first (nothing was sent before), hit (at least half), miss, unknown (the engine does not say); or "
        "failed, or aborted because the client left.",
        ("backend", "outcome"),
        (((of.name, result.value), count) for of in backends for result, count in of.parts.items()),
    )
    yield gauge(
        "installment_hit_ratio",
        "Mean share of what was sent before that the engine found again, the latest counting most; no series before "
        "anything is known.",
        _BACKEND,
        (((of.name,), of.hit_ratio) for of in backends if of.hit_ratio is not None),
    )
    yield counter(
        "installment_recomputed_tokens",
        "Prompt tokens that the engine computed a second time because its cache had lost them. Near 0 where "
        "installments pay.",
        _BACKEND,
        (((of.name,), of.recomputed_tokens) for of in backends),
    )
    yield gauge(
        "installment_mode",
        "1 for the mode a backend is in: unknown (the next long prompt shows), on, off (for a time, or because the "
        "engine has no prefix cache); no series where installments are not configured.",
        ("backend", "mode"),
        (
            ((of.name, mode.value), float(of.installments is mode))
            for of in backends
            if of.installments is not None
            for mode in Mode
        ),
    )


def backend_families(views: Sequence[BackendView]) -> Iterator[Metric]:
    """Yield what the probes found. An unknown value has no series: it is not zero."""
    yield gauge(
        "backend_up",
        "1 while a backend answers its probes.",
        _BACKEND,
        (((of.name,), float(of.state.answers)) for of in views),
    )
    yield gauge(
        "backend_state",
        "1 for what a backend gets: closed (all that it may; also while it comes back slowly), half_open (one request "
        "at a time, as a trial), open (nothing: it does not answer, or requests failed there), draining (nothing new, "
        "by order).",
        ("backend", "state"),
        (((of.name, word), float(word == _breaker(of))) for of in views for word in _BREAKER),
    )
    yield counter(
        "backend_state_changes",
        "How often a backend came into a state (docs/backends.md has the table).",
        ("backend", "state"),
        (((of.name, state.value), of.entered.get(state, 0)) for of in views for state in State),
    )
    yield gauge(
        "backend_waiting_requests",
        "Requests that wait inside the engine, as it says; no series while unknown.",
        _BACKEND,
        (((of.name,), of.waiting) for of in views if of.waiting is not None),
    )
    yield gauge(
        "backend_kv_cache_usage_ratio",
        "Share of the engine's KV cache in use, as it says; no series while unknown.",
        _BACKEND,
        (((of.name,), of.kv_usage) for of in views if of.kv_usage is not None),
    )
    yield gauge(
        "backend_scrape_age_seconds",
        "Age of those two values; no series before the first.",
        _BACKEND,
        (((of.name,), of.scrape_age_s) for of in views if of.scrape_age_s is not None),
    )


def _breaker(view: BackendView) -> str:
    if view.drained:
        return "draining"
    if view.state is State.HALF_OPEN:
        return "half_open"
    return "closed" if view.state.usable else "open"


def recorder_families(counts: Counts) -> Iterator[Metric]:
    """Yield what became of the trace records."""
    yield counter("recorder_records", "Trace records written.", (), (((), counts.written),))
    yield counter(
        "recorder_dropped",
        "Trace records lost, by reason.",
        ("reason",),
        (((reason.value,), lost) for reason, lost in counts.dropped.items()),
    )
