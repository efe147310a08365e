"""What the Dispatcher shows of its state: frozen, for metrics, the status page and tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.policy.backend import Blocked
from proxy.policy.installments import Mode
from proxy.policy.outcome import Ending


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
    """How many of the waiting are late and step behind those on time."""
    returned: int
    """Tickets that wait again because their grant could not be used."""
    parked: int
    """Long prompts between two parts."""
    oldest_wait_s: float
    """Age of the oldest ticket that waits for its first grant; 0 when none does."""
    head_blocked: Blocked | None
    """Why the next one does not go; None when nobody waits."""
    retry_after_s: float
    """What a rejection would say now."""
    prefill_s_per_token: float
    """`c`, learned."""
    offered: int
    granted_on_time: int
    granted_late: int
    """Sent although late: demoted before its first grant."""
    demoted: int
    dropped: int
    """Left the queue by their deadline."""
    rejected: int
    """Never queued: a limit was reached, nobody can serve, or draining."""


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend at one moment."""

    name: str
    up: bool
    in_flight: int
    """Sequences that run."""
    concurrency: int
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
    grants: int
    output_tokens: int
    """Reported with the endings, in all."""
    endings: Mapping[Ending, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    lanes: tuple[LaneSnapshot, ...]
    backends: tuple[BackendSnapshot, ...]
    draining: bool
    live: int
    """Tickets in the Dispatcher, waiting and running."""
