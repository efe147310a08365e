"""`share` and `sharing`: several proxies in front of the same engines that together keep to one set of limits."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainSerializer, SecretStr, WithJsonSchema, field_validator

from proxy.policy.limits import Adaptive, BackendLimits, Fairness, Scheduling, TenantLimits
from proxy.settings.problem import Problem
from proxy.settings.sections import Section
from proxy.settings.units import Duration

if TYPE_CHECKING:
    from proxy.settings.model import Settings

MOST_PROXIES = 64
_SHARE = re.compile(r"\s*1\s*/\s*([0-9]{1,3})\s*")
_UNBOUNDED_PROMPT = 131_072
"""Prompt tokens that a tenant's share of waiting tokens always takes, where no longest prompt is configured."""


def read_share(value: Any) -> int:
    """Read `1/N`.

    Returns:
        N.

    Raises:
        ValueError: it is none, or N is not from 1 to 64.
    """
    if value == 1 and not isinstance(value, bool):
        return 1
    found = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 1 <= int(found[1]) <= MOST_PROXIES:
        raise ValueError(f'write "1/N" with N proxies from 1 to {MOST_PROXIES}, for example "1/3"')
    return int(found[1])


Share = Annotated[
    int,
    BeforeValidator(read_share),
    PlainSerializer(lambda proxies: f"1/{proxies}", when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^1/[0-9]+$", "examples": ["1/3"]}),
]


def one_of(limit: int, proxies: int) -> int:
    """Return this proxy's part of a limit: rounded down, so that all parts together keep it, and at least 1."""
    return max(1, limit // proxies)


def split_backend(limits: BackendLimits, proxies: int) -> BackendLimits:
    """Return what one of several proxies may do on a backend."""
    if proxies == 1:
        return limits
    return replace(
        limits,
        concurrency=one_of(limits.concurrency, proxies),
        kv_fraction=limits.kv_fraction / proxies,
        adaptive=None if limits.adaptive is None else _split_adaptive(limits.adaptive, proxies),
    )


def split_scheduling(scheduling: Scheduling, proxies: int) -> Scheduling:
    """Return scheduling with one proxy's part of the prefill budget; a prompt over it still goes, alone."""
    budget = scheduling.prefill_budget_tokens
    if proxies == 1 or budget is None:
        return scheduling
    return replace(scheduling, prefill_budget_tokens=one_of(budget, proxies))


def split_fairness(
    fairness: Fairness | None, proxies: int, longest: int | None, *, leased: bool = False
) -> Fairness | None:
    """Return one proxy's part of what each tenant may take.

    Args:
        fairness: what tenants may take in all.
        proxies: how many share it.
        longest: prompt tokens of the longest request; None: not known. One such request may always wait.
        leased: the sequences are shared by leases, and stay whole here.
    """
    if fairness is None or (proxies == 1 and not leased):
        return fairness
    longest = longest or _UNBOUNDED_PROMPT

    def part(limits: TenantLimits) -> TenantLimits:
        waiting, tokens = limits.waiting_requests, limits.waiting_tokens
        sequences, rate = limits.sequences, limits.tokens_per_minute
        return replace(
            limits,
            waiting_requests=None if waiting is None else one_of(waiting, proxies),
            waiting_tokens=None if tokens is None else max(one_of(tokens, proxies), min(tokens, longest)),
            sequences=sequences if leased or sequences is None else one_of(sequences, proxies),
            tokens_per_minute=None if rate is None else one_of(rate, proxies),
        )

    named = {name: part(limits) for name, limits in fairness.tenants.items()}
    return replace(fairness, tenants=named, others=part(fairness.others), leased=leased)


def _split_adaptive(adaptive: Adaptive, proxies: int) -> Adaptive:
    return replace(adaptive, floor=one_of(adaptive.floor, proxies), ceiling=one_of(adaptive.ceiling, proxies))


class Sharing(Section):
    """Limits that several proxies keep together, in Redis or Valkey. Needs `pip install 'lanewise[redis]'`.

    docs/several-proxies.md explains it.
    """

    store: str | None = Field(
        default=None,
        description="Where the proxies of a group keep what each of them holds: `redis://HOST:PORT/DB`, `rediss://` "
        "for TLS, or `unix:///PATH` for its socket; Redis 7 or Valkey 9. Default: nothing is shared, and each proxy "
        "keeps to its `share`.",
    )
    username: str | None = Field(default=None, description="User of the store. Default: its default user.")
    password: SecretStr | None = Field(
        default=None, description="Its password. Better in the environment: `LANEWISE_SHARING__PASSWORD`."
    )
    group: str = Field(
        default="lanewise",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of the group. Proxies in front of the same engines have the same; backends and tenants are "
        "the same to them when they have the same names.",
    )
    lease: Duration = Field(
        default=1.5,
        ge=0.3,
        le=60,
        description="For how long the store keeps what a proxy holds and does not renew. Each renews three times as "
        "often. After this time the others get what a dead one held.",
    )
    timeout: Duration = Field(
        default=0.05, ge=0.005, le=5, description="Longest wait for the store, which no request waits for."
    )
    recovery: Duration = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="How long a proxy that lost the store takes to grow from what it held, where that was less than "
        "its share, to its share: meanwhile others that held more get rid of it.",
    )

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.username or parts.password:
            raise ValueError("write user and password as sharing.username and sharing.password, not into the URL")
        local = parts.scheme in {"unix", "workers"}  # the second is what --workers says
        named = parts.path.startswith("/") if local else bool(parts.hostname)
        if not named or not (local or parts.scheme in {"redis", "rediss"}):
            raise ValueError("write redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH")
        return value


def sharing_problems(settings: "Settings") -> Iterator[Problem]:
    """Yield what cannot work."""
    if settings.sharing.store is not None and settings.share == 1:
        text = "1/1 would be everything while the store cannot be reached; say how many proxies there are, such as 1/3"
        yield Problem("share", text, other="sharing.store")
    if settings.sharing.timeout * 3 >= settings.sharing.lease:
        text = "three time-outs take as long as a lease: nothing could be renewed in time"
        yield Problem("sharing.timeout", text, other="sharing.lease")


def sharing_warnings(settings: "Settings") -> Iterator[Problem]:
    """Yield what works but is probably not meant."""
    for backend in settings.backends:
        start = settings.start_of(backend)
        if start < settings.share:
            text = (
                f"1/{settings.share} of the {start} sequences of {backend.label} is less than one; each proxy takes "
                f"one, {settings.share} together"
            )
            yield Problem("share", text, other="scheduling.concurrency")
