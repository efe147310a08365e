"""`tenants` and `priority`: who sends, what each may take, and who may go first."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr

from proxy.policy.limits import Fairness, TenantLimits
from proxy.settings.sections import Names, Section, read_switch
from proxy.settings.units import Count, Duration

_DIGEST = re.compile(r"[0-9a-f]{64}")


def read_list(value: Any) -> Any:
    """Let a JSON list stand for a list of mappings: environment and flags have no lists.

    Raises:
        ValueError: the text is none.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"not a JSON list: {error}") from None


def _read_digests(value: Any) -> Any:
    listed = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise ValueError("write a list of SHA-256 digests in hexadecimal")
    digests = tuple(one.removeprefix("sha256:").lower() for one in listed)
    if not all(_DIGEST.fullmatch(one) for one in digests):
        raise ValueError(
            "each key is written as its SHA-256 in 64 hexadecimal digits, never as the key itself: "
            'printf %s "$KEY" | sha256sum'
        )
    return digests


class TenantShare(Section):
    """What one tenant may take. All limits are off by default."""

    weight: float = Field(
        default=1.0,
        ge=0.001,
        le=1000,
        description="Its share beside the others: 2 gets twice the tokens of 1 while both wait.",
    )
    waiting_requests: Count | None = Field(
        default=None, ge=1, description="Requests that may wait, all lanes together. Over it: 429 `tenant_limit`."
    )
    waiting_tokens: Count | None = Field(
        default=None, ge=1, description="Prompt tokens that may wait, estimated. Over it: 429 `tenant_limit`."
    )
    sequences: Count | None = Field(
        default=None,
        ge=1,
        description="Sequences that may run at once, on all backends together. What is over it waits, and lets others "
        "pass.",
    )
    tokens_per_minute: Count | None = Field(
        default=None,
        ge=1,
        description="Prompt tokens per minute, estimated, with a minute's worth of credit. Over it: 429 "
        "`tenant_limit`, and `Retry-After` says when there is room again.",
    )

    def to_limits(self) -> TenantLimits:
        """Convert to what the Dispatcher reads."""
        return TenantLimits(
            weight=self.weight,
            waiting_requests=self.waiting_requests,
            waiting_tokens=self.waiting_tokens,
            sequences=self.sequences,
            tokens_per_minute=self.tokens_per_minute,
        )


class Tenant(TenantShare):
    """A tenant with a name: its own series in the metrics, and its own limits."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="What metrics and traces call it; under `by: header` also the value of the header.",
    )
    keys: Annotated[tuple[str, ...], BeforeValidator(_read_digests)] = Field(
        default=(),
        description='SHA-256 of each of its API keys, in hexadecimal (`printf %s "$KEY" | sha256sum`). The keys '
        "themselves stand nowhere.",
    )


class Tenants(Section):
    """Telling apart who sends, so that one who sends much does not take all. docs/tenants.md explains it."""

    by: Annotated[Literal["off", "key", "header", "address"], BeforeValidator(read_switch)] = Field(
        default="off",
        description="What names the tenant of a request: `key` (`Authorization: Bearer` or `x-api-key`), `header` (see "
        "`header`; without it, the key), `address` (the client's; see `trusted_proxies`), or `off`: nobody is told "
        "apart, and nothing is spent on it.",
    )
    header: str = Field(
        default="x-tenant-id",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="Header that names the tenant under `by: header`. It counts only from `trusted_networks`: set it "
        "in the gateway in front.",
    )
    fairness: bool = Field(
        default=True,
        description="Let tenants share a lane by tokens: who was given least, over its weight, goes first. Off: limits "
        "alone.",
    )
    named: Annotated[tuple[Tenant, ...], BeforeValidator(read_list)] = Field(
        default=(), description="Tenants with a name, limits and series of their own."
    )
    others: TenantShare = TenantShare()
    told_apart: Count = Field(
        default=32,
        ge=0,
        le=1000,
        description="Tenants without a name here that are told apart, as `t-` and eight digits of a salted hash. Those "
        "that come after share the tenant `other`, until the next start.",
    )
    salt: SecretStr | None = Field(
        default=None,
        description="Salt of those hashes. Better in the environment: `LANEWISE_TENANTS__SALT`. Default: a random one "
        "at each start, so that the names differ from start to start.",
    )

    def to_fairness(self) -> Fairness | None:
        """Convert to what the Dispatcher reads; None while nobody is told apart."""
        if self.by == "off":
            return None
        return Fairness(
            by_tokens=self.fairness,
            tenants={one.name: one.to_limits() for one in self.named},
            others=self.others.to_limits(),
        )


class Priority(Section):
    """Three classes inside a lane, from vLLM's `priority` (lower goes sooner) or `X-Vllm-Priority`."""

    allowed: Annotated[Literal["off", "trusted", "anyone"], BeforeValidator(read_switch)] = Field(
        default="off",
        description="Whose priority counts here: `trusted` (peers in `trusted_networks`, and the tenants below), "
        "`anyone`, or `off`. The field and the header go to the engine as they came in any case.",
    )
    tenants: Names = Field(
        default=(), description="Names of tenants whose priority counts under `trusted`, wherever they come from."
    )
    high_at_most: int = Field(default=-1, description="Values up to this one are the high class.")
    low_from: int = Field(default=1, description="Values from this one up are the low class; between them is normal.")
    step: Duration = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Head start of a class over the next one, as if it had waited that much longer. So a class goes "
        "first, and nobody starves: after twice the step even the lowest goes before the highest that comes.",
    )

    def class_of(self, value: int | None) -> int:
        """Return the class of a priority: -1 high, 0 normal, 1 low."""
        if value is None:
            return 0
        if value <= self.high_at_most:
            return -1
        return int(value >= self.low_from)
