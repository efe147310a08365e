"""The Dispatcher: who runs where, and who waits. The only owner of scheduling state.

Time comes in as `now` (monotonic seconds, never going back), effects go out as values, nothing awaits.
docs/algorithm.md explains the rules. The mutable state is: the live tickets (`_jobs`); the lanes with their queues and
the backends (`_board`); and what is due when (`_granting`).

A ticket comes in by `offer` and goes out by `leave`, or by a `Refuse` effect, exactly once:

    offer ─► WAITING ─► PREFILL ─► DECODE ─► leave
                │          ▲
                ▼          │
               PART ◄──► PARKED              a long prompt in installments
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from proxy.policy import refusal
from proxy.policy.board import Board
from proxy.policy.entry import Entry
from proxy.policy.granting import Granting
from proxy.policy.installments import Feed, PartResult, PrefixCache
from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.lane import HEAD_KEY
from proxy.policy.leases import desk
from proxy.policy.leases.hold import Stir, Terms
from proxy.policy.leases.member import Use
from proxy.policy.limits import BackendLimits, Scheduling
from proxy.policy.outcome import Ending, Reason
from proxy.policy.parts import Parts, misplaced
from proxy.policy.snapshot import Snapshot
from proxy.policy.standing import Standing, stand
from proxy.policy.ticket import Effect, Ticket

_GRANTED = (Stage.PART, Stage.PREFILL, Stage.DECODE)


class Dispatcher:
    """Decide, for each event, which waiting tickets go to which backend."""

    def __init__(self, scheduling: Scheduling, backends: Sequence[BackendLimits]) -> None:
        self._board = Board(scheduling, backends)
        self._parts = Parts(self._board)
        self._jobs: dict[int, Job] = {}
        self._granting = Granting(self._board, self._jobs)
        self._draining = False

    # ------------------------------------------------------------------ events

    def offer(self, now: float, ticket: Ticket) -> list[Effect]:
        """Take a new ticket: grant it, let it wait, or refuse it at once.

        Raises:
            ValueError: a live ticket has the same id, or the lane does not exist.
        """
        if ticket.id in self._jobs:
            raise ValueError(f"ticket {ticket.id} is live already; ids are unique among live tickets")
        if not 0 <= ticket.lane < len(self._board.lanes):
            raise ValueError(f"ticket {ticket.id} names lane {ticket.lane} of {len(self._board.lanes)}, from 0")
        queue = self._board.pools.queue_for(ticket)
        lane = queue.lane
        lane.offered += 1
        job = Job(ticket, queue, now)
        if lane.fed and ticket.splittable and not ticket.at_once:
            job.feed = Feed()
        if self._draining:
            return [refusal.reject(job, now, Reason.DRAINING, "the proxy is shutting down")]
        for backend in queue.pool:
            if backend.up:
                break
        else:
            return [refusal.reject(job, now, Reason.NO_BACKEND, refusal.nobody_serves(ticket))]
        ledger = self._board.ledger
        if ledger is not None:
            job.account = ledger.account(ticket.tenant)
        if ticket.at_once:
            self._jobs[ticket.id] = job
            return [self._granting.grant(job, self._board.matcher.anywhere(job, now), now)]
        if job.account is not None:
            overdrawn = job.account.overdrawn(job, now)
            if overdrawn is not None:
                return [refusal.over_tenant_limit(job, now, *overdrawn)]
            if job.account.holds_back(job, now):
                return self._granting.offer_waiting(job, now)
        for rival in queue.rivals:
            if rival.size:
                return self._granting.offer_waiting(job, now)
        queue.set_deadlines(job)
        place = self._granting.straight(job, now)
        if place is None:
            return self._granting.offer_waiting(job, now)
        self._jobs[ticket.id] = job
        return [self._granting.grant(job, place, now)]

    def first_token(self, now: float, ticket_id: int) -> list[Effect]:
        """Give the prefill budget of a ticket back and learn the prefill speed from it.

        Unknown ids and repeated calls are ignored: the ticket may just have left, or its budget timer may have fired.

        Raises:
            ValueError: the ticket does not run its own request.
        """
        job = self._jobs.get(ticket_id)
        if job is None or job.stage is Stage.DECODE:
            return []
        if job.stage is not Stage.PREFILL:
            raise misplaced(job, "first_token")
        if job.ticket.streams:
            self._granting.learn(job, now)
        self._granting.prefilled(job)
        return self._pass(now)

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
        self._parts.ended(job, cached_tokens, now)
        return self._pass(now)

    def part_failed(self, now: float, ticket_id: int, *, refused: bool = False, broken: bool = False) -> list[Effect]:
        """Take the failure of one part: the rest goes whole, and the engine answers the client's own request.

        From a broken backend the ticket goes to another that is up, if there is one, and starts anew there; once.

        Args:
            now: monotonic seconds.
            ticket_id: a ticket whose last grant was not final; unknown ids are ignored.
            refused: the engine did not like what the client asks for, which says nothing about parts as such.
            broken: the engine failed, or did not answer: the client's own request would fare no better there.

        Raises:
            ValueError: the ticket has no part in flight.
        """
        job = self._jobs.get(ticket_id)
        if job is None:
            return []
        self._parts.failed(job, now, refused=refused, broken=broken)
        return self._pass(now)

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
        backend = job.backend
        if job.stage not in _GRANTED or backend is None:
            raise misplaced(job, "give_back")
        if job.stage is Stage.PART:
            backend.parts[PartResult.FAILED] += 1
        backend.release(job)
        others = any(other.up and other is not backend for other in job.queue.pool)
        effects: list[Effect] = []
        if job.given_back or not (others or backend.up):
            if self._board.ledger is not None:
                self._board.ledger.take_back(job, now)
            backend.forget_started(job)
            del self._jobs[ticket_id]
            detail = f"backend {backend.name} could not be reached, and no other took the request"
            effects.append(refusal.reject(job, now, Reason.NO_BACKEND, detail))
        else:
            job.given_back, job.avoid = True, backend
            if job.ticket.at_once:
                effects.append(self._granting.grant(job, self._board.matcher.anywhere(job, now), now))
            elif job.feed is not None and job.feed.part and backend.up and not others:
                job.queue.park(job, now)
            else:
                self._parts.start_anew(job, now)
        self._granting.dispatch(now, effects)
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
        backend, feed = job.backend, job.feed
        if self._board.ledger is not None:
            self._board.ledger.settle(job, output_tokens)
        if backend is not None:
            backend.ended(ending, output_tokens)
            if job.stage is Stage.PART:
                backend.parts[PartResult.ABORTED] += 1
            elif feed is not None and feed.part:
                backend.judge(now, feed.done, cached_tokens)
            backend.release(job)
            backend.forget_started(job)
        else:
            job.queue.remove(job, now)
            if feed is not None and feed.home is not None:
                feed.home.forget_started(job)
        return self._pass(now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due: limits that adapt, deadlines, budgets that come back by the clock, pauses that are over."""
        if self._granting.look_at <= now:
            self._granting.adapt(now)
        for job in self._granting.refunds.due(now):
            self._granting.prefilled(job)
        dropped: list[Job] = []
        for queue in self._board.pools.queues:
            queue.expire(now, dropped)
        for backend in self._board.backends:
            if backend.pause_until <= now:
                backend.pause_until = 0.0
        if self._granting.eases_at <= now:
            self._granting.ease(now)
        effects: list[Effect] = []
        self._granting.refuse_dropped(now, dropped, effects)
        self._granting.dispatch(now, effects)
        return effects

    def next_wake(self) -> float | None:
        """Return when `wake` has something to do; None while nothing is due ever."""
        board, granting, waits = self._board, self._granting, False
        at = min(granting.refunds.next(), granting.look_at)
        for queue in board.pools.queues:
            if queue.size:
                waits, at = True, min(at, queue.next_timer())
        if waits:
            at = min(at, granting.eases_at)
            if board.lanes[-1].fed and any(queue.size for queue in board.lanes[-1].queues):
                at = min([at, *(backend.pause_until for backend in board.backends if backend.pause_until)])
        return None if at == NEVER else at

    # ------------------------------------------------------------------ orders

    def set_backend_up(self, now: float, name: str, up: bool) -> list[Effect]:
        """Take note that a backend can or cannot be reached; its running tickets end by their own `leave`.

        A long prompt that was being fed there starts anew. Without deadlines, tickets that nobody can serve any more
        are refused at once; with deadlines they wait for another backend until theirs.

        Raises:
            KeyError: no such backend.
        """
        backend = self._board.backend(name)
        backend.set_reachable(up)
        effects: list[Effect] = []
        if not up:
            self._parts.unpark(backend, now)
            self._granting.abandon(now, effects)
        self._granting.dispatch(now, effects)
        return effects

    def set_entry(self, now: float, name: str, entry: Entry) -> list[Effect]:
        """Take how a backend comes back: all at once, by a trial, or by a slow start.

        Raises:
            KeyError: no such backend.
        """
        self._board.backend(name).enter(entry)
        self._granting.ease(now)
        return self._pass(now)

    def hold_back(self, now: float, name: str, until: float) -> list[Effect]:
        """Leave a backend alone for a while, because it said that it is busy; what runs there goes on.

        An earlier hold that lasts longer stays. A backend that is not known is ignored: it may just have gone.
        """
        for backend in self._board.backends:
            if backend.name == name:
                backend.hold_until = max(backend.hold_until, until)
        self._granting.ease(now)
        return self._pass(now)

    def set_drained(self, now: float, name: str, drained: bool) -> list[Effect]:
        """Give a backend nothing new, by order, or let it serve again; what it has begun it finishes.

        Without deadlines, tickets that nobody can serve any more are refused at once; with deadlines they wait.

        Raises:
            KeyError: no such backend.
        """
        self._board.backend(name).set_drained(drained)
        effects: list[Effect] = []
        if drained:
            self._granting.abandon(now, effects)
        self._granting.dispatch(now, effects)
        return effects

    def takes_new(self, name: str) -> bool:
        """Return whether new tickets may go to a backend.

        Raises:
            KeyError: no such backend.
        """
        return self._board.backend(name).up

    def set_concurrency(self, now: float, name: str, limit: int) -> list[Effect]:
        """Change how many sequences may run on a backend, at least 1; what runs keeps running.

        Where concurrency adapts it goes on from there, and never leaves its floor and ceiling.

        Raises:
            KeyError: no such backend.
        """
        backend = self._board.backend(name)
        backend.limiter.set(now, limit, backend.in_flight)
        return self._pass(now)

    def pace(self, name: str, seconds: float, tokens: int) -> None:
        """Take inter-token intervals that were measured on a backend since the last call; cheap, and grants nothing.

        Args:
            name: the backend; one that is not known is ignored: it may just have gone.
            seconds: sum of the intervals.
            tokens: how many there were. The first token of a request ends none.
        """
        for backend in self._board.backends:
            if backend.name == name:
                backend.limiter.observe(seconds, tokens)

    def set_prefix_cache(
        self, now: float, backend: str, enabled: bool, granularity: int, *, trusted: bool = False
    ) -> list[Effect]:
        """Take what an engine says about its prefix cache: at start, and again whenever it restarted.

        A long prompt that is being fed there starts anew: what was computed of it is gone.

        Args:
            now: monotonic seconds.
            backend: its name.
            enabled: whether prefix caching is on; off means no installments there.
            granularity: tokens in which cache hits come: the KV block size, or more on hybrid models.
            trusted: the operator says that it works: misses do not switch it off.

        Raises:
            KeyError: no such backend.
        """
        known = self._board.backend(backend)
        known.cache = PrefixCache(enabled=enabled, granularity=granularity, trusted=trusted)
        known.set_caching(enabled)
        self._parts.unpark(known, now)
        return self._pass(now)

    def would_feed(self, now: float, ticket: Ticket) -> bool:
        """Return whether a ticket would go in parts, if it can be split: to some backend that is up and splits."""
        return self._parts.would_feed(ticket, now)

    def busy(self, name: str) -> tuple[int, int]:
        """Return how many sequences run on a backend, and how many grants it has had in all; zeros when it is gone."""
        for backend in self._board.backends:
            if backend.name == name:
                return backend.in_flight, backend.grants
        return 0, 0

    def drain(self, now: float) -> list[Effect]:
        """Refuse every new ticket from now on; those that wait or run are served."""
        self._draining = True
        return self._pass(now)

    def take_speeds(self, other: Dispatcher) -> None:
        """Take the prefill speeds that another Dispatcher with the same lanes has learned."""
        for lane, teacher in zip(self._board.lanes, other._board.lanes, strict=True):
            lane.take_speed(teacher.c)

    def reconfigure(
        self,
        now: float,
        scheduling: Scheduling,
        backends: Sequence[BackendLimits],
        down: Collection[str] = (),
    ) -> list[Effect]:
        """Change settings and backends without losing a ticket.

        Lanes and backends are known by their names. A ticket of a lane that is gone moves to the one that its length
        belongs in. Running tickets keep what they hold. A backend that is gone gets nothing new and is forgotten; a new
        one is up unless it is among `down`. A concurrency that has adapted, or was set by `set_concurrency`, stays
        (within the bounds now in force) unless the configured one changed, or it no longer adapts: then the configured
        one holds.

        Raises:
            ValueError: no lanes, or two lanes or backends of one name; then nothing has changed.
        """
        jobs = sorted(self._jobs.values(), key=lambda job: job.arrived)
        waiting = [job for job in jobs if job.backend is None]
        first = {job.ticket.id for job in waiting if job.key == HEAD_KEY}
        for job in waiting:
            job.queue.remove(job, now)
        try:
            self._board.change(now, scheduling, backends, jobs)
            for backend in self._board.backends:
                if backend.name in down:
                    backend.set_reachable(False)
        finally:
            for job in waiting:
                self._parts.wait_again(job, now, front=job.ticket.id in first)
        self._granting.look_at = min((backend.limiter.due_at for backend in self._board.backends), default=NEVER)
        self._granting.ease(now)
        effects: list[Effect] = []
        self._granting.abandon(now, effects)
        self._granting.dispatch(now, effects)
        return effects

    # ------------------------------------------------------------------ leases

    @property
    def live(self) -> int:
        """How many tickets wait or run."""
        return len(self._jobs)

    def lease_uses(self) -> dict[str, Use]:
        """Return what is in use and lacking at every place that other proxies use too, since the last call."""
        return desk.uses(self._board)

    def lease_stirred(self) -> Stir:
        """Return whether something is lacking, or others wait for what is idle here; cheap."""
        return desk.stirred(self._board)

    def set_leases(self, now: float, terms: Mapping[str, Terms]) -> list[Effect]:
        """Follow new terms, by place: what runs keeps running."""
        desk.follow(self._board, terms)
        return self._pass(now)

    # ------------------------------------------------------------------ the pass

    def _pass(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._granting.dispatch(now, effects)
        return effects

    # ------------------------------------------------------------------ what can be seen

    def standing(self, ticket_id: int) -> Standing | None:
        """Return how the backends stand for a ticket that was granted; None when it holds no grant."""
        job = self._jobs.get(ticket_id)
        return None if job is None else stand(job, job.queue.pool, self._board.matcher)

    def snapshot(self, now: float) -> Snapshot:
        """Return everything that can be seen from outside, at `now`. Costs a walk over the waiting tickets."""
        return self._board.snapshot(now, len(self._jobs), draining=self._draining)

    def __repr__(self) -> str:
        return f"<Dispatcher {self._board!r}{'; draining' if self._draining else ''}>"
