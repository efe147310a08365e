"""A long prompt between its parts: what one part that ended or failed means for the next, and when it starts anew.

The steps of `PART ◄──► PARKED` in the Dispatcher, which owns the tickets, decides who goes when, and calls these.
"""

from __future__ import annotations

from proxy.policy.backend import Backend
from proxy.policy.board import Board
from proxy.policy.installments import Feed, PartResult, next_tokens
from proxy.policy.job import Job, Stage
from proxy.policy.ticket import Ticket


class Parts:
    """Moves the tickets on one board from part to part."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def ended(self, job: Job, cached_tokens: int | None, now: float) -> None:
        """Take the end of the part that `job` had in flight; it waits for its next grant.

        Raises:
            ValueError: it has none.
        """
        backend, feed = _in_flight(job, "part_ended")
        computed = job.held_prefill
        backend.cache.worked()
        backend.parts[_result(backend, feed, cached_tokens, now)] += 1
        feed.done += computed
        feed.part += 1
        self._pause(job, backend, now)

    def failed(self, job: Job, now: float, *, refused: bool, broken: bool) -> None:
        """Take the failure of the part that `job` had in flight; it waits for the grant of the rest, whole.

        Of a backend that is broken nothing is asked again where another is up: the ticket starts anew there, once.

        Raises:
            ValueError: it has none.
        """
        backend, feed = _in_flight(job, "part_failed")
        backend.parts[PartResult.FAILED] += 1
        if not refused:
            backend.cache.failed(now)
        if broken and not job.given_back and any(other.up and other is not backend for other in job.queue.pool):
            job.given_back, job.avoid = True, backend
            backend.release(job)
            self.start_anew(job, now)
            return
        feed.whole = True
        feed.part += 1
        self._pause(job, backend, now)

    def would_feed(self, ticket: Ticket, now: float) -> bool:
        """Return whether a ticket would go in parts, if it can be split: to some backend that is up and splits."""
        queue = self._board.pools.queue_for(ticket)
        settings = self._board.matcher.installments
        if settings is None or not queue.lane.fed or ticket.at_once:
            return False
        return any(
            backend.up
            and backend.cache.splits(now)
            and next_tokens(ticket.prompt_tokens, Feed(), backend.cache.granularity, settings) < ticket.prompt_tokens
            for backend in queue.pool
        )

    def start_anew(self, job: Job, now: float) -> None:
        """Let a ticket whose grant came to nothing wait again, not started, at the head of its lane."""
        if job.feed is not None:
            if job.feed.home is not None:
                job.feed.home.forget_started(job)
            job.feed.restart()
        if self._board.ledger is not None:
            self._board.ledger.take_back(job, now)
        job.returned = True
        job.queue.push(job, now, front=True)

    def unpark(self, backend: Backend, now: float) -> None:
        """Let the long prompt that is between two parts at `backend` start anew."""
        job = backend.started
        backend.pause_until = 0.0
        if job is not None and job.stage is Stage.PARKED:
            job.queue.remove(job, now)
            self.start_anew(job, now)

    def wait_again(self, job: Job, now: float, *, front: bool) -> None:
        """Let a ticket wait in the queue that it has after a change of settings."""
        lane, feed = job.queue.lane, job.feed
        if feed is not None and feed.home is not None:
            if lane.fed and feed.home in self._board.backends:
                job.queue.park(job, now)
            else:
                self.start_anew(job, now)
            return
        if not (lane.fed and job.ticket.splittable):
            job.feed = None
        elif feed is None:
            job.feed = Feed()
        job.queue.push(job, now, front=front)

    def _pause(self, job: Job, backend: Backend, now: float) -> None:
        settings = self._board.matcher.installments
        if settings is not None:
            backend.pause_until = now + settings.pause * (now - job.granted_at)
        backend.release(job)
        if backend.reachable:
            job.queue.park(job, now)
        else:
            self.start_anew(job, now)


def _result(backend: Backend, feed: Feed, cached: int | None, now: float) -> PartResult:
    """Judge a part that has ended; after a miss the rest goes whole."""
    miss = backend.judge(now, feed.done, cached)
    if miss is None:
        if backend.cache.expected(feed.done) == 0:
            return PartResult.FIRST
        backend.cache.blind(now)
        return PartResult.UNKNOWN
    if miss:
        feed.whole = True
        feed.done = min(feed.done, cached or 0)  # what the cache lost is computed again, and charged again
    return PartResult.MISS if miss else PartResult.HIT


def _in_flight(job: Job, event: str) -> tuple[Backend, Feed]:
    if job.stage is not Stage.PART or job.backend is None or job.feed is None:
        raise misplaced(job, event)
    return job.backend, job.feed


def misplaced(job: Job, event: str) -> ValueError:
    """Return the error for an event that cannot happen to a ticket where it stands."""
    return ValueError(f"{event} cannot happen to ticket {job.ticket.id}, which is {job.stage}")
