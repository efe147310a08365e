"""One engine as the Dispatcher accounts for it: what runs there, what it holds, and whether one more fits."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from proxy.policy.installments import PartResult, PrefixCache
from proxy.policy.limiter import Limiter
from proxy.policy.limits import BackendLimits
from proxy.policy.outcome import Ending

if TYPE_CHECKING:
    from proxy.policy.job import Job
    from proxy.policy.lane import Lane


class Blocked(StrEnum):
    """Why the head of a lane does not go to a backend; the metric label."""

    NONE_UP = "none_up"
    CAP = "cap"
    PREFILL = "prefill"
    KV = "kv"
    STARTED = "started"
    """Another long prompt is being fed there in parts."""
    PAUSE = "pause"
    """It pauses between two parts while others run."""
    HELD = "held"
    """Its next free room is kept for a ticket that has waited far too long."""


class Backend:
    """Accounting of one backend. `hold` and `release` are the only ways in and out, once each per grant."""

    def __init__(self, limits: BackendLimits, lanes: int) -> None:
        self.up = True
        self.in_flight = 0
        """Sequences that run."""
        self.requests = 0
        self.prefill = [0] * lanes
        """Prompt tokens sent per lane, no first token yet."""
        self.prefill_total = 0
        self.kv = 0
        """KV tokens that what runs is expected to fill."""
        self.output = 0
        """Output tokens that what runs is expected to make."""
        self.started: Job | None = None
        """The one long prompt that is being fed in parts."""
        self.pause_until = 0.0
        self.cache = PrefixCache()
        self.parts = dict.fromkeys(PartResult, 0)
        self.recomputed_tokens = 0
        """Prompt tokens that were computed before and not found again."""
        self.grants = 0
        self.output_tokens = 0
        """Output tokens reported with the endings, in all."""
        self.measured = 0
        self.ignored = 0
        self.dropped = 0
        self.name = limits.name
        self.limits = limits
        self.kv_limit = _kv_limit(limits)
        self.limiter = Limiter(limits.concurrency, limits.adaptive)
        """Says how many sequences may run."""
        self.widest = 1
        """Sequences of the widest grant since the limiter looked last."""

    def configure(self, now: float, limits: BackendLimits) -> None:
        """Take new limits; what runs keeps running."""
        self.limiter.configure(now, limits.concurrency, limits.adaptive, self.in_flight)
        self.limits = limits
        self.kv_limit = _kv_limit(limits)

    def look(self, now: float) -> None:
        """Let the limiter move by what was measured since it looked last."""
        self.limiter.look(now, self.in_flight, self.widest)
        self.widest = 1

    def ended(self, ending: Ending, output_tokens: int | None) -> None:
        """Count one ending."""
        if ending is Ending.MEASURED:
            self.measured += 1
        elif ending is Ending.IGNORED:
            self.ignored += 1
        else:
            self.dropped += 1
        if output_tokens is not None:
            self.output_tokens += output_tokens

    def serves(self, model: str | None) -> bool:
        """Return whether tickets for `model` may come here."""
        return model is None or self.limits.models is None or model in self.limits.models

    def blocked(self, job: Job, prefill: int, kv: int, slots: int, now: float) -> Blocked | None:
        """Return what stands against sending `job` here now, or None.

        An idle backend takes any one request, however large: each bound yields to it.
        """
        if not self.up:
            return Blocked.NONE_UP
        lane = job.queue.lane
        if self.in_flight:
            if self.in_flight + slots > self.limiter.cap:
                return Blocked.CAP
            if self.kv_limit is not None and self.kv + kv > self.kv_limit:
                return Blocked.KV
        if self.prefill_total and not self._affords(lane, prefill):
            return Blocked.PREFILL
        if lane.fed:
            if self.started is not None and self.started is not job:
                return Blocked.STARTED
            if self.pause_until > now and self.in_flight:
                return Blocked.PAUSE
        return None

    def _affords(self, lane: Lane, tokens: int) -> bool:
        if lane.budget is None:
            return True
        if not lane.separate:
            return self.prefill_total + tokens <= lane.budget
        out = self.prefill[lane.index]
        return out == 0 or (not lane.exclusive and out + tokens <= lane.budget)

    def hold(self, job: Job, prefill: int, kv: int, slots: int, output: int) -> None:
        """Charge one grant."""
        job.backend = self
        job.ahead = self.prefill_total
        job.held_prefill, job.held_kv, job.held_slots, job.held_output = prefill, kv, slots, output
        self.prefill[job.ticket.lane] += prefill
        self.prefill_total += prefill
        self.kv += kv
        self.output += output
        self.in_flight += slots
        self.widest = max(self.widest, slots)
        self.requests += 1
        self.grants += 1

    def release_prefill(self, job: Job) -> None:
        """Give the prefill budget of `job` back; again is harmless."""
        self.prefill[job.ticket.lane] -= job.held_prefill
        self.prefill_total -= job.held_prefill
        job.held_prefill = 0

    def release(self, job: Job) -> None:
        """Give back all that the grant of `job` still holds."""
        self.release_prefill(job)
        self.kv -= job.held_kv
        self.output -= job.held_output
        self.in_flight -= job.held_slots
        self.requests -= 1
        job.held_kv = job.held_slots = job.held_output = job.refund = 0
        job.backend = None

    def forget_started(self, job: Job) -> None:
        """Let the next long prompt start, if it was `job` that stood in its way."""
        if self.started is job:
            self.started = None

    def judge(self, now: float, done: int, cached: int | None) -> bool | None:
        """Learn from a request whose first `done` tokens were sent before.

        Args:
            now: monotonic seconds.
            done: prompt tokens that parts have covered.
            cached: how many of them the engine found; None when nobody can say.

        Returns:
            Whether it was a miss; None when nothing can be said.
        """
        expected = self.cache.expected(done)
        miss = self.cache.observe(now, done, cached)
        if cached is None or expected == 0:
            return None
        self.recomputed_tokens += max(0, expected - cached)
        return miss

    def cost(self, prefill: int, c0: float, w: float) -> float:
        """Return the outstanding work in engine seconds, with `prefill` more tokens, over the relative speed."""
        return ((self.prefill_total + prefill) * c0 + w * self.output) / self.limits.weight

    @property
    def running(self) -> str:
        """How much runs of what may, for people."""
        return f"{self.in_flight}/{self.limiter.cap} in flight"

    def __repr__(self) -> str:
        state = self.running if self.up else f"down, {self.in_flight} in flight"
        return f"<Backend {self.name} {state}>"


def _kv_limit(limits: BackendLimits) -> int | None:
    return None if limits.kv_tokens is None else int(limits.kv_fraction * limits.kv_tokens)
