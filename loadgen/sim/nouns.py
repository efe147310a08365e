"""Nouns of the simulated engine: what it is built from, what goes in, what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

RequestId = int | str


class SchedulingPolicy(StrEnum):
    """Order of the engine's own waiting queue, as vLLM's `--scheduling-policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    """Smaller `priority` first, then arrival; the largest is preempted first."""


class Noise(Protocol):
    """The part of `random.Random` that the engine draws from."""

    def lognormvariate(self, mu: float, sigma: float, /) -> float:
        """Return one lognormal sample."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine: the constants of its step time, its limits and its flags (names as vLLM's flags).

    The time of one step in seconds is

        a + b * decodes + c * prefill_tokens + d * sum(context of decodes) + e * sum(chunk * (context + chunk / 2))

    where context is what a sequence has in the KV cache before the step.

    Raises:
        ValueError: a limit that no engine could run with.
    """

    name: str
    a: float
    """Seconds of an empty step."""
    b: float
    """Seconds per decoding sequence."""
    c: float
    """Seconds per prefill token."""
    d: float
    """Seconds per decoding sequence and token of its context."""
    e: float
    """Seconds per prefill token and token that it attends to."""
    kv_blocks: int
    block_size: int = 128
    """Tokens of one KV block."""
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in a step that it shares with other requests; 0: no limit."""
    max_model_len: int = 32768
    """Context length: prompt and output together, in tokens."""
    prefix_caching: bool = True
    reserve_full_isl: bool = True
    """A waiting request starts only when its whole prompt fits into free KV (`scheduler_reserve_full_isl`)."""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    max_num_queued_reqs: int | None = None
    """Requests that may be unfinished, waiting and running together; None: no limit."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of requests whose prefill is not finished; None: no limit."""
    noise_sigma: float = 0.0
    """Sigma of a lognormal factor of mean 1 on every step time; needs a source of randomness in the engine."""
    concurrency_cap: int = 48
    """Not the engine's: the sequences that a proxy in front should let run, at the knee."""
    kv_fraction: float = 0.9
    """Not the engine's: the share of the KV cache that a proxy in front should let fill."""
    source: str = ""
    """Where the constants come from, in one sentence; printed wherever the profile's figures are."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every decoding sequence takes one token of a step"
            )
        if min(self.kv_blocks, self.block_size, self.max_num_seqs, self.max_model_len, self.concurrency_cap) < 1:
            raise ValueError(
                "kv_blocks, block_size, max_num_seqs, max_model_len and concurrency_cap must be at least 1"
            )
        if min(self.a, self.b, self.c, self.d, self.e, self.noise_sigma, self.long_prefill_token_threshold) < 0:
            raise ValueError("a, b, c, d, e, noise_sigma and long_prefill_token_threshold must not be negative")
        if not 0 < self.kv_fraction <= 1:
            raise ValueError(f"kv_fraction must be above 0 and at most 1, got {self.kv_fraction}")
        if self.a == 0:
            raise ValueError("a must be above 0: a step that takes no time would never let the clock advance")

    @property
    def kv_tokens(self) -> int:
        """Size of the KV cache in tokens."""
        return self.kv_blocks * self.block_size

    def step_s(self, decodes: int, prefill_tokens: int, decode_context: int, attention: float) -> float:
        """Return the time of one step in seconds.

        Args:
            decodes: sequences that get one more token.
            prefill_tokens: prompt tokens computed.
            decode_context: sum of the decodes' contexts, in tokens.
            attention: sum over chunks of chunk * (context + chunk / 2).
        """
        return self.a + self.b * decodes + self.c * prefill_tokens + self.d * decode_context + self.e * attention


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence asked of the engine; `output_tokens` is exactly what it will produce."""

    id: RequestId
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int] | None = None
    """One content hash per whole block of the prompt, each chained to all before it: equal hashes are equal prefixes.
    None: nothing of it can be found in the prefix cache."""
    priority: int = 0


@dataclass(slots=True)
class Step:
    """What one step did. It ends `duration_s` after it began; every token in it is delivered at that moment."""

    duration_s: float = 0.0
    decodes: int = 0
    """Sequences that got one more token after their first."""
    prefill_tokens: int = 0
    """Prompt tokens computed (after a preemption: tokens computed again)."""
    attention: float = 0.0
    """Sum over chunks of chunk * (context + chunk / 2): the argument of constant `e`."""
    admitted: list[tuple[RequestId, int]] = field(default_factory=list)
    """Requests that left the waiting queue, each with its tokens found in the prefix cache."""
    first: list[RequestId] = field(default_factory=list)
    """Requests whose first token comes at the end of this step."""
    finished: list[RequestId] = field(default_factory=list)
    """Requests whose last token comes at the end of this step."""
    preempted: list[RequestId] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """What the engine did since it was built; totals."""

    steps: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    """Prompt lengths of requests that got their first token, cached tokens included."""
    prefill_tokens: int = 0
    """Prompt tokens computed, recomputation included."""
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    """Tokens computed again after a preemption threw them away."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    rejected_requests: int = 0
    """Refused by `max_num_queued_reqs`."""
    rejected_tokens: int = 0
    """Refused by `max_num_queued_tokens`; counted in requests."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """State while the latest step runs; changes once per step, as vLLM's gauges do."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of the KV blocks in use, 0 to 1; blocks that are only cached are free."""
