"""The whole configuration: frozen, checked across its sections, converted to what the scheduling core reads."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from proxy.policy.classify import LanePolicy, LengthPolicy
from proxy.policy.health import HealthLimits
from proxy.policy.limits import (
    HIGHEST_CONCURRENCY,
    LOWEST_CONCURRENCY,
    Adaptive,
    BackendLimits,
    BudgetMode,
    LaneLimits,
    Mode,
)
from proxy.policy.limits import Installments as InstallmentLimits
from proxy.policy.limits import Scheduling as SchedulingLimits
from proxy.settings.checks import problems
from proxy.settings.engines import Health, Names, Prefixes, Retries
from proxy.settings.estimate import Estimate
from proxy.settings.explain import Explain
from proxy.settings.measured import Measured
from proxy.settings.policies import LengthRule, Repeats
from proxy.settings.sections import (
    Backend,
    Installments,
    Lanes,
    Limits,
    Metrics,
    Networks,
    Probes,
    Recorder,
    Scheduling,
    Section,
    Timeouts,
)
from proxy.settings.security import Auth, Tls
from proxy.settings.sharing import Share, Sharing, split_backend, split_fairness, split_scheduling
from proxy.settings.tenants import Priority, Tenants, read_list
from proxy.settings.tracing import Tracing
from proxy.settings.units import Address

_SECRET: dict[str, Any] = {
    "why": True,
    "recorder": {"salt"},
    "probes": {"api_key"},
    "tenants": {"salt"},
    "sharing": {"password"},
}
"""What the hash leaves out."""

LANES = ("short", "long")
"""Names of the lanes, in the order of `Scheduling.lanes`."""


def _backends(value: Any) -> Any:
    """Let text stand for a list: one URL, several with commas, or a JSON list (environment and flags)."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [part.strip() for part in value.split(",") if part.strip()]
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"not a JSON list: {error}") from None


