"""What the checks look at: settings, engines as they were seen twice, the proxy that runs, the traffic."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.settings import Backend, Settings
from proxy.wire.startflags import StartFlags
from proxy.wire.vllm import EngineMetrics

ENOUGH_REQUESTS = 100
"""Below this many prompts shares of the traffic say nothing."""
USUAL_CHUNK = 2048
"""vLLM's `max_num_batched_tokens` where neither its flags nor the budget say (vLLM-Ascend's default)."""
GIANT_CHUNKS = 4
"""A prompt of more chunks than this is a giant: it holds the engine for that many steps."""


NOTHING_KNOWN = StartFlags()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine, asked twice. None: it did not say."""

    name: str
    url: str
    error: str | None = None
    """Why it could not be asked."""
    version: str | None = None
    models: tuple[tuple[str, int | None], ...] | None = None
    """Name and context (`max_model_len`) as `/v1/models` lists them."""
    first: EngineMetrics | None = None
    second: EngineMetrics | None = None
    apart_s: float = 0.0
    """Between the two looks."""
    flags: StartFlags = NOTHING_KNOWN
    flags_from: str = ""
    """Who told the flags, for people."""
    closed_after_s: float | None = None
    """When it closed an idle connection; None: it did not within `waited_s`."""
    waited_s: float | None = None
    """How long an idle connection was watched; None: it was not."""

    @property
    def context(self) -> int | None:
        """Longest context of its models."""
        return max((length for _, length in self.models or () if length is not None), default=None)

    @property
    def metrics(self) -> EngineMetrics | None:
        """The later look."""
        return self.second if self.second is not None else self.first

    @property
    def ranks(self) -> int | None:
        """Data-parallel engines behind the address."""
        told = self.metrics.engines if self.metrics is not None else None
        return told if told is not None else self.flags.data_parallel_size

    @property
    def caching(self) -> bool | None:
        """Whether prefix caching is on."""
        cache = self.metrics.cache if self.metrics is not None else None
        told = cache.enable_prefix_caching if cache is not None else None
        return told if told is not None else self.flags.enable_prefix_caching


@dataclass(frozen=True, slots=True)
class ProxyFacts:
    """The proxy that runs."""

    address: str
    status: Mapping[str, Any]
    """Its `/status.json`."""
    metrics: Mapping[str, Sequence[tuple[Mapping[str, str], float]]] = field(default_factory=dict)
    """Samples of its `/metrics`: name → labels and value."""

    def backend(self, name: str) -> Mapping[str, Any] | None:
        """Return what it says of one backend."""
        return next((one for one in self.status.get("backends", ()) if one.get("name") == name), None)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with these labels; None where there are none."""
        found = [
            value
            for known, value in self.metrics.get(name, ())
            if all(known.get(key) == wanted for key, wanted in labels.items())
        ]
        return sum(found) if found else None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths of prompts, cumulative: (upper bound in tokens, how many are not longer)."""

    requests: int
    bounds: tuple[tuple[float, int], ...]
    source: str

    def over(self, tokens: float) -> float:
        """Return the share of prompts longer than `tokens`, or than the next bound above: never too high."""
        at_most = next((count for bound, count in self.bounds if bound >= tokens), self.requests)
        return (self.requests - at_most) / self.requests if self.requests else 0.0

    @property
    def enough(self) -> bool:
        """Whether shares of it say anything."""
        return self.requests >= ENOUGH_REQUESTS


@dataclass(frozen=True, slots=True)
class Guards:
    """What was found out about packages, keys and certificates; one sentence each."""

    old: tuple[str, ...] = ()
    """Packages below their floor."""
    unread: tuple[str, ...] = ()
    """Files and variables that cannot be used."""
    doubts: tuple[str, ...] = ()
    """What is doubtful about those that can."""
    own: bool = True
    """The configuration is given here; False: a proxy told it, which may read what we may not."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known."""

    settings: Settings
    engines: tuple[EngineFacts, ...]
    today: dt.date
    proxy: ProxyFacts | None = None
    traffic: Traffic | None = None
    told_hash: str | None = None
    """Hash of the settings, where a proxy told them: without secrets and digests of keys they would have another."""
    guards: Guards = Guards()

    @property
    def config(self) -> str:
        """Hash of the configuration that is judged."""
        return self.settings.hash if self.told_hash is None else self.told_hash

    def pairs(self) -> Iterator[tuple[Backend, EngineFacts]]:
        """Yield each backend with what its engine said; engines that did not answer are left out."""
        known = {engine.name: engine for engine in self.engines}
        for backend in self.settings.backends:
            engine = known.get(backend.label)
            if engine is not None and engine.error is None:
                yield backend, engine

    def chunk(self, engine: EngineFacts) -> int:
        """Return how many prompt tokens the engine computes in one step."""
        return engine.flags.max_num_batched_tokens or self.settings.scheduling.prefill_budget_tokens or USUAL_CHUNK

    def in_flight(self, name: str) -> int | None:
        """Return how many sequences of ours run on a backend; None: nobody says."""
        told = self.proxy.backend(name) if self.proxy is not None else None
        value = told.get("in_flight") if told is not None else None
        return value if isinstance(value, int) else None

    def installments(self, engine: EngineFacts) -> bool | None:
        """Return whether long prompts go to an engine in parts; None: it may be so, nobody says."""
        if self.settings.to_scheduling().installments is None:
            return False
        told = self.proxy.backend(engine.name) if self.proxy is not None else None
        mode = told.get("installments") if told is not None else None
        if mode in {"on", "off"}:
            return bool(mode == "on")
        return False if engine.caching is False else None
