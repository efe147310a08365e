"""One bounded lane: its limits, its learned prefill speed, its drain rate, and the order inside it.

The order is kept in heaps with lazy deletion. Each entry is (key, place, job); it is live while `job.place == place`.
So taking a job out costs nothing, and the dead entry is dropped when it comes to the top. Heaps are swept when more
than half of them is dead.

Lateness depends on the lane's learned seconds per prompt token, `c`, which moves. The head of a queue is judged with
the current `c` every time it is looked at, so no grant is ever decided with an old one. The timers of those behind it
hold the moment computed when they were set; they are judged again when they are due, and set anew when `c` has moved by
a tenth.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence

from proxy.policy.affinity import Affinity
from proxy.policy.backend import Backend
from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.limits import BudgetMode, LaneLimits, QueueOrder, Scheduling

Entry = tuple[float, int, Job]
"""Key, place, job."""

LEARNING_RATE = 0.05
"""Share of each new sample in `c` (scheduling study: any start value within a factor of two gives the same result)."""
C_RANGE = (0.5, 4.0)
"""`c` stays within these multiples of the configured `c0`, so that a strange sample cannot run away."""
LEARN_FROM_TOKENS = 256
"""Shorter prompts say more about the step time than about the speed of prefill."""
SHORT_CHUNKS = 4
"""Budget of a lane of short prompts in `separate` mode, in engine chunks."""
INSTALLMENT_BUDGET = 2048
"""With installments the prefill budget is at most this: it makes the engine's chunk size irrelevant."""
OVERDUE_FACTOR = 10.0
"""A ticket without a deadline (or with none left, once started) goes first this multiple of its lane's SLO after its
arrival."""
HEAD_KEY = -math.inf

_DRAIN_SPAN_S = 15.0
_TIMER_DRIFT = 0.1
_SWEEP_FROM = 64
_RETRY_AT_MOST_S = 3600.0


class DrainRate:
    """Engine seconds of work granted per second while the lane had a backlog, over about the last 15 s of it.

    Time without a backlog does not count: it says nothing about how fast one drains.
    """

    __slots__ = ("_amount", "_amount_at", "_backlog_s", "_since")

    def __init__(self) -> None:
        self._amount = 0.0
        self._amount_at = 0.0
        self._backlog_s = 0.0
        self._since: float | None = None

    def backlog(self, now: float, *, waits: bool) -> None:
        """Take note that somebody waits from `now` on, or that nobody does."""
        self._backlog_s = self._clock(now)
        self._since = now if waits else None

    def add(self, now: float, work_s: float) -> None:
        """Count `work_s` engine seconds that were granted out of the backlog."""
        clock = self._clock(now)
        self._amount = self._amount * math.exp((self._amount_at - clock) / _DRAIN_SPAN_S) + work_s
        self._amount_at = clock

    def rate(self, now: float) -> float:
        """Return the rate at `now`; 1 (an engine that is busy all the time) until one second of backlog was seen."""
        clock = self._clock(now)
        if clock < 1.0:
            return 1.0
        amount = self._amount * math.exp((self._amount_at - clock) / _DRAIN_SPAN_S)
        return amount / (_DRAIN_SPAN_S * (1.0 - math.exp(-clock / _DRAIN_SPAN_S)))

    def _clock(self, now: float) -> float:
        return self._backlog_s if self._since is None else self._backlog_s + now - self._since


