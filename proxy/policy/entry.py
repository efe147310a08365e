"""How a backend comes back: all at once, by a trial, or by a slow start."""

import math
from dataclasses import dataclass
from typing import Final

from proxy.policy.job import NEVER

FIRST_SHARE: Final = 0.1
"""Share of its concurrency that a backend gets at the beginning of its slow start."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """A limit that grows with time, in a straight line from `FIRST_SHARE` to all of it."""

    began: float
    """Monotonic seconds."""
    seconds: float
    """How long it takes, above 0."""

    def limit(self, now: float, cap: int) -> int:
        """Return how many of `cap` sequences may run at `now`: at least 1."""
        done = min(1.0, max(0.0, (now - self.began) / self.seconds))
        # The small term takes back what rounding lost: at the moment of a step the step has been made.
        return min(cap, max(1, math.floor(cap * (FIRST_SHARE + (1 - FIRST_SHARE) * done) + 1e-6)))

    def next_step(self, now: float, cap: int) -> float:
        """Return when one more may run than at `now`; `NEVER` when all may."""
        limit = self.limit(now, cap)
        if limit >= cap:
            return NEVER
        share = ((limit + 1) / cap - FIRST_SHARE) / (1 - FIRST_SHARE)
        return self.began + self.seconds * share


@dataclass(frozen=True, slots=True)
class Entry:
    """What a backend may get beside its own limits."""

    trial: bool = False
    """One request at a time, until one has shown whether it works."""
    ramp: Ramp | None = None
