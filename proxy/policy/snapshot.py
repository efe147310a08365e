"""What the Dispatcher shows of its state: frozen, for metrics, the status page and tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.policy.backend import Backend, Blocked
from proxy.policy.installments import Mode, PartResult
from proxy.policy.job import Stage
from proxy.policy.lane import Lane
from proxy.policy.limiter import Cause, Direction, Move
from proxy.policy.matching import Matcher
from proxy.policy.outcome import Ending
from proxy.policy.tenants import TenantSnapshot


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane at one moment. Counters count since the Dispatcher was made."""

    name: str
    waiting_requests: int
    """Tickets that wait for their first grant; the three limits are about these."""
    waiting_tokens: int
    waiting_bytes: int
    limit_requests: int
    limit_tokens: int
    limit_bytes: int
    demoted_now: int
    """How many of those that wait are late and step behind those on time."""
    returned: int
    """Tickets that wait again because their grant could not be used."""
    parked: int
    """Long prompts between two parts."""
    oldest_wait_s: float
    """Age of the oldest ticket that waits and is not started; 0 when none does."""
    head_blocked: Blocked | None
    """Why the next one does not go; None when nobody waits."""
    retry_after_s: float
    """What a rejection would say now."""
    prefill_s_per_token: float
    """`c`, learned."""
    offered: int
    granted_on_time: int
    granted_late: int
    """Sent although late: demoted before the first grant."""
    demoted: int
    dropped: int
    """Left the queue by their deadline."""
    rejected: int
    """Never queued: a limit was reached, nobody can serve, or draining."""
    affinity: Mapping[str, int]
    """Granted where several backends could be chosen by the beginning of the prompt, by `affinity.Affinity`."""


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend at one moment."""

    name: str
    up: bool
    in_flight: int
    """Sequences that run."""
    concurrency: int
    """Sequences that may run."""
    adaptive: bool
    """Whether that follows TPOT."""
    limit_moves: tuple[Move, ...]
    """Its last changes, the oldest first."""
    limit_changes: Mapping[tuple[Direction, Cause], int]
    """How often it changed, for every way that it can."""
    requests: int
    """Grants that run."""
    prefill_tokens: int
    """Outstanding: sent, and no first token yet."""
    prefill_tokens_by_lane: tuple[int, ...]
    prefill_budget: int | None
    kv_tokens: int
    """Expected to be filled by what runs."""
    kv_limit: int | None
    output_tokens_expected: int
    started: int | None
    """Id of the ticket that is being fed in parts."""
    installments: Mode | None
    """None: installments are not configured."""
    parts: Mapping[PartResult, int]
    """What became of them."""
    hit_ratio: float | None
    """Mean share of what was sent before that the engine found again; None: nothing known yet."""
    recomputed_tokens: int
    """Prompt tokens computed again because the cache had lost them, or never held them."""
    grants: int
    output_tokens: int
    """Reported with the endings, in all."""
    endings: Mapping[Ending, int]
    allowed: int
    """Sequences that may run now: fewer than `concurrency` in a trial or a slow start."""
    held_back_s: float
    """How long it is still left alone because it said that it is busy; 0: it is not."""
    drained: bool
    """By order it gets nothing new."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    lanes: tuple[LaneSnapshot, ...]
    backends: tuple[BackendSnapshot, ...]
    draining: bool
    live: int
    """Tickets in the Dispatcher, waiting and running."""
    tenants: tuple[TenantSnapshot, ...] = ()
    """All that were ever seen; none while tenants do not matter."""


def show_lane(lane: Lane, matcher: Matcher, now: float) -> LaneSnapshot:
    """Return `lane` as it is at `now`. Costs a walk over its tickets."""
    arrivals = [job.arrived for queue in lane.queues for job in queue.jobs() if job.stage is Stage.WAITING]
    blocked = [matcher.why_waiting(queue, now) for queue in lane.queues]
    return LaneSnapshot(
        name=lane.limits.name,
        waiting_requests=lane.waiting_requests,
        waiting_tokens=lane.waiting_tokens,
        waiting_bytes=lane.waiting_bytes,
        limit_requests=lane.limits.queue_requests,
        limit_tokens=lane.limits.queue_tokens,
        limit_bytes=lane.limits.queue_bytes,
        demoted_now=lane.demoted_now,
        returned=lane.returned,
        parked=lane.parked,
        oldest_wait_s=now - min(arrivals, default=now),
        head_blocked=next((reason for reason in blocked if reason is not None), None),
        retry_after_s=lane.retry_after(now),
        prefill_s_per_token=lane.c,
        offered=lane.offered,
        granted_on_time=lane.granted_on_time,
        granted_late=lane.granted_late,
        demoted=lane.demoted,
        dropped=lane.dropped,
        rejected=lane.rejected,
        affinity={result.value: count for result, count in lane.affinity.items()},
    )


def show_backend(backend: Backend, budget: int | None, now: float, *, fed: bool) -> BackendSnapshot:
    """Return `backend` as it is at `now`."""
    return BackendSnapshot(
        name=backend.name,
        up=backend.up,
        in_flight=backend.in_flight,
        concurrency=backend.limiter.cap,
        adaptive=backend.limiter.adapts,
        limit_moves=backend.limiter.moves,
        limit_changes=backend.limiter.counts,
        requests=backend.requests,
        prefill_tokens=backend.prefill_total,
        prefill_tokens_by_lane=tuple(backend.prefill),
        prefill_budget=budget,
        kv_tokens=backend.kv,
        kv_limit=backend.kv_limit,
        output_tokens_expected=backend.output,
        started=None if backend.started is None else backend.started.ticket.id,
        installments=backend.cache.mode if fed else None,
        parts=dict(backend.parts),
        hit_ratio=backend.cache.hit_ratio,
        recomputed_tokens=backend.recomputed_tokens,
        grants=backend.grants,
        output_tokens=backend.output_tokens,
        endings={
            Ending.MEASURED: backend.measured,
            Ending.IGNORED: backend.ignored,
            Ending.DROPPED: backend.dropped,
        },
        allowed=1 if backend.entry.trial else backend.cap(now),
        held_back_s=max(0.0, backend.hold_until - now),
        drained=backend.drained,
    )
