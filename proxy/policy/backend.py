"""One engine as the Dispatcher accounts for it: what runs there, what it holds, and whether one more fits."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from proxy.policy.entry import Entry
from proxy.policy.installments import PartResult, PrefixCache
from proxy.policy.job import NEVER
from proxy.policy.leases.hold import Amounts, Hold
from proxy.policy.limiter import Limiter
from proxy.policy.limits import BackendLimits
from proxy.policy.outcome import Ending
from proxy.policy.prefixes import PrefixMemory

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
    TENANT = "tenant"
    """As much of its tenant runs as may."""
    HELD = "held"
    """Its next free room is kept for a ticket that has waited far too long."""
    BUSY = "busy"
    """The engine said 429 or 503: it is left alone for a while."""
    TRIAL = "trial"
    """One request shows whether it works again; the others wait for that."""


_LACKING = (Blocked.CAP, Blocked.PREFILL, Blocked.KV)


class Backend:
    """Accounting of one backend. `hold` and `release` are the only ways in and out, once each per grant."""

    def __init__(self, limits: BackendLimits, lanes: int) -> None:
        self.up = True
        """New tickets may come: it can be reached and is not drained by order."""
        self.reachable = True
        self.drained = False
        self.entry = Entry()
        """How it comes back."""
        self.tried: Job | None = None
        """The one request of its trial."""
        self.hold_until = 0.0
        self.caches = True
        """Whether it has one prefix cache, as far as it says."""
        self.prefixes = PrefixMemory(limits.kv_tokens)
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
        self.hold_of: Hold | None = Hold() if limits.leased else None
        """What other proxies leave to this one; None: it is alone."""

    def configure(self, now: float, limits: BackendLimits) -> None:
        """Take new limits; what runs keeps running."""
        self.limiter.configure(now, limits.concurrency, limits.adaptive, self.in_flight)
        if limits.leased is not self.limits.leased:
            self.hold_of = Hold() if limits.leased else None
        self.limits = limits
        self.kv_limit = _kv_limit(limits)
        self.prefixes.resize(limits.kv_tokens)

    def set_reachable(self, reachable: bool) -> None:
        """Take whether it can be reached; one that could not be has lost what it had computed."""
        self.reachable = reachable
        self.up = reachable and not self.drained
        if not reachable:
            self.prefixes.clear()

    def set_drained(self, drained: bool) -> None:
        """Take the order to give it nothing new, or that the order is over."""
        self.drained = drained
        self.up = self.reachable and not drained

    def set_caching(self, caches: bool) -> None:
        """Take whether it has a prefix cache, which is empty now."""
        self.caches = caches
        self.prefixes.clear()

    def enter(self, entry: Entry) -> None:
        """Take how it comes back from now on."""
        self.entry = entry
        self.tried = None

    def left_alone(self, now: float) -> bool:
        """Return whether it should get nothing more just now, although it is up."""
        return self.tried is not None or self.hold_until > now

    def cap(self, now: float) -> int:
        """Return how many sequences may run at `now`."""
        return self.limiter.cap if self.entry.ramp is None else self.entry.ramp.limit(now, self.limiter.cap)

    def changes_at(self, now: float) -> float:
        """Return when it may get more only because time has passed."""
        at = self.hold_until if self.hold_until > now else NEVER
        if self.entry.ramp is not None:
            at = min(at, self.entry.ramp.next_step(now, self.limiter.cap))
        return at

    def look(self, now: float) -> None:
        """Let the limiter move by what was measured since it looked last."""
        elsewhere = 0 if self.hold_of is None else self.hold_of.terms.elsewhere
        self.limiter.look(now, self.in_flight + elsewhere, self.widest)
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
        if not self.up and not (self.drained and self.reachable and self.started is job):
            return Blocked.NONE_UP
        if self.hold_until > now:
            return Blocked.BUSY
        if self.tried is not None:
            return Blocked.TRIAL
        lane = job.queue.lane
        if self.in_flight:
            if self.in_flight + slots > (self.limiter.cap if self.entry.ramp is None else self.cap(now)):
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
        if self.hold_of is not None:
            lacking = self.hold_of.lacks(now, self.used, (slots, prefill, kv), lane.index)
            if lacking is not None:
                return _LACKING[lacking]
        return None

    @property
    def used(self) -> Amounts:
        """Return what is in use, in the order of leases: sequences, prefill tokens, KV tokens."""
        return self.in_flight, self.prefill_total, self.kv

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
        if self.entry.trial:
            self.tried = job
        if self.hold_of is not None:
            self.hold_of.note(self.used)
        if job.ticket.prefix is not None:
            self.prefixes.note(job.ticket.prefix)

    def release_prefill(self, job: Job) -> None:
        """Give the prefill budget of `job` back; again is harmless."""
        if self.hold_of is not None:
            self.hold_of.release((0, job.held_prefill, 0))
        self.prefill[job.ticket.lane] -= job.held_prefill
        self.prefill_total -= job.held_prefill
        job.held_prefill = 0

    def release(self, job: Job) -> None:
        """Give back all that the grant of `job` still holds."""
        self.release_prefill(job)
        if self.hold_of is not None:
            self.hold_of.release((job.held_slots, 0, job.held_kv))
        self.kv -= job.held_kv
        self.output -= job.held_output
        self.in_flight -= job.held_slots
        self.requests -= 1
        job.held_kv = job.held_slots = job.held_output = job.refund = 0
        job.backend = None
        if self.tried is job:
            self.tried = None

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

    def cost(self, prefill: float, c0: float, w: float) -> float:
        """Return the outstanding work in engine seconds, with `prefill` more tokens, over the relative speed."""
        return ((self.prefill_total + prefill) * c0 + w * self.output) / self.limits.weight

    def uncached(self, job: Job, prefill: int) -> float:
        """Return how many of `prefill` prompt tokens of `job` would really be computed here, as far as is known."""
        prefix = job.ticket.prefix
        if prefix is None or not self.caches:
            return prefill
        return max(0.0, prefill - self.prefixes.cached_tokens(prefix))

    @property
    def running(self) -> str:
        """How much runs of what may, for people."""
        return f"{self.in_flight}/{self.limiter.cap} in flight"

    def __repr__(self) -> str:
        state = self.running if self.up else f"{'drained' if self.drained else 'down'}, {self.in_flight} in flight"
        return f"<Backend {self.name} {state}>"


def _kv_limit(limits: BackendLimits) -> int | None:
    return None if limits.kv_tokens is None else int(limits.kv_fraction * limits.kv_tokens)
