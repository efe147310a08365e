"""The Dispatcher: who runs where, and who waits. The only owner of scheduling state.

Time comes in as `now` (monotonic seconds, never going back), effects go out as values, nothing awaits. docs/algorithm.md
explains the rules; the mutable state is: the live tickets (`_jobs`), the lanes with their queues, the backends, and the
timers of prefill budgets that come back by the clock (`_refunds`).

A ticket comes in by `offer` and goes out by `leave`, or by a `Refuse` effect, exactly once:

    offer ─► WAITING ─► PREFILL ─► DECODE ─► leave
                │          ▲
                ▼          │
               PART ◄──► PARKED              a long prompt in installments
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

from proxy.policy.backend import Backend, Blocked
from proxy.policy.installments import Feed, PrefixCache, next_tokens
from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.lane import LEARN_FROM_TOKENS, Lane, LaneQueue
from proxy.policy.limits import BackendLimits, LaneOrder, Scheduling
from proxy.policy.outcome import Ending, Outcome, Reason
from proxy.policy.snapshot import BackendSnapshot, LaneSnapshot, Snapshot
from proxy.policy.ticket import Effect, Grant, Refuse, Ticket

BLIND_FACTOR = 1.5
"""A first token that cannot be seen is taken to come after this multiple of the configured prefill time (in the
simulator 0.791 of goodput, against 0.775 with factor 1)."""

_MAY: dict[str, frozenset[Stage]] = {
    "first_token": frozenset({Stage.PREFILL, Stage.DECODE}),
    "part_ended": frozenset({Stage.PART}),
    "part_failed": frozenset({Stage.PART}),
    "give_back": frozenset({Stage.PART, Stage.PREFILL, Stage.DECODE}),
}


class Dispatcher:
    """Decide, for each event, which waiting tickets go to which backend."""

    def __init__(self, scheduling: Scheduling, backends: Sequence[BackendLimits]) -> None:
        if not scheduling.lanes:
            raise ValueError("the Dispatcher needs at least one lane, got none")
        self._jobs: dict[int, Job] = {}
        self._refunds: list[tuple[float, int, Job]] = []
        self._refund_count = 0
        self._draining = False
        self._setup(scheduling, [Backend(limits, len(scheduling.lanes)) for limits in backends])
        self._lanes = [Lane(index, scheduling) for index in range(len(scheduling.lanes))]
        self._make_queues()

    # ------------------------------------------------------------------ events

    def offer(self, now: float, ticket: Ticket) -> list[Effect]:
        """Take a new ticket: grant it, let it wait, or refuse it at once.

        Raises:
            ValueError: a live ticket has the same id, or the lane does not exist.
        """
        if ticket.id in self._jobs:
            raise ValueError(f"ticket {ticket.id} is live already; ids are unique among live tickets")
        if not 0 <= ticket.lane < len(self._lanes):
            raise ValueError(f"ticket {ticket.id} names lane {ticket.lane}; lanes are 0 to {len(self._lanes) - 1}")
        lane = self._lanes[ticket.lane]
        lane.offered += 1
        queue = self._queue_for(ticket)
        job = Job(ticket, queue, now)
        if self._draining:
            return [self._reject(job, now, Outcome.DRAINING, Reason.DRAINING, "the proxy is shutting down")]
        if not any(backend.up for backend in queue.pool):
            return [self._reject(job, now, Outcome.REJECTED, Reason.NO_BACKEND, self._nobody(ticket))]
        full = lane.full(job)
        if full is not None and queue.size:
            return [self._reject(job, now, Outcome.REJECTED, Reason.QUEUE_FULL, f"lane {lane.limits.name}: {full}")]
        self._jobs[ticket.id] = job
        if lane.fed and ticket.splittable:
            job.feed = Feed()
        queue.push(job)
        effects: list[Effect] = []
        self._spare_the_idle(now, job, effects)
        self._dispatch(now, effects)
        if full is not None and job.stage is Stage.WAITING and job.place:
            queue.remove(job)
            del self._jobs[ticket.id]
            reason = f"lane {lane.limits.name}: {full}"
            effects.append(self._reject(job, now, Outcome.REJECTED, Reason.QUEUE_FULL, reason))
        return effects

    def first_token(self, now: float, ticket_id: int) -> list[Effect]:
        """Give the prefill budget of a ticket back and learn the prefill speed from it.

        Unknown ids and repeated calls are ignored: the ticket may just have left.
        """
        job = self._jobs.get(ticket_id)
        if job is None:
            return []
        self._expect(job, "first_token")
        if job.stage is Stage.DECODE:
            return []
        if job.ticket.streams:
            self._learn(job, now)
        return self._prefilled(job, now)

    def part_ended(self, now: float, ticket_id: int, cached_tokens: int | None = None) -> list[Effect]:
        """Take the end of one part: the ticket waits for its next grant.

        Args:
            now: monotonic seconds.
            ticket_id: a ticket whose last grant was not final; unknown ids are ignored.
            cached_tokens: prompt tokens that the engine found in its cache (`usage`); None when it did not say.

        Raises:
            ValueError: the ticket has no part in flight.
        """
        job = self._jobs.get(ticket_id)
        if job is None:
            return []
        self._expect(job, "part_ended")
        backend, feed = job.backend, job.feed
        assert backend is not None
        assert feed is not None
        tokens = job.held_prefill
        if backend.cache.observe(now, feed.done, cached_tokens):
            feed.whole = True
        backend.release(job)
        if feed.whole and cached_tokens is not None:
            feed.done = min(feed.done, cached_tokens)  # what was lost is computed again, and charged again
        feed.done += tokens
        feed.part += 1
        self._pause(backend, job, now)
        return self._park(job, now)

    def part_failed(self, now: float, ticket_id: int) -> list[Effect]:
        """Take the failure of one part: the rest goes whole, and the engine answers the client's own request.

        Unknown ids are ignored.

        Raises:
            ValueError: the ticket has no part in flight.
        """
        job = self._jobs.get(ticket_id)
        if job is None:
            return []
        self._expect(job, "part_failed")
        backend, feed = job.backend, job.feed
        assert backend is not None
        assert feed is not None
        feed.whole = True
        backend.release(job)
        self._pause(backend, job, now)
        return self._park(job, now)

    def give_back(self, now: float, ticket_id: int) -> list[Effect]:
        """Take a grant back that could not be used: not one byte was sent.

        The ticket waits again, once, at the head of its lane, and does not go to the same backend while another is up.
        A second time, or when no backend is up, it is refused. Unknown ids are ignored.

        Raises:
            ValueError: the ticket has no grant.
        """
        job = self._jobs.get(ticket_id)
        if job is None:
            return []
        self._expect(job, "give_back")
        backend = job.backend
        assert backend is not None
        backend.release(job)
        effects: list[Effect] = []
        others = any(other.up and other is not backend for other in job.queue.pool)
        if job.given_back or not (others or backend.up):
            backend.forget_started(job)
            del self._jobs[ticket_id]
            detail = f"backend {backend.name} could not be reached, and no other took the request"
            effects.append(self._reject(job, now, Outcome.REJECTED, Reason.NO_BACKEND, detail))
        else:
            job.given_back = job.returned = True
            job.avoid = backend
            if job.feed is not None and job.feed.part and not others:
                job.queue.park(job, now)
            else:
                self._requeue(job)
        self._dispatch(now, effects)
        return effects

    def leave(
        self,
        now: float,
        ticket_id: int,
        ending: Ending,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> list[Effect]:
        """Let a ticket go, waiting or running, whatever happened: the only exit, and nothing stays held.

        Calling it for a ticket that was refused, or has left, is harmless: it returns no effects. So the caller can do
        it in `finally`, always.

        Args:
            now: monotonic seconds.
            ticket_id: the ticket.
            ending: what its end says about the engine.
            output_tokens: tokens that the engine made for it, where known.
            cached_tokens: prompt tokens that its final found in the engine's cache, where known.
        """
        job = self._jobs.pop(ticket_id, None)
        if job is None:
            return []
        backend = job.backend
        if backend is not None:
            backend.endings[ending] += 1
            backend.output_tokens += output_tokens or 0
            if job.feed is not None and job.feed.part:
                backend.cache.observe(now, job.feed.done, cached_tokens)
            backend.release(job)
            backend.forget_started(job)
        else:
            job.queue.remove(job)
            if job.feed is not None and job.feed.home is not None:
                job.feed.home.forget_started(job)
        effects: list[Effect] = []
        self._dispatch(now, effects)
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Do what is due: deadlines, prefill budgets that come back by the clock, pauses that are over."""
        effects: list[Effect] = []
        refunds = self._refunds
        while refunds and refunds[0][0] <= now:
            _, _, job = heapq.heappop(refunds)
            if job.stage is Stage.PREFILL:
                self._prefilled(job, now, dispatch=False)
        dropped: list[Job] = []
        for queue in self._queues:
            queue.expire(now, dropped)
        self._refuse_dropped(now, dropped, effects)
        for backend in self._backends:
            if backend.pause_until <= now:
                backend.pause_until = 0.0
        self._dispatch(now, effects)
        return effects

    def next_wake(self) -> float | None:
        """Return when `wake` has something to do; None while nothing is due ever."""
        at = min((queue.next_timer() for queue in self._queues), default=NEVER)
        refunds = self._refunds
        while refunds and refunds[0][2].stage is not Stage.PREFILL:
            heapq.heappop(refunds)
        if refunds:
            at = min(at, refunds[0][0])
        if self._lanes[-1].fed and any(queue.size for queue in self._lanes[-1].queues):
            at = min([at, *(backend.pause_until for backend in self._backends if backend.pause_until)])
        return None if at == NEVER else at

    # ------------------------------------------------------------------ orders

    def set_backend_up(self, now: float, name: str, up: bool) -> list[Effect]:
        """Take note that a backend can or cannot be reached; its running tickets end by their own `leave`.

        A long prompt that was being fed there starts anew. Without deadlines, tickets that nobody can serve any more
        are refused at once; with deadlines they wait for another backend until theirs.

        Raises:
            KeyError: no such backend.
        """
        backend = self._backend(name)
        backend.up = up
        effects: list[Effect] = []
        if not up:
            self._unpark(backend, now)
            self._abandon(now, effects)
        self._dispatch(now, effects)
        return effects

    def set_concurrency(self, now: float, name: str, limit: int) -> list[Effect]:
        """Change how many sequences may run on a backend, at least 1; what runs keeps running.

        Raises:
            KeyError: no such backend.
        """
        self._backend(name).cap = max(1, limit)
        effects: list[Effect] = []
        self._dispatch(now, effects)
        return effects

    def set_prefix_cache(self, now: float, backend: str, enabled: bool, granularity: int) -> list[Effect]:
        """Take what an engine says about its prefix cache: at start, and again whenever it restarted.

        Args:
            now: monotonic seconds.
            backend: its name.
            enabled: whether prefix caching is on; off means no installments there.
            granularity: tokens in which cache hits come: the KV block size, or more on hybrid models.

        Raises:
            KeyError: no such backend.
        """
        self._backend(backend).cache = PrefixCache(enabled=enabled, granularity=granularity)
        effects: list[Effect] = []
        self._dispatch(now, effects)
        return effects

    def drain(self, now: float) -> list[Effect]:
        """Refuse every new ticket from now on; those that wait or run are served."""
        self._draining = True
        effects: list[Effect] = []
        self._dispatch(now, effects)
        return effects

    # ------------------------------------------------------------------ the pass

    def _dispatch(self, now: float, effects: list[Effect]) -> None:
        """Grant until no head of a queue fits anywhere.

        A queue whose head fits nowhere is closed for this pass: what stands behind the head does not overtake it.
        """
        open_queues = [queue for queue in self._queues if queue.size]
        held: Backend | None = None
        dropped: list[Job] = []
        by_deadline = self._by_deadline
        while open_queues:
            best: Job | None = None
            best_rank: tuple[float, float, float] = (NEVER, 0.0, 0.0)
            for queue in open_queues:
                job = queue.head(now, dropped)
                if job is None:
                    continue
                lane = queue.lane
                if by_deadline:
                    second = job.due_by - job.ticket.prompt_tokens * lane.c
                else:
                    second = lane.index
                rank = (-1.0 if now >= job.overdue_at else job.demoted, second, job.key)
                if best is None or rank < best_rank:
                    best, best_rank = job, rank
            if dropped:
                self._refuse_dropped(now, dropped, effects)
            if best is None:
                return
            backend = self._choose(best, now, held)
            if backend is not None:
                effects.append(self._grant(best, backend, now))
            else:
                open_queues.remove(best.queue)
                if held is None and now >= best.overdue_at:
                    held = self._next_to_free(best)

    def _choose(self, job: Job, now: float, held: Backend | None) -> Backend | None:
        best: Backend | None = None
        least = NEVER
        for backend in self._candidates(job):
            if backend is held:
                continue
            prefill, kv = self._demand(job, backend, now)
            if backend.blocked(job, prefill, kv, now) is not None:
                continue
            cost = backend.cost(prefill, self._c0, self._w)
            if cost < least:
                best, least = backend, cost
        return best

    def _candidates(self, job: Job) -> Sequence[Backend]:
        feed = job.feed
        if feed is not None and feed.home is not None:
            return (feed.home,)
        pool = job.queue.pool
        if job.avoid is not None and any(other.up and other is not job.avoid for other in pool):
            return [other for other in pool if other is not job.avoid]
        return pool

    def _demand(self, job: Job, backend: Backend, now: float) -> tuple[int, int]:
        """Return the prefill tokens and the KV tokens of the next request of `job` on `backend`."""
        ticket, feed = job.ticket, job.feed
        whole = ticket.prompt_tokens + ticket.output_tokens
        if feed is None:
            return ticket.prompt_tokens, whole
        rest = ticket.prompt_tokens - feed.done
        if not backend.cache.splits(now):
            return rest, whole
        settings = self._scheduling.installments
        assert settings is not None
        tokens = next_tokens(ticket.prompt_tokens, feed, backend.cache.granularity, settings)
        return tokens, whole if tokens == rest else feed.done + tokens

    def _next_to_free(self, job: Job) -> Backend | None:
        """Return the backend whose next free room is kept for `job`, which has waited far too long."""
        up = [backend for backend in self._candidates(job) if backend.up]
        return min(up, key=lambda backend: backend.cost(0, self._c0, self._w), default=None)

    def _grant(self, job: Job, backend: Backend, now: float) -> Grant:
        ticket, lane, feed = job.ticket, job.queue.lane, job.feed
        prefill, kv = self._demand(job, backend, now)
        done, part = (0, 0) if feed is None else (feed.done, feed.part)
        final = done + prefill == ticket.prompt_tokens
        job.queue.remove(job)
        if job.feed is None or not part:
            lane.drain.add(now, lane.work_s(job))
            if not job.given_back:
                lane.granted_late += job.demoted
                lane.granted_on_time += not job.demoted
        backend.hold(job, prefill, kv, ticket.output_tokens if final else 0)
        job.granted_at = now
        job.returned = False
        job.stage = Stage.PREFILL if final else Stage.PART
        if feed is not None and not part:
            feed.first_at = now
            if not final:
                feed.home = backend
                backend.started = job
        if final and not ticket.streams:
            self._refund_later(job, now)
        return Grant(ticket, backend.name, done + prefill, part, final)

    # ------------------------------------------------------------------ steps of one ticket

    def _learn(self, job: Job, now: float) -> None:
        ticket, lane, feed = job.ticket, job.queue.lane, job.feed
        if ticket.prompt_tokens < LEARN_FROM_TOKENS:
            return
        since = feed.first_at if feed is not None and feed.part else job.granted_at
        lane.learn((now - since - 1.5 * lane.step_s) / (ticket.prompt_tokens + job.ahead))

    def _prefilled(self, job: Job, now: float, *, dispatch: bool = True) -> list[Effect]:
        backend = job.backend
        assert backend is not None
        job.stage = Stage.DECODE
        backend.release_prefill(job)
        backend.forget_started(job)
        effects: list[Effect] = []
        if dispatch:
            self._dispatch(now, effects)
        return effects

    def _refund_later(self, job: Job, now: float) -> None:
        lane = job.queue.lane
        at = now + BLIND_FACTOR * lane.c0 * (job.ahead + job.held_prefill) + lane.step_s
        self._refund_count += 1
        heapq.heappush(self._refunds, (at, self._refund_count, job))

    def _pause(self, backend: Backend, job: Job, now: float) -> None:
        settings = self._scheduling.installments
        if settings is not None and settings.pause > 0:
            backend.pause_until = now + settings.pause * (now - job.granted_at)

    def _park(self, job: Job, now: float) -> list[Effect]:
        assert job.feed is not None
        home = job.feed.home
        assert home is not None
        if home.up:
            job.queue.park(job, now)
        else:
            self._requeue(job)
        effects: list[Effect] = []
        self._dispatch(now, effects)
        return effects

    def _requeue(self, job: Job) -> None:
        """Let a ticket whose grant came to nothing wait again, not started, at the head of its lane."""
        if job.feed is not None:
            if job.feed.home is not None:
                job.feed.home.forget_started(job)
            job.feed.restart()
        job.returned = True
        job.queue.push(job, front=True)

    def _unpark(self, backend: Backend, now: float) -> None:
        job = backend.started
        backend.pause_until = min(backend.pause_until, now)
        if job is not None and job.stage is Stage.PARKED:
            job.queue.remove(job)
            self._requeue(job)

    def _spare_the_idle(self, now: float, job: Job, effects: list[Effect]) -> None:
        """Grant at once a ticket that could never meet its deadline, when an engine for it has nothing else to do."""
        lane = job.queue.lane
        if job.drop_by - job.ticket.prompt_tokens * lane.c > now:
            return
        idle = [backend for backend in job.queue.pool if backend.up and not backend.in_flight]
        if idle and not job.queue.size > 1:
            effects.append(self._grant(job, idle[0], now))

    # ------------------------------------------------------------------ refusals

    def _reject(self, job: Job, now: float, outcome: Outcome, reason: Reason, detail: str) -> Refuse:
        lane = job.queue.lane
        lane.rejected += 1
        return Refuse(job.ticket, outcome, reason, lane.retry_after(now), detail)

    def _refuse_dropped(self, now: float, dropped: list[Job], effects: list[Effect]) -> None:
        for job in dropped:
            del self._jobs[job.ticket.id]
            lane = job.queue.lane
            detail = (
                f"lane {lane.limits.name}: waited {now - job.arrived:.2f} s; its {job.ticket.prompt_tokens} prompt tokens "
                f"need about {job.ticket.prompt_tokens * lane.c:.2f} s more, and the deadline for the first token is "
                f"{lane.limits.ttft_slo_s:g} s"
            )
            retry = lane.retry_after(now)
            effects.append(Refuse(job.ticket, Outcome.EXPIRED, Reason.QUEUE_TIMEOUT, retry, detail))
        dropped.clear()

    def _abandon(self, now: float, effects: list[Effect]) -> None:
        if self._scheduling.drop_factor is not None:
            return
        for queue in self._queues:
            if any(backend.up for backend in queue.pool):
                continue
            for job in sorted(queue.jobs(), key=lambda job: job.arrived):
                queue.remove(job)
                del self._jobs[job.ticket.id]
                detail = self._nobody(job.ticket)
                effects.append(self._reject(job, now, Outcome.REJECTED, Reason.NO_BACKEND, detail))

    def _nobody(self, ticket: Ticket) -> str:
        return "no backend is up" if ticket.model is None else f"no backend that serves {ticket.model!r} is up"

    def _expect(self, job: Job, event: str) -> None:
        if job.stage not in _MAY[event]:
            allowed = ", ".join(sorted(_MAY[event]))
            raise ValueError(f"{event} for ticket {job.ticket.id}, which is {job.stage}; it must be {allowed}")

    # ------------------------------------------------------------------ set-up

    def _setup(self, scheduling: Scheduling, backends: Iterable[Backend]) -> None:
        self._scheduling = scheduling
        self._c0 = scheduling.prefill_s_per_token
        self._w = scheduling.decode_weight * self._c0
        self._by_deadline = scheduling.lane_order is LaneOrder.DEADLINE
        self._backends = list(backends)
        names = [backend.name for backend in self._backends]
        if len(set(names)) != len(names):
            raise ValueError(f"backend names must differ, got {', '.join(names)}")

    def _make_queues(self) -> None:
        """Make one queue per lane and per set of backends: a model that waits for its engine holds up no other."""
        pools: dict[tuple[str, ...], list[Backend]] = {}
        self._pool_of: dict[str, tuple[str, ...]] = {}
        everything = tuple(backend.name for backend in self._backends)
        pools[everything] = self._backends
        for model in sorted({m for backend in self._backends for m in backend.limits.models or ()}):
            pool = [backend for backend in self._backends if backend.serves(model)]
            self._pool_of[model] = tuple(backend.name for backend in pool)
            pools[self._pool_of[model]] = pool
        general = [backend for backend in self._backends if backend.limits.models is None] or self._backends
        self._general = tuple(backend.name for backend in general)
        pools[self._general] = general
        for lane in self._lanes:
            lane.queues.clear()
        self._pools = {names: [LaneQueue(lane, pool) for lane in self._lanes] for names, pool in pools.items()}
        self._everything = everything
        self._queues = [queue for lane in self._lanes for queue in lane.queues]

    def _queue_for(self, ticket: Ticket) -> LaneQueue:
        """Return where `ticket` waits. A model that no backend names goes to any: the engine answers for it."""
        if ticket.model is None:
            return self._pools[self._everything][ticket.lane]
        return self._pools[self._pool_of.get(ticket.model, self._general)][ticket.lane]

    def _backend(self, name: str) -> Backend:
        for backend in self._backends:
            if backend.name == name:
                return backend
        raise KeyError(f"no backend is called {name!r}; there are {', '.join(b.name for b in self._backends)}")

    def reconfigure(self, now: float, scheduling: Scheduling, backends: Sequence[BackendLimits]) -> list[Effect]:
        """Change settings and backends; no ticket is lost. See `_relane` for tickets of a lane that is gone.

        Running tickets keep what they hold. A backend that is gone gets nothing new and is forgotten; a new one is up.
        A concurrency limit set by `set_concurrency` stays, unless the configured one changed.

        Raises:
            ValueError: no lanes, or two backends of one name; then nothing has changed.
        """
        if not scheduling.lanes:
            raise ValueError("the Dispatcher needs at least one lane, got none")
        raise NotImplementedError(now, backends, replace)

    # ------------------------------------------------------------------ what can be seen

    def snapshot(self, now: float) -> Snapshot:
        """Return everything that can be seen from outside, at `now`. Costs a walk over the waiting tickets."""
        return Snapshot(
            lanes=tuple(self._show_lane(lane, now) for lane in self._lanes),
            backends=tuple(self._show_backend(backend, now) for backend in self._backends),
            draining=self._draining,
            live=len(self._jobs),
        )

    def _show_lane(self, lane: Lane, now: float) -> LaneSnapshot:
        waiting = [job for queue in lane.queues for job in queue.jobs() if job.stage is Stage.WAITING]
        return LaneSnapshot(
            name=lane.limits.name,
            waiting_requests=lane.waiting_requests,
            waiting_tokens=lane.waiting_tokens,
            waiting_bytes=lane.waiting_bytes,
            limit_requests=lane.limits.queue_requests,
            limit_tokens=lane.limits.queue_tokens,
            limit_bytes=lane.limits.queue_bytes,
            demoted_now=lane.demoted_now,
            returned=lane.returned,
            parked=lane.parked,
            oldest_wait_s=now - min((job.arrived for job in waiting), default=now),
            head_blocked=self._head_blocked(lane, now),
            retry_after_s=lane.retry_after(now),
            prefill_s_per_token=lane.c,
            offered=lane.offered,
            granted_on_time=lane.granted_on_time,
            granted_late=lane.granted_late,
            demoted=lane.demoted,
            dropped=lane.dropped,
            rejected=lane.rejected,
        )

    def _head_blocked(self, lane: Lane, now: float) -> Blocked | None:
        for queue in lane.queues:
            job = min(queue.jobs(), key=lambda job: (job.stage is not Stage.PARKED, job.demoted, job.key), default=None)
            if job is None:
                continue
            reasons = [b.blocked(job, *self._demand(job, b, now), now) for b in self._candidates(job)]
            return next((r for r in reasons if r not in (None, Blocked.NONE_UP)), None) or (
                Blocked.NONE_UP if Blocked.NONE_UP in reasons else Blocked.HELD
            )
        return None

    def _show_backend(self, backend: Backend, now: float) -> BackendSnapshot:
        fed = self._scheduling.installments is not None
        if fed:
            backend.cache.splits(now)
        return BackendSnapshot(
            name=backend.name,
            up=backend.up,
            in_flight=backend.in_flight,
            concurrency=backend.cap,
            requests=backend.requests,
            prefill_tokens=backend.prefill_total,
            prefill_tokens_by_lane=tuple(backend.prefill),
            prefill_budget=self._lanes[0].budget,
            kv_tokens=backend.kv,
            kv_limit=backend.kv_limit,
            output_tokens_expected=backend.output,
            started=None if backend.started is None else backend.started.ticket.id,
            installments=backend.cache.mode if fed else None,
            grants=backend.grants,
            output_tokens=backend.output_tokens,
            endings=dict(backend.endings),
        )

    def __repr__(self) -> str:
        lanes = ", ".join(
            f"{lane.limits.name} {lane.waiting_requests}/{lane.limits.queue_requests} waiting" for lane in self._lanes
        )
        backends = ", ".join(
            f"{b.name} {b.in_flight}/{b.cap} in flight{'' if b.up else ' (down)'}" for b in self._backends
        )
        return f"<Dispatcher {lanes}; {backends or 'no backends'}{'; draining' if self._draining else ''}>"
