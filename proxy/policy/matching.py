"""Who is next, and where it fits: the two questions of a dispatch pass.

They read the state and change nothing, except that a queue which finds a late ticket at its head deals with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.policy.backend import Backend, Blocked
from proxy.policy.installments import next_tokens
from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.lane import LaneQueue
from proxy.policy.limits import LaneOrder, Scheduling
from proxy.policy.tenants import held_back


class Place(NamedTuple):
    """A backend with room, and what the next request of the ticket will hold there."""

    backend: Backend
    prefill: int
    """Prompt tokens to compute."""
    kv: int
    """KV tokens to expect at its end."""
    slots: int
    """Sequences; a part is one, whatever its request asks for."""


class Matcher:
    """The settings of the two questions."""

    def __init__(self, scheduling: Scheduling) -> None:
        self.c0 = scheduling.prefill_s_per_token
        self.w = scheduling.decode_weight * self.c0
        self.installments = scheduling.installments
        self.lane_order = scheduling.lane_order
        self._by_deadline = scheduling.lane_order is LaneOrder.DEADLINE

    def next_job(self, queues: Sequence[LaneQueue], now: float, dropped: list[Job]) -> Job | None:
        """Return who goes first: on time before demoted, then lane order, tenant, key; None when nobody may.

        Whoever has no deadline and has waited far too long comes before all.
        """
        best: Job | None = None
        best_rank = (NEVER, 0.0, 0.0, 0.0)
        for queue in queues:
            job = queue.head(now, dropped)
            if job is not None:
                first = -1 if now >= job.overdue_at else job.demoted
                lane = queue.lane
                second = job.due_by - job.ticket.prompt_tokens * lane.c if self._by_deadline else lane.index
                rank = (first, second, 0.0 if job.account is None else job.account.counter, job.key)
                if rank < best_rank:
                    best, best_rank = job, rank
        return best

    def place(self, job: Job, now: float, held: Backend | None = None) -> Place | None:
        """Return where `job` goes: of the backends with room the one with the least outstanding work.

        Args:
            job: a ticket that waits.
            now: monotonic seconds.
            held: a backend that takes nobody in this pass.
        """
        best: Place | None = None
        least = NEVER
        for backend in self.candidates(job):
            if backend is held:
                continue
            prefill, kv, slots = self.demand(job, backend, now)
            if backend.blocked(job, prefill, kv, slots, now) is None:
                computed = prefill if job.ticket.prefix is None else backend.uncached(job, prefill)
                cost = backend.cost(computed, self.c0, self.w)
                if cost < least:
                    best, least = Place(backend, prefill, kv, slots), cost
        return best

    def anywhere(self, job: Job, now: float) -> Place:
        """Return where a ticket goes that nothing holds: to the least outstanding work. Some backend must be up.

        One that has its trial comes last, and so does one that says it is busy.
        """
        ticket = job.ticket
        up = [backend for backend in self.candidates(job) if backend.up]
        best = min(up, key=lambda backend: (backend.left_alone(now), self._cost_of(job, backend)))
        return Place(best, ticket.prompt_tokens, ticket.prompt_tokens + ticket.output_tokens, ticket.sequences)

    def _cost_of(self, job: Job, backend: Backend) -> float:
        return backend.cost(backend.uncached(job, job.ticket.prompt_tokens), self.c0, self.w)

    def candidates(self, job: Job) -> Sequence[Backend]:
        """Return the backends that `job` may go to, up or not."""
        feed, pool = job.feed, job.queue.pool
        if feed is not None and feed.home is not None:
            return (feed.home,)
        if job.avoid is not None and any(other.up and other is not job.avoid for other in pool):
            return [other for other in pool if other is not job.avoid]
        return pool

    def demand(self, job: Job, backend: Backend, now: float) -> tuple[int, int, int]:
        """Return prefill tokens, KV tokens and slots of the next request of `job` on `backend`."""
        ticket, feed = job.ticket, job.feed
        whole = ticket.prompt_tokens + ticket.output_tokens
        if feed is None:
            return ticket.prompt_tokens, whole, ticket.sequences
        rest = ticket.prompt_tokens - feed.done
        if self.installments is None or not backend.cache.splits(now):
            return rest, whole, ticket.sequences
        tokens = next_tokens(ticket.prompt_tokens, feed, backend.cache.granularity, self.installments)
        return (rest, whole, ticket.sequences) if tokens == rest else (tokens, feed.done + tokens, 1)

    def next_to_free(self, job: Job) -> Backend | None:
        """Return the backend whose next free room is kept for `job`, which has waited far too long."""
        up = [backend for backend in self.candidates(job) if backend.up]
        return min(up, key=lambda backend: backend.cost(0, self.c0, self.w), default=None)

    def why_waiting(self, queue: LaneQueue, now: float) -> Blocked | None:
        """Return what the head of `queue` waits for; None when nobody waits there. Costs a walk over the queue."""
        waiting = queue.jobs()
        free = [job for job in waiting if not held_back(job, now)]
        job = min(free, key=lambda job: (job.stage is not Stage.PARKED, job.demoted, job.key), default=None)
        if job is None:
            return Blocked.TENANT if waiting else None
        reasons = [backend.blocked(job, *self.demand(job, backend, now), now) for backend in self.candidates(job)]
        if None in reasons:
            return Blocked.HELD
        return next((reason for reason in reasons if reason is not Blocked.NONE_UP), Blocked.NONE_UP)