class Lane:
    """What the queues of one lane share: limits and gauges, `c`, budgets, deadlines, counters."""

    def __init__(self, index: int, scheduling: Scheduling) -> None:
        self.drain = DrainRate()
        self.c = scheduling.prefill_s_per_token
        self.queues: list[LaneQueue] = []
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.waiting_output = 0
        self.waiting_bytes = 0
        self.parked = 0
        self.returned = 0
        self.demoted_now = 0
        self.timers_c = self.c
        self.offered = 0
        self.granted_on_time = 0
        self.granted_late = 0
        self.demoted = 0
        self.dropped = 0
        self.rejected = 0
        self.affinity = dict.fromkeys(Affinity, 0)
        self.configure(index, scheduling)

    def configure(self, index: int, scheduling: Scheduling) -> None:
        """Take the settings of lane `index` of `scheduling`; what was learned stays, within its range."""
        self.index = index
        self.limits: LaneLimits = scheduling.lanes[index]
        last = self.index > 0 and self.index == len(scheduling.lanes) - 1
        self.c0 = scheduling.prefill_s_per_token
        self.w = scheduling.decode_weight * self.c0
        self.step_s = scheduling.step_s
        self.ageing = scheduling.ageing if scheduling.queue_order is QueueOrder.SHORTEST_FIRST else 0.0
        self.priority_step_s = scheduling.priority_step_s
        self.fed = last and scheduling.installments is not None
        """Whether prompts of this lane may go in parts, one started at a time per backend."""
        self.separate = scheduling.budget_mode is BudgetMode.SEPARATE
        self.exclusive = self.separate and last
        """In `separate` mode: one prompt of this lane in prefill per backend."""
        self.budget = _budget(scheduling)
        drop = scheduling.drop_factor
        slo, margin = self.limits.ttft_slo_s, scheduling.deadline_margin_s
        self.due_after = slo - margin
        self.has_deadline = drop is not None
        self.drop_after = NEVER if drop is None else drop * slo - margin
        self.overdue_after = OVERDUE_FACTOR * slo
        self.c = self._clamped(self.c)

    def learn(self, sample: float) -> None:
        """Move `c` towards one measured value, in seconds per prompt token."""
        self.take_speed(self.c + LEARNING_RATE * (sample - self.c))

    def take_speed(self, c: float) -> None:
        """Set `c`, within its range."""
        self.c = self._clamped(c)
        if abs(self.c - self.timers_c) > _TIMER_DRIFT * self.timers_c:
            self.timers_c = self.c
            for queue in self.queues:
                queue.retime()

    def full(self, job: Job) -> str | None:
        """Return what stands against one more waiting ticket, in words with the numbers, or None."""
        limits, ticket = self.limits, job.ticket
        if self.waiting_requests + 1 > limits.queue_requests:
            return f"{self.waiting_requests} requests wait and at most {limits.queue_requests} may"
        if self.waiting_tokens + ticket.prompt_tokens > limits.queue_tokens:
            return (
                f"{self.waiting_tokens} prompt tokens wait, this request brings {ticket.prompt_tokens} "
                f"and at most {limits.queue_tokens} may wait"
            )
        if self.waiting_bytes + ticket.body_bytes > limits.queue_bytes:
            return (
                f"{self.waiting_bytes} body bytes wait, this request brings {ticket.body_bytes} "
                f"and at most {limits.queue_bytes} may wait"
            )
        return None

    def retry_after(self, now: float) -> float:
        """Return the seconds until the work that waits now has been granted, at the measured rate; at least 1."""
        queued = self.waiting_tokens * self.c0 + self.waiting_output * self.w
        return min(_RETRY_AT_MOST_S, max(1.0, queued / max(self.drain.rate(now), 1e-9)))

    def work_s(self, job: Job) -> float:
        """Return the expected engine seconds of `job`."""
        return job.ticket.prompt_tokens * self.c0 + job.ticket.output_tokens * self.w

    def head_start(self, job: Job) -> float:
        """Return what its priority class adds to the key of `job`, in seconds: below 0 it goes sooner."""
        return self.priority_step_s * job.ticket.priority

    def _clamped(self, c: float) -> float:
        return min(C_RANGE[1] * self.c0, max(C_RANGE[0] * self.c0, c))


def _budget(scheduling: Scheduling) -> int | None:
    chunk = scheduling.prefill_budget_tokens
    if chunk is None:
        return None
    if scheduling.installments is not None:
        chunk = min(chunk, INSTALLMENT_BUDGET)
    return SHORT_CHUNKS * chunk if scheduling.budget_mode is BudgetMode.SEPARATE else chunk


