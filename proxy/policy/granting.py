"""Granting: who goes now, where, and what that charges; and the refusals that a pass comes upon.

The acts of the Dispatcher on the tickets it owns: it calls them, in the order of its events, and hands their effects
out.
"""

from __future__ import annotations

from proxy.policy import refusal
from proxy.policy.affinity import affinity
from proxy.policy.backend import Backend
from proxy.policy.board import Board
from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.lane import LEARN_FROM_TOKENS
from proxy.policy.matching import Place
from proxy.policy.outcome import Reason
from proxy.policy.refunds import Refunds
from proxy.policy.ticket import Effect, Grant


class Granting:
    """Grants and refuses tickets on one board.

    Args:
        board: lanes, backends and the settings in force.
        jobs: the live tickets, by id; who is refused is taken out.
    """

    def __init__(self, board: Board, jobs: dict[int, Job]) -> None:
        self._board = board
        self._jobs = jobs
        self.refunds = Refunds()
        """When prefill budgets come back by the clock."""
        self.look_at = NEVER
        """When limits are looked at."""
        self.eases_at = NEVER
        """When a backend may get more only because time has passed."""

    def dispatch(self, now: float, effects: list[Effect]) -> None:
        """Grant until no head of a queue fits anywhere.

        A queue whose head fits nowhere is closed for this pass: what stands behind the head does not overtake it.
        """
        waiting = [queue for queue in self._board.pools.queues if queue.size]
        held: Backend | None = None
        dropped: list[Job] = []
        while waiting:
            job = self._board.matcher.next_job(waiting, now, dropped)
            if dropped:
                self.refuse_dropped(now, dropped, effects)
            if job is None:
                return
            place = self._board.matcher.place(job, now, held)
            if place is not None:
                self._take(job, now)
                effects.append(self.grant(job, place, now))
                continue
            waiting.remove(job.queue)
            if held is None and now >= job.overdue_at:
                held = self._board.matcher.next_to_free(job)

    def straight(self, job: Job, now: float) -> Place | None:
        """Return where a new ticket goes at once, when nobody waits who could want the same backend.

        One that could not meet its deadline even so goes only to an engine that has nothing else to do.
        """
        place, lane = self._board.matcher.place(job, now), job.queue.lane
        if place is not None and lane.has_deadline:
            start_by = now + job.ticket.prompt_tokens * lane.c
            if job.drop_by <= start_by and place.backend.in_flight:
                return None
            job.demoted = job.due_by <= start_by
        return place

    def offer_waiting(self, job: Job, now: float) -> list[Effect]:
        """Let a new ticket wait, within the limits of its lane.

        Where nobody of its own queue waits it may go before it has to: the limits are about those that stay.
        """
        queue, ticket_id = job.queue, job.ticket.id
        full = refusal.full(job)
        if full is not None and queue.size:
            return [refusal.reject(job, now, *full)]
        self._jobs[ticket_id] = job
        queue.push(job, now)
        effects: list[Effect] = []
        self.dispatch(now, effects)
        if full is not None and job.place:
            queue.remove(job, now)
            del self._jobs[ticket_id]
            effects.append(refusal.reject(job, now, *full))
        return effects

    def grant(self, job: Job, place: Place, now: float) -> Grant:
        """Charge what the next request of `job` holds at `place`, and let it run."""
        backend, prefill, kv, slots = place
        ticket, feed = job.ticket, job.feed
        done, part = (0, 0) if feed is None else (feed.done, feed.part)
        final = done + prefill == ticket.prompt_tokens
        if not part and not job.given_back:
            if job.demoted:
                job.queue.lane.granted_late += 1
            else:
                job.queue.lane.granted_on_time += 1
            if ticket.prefix is not None:
                job.queue.lane.affinity[affinity(ticket.prefix, backend, job.queue.pool)] += 1
        backend.hold(job, prefill, kv, slots, ticket.output_tokens if final else 0)
        if backend.limiter.due_at == NEVER:
            backend.limiter.start(now)
            self.look_at = min(self.look_at, backend.limiter.due_at)
        ledger = self._board.ledger
        if ledger is not None and not job.charged:
            ledger.charge(job, now)
        job.granted_at = now
        job.returned = False
        job.stage = Stage.PREFILL if final else Stage.PART
        if feed is not None and not part:
            feed.first_at = now
            if not final:
                feed.home, backend.started = backend, job
        if final and not ticket.streams:
            self.refunds.add(job, now)
        return Grant(ticket, backend.name, done + prefill, part, final)

    def adapt(self, now: float) -> None:
        """Let every limit that is due move; the caller grants what has room then."""
        for backend in self._board.backends:
            if backend.limiter.due_at <= now:
                backend.look(now)
        self.look_at = min(backend.limiter.due_at for backend in self._board.backends)

    def learn(self, job: Job, now: float) -> None:
        """Learn the prefill speed from the first token of `job`, divided by all prefill that was ahead of it."""
        ticket, lane, feed = job.ticket, job.queue.lane, job.feed
        if ticket.prompt_tokens >= LEARN_FROM_TOKENS:
            since = feed.first_at if feed is not None and feed.part else job.granted_at
            lane.learn((now - since - 1.5 * lane.step_s) / (ticket.prompt_tokens + job.ahead))

    def prefilled(self, job: Job) -> None:
        """Give the prefill budget of `job` back: its first token has come, or is taken to have."""
        backend = job.backend
        assert backend is not None
        job.stage = Stage.DECODE
        backend.release_prefill(job)
        backend.forget_started(job)

    def refuse_dropped(self, now: float, dropped: list[Job], effects: list[Effect]) -> None:
        """Refuse those whose deadline took them out of their queue; the list is empty afterwards."""
        for job in dropped:
            del self._jobs[job.ticket.id]
            effects.append(refusal.expire(job, now))
        dropped.clear()

    def abandon(self, now: float, effects: list[Effect]) -> None:
        """Refuse whom nobody can serve and no deadline will take."""
        for queue in self._board.pools.queues:
            if queue.lane.has_deadline or any(backend.up for backend in queue.pool):
                continue
            for job in sorted(queue.jobs(), key=lambda job: job.arrived):
                if job.feed is not None and job.feed.home is not None and job.feed.home.reachable:
                    continue  # it finishes where it has begun
                queue.remove(job, now)
                del self._jobs[job.ticket.id]
                effects.append(refusal.reject(job, now, Reason.NO_BACKEND, refusal.nobody_serves(job.ticket)))

    def ease(self, now: float) -> None:
        """Find out anew when a backend may get more only because time has passed."""
        self.eases_at = min((backend.changes_at(now) for backend in self._board.backends), default=NEVER)

    def _take(self, job: Job, now: float) -> None:
        """Take `job` out of its queue to be granted; the first time, the lane has drained by its work."""
        lane = job.queue.lane
        job.queue.remove(job, now)
        if job.stage is Stage.WAITING and not job.returned:
            lane.drain.add(now, lane.work_s(job))
