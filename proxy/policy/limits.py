"""What the operator decided, in the form the Dispatcher reads: frozen, checked, without files or environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """How a request is treated; the setting `mode`, or what a trusted peer asks for."""

    ENFORCE = "enforce"
    """Lanes, queues, caps."""
    OBSERVE = "observe"
    """Forwarded at once and untouched; what would have been done is decided on paper."""
    PASSTHROUGH = "passthrough"
    """Relayed and measured, nothing else."""


class LaneOrder(StrEnum):
    """Which lane goes first when both have an on-time request."""

    SHORT_FIRST = "short_first"
    DEADLINE = "deadline"
    """The one that would be late first."""


class QueueOrder(StrEnum):
    """Order inside one lane."""

    SHORTEST_FIRST = "shortest_first"
    """Shortest job first with ageing."""
    FIFO = "fifo"


class BudgetMode(StrEnum):
    """How the outstanding prefill tokens of a backend are bounded."""

    SHARED = "shared"
    """One budget for all lanes: for an engine without `--long-prefill-token-threshold`."""
    SEPARATE = "separate"
    """Short lane four chunks, long lane one request: for an engine that runs with the threshold."""


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """One lane: what belongs in it, its TTFT deadline, and its three hard limits."""

    name: str
    max_prompt_tokens: int | None
    """Longest prompt of this lane, in tokens; None in the last lane: everything longer."""
    ttft_slo_s: float
    """Deadline for the first token, seconds from arrival."""
    queue_requests: int
    """Requests that may wait; one more is rejected at once."""
    queue_tokens: int
    """Prompt tokens that may wait."""
    queue_bytes: int
    """Body bytes that may wait."""


@dataclass(frozen=True, slots=True)
class Installments:
    """Feeding a long prompt in parts through the engine's prefix cache."""

    part_tokens: int = 1024
    """Smallest part, in tokens."""
    parts_at_most: int = 16
    """A longer prompt gets larger parts: size is max(part_tokens, prompt / parts_at_most)."""
    pause: float = 0.25
    """Pause after a part, as a share of its duration, while others run on that backend."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may take. None: as much as there is."""

    weight: float = 1.0
    """Its share beside the others: 2 gets twice the tokens of 1 while both wait."""
    waiting_requests: int | None = None
    """Requests of all lanes that may wait; one more is rejected at once."""
    waiting_tokens: int | None = None
    """Prompt tokens that may wait."""
    sequences: int | None = None
    """Sequences that may run at once, on all backends together; what is over it waits. One request always may."""
    tokens_per_minute: int | None = None
    """Prompt tokens per minute, with a minute's worth of credit; a request over it is rejected at once."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """How tenants share a lane: a virtual token counter each, and limits each.

    Source: VTC (Sheng et al., arXiv 2401.00588): inside a lane those whose counter is smallest compete.
    """

    by_tokens: bool = True
    """Order tenants by their counters. False: limits alone, the order is as without tenants."""
    output_weight: float = 2.0
    """What an output token counts in prompt tokens (2, as in the scheduling study)."""
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    """Tenants with limits of their own, by name."""
    others: TenantLimits = TenantLimits()
    """Each tenant that is not named."""
    leased: bool = False
    """Other proxies serve them too: their sequences are leased."""

    def limits_of(self, tenant: str | None) -> TenantLimits:
        """Return what `tenant` may take."""
        return self.others if tenant is None else self.tenants.get(tenant, self.others)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """All that the Dispatcher needs to know beside its backends.

    Sources of the defaults: the simulator study in docs/algorithm.md.
    """

    lanes: tuple[LaneLimits, ...]
    """In order of length; the first is the short lane, the last takes everything longer."""
    lane_order: LaneOrder = LaneOrder.SHORT_FIRST
    queue_order: QueueOrder = QueueOrder.SHORTEST_FIRST
    budget_mode: BudgetMode = BudgetMode.SHARED
    prefill_budget_tokens: int | None = 2048
    """Outstanding prefill tokens per backend: one engine chunk (`max_num_batched_tokens`). None: no budget."""
    drop_factor: float | None = 1.0
    """A request is dropped when it cannot meet this multiple of its deadline. 1 = shed at once when late;
    above 1 a late request steps behind on-time ones first. None: no deadline at all."""
    deadline_margin_s: float = 0.05
    """About two decode steps."""
    ageing: float = 10.0
    """Weight of expected work against waiting time in the queue order. Insensitive from 1 to 100."""
    decode_weight: float = 8.0
    """Cost of one output token, in units of the cost of one prompt token. Insensitive."""
    prefill_s_per_token: float = 0.00009
    """`c0`, seconds of engine time per prompt token, measured at concurrency 1 (start value; learned)."""
    step_s: float = 0.02
    """`a`, seconds of one empty engine step."""
    installments: Installments | None = None
    fairness: Fairness | None = None
    """How tenants share a lane; None: whoever sends most gets most."""
    priority_step_s: float = 0.0
    """Head start of a ticket over one of the next class, in seconds of waiting time. A class is never ahead of
    everything: whoever has waited that much longer goes first. 0: classes mean nothing."""


LOWEST_CONCURRENCY = 8
HIGHEST_CONCURRENCY = 256
"""vLLM's own default of `--max-num-seqs`."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """How a limit follows TPOT.

    Raises:
        ValueError: no limit could be between the bounds, or the rule could not move it both ways.
    """

    tpot_slo_s: float
    """Time per output token that is still good, seconds."""
    floor: int = LOWEST_CONCURRENCY
    ceiling: int = HIGHEST_CONCURRENCY
    """The engine's `max_num_seqs`: what is over it waits inside the engine."""
    interval_s: float = 2.0
    """Seconds from one look to the next."""
    target: float = 0.95
    """Share of the SLO above which the limit falls."""
    decrease: float = 0.95
    """What it is multiplied by then."""

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.ceiling:
            raise ValueError(
                f"the floor of a concurrency limit is at least 1 and not above its ceiling, got floor {self.floor} "
                f"and ceiling {self.ceiling}"
            )
        if min(self.tpot_slo_s, self.interval_s, self.target) <= 0 or not 0 < self.decrease < 1:
            raise ValueError("tpot_slo_s, interval_s and target must be above 0, and decrease between 0 and 1")


@dataclass(frozen=True, slots=True)
class BackendLimits:
    """One engine as the Dispatcher sees it."""

    name: str
    concurrency: int
    """Sequences that may run at once, all lanes together; where `adaptive` is set, only at the start."""
    models: frozenset[str] | None = None
    """Model names it serves; None: any."""
    kv_tokens: int | None = None
    """KV cache size in tokens; None: unknown, no guard."""
    kv_fraction: float = 0.9
    """Share of the KV cache that granted requests may be expected to fill."""
    weight: float = 1.0
    """Relative speed, for choosing among backends."""
    adaptive: Adaptive | None = None
    """How the concurrency follows TPOT; None: it is fixed."""
    leased: bool = False
    """Other proxies use it too: nothing runs beyond what is leased (`proxy.policy.leases`)."""