class LaneQueue:
    """The tickets of one lane that may run on the same backends, in order: started, on time, demoted."""

    __slots__ = ("_demoted", "_next", "_on_time", "_parked", "_timers", "lane", "pool", "rivals", "size")

    def __init__(self, lane: Lane, pool: Sequence[Backend]) -> None:
        self.lane = lane
        self.pool = pool
        """The backends that serve these tickets, up or not."""
        self.size = 0
        self._next = 1
        self._parked: list[Entry] = []
        self._on_time: list[Entry] = []
        self._demoted: list[Entry] = []
        self._timers: list[Entry] = []
        self.rivals: list[LaneQueue] = [self]
        """All queues whose tickets may run on one of these backends, this one among them."""
        lane.queues.append(self)

    def push(self, job: Job, now: float, *, front: bool = False) -> None:
        """Let `job` wait, not started; at the front of the lane when it had its turn before."""
        lane = self.lane
        job.key = HEAD_KEY if front else job.arrived + lane.ageing * lane.work_s(job) + lane.head_start(job)
        job.stage, job.queue, job.demoted = Stage.WAITING, self, False
        self.set_deadlines(job)
        self._count(job, 1, now)
        self._enter(self._heap(job), job)
        if lane.has_deadline:
            self._set_timer(job)

    def set_deadlines(self, job: Job) -> None:
        """Give `job` the deadlines of its lane, counted from its arrival."""
        lane, arrived = self.lane, job.arrived
        job.due_by = arrived + lane.due_after
        job.drop_by = arrived + lane.drop_after
        job.overdue_at = NEVER if lane.has_deadline else arrived + lane.overdue_after

    def park(self, job: Job, now: float) -> None:
        """Let a started `job` wait for its next part: before all that are not started, and without a deadline."""
        lane, feed = self.lane, job.feed
        assert feed is not None
        rest = job.ticket.prompt_tokens - feed.done
        job.key = job.arrived + lane.ageing * (rest * lane.c0 + job.ticket.output_tokens * lane.w)
        job.stage, job.queue, job.demoted = Stage.PARKED, self, False
        job.overdue_at = job.arrived + lane.overdue_after
        self._count(job, 1, now)
        self._enter(self._parked, job)

    def head(self, now: float, dropped: list[Job]) -> Job | None:
        """Return who is next, judged by the current `c`; append to `dropped` whoever was found past its last moment."""
        if self._parked:
            started = self._first_parked()
            if started is not None:
                return started
        first = self._first_on_time(self._on_time, now, dropped)
        return first if first is not None else self._first_late(self._demoted, now, dropped)

    def remove(self, job: Job, now: float) -> None:
        """Take `job` out, whatever for."""
        self._count(job, -1, now)
        job.place = 0
        if sum(map(len, self._heaps())) > 2 * self.size + _SWEEP_FROM:
            self._sweep()

    def expire(self, now: float, dropped: list[Job]) -> None:
        """Judge everyone whose timer is due; append to `dropped` whoever is past its last moment."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, place, job = heapq.heappop(timers)
            if job.place == place and not self._judge(job, now, dropped):
                self._set_timer(job)

    def next_timer(self) -> float:
        """Return when `expire` has something to do; infinity when never."""
        timers = self._timers
        while timers:
            at, place, job = timers[0]
            if job.place == place:
                return at
            heapq.heappop(timers)
        return NEVER

    def retime(self) -> None:
        """Set all timers anew: `c` has moved far from the one they were computed with."""
        self._timers = [(self._moment(job), place, job) for _, place, job in self._timers if job.place == place]
        heapq.heapify(self._timers)

    def jobs(self) -> list[Job]:
        """Return who waits here, in no order."""
        return [job for heap in (self._parked, *self._heaps()) for _, place, job in heap if job.place == place]

    def _heap(self, job: Job) -> list[Entry]:
        """Return the heap that `job` belongs in while it is not started."""
        return self._demoted if job.demoted else self._on_time

    def _heaps(self) -> Collection[list[Entry]]:
        """Return all heaps of those who are not started."""
        return (self._on_time, self._demoted)

    def _first_parked(self) -> Job | None:
        while self._parked:
            _, place, job = self._parked[0]
            if job.place == place:
                return job
            heapq.heappop(self._parked)
        return None

    def _first_on_time(self, heap: list[Entry], now: float, dropped: list[Job]) -> Job | None:
        c, deadline = self.lane.c, self.lane.has_deadline
        while heap:
            _, place, job = heap[0]
            if job.place != place:
                heapq.heappop(heap)
            elif deadline and job.due_by - job.ticket.prompt_tokens * c <= now:
                self._judge(job, now, dropped)
            else:
                return job
        return None

    def _first_late(self, heap: list[Entry], now: float, dropped: list[Job]) -> Job | None:
        c = self.lane.c
        while heap:
            _, place, job = heap[0]
            if job.place != place:
                heapq.heappop(heap)
            elif job.drop_by - job.ticket.prompt_tokens * c <= now:
                self._judge(job, now, dropped)
            else:
                return job
        return None

    def _judge(self, job: Job, now: float, dropped: list[Job]) -> bool:
        """Drop or demote `job` if it is time for either; say whether its timer needs nothing more."""
        prefill = job.ticket.prompt_tokens * self.lane.c
        if job.drop_by - prefill <= now:
            self.remove(job, now)
            self.lane.dropped += 1
            if job.account is not None:
                job.account.dropped += 1
            dropped.append(job)
            return True
        if job.demoted or job.due_by - prefill > now:
            return False
        self._demote(job)
        return True

    def _demote(self, job: Job) -> None:
        job.demoted = True
        self.lane.demoted += 1
        self.lane.demoted_now += 1
        self._enter(self._heap(job), job)
        self._set_timer(job)

    def _enter(self, heap: list[Entry], job: Job) -> None:
        job.place = self._next
        self._next += 1
        heapq.heappush(heap, (job.key, job.place, job))

    def _moment(self, job: Job) -> float:
        by = job.drop_by if job.demoted else min(job.due_by, job.drop_by)
        return by - job.ticket.prompt_tokens * self.lane.c

    def _set_timer(self, job: Job) -> None:
        if len(self._timers) > 2 * self.size + _SWEEP_FROM:
            self._timers = [entry for entry in self._timers if entry[2].place == entry[1]]
            heapq.heapify(self._timers)
        heapq.heappush(self._timers, (self._moment(job), job.place, job))

    def _sweep(self) -> None:
        for heap in self._heaps():
            heap[:] = [entry for entry in heap if entry[2].place == entry[1]]
            heapq.heapify(heap)

    def _count(self, job: Job, sign: int, now: float) -> None:
        lane, ticket = self.lane, job.ticket
        self.size += sign
        if job.demoted:
            lane.demoted_now += sign
        if job.stage is Stage.PARKED:
            lane.parked += sign
        elif job.returned:
            lane.returned += sign
        else:
            lane.waiting_requests += sign
            lane.waiting_tokens += sign * ticket.prompt_tokens
            lane.waiting_output += sign * ticket.output_tokens
            lane.waiting_bytes += sign * ticket.body_bytes
            if lane.waiting_requests == (sign > 0):  # the first one came, or the last one went
                lane.drain.backlog(now, waits=sign > 0)
