"""Who sent what: tenants, priority classes, duplicates, retries that came too early, and prefixes that repeat.

The labels of tenants are bounded by the configuration (`tenants.named`, `tenants.told_apart`).
"""

from collections.abc import Iterator, Sequence
from itertools import product

from prometheus_client.metrics_core import Metric

from proxy.exchange import Exchange
from proxy.metrics.requests import slo_of, within_slo
from proxy.metrics.series import counter, gauge
from proxy.policy.outcome import Outcome
from proxy.policy.reuse import PrefixReuse
from proxy.policy.tenants import TenantSnapshot
from proxy.settings import LANES, Settings

NO_LANE = "none"
ACTIONS = ("observed", "rejected")
CLASSES = {-1: "high", 0: "normal", 1: "low"}
_TENANT = ("tenant",)


class _PerTenant:
    """Counters of one tenant."""

    __slots__ = ("good", "outcomes", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(map(str, Outcome), 0)
        self.good = 0
        self.prompt_tokens = 0
        self.output_tokens = 0


class SenderMetrics:
    """Observer of finished exchanges."""

    def __init__(self, settings: Settings) -> None:
        self.configure(settings)
        lanes = (*LANES, NO_LANE)
        self._duplicates = dict.fromkeys(product(lanes, ACTIONS), 0)
        self._early = dict.fromkeys(lanes, 0)
        self._classes = dict.fromkeys(product(LANES, CLASSES), 0)
        self._tenants: dict[str, _PerTenant] = {}

    def configure(self, settings: Settings) -> None:
        """Take new deadlines."""
        self._slo = {name: slo_of(settings, name) for name in LANES}

    def observe(self, exchange: Exchange) -> None:
        """Count one finished request."""
        lane = exchange.lane or NO_LANE
        if exchange.duplicate is not None:
            self._duplicates[lane, exchange.duplicate] += 1
        if exchange.damped:
            self._early[lane] += 1
        if exchange.ticket is not None:
            self._classes[lane, exchange.priority] += 1
        if exchange.tenant is not None and exchange.facts is not None:
            of = self._tenants.setdefault(exchange.tenant, _PerTenant())
            of.outcomes[str(exchange.outcome or Outcome.BACKEND_ERROR)] += 1
            of.prompt_tokens += exchange.prompt_tokens or 0
            of.output_tokens += exchange.output_tokens or 0
            if exchange.outcome is Outcome.OK and lane in self._slo:
                of.good += within_slo(exchange, self._slo[lane])

    def families(self, tenants: Sequence[TenantSnapshot], reuse: PrefixReuse | None) -> Iterator[Metric]:
        """Yield every family.

        Args:
            tenants: what each holds now.
            reuse: how much of the prompts repeats; None: not measured.
        """
        yield counter(
            "duplicate_requests",
            "Requests whose identical twin was queued or running: let through (observed) or rejected.",
            ("lane", "action"),
            self._duplicates.items(),
        )
        yield counter(
            "early_returns",
            "Refused requests that had come back before the time they were told, or say that they are a retry, and "
            "were told to stay away longer.",
            ("lane",),
            (((lane,), count) for lane, count in self._early.items()),
        )
        yield counter(
            "priority_requests",
            "Requests that got a lane, by priority class.",
            ("lane", "class"),
            (((lane, CLASSES[rank]), count) for (lane, rank), count in self._classes.items()),
        )
        yield from self._tenant_families(tenants)
        if reuse is not None:
            yield counter(
                "prefix_blocks",
                "Blocks of prompts: repeated, where a recent prompt began the same way up to the end of the block, or "
                "new. The share of repeated ones is what prefix caching can save; no series without the recorder.",
                ("result",),
                ((("repeated",), reuse.repeated), (("new",), reuse.new)),
            )

    def _tenant_families(self, tenants: Sequence[TenantSnapshot]) -> Iterator[Metric]:
        counted = self._tenants.items()
        yield counter(
            "tenant_requests",
            "Finished requests by tenant and outcome; no series while tenants are not told apart.",
            ("tenant", "outcome"),
            (((name, outcome), n) for name, of in counted for outcome, n in of.outcomes.items()),
        )
        yield counter(
            "tenant_prompt_tokens",
            "Prompt tokens by tenant, from usage.",
            _TENANT,
            (((name,), of.prompt_tokens) for name, of in counted),
        )
        yield counter(
            "tenant_output_tokens",
            "Output tokens by tenant, from usage or token events.",
            _TENANT,
            (((name,), of.output_tokens) for name, of in counted),
        )
        yield counter(
            "tenant_slo_good",
            "Goodput by tenant: requests answered within the deadlines of their lane.",
            _TENANT,
            (((name,), of.good) for name, of in counted),
        )
        yield gauge(
            "tenant_queue_depth",
            "Requests that wait, by tenant.",
            _TENANT,
            (((of.name,), of.waiting_requests) for of in tenants),
        )
        yield gauge(
            "tenant_queue_tokens",
            "Prompt tokens that wait, by tenant.",
            _TENANT,
            (((of.name,), of.waiting_tokens) for of in tenants),
        )
        yield gauge(
            "tenant_inflight_requests",
            "Sequences that run, by tenant.",
            _TENANT,
            (((of.name,), of.running) for of in tenants),
        )
        yield counter(
            "tenant_granted_tokens",
            "Prompt tokens sent to engines, estimated, by tenant: what fairness shares, beside twice the output.",
            _TENANT,
            (((of.name,), of.granted_tokens) for of in tenants),
        )
