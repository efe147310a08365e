"""What an engine says about itself, and what is known of a backend because of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.policy.health import State


class ProbeError(Exception):
    """A probe failed; the text says how."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as `/v1/models` lists it."""

    name: str
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class PrefixCaching:
    """What an engine process says about its prefix cache; None: it does not say."""

    enabled: bool | None = None
    block_tokens: int | None = None
    engines: int | None = None
    """Data-parallel engines behind the one address, each with a cache of its own."""
    started_s: float | None = None
    """When the process began, Unix seconds: another one has an empty cache."""


@dataclass(frozen=True, slots=True)
class BackendView:
    """What is known of one backend."""

    name: str
    url: str
    state: State
    models: tuple[Model, ...] = ()
    version: str | None = None
    waiting: float | None = None
    """Requests that wait in the engine, as it says. None: unknown or stale."""
    running: float | None = None
    kv_usage: float | None = None
    """Share of its KV cache in use, 0 to 1."""
    kv_tokens: int | None = None
    """Size of its KV cache in tokens, as it says."""
    scrape_age_s: float | None = None
    """None: never read."""
    probe_age_s: float | None = None
    error: str | None = None
    """What was wrong with the last probe."""
    reported_failures: int = 0
    """Requests that failed there by its fault, those that found nobody included, in all."""
    drained: bool = False
    """By order it gets nothing new."""
    fault: str | None = None
    """What was wrong with the last request that failed there."""
    failed_in_a_row: int = 0
    """Requests that failed since one was served."""
    entered: Mapping[State, int] = field(default_factory=dict)
    """How often each state began."""

    @property
    def serves(self) -> bool:
        """Whether new requests may go there."""
        return self.state.usable and not self.drained

    @property
    def word(self) -> str:
        """Its state for people; an order says more than the state behind it."""
        return "drained" if self.drained else self.state.value


def read_models(body: bytes) -> tuple[Model, ...]:
    """Read the answer of `/v1/models`.

    Raises:
        ProbeError: it is no list of models.
        ValueError: it is no JSON.
    """
    document = json.loads(body)
    listed = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise ProbeError("/v1/models is no list of models")
    return tuple(
        Model(item["id"], _length(item.get("max_model_len")))
        for item in listed
        if isinstance(item, Mapping) and isinstance(item.get("id"), str)
    )


def read_version(body: bytes) -> str | None:
    """Read the answer of `/version`; None when it names none.

    Raises:
        ValueError: it is no JSON.
    """
    document = json.loads(body)
    version = document.get("version") if isinstance(document, Mapping) else None
    return version[:64] if isinstance(version, str) else None


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
