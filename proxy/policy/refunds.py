"""Prefill budgets that come back by the clock, for tickets whose first token cannot be seen."""

import heapq

from proxy.policy.job import NEVER, Job, Stage

BLIND_FACTOR = 1.5
"""The first token is taken to come after this multiple of the configured prefill time (in the simulator 0.791 of
goodput, against 0.775 with factor 1)."""


class Refunds:
    """Timers, one per grant. One whose grant has ended is stale and is passed over."""

    def __init__(self) -> None:
        self._timers: list[tuple[float, int, Job]] = []
        self._count = 0

    def add(self, job: Job, now: float) -> None:
        """Set the timer of a ticket that was granted just now: 1.5 * c0 * (prefill ahead + its own) + one step."""
        lane = job.queue.lane
        self._count = job.refund = self._count + 1
        at = now + BLIND_FACTOR * lane.c0 * (job.ahead + job.held_prefill) + lane.step_s
        heapq.heappush(self._timers, (at, job.refund, job))

    def due(self, now: float) -> list[Job]:
        """Return, once each, the tickets whose budget comes back now."""
        found: list[Job] = []
        while self.next() <= now:
            found.append(heapq.heappop(self._timers)[2])
        return found

    def next(self) -> float:
        """Return when the next budget comes back; infinity when none does."""
        timers = self._timers
        while timers:
            at, number, job = timers[0]
            if job.refund == number and job.stage is Stage.PREFILL:
                return at
            heapq.heappop(timers)
        return NEVER