class Settings(Section):
    """Everything the operator decides. Read it with `proxy.settings.load`."""

    mode: Mode = Field(
        default=Mode.ENFORCE,
        description="`enforce`: schedule, cap and refuse. `observe`: forward everything at once and untouched, decide "
        "on paper and count what would have been done (`lanewise_would_total`); the first step in front of production. "
        "`passthrough`: only relay and measure. docs/operations.md has the way from one to the next.",
    )
    listen: Address = Field(
        default=Address("127.0.0.1", 8080),
        description="Where clients connect. The default is this machine alone; `0.0.0.0:8080` opens it to the network.",
    )
    admin: Address = Field(
        default=Address("127.0.0.1", 9100),
        description="Where `/metrics`, `/livez`, `/readyz`, `/status.json` and the status page are. Keep it off the "
        "public network, or give it a key (`auth.admin_key_file`).",
    )
    backends: Annotated[tuple[Backend, ...], BeforeValidator(_backends)] = Field(
        description="The engines, as URLs or as mappings.",
    )
    auth: Auth = Auth()
    tls: Tls = Tls()
    lanes: Lanes = Lanes()
    scheduling: Scheduling = Scheduling()
    installments: Installments = Installments()
    estimate: Estimate = Estimate()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    probes: Probes = Probes()
    health: Health = Health()
    retries: Retries = Retries()
    names: Names = Names()
    prefixes: Prefixes = Prefixes()
    recorder: Recorder = Recorder()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    explain: Explain = Explain()
    tenants: Tenants = Tenants()
    priority: Priority = Priority()
    length_policies: Annotated[tuple[LengthRule, ...], BeforeValidator(read_list)] = Field(
        default=(),
        description="Lengths of prompts and answers for some models, tenants or lanes, beside the lanes' own. Where "
        "several hold, the tightest wins. docs/length-policy.md explains them.",
    )
    repeats: Repeats = Repeats()
    share: Share = Field(
        default=1,
        description="What this proxy takes of every limit of the engines and tenants (sequences, prefill budget, KV "
        'cache, tenants\' limits) where several proxies are in front of the same engines: `"1/3"` is a third, rounded '
        "down, at least one. With `sharing.store` it holds only while the store cannot be reached.",
    )
    sharing: Sharing = Sharing()
    measured: Measured = Measured()
    trusted_networks: Networks = Field(
        default=(),
        description="Networks whose requests may choose their own mode with the header `x-lanewise-mode`, such as "
        "`10.0.0.0/8`. What counts is the address of the TCP connection, not `X-Forwarded-For`. Default: none, and the "
        "header does nothing.",
    )
    trusted_proxies: Networks = Field(
        default=(),
        description="Networks of your own reverse proxies and gateways in front, such as `10.0.0.0/8`. What they say "
        "of their clients is believed: `X-Forwarded-For` (or `Forwarded`) names the address by which tenants are told "
        "apart and logs speak, and all such headers go on to the engine. Of everybody else they are dropped, and made "
        "anew from the TCP connection.",
    )
    one_change: Literal["warn", "strict"] = Field(
        default="warn",
        description="What a reload does that changes more than one scheduling parameter, or goes on from or to a "
        "configuration that was judged bad: `warn` says so and goes on; `strict` refuses it.",
    )
    state_dir: Path | None = Field(
        default=None,
        description="Directory for the last ten configurations that were in force, for `lanewise rollback` after a "
        "restart; made when it is missing. Default: `lanewise` under `XDG_STATE_HOME`, else `/var/lib/lanewise` if it "
        "can be written; without either, rollback goes back as far as the process remembers.",
    )
    request_id_header: Annotated[str, AfterValidator(str.lower)] = Field(
        default="x-request-id",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="Header that carries the request id: taken from the client, made when absent, sent back.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="How the log on stderr is written: `text` for people, `json` for programs, one object in one line.",
    )
    access_log: bool = Field(
        default=False,
        description="Write one line for each finished request. Off: only requests that an engine failed are told.",
    )
    log_client: bool = Field(
        default=False,
        description="Say in lines about requests which address a client has. An address is personal data in many "
        "places.",
    )
    why: dict[str, str] = Field(
        default={},
        description='Why a key differs from its default, and when it can go: `scheduling.drop_factor: "..."`. '
        "Shown by `lanewise config show`, asked for by `lanewise validate --strict`.",
    )

    @model_validator(mode="after")
    def _check_across(self) -> "Settings":
        found = problems(self)
        if found:
            raise PydanticCustomError("across", "the settings contradict each other", {"problems": found})
        return self

    @property
    def hash(self) -> str:
        """Return 12 hex digits that differ when any resolved value differs; secrets and `why` texts stay out."""
        canonical = self.model_dump(mode="json", exclude=_SECRET)
        return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def without_key_digests(self) -> "Settings":
        """Return the same without the digests of tenants' keys: for what can be read by others."""
        named = tuple(one.model_copy(update={"keys": ()}) for one in self.tenants.named)
        return self.model_copy(update={"tenants": self.tenants.model_copy(update={"named": named})})

    @property
    def model_labels(self) -> tuple[str, ...]:
        """Return the model names that get metric series of their own."""
        named = self.metrics.models or tuple(name for backend in self.backends for name in backend.models)
        return tuple(dict.fromkeys(named))

    def to_scheduling(self) -> SchedulingLimits:
        """Convert to what the Dispatcher reads."""
        chosen, longest = self.scheduling, self.limits.prompt_tokens
        fairness = split_fairness(self.tenants.to_fairness(), self.share, longest, leased=self.leased)
        whole = SchedulingLimits(
            lanes=tuple(self._lane_limits(name) for name in LANES),
            lane_order=chosen.lane_order,
            queue_order=chosen.queue_order,
            budget_mode=chosen.budget_mode,
            prefill_budget_tokens=chosen.prefill_budget_tokens,
            drop_factor=chosen.drop_factor,
            deadline_margin_s=chosen.deadline_margin,
            ageing=chosen.ageing,
            decode_weight=chosen.decode_weight,
            prefill_s_per_token=chosen.prefill_time_per_token,
            step_s=chosen.step_time,
            installments=self._installments(),
            fairness=fairness,
            priority_step_s=0.0 if self.priority.allowed == "off" else self.priority.step,
        )
        return split_scheduling(whole, self.static_share)

    def _installments(self) -> InstallmentLimits | None:
        chosen = self.installments
        threshold = self.scheduling.budget_mode is BudgetMode.SEPARATE  # the engine cuts long prefills itself
        if chosen.mode == "off" or (chosen.mode == "auto" and threshold):
            return None
        return InstallmentLimits(chosen.part_tokens, chosen.parts_at_most, chosen.pause)

    def _lane_limits(self, name: str) -> LaneLimits:
        lane = getattr(self.lanes, name)
        return LaneLimits(
            name=name,
            max_prompt_tokens=self.lanes.short.max_prompt_tokens if name == "short" else None,
            ttft_slo_s=lane.ttft_slo,
            queue_requests=lane.queue.requests,
            queue_tokens=lane.queue.tokens,
            queue_bytes=lane.queue.bytes,
        )

    def to_lane_policies(self) -> tuple[LanePolicy, ...]:
        """Convert to what classify reads: what belongs in each lane, and how long answers may become."""
        longest = {"short": self.lanes.short.max_prompt_tokens, "long": self.limits.prompt_tokens}
        return tuple(LanePolicy(name, longest[name], getattr(self.lanes, name).output.to_policy()) for name in LANES)

    def to_length_policies(self) -> tuple[LengthPolicy, ...]:
        """Convert to what classify reads beside the lanes."""
        return tuple(one.to_policy() for one in self.length_policies)

    def to_backend_limits(self) -> tuple[BackendLimits, ...]:
        """Convert to the backends as the Dispatcher sees them, in the order of the configuration."""
        whole = (
            BackendLimits(
                name=backend.label,
                concurrency=self.start_of(backend),
                models=frozenset(backend.models) or None,
                kv_tokens=backend.kv_tokens,
                kv_fraction=self.scheduling.kv_fraction,
                weight=backend.weight,
                adaptive=self._adaptive(backend),
                leased=self.leased,
            )
            for backend in self.backends
        )
        return tuple(split_backend(limits, self.static_share) for limits in whole)

    @property
    def leased(self) -> bool:
        """Whether limits are kept together with other proxies, by leases."""
        return self.sharing.store is not None

    @property
    def static_share(self) -> int:
        """Return into how many parts the limits of the engines are split beforehand: 1 where they are leased."""
        return 1 if self.leased else self.share

    def to_health_limits(self) -> HealthLimits:
        """Convert to when a backend counts as down, or is left alone."""
        health, trips = self.health, self.mode is Mode.ENFORCE
        return HealthLimits(
            down_after=self.probes.down_after,
            up_after=self.probes.up_after,
            trip_after=health.trip_after if trips else None,
            trip_share=health.trip_share if trips else 1.0,
            trip_s=health.trip_time,
            trip_at_most_s=health.trip_time_at_most,
            slow_start_s=health.slow_start,
        )

    def start_of(self, backend: Backend) -> int:
        """Return the configured concurrency of a backend."""
        return backend.concurrency or self.scheduling.concurrency

    def _adaptive(self, backend: Backend) -> Adaptive | None:
        chosen, start = self.scheduling.adaptive, self.start_of(backend)
        if not chosen.enabled:
            return None
        return Adaptive(
            tpot_slo_s=min(self.lanes.short.tpot_slo, self.lanes.long.tpot_slo),
            floor=chosen.floor or min(LOWEST_CONCURRENCY, start),
            ceiling=backend.max_num_seqs or chosen.ceiling or max(HIGHEST_CONCURRENCY, start),
        )
