"""Which backends may serve a ticket: one queue per lane and per set of backends.

A lane is one to the operator: its limits, gauges and learned speed are shared. Its tickets wait in one queue per set of
backends that serve the same models, so a model that waits for its own engine holds up no other model.
"""

from collections.abc import Sequence

from proxy.policy.backend import Backend
from proxy.policy.fairqueue import FairQueue
from proxy.policy.lane import Lane, LaneQueue
from proxy.policy.tenants import Ledger
from proxy.policy.ticket import Ticket


class Pools:
    """All queues, and the way to the right one."""

    def __init__(self, lanes: Sequence[Lane], backends: Sequence[Backend], ledger: Ledger | None = None) -> None:
        self._ledger = ledger
        self._queues: dict[tuple[str, ...], list[LaneQueue]] = {}
        self._lanes = lanes
        for lane in lanes:
            lane.queues.clear()
        self._any = self._pool(backends)
        self._of_model: dict[str, list[LaneQueue]] = {}
        for model in sorted({model for backend in backends for model in backend.limits.models or ()}):
            self._of_model[model] = self._pool([backend for backend in backends if backend.serves(model)])
        general = [backend for backend in backends if backend.limits.models is None]
        self._unknown = self._pool(general or backends)
        self.queues = [queue for lane in lanes for queue in lane.queues]
        """By lane, the shortest first."""
        for queue in self.queues:
            queue.rivals = [other for other in self.queues if set(other.pool) & set(queue.pool)]

    def queue_for(self, ticket: Ticket) -> LaneQueue:
        """Return where `ticket` waits.

        A ticket without a model, or for a model that no backend names, goes to a backend that takes any model, or to
        any at all: then the engine answers that it does not know it.
        """
        if ticket.model is None:
            return self._any[ticket.lane]
        return self._of_model.get(ticket.model, self._unknown)[ticket.lane]

    def _pool(self, backends: Sequence[Backend]) -> list[LaneQueue]:
        names = tuple(backend.name for backend in backends)
        if names not in self._queues:
            self._queues[names] = [self._queue(lane, backends) for lane in self._lanes]
        return self._queues[names]

    def _queue(self, lane: Lane, backends: Sequence[Backend]) -> LaneQueue:
        return LaneQueue(lane, backends) if self._ledger is None else FairQueue(lane, backends, self._ledger)
