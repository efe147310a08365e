"""A lane's queue whose tenants take turns: those whose counter is smallest compete, in the order of the lane.

Each tenant has two heaps of its own. What is started goes first as in any queue; then those on time, then those who are
late. Who is not among them has as much running as it may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from proxy.policy.backend import Backend
from proxy.policy.job import NEVER, Job, Stage
from proxy.policy.lane import Entry, Lane, LaneQueue
from proxy.policy.tenants import Account, Ledger

_Heaps = dict[Account, list[Entry]]
_First = Callable[[list[Entry], float, list[Job]], Job | None]


class FairQueue(LaneQueue):
    """The tickets of one lane that may run on the same backends, by tenant."""

    __slots__ = ("_late_of", "_ledger", "_on_time_of")

    def __init__(self, lane: Lane, pool: Sequence[Backend], ledger: Ledger) -> None:
        super().__init__(lane, pool)
        self._ledger = ledger
        self._on_time_of: _Heaps = {}
        self._late_of: _Heaps = {}

    def head(self, now: float, dropped: list[Job]) -> Job | None:
        """Return who is next; None also when all that wait belong to tenants that are held back."""
        started = self._first_parked()
        if started is not None:
            return started
        first = self._fairest(self._on_time_of, self._first_on_time, now, dropped)
        return first if first is not None else self._fairest(self._late_of, self._first_late, now, dropped)

    def _fairest(self, heaps: _Heaps, first: _First, now: float, dropped: list[Job]) -> Job | None:
        best: Job | None = None
        best_rank = (NEVER, 0.0)
        empty: list[Account] = []
        for account, heap in heaps.items():
            job = first(heap, now, dropped)
            if job is None:
                empty.append(account)
            elif not account.holds_back(job, now):
                rank = (account.counter, job.key)
                if rank < best_rank:
                    best, best_rank = job, rank
        for account in empty:
            del heaps[account]
        return best

    def _heap(self, job: Job) -> list[Entry]:
        assert job.account is not None
        return (self._late_of if job.demoted else self._on_time_of).setdefault(job.account, [])

    def _heaps(self) -> Collection[list[Entry]]:
        return (*self._on_time_of.values(), *self._late_of.values())

    def _count(self, job: Job, sign: int, now: float) -> None:
        account = job.account
        assert account is not None
        if job.stage is not Stage.PARKED:
            if sign > 0 and not account.backlog:
                self._ledger.lift(account)
            account.backlog += sign
            if not job.returned:
                account.waiting_requests += sign
                account.waiting_tokens += sign * job.ticket.prompt_tokens
        super()._count(job, sign, now)
