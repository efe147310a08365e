"""Who is there: the lanes, the backends, and what the settings make of them; and how all that changes on a reload."""

from collections.abc import Iterable, Sequence

from proxy.policy.backend import Backend
from proxy.policy.job import Job
from proxy.policy.lane import Lane
from proxy.policy.limits import BackendLimits, Scheduling
from proxy.policy.matching import Matcher
from proxy.policy.pools import Pools
from proxy.policy.snapshot import Snapshot, show_backend, show_lane
from proxy.policy.tenants import Ledger, reopened


class Board:
    """Lanes and backends of one Dispatcher, with the queues and the matcher that belong to the settings in force.

    Raises:
        ValueError: no lanes, or two lanes or backends of one name.
    """

    def __init__(self, scheduling: Scheduling, backends: Sequence[BackendLimits]) -> None:
        _check(scheduling, backends)
        self.lanes = [Lane(index, scheduling) for index in range(len(scheduling.lanes))]
        self.backends = [Backend(limits, len(self.lanes)) for limits in backends]
        self.matcher = Matcher(scheduling)
        self.ledger = None if scheduling.fairness is None else Ledger(scheduling.fairness)
        self.pools = Pools(self.lanes, self.backends, self.ledger)

    def change(
        self, now: float, scheduling: Scheduling, backends: Sequence[BackendLimits], jobs: Iterable[Job]
    ) -> None:
        """Take new settings; what was learned stays with the lane or backend of that name.

        Args:
            now: monotonic seconds.
            scheduling: the new settings.
            backends: the new backends. One that is gone goes down for good; a new one is up.
            jobs: all live tickets, none of them in a queue. Each gets its place in the new lanes; a ticket of a lane
                that is gone, the one that its length belongs in.

        Raises:
            ValueError: no lanes, or two lanes or backends of one name; then nothing has changed.
        """
        _check(scheduling, backends)
        known = {lane.limits.name: lane for lane in self.lanes}
        self.lanes = [known.get(limits.name) or Lane(i, scheduling) for i, limits in enumerate(scheduling.lanes)]
        names = {id(lane): lane.limits.name for lane in known.values()}
        for index, lane in enumerate(self.lanes):
            lane.configure(index, scheduling)
        self._change_backends(now, backends)
        self.matcher = Matcher(scheduling)
        jobs = list(jobs)
        self.ledger = reopened(self.ledger, scheduling.fairness, jobs)
        self.pools = Pools(self.lanes, self.backends, self.ledger)
        for job in jobs:
            self._place(job, names[id(job.queue.lane)])

    def backend(self, name: str) -> Backend:
        """Return the backend called `name`.

        Raises:
            KeyError: there is none.
        """
        for backend in self.backends:
            if backend.name == name:
                return backend
        raise KeyError(f"no backend is called {name!r}; there are {', '.join(b.name for b in self.backends)}")

    def snapshot(self, now: float, live: int, *, draining: bool) -> Snapshot:
        """Return everything as it is at `now`."""
        fed = self.matcher.installments is not None
        return Snapshot(
            lanes=tuple(show_lane(lane, self.matcher, now) for lane in self.lanes),
            backends=tuple(show_backend(backend, self.lanes[0].budget, now, fed=fed) for backend in self.backends),
            draining=draining,
            live=live,
            tenants=() if self.ledger is None else self.ledger.show(),
        )

    def __repr__(self) -> str:
        lanes = (f"{x.limits.name} {x.waiting_requests}/{x.limits.queue_requests} waiting" for x in self.lanes)
        backends = (
            f"{x.name} {x.in_flight}/{x.limiter.cap} in flight{'' if x.up else ' (down)'}" for x in self.backends
        )
        return f"{', '.join(lanes)}; {', '.join(backends) or 'no backends'}"

    def _change_backends(self, now: float, wanted: Sequence[BackendLimits]) -> None:
        known = {backend.name: backend for backend in self.backends}
        self.backends = [known.get(limits.name) or Backend(limits, len(self.lanes)) for limits in wanted]
        for backend in known.values():
            if backend not in self.backends:
                backend.set_reachable(False)
        for backend in (*known.values(), *self.backends):
            backend.prefill = [0] * len(self.lanes)
        for backend, limits in zip(self.backends, wanted, strict=True):
            backend.configure(now, limits)

    def _place(self, job: Job, lane_name: str) -> None:
        names = [lane.limits.name for lane in self.lanes]
        index = names.index(lane_name) if lane_name in names else self._lane_by_length(job.ticket.prompt_tokens)
        if index != job.ticket.lane:
            job.ticket = job.ticket._replace(lane=index)
        job.queue = self.pools.queue_for(job.ticket)
        if job.backend is not None:
            job.backend.prefill[index] += job.held_prefill

    def _lane_by_length(self, prompt_tokens: int) -> int:
        for index, lane in enumerate(self.lanes):
            if lane.limits.max_prompt_tokens is None or prompt_tokens <= lane.limits.max_prompt_tokens:
                return index
        return len(self.lanes) - 1


def _check(scheduling: Scheduling, backends: Sequence[BackendLimits]) -> None:
    if not scheduling.lanes:
        raise ValueError("scheduling needs at least one lane, got none")
    for kind, names in (("lane", [x.name for x in scheduling.lanes]), ("backend", [x.name for x in backends])):
        if len(set(names)) != len(names):
            raise ValueError(f"{kind} names must differ, got {', '.join(names)}")
