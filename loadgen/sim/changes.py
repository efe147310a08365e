"""What only a study does to lanewise: take one part of it away, or tell it something that is not so."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from proxy.policy.dispatch import Dispatcher
from proxy.policy.granting import Granting
from proxy.policy.job import Job
from proxy.policy.lane import LaneQueue
from proxy.policy.limits import BackendLimits, BudgetMode, Installments, LaneOrder, QueueOrder, Scheduling
from proxy.policy.matching import Matcher


def unchanged(scheduling: Scheduling) -> Scheduling:
    """Return the settings as they are."""
    return scheduling


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One departure from lanewise as it is; every field left alone changes nothing."""

    settings: Callable[[Scheduling], Scheduling] = unchanged
    """For what an operator could set as well: new settings from the old."""
    waiting: tuple[int, int] | None = None
    """Short and long requests that may wait per backend; None: as many as come."""
    one_order: bool = False
    """All lanes together in the order of one, by key; whoever is first and fits nowhere holds up all."""
    learns: bool = True
    """Whether the prefill speed follows what is measured."""
    kv_guard: bool = True
    """Whether the size of the KV cache is known."""
    tpot_target: float | None = None
    """Share of the TPOT SLO above which the concurrency falls; None: the product's."""
    estimate: float = 1.0
    """Estimated over true prompt length. Prompts that are fed in parts are counted exactly, as in the product."""
    estimate_sigma: float = 0.0
    """Standard deviation of the natural logarithm of a random factor on that, drawn per request."""
    sees_tokens: bool = True
    """False: no answer streams, so neither first tokens nor the pace of the others are seen."""

    def estimated(self, index: int, prompt_tokens: int) -> int:
        """Return how long the proxy takes the prompt of request `index` to be, at least 1 token."""
        if self.estimate_sigma == 0 and self.estimate == 1:
            return prompt_tokens
        factor = self.estimate
        if self.estimate_sigma > 0:
            factor *= math.exp(Random(index).gauss(0.0, self.estimate_sigma))
        return max(1, round(prompt_tokens * factor))


UNCHANGED = Change()


def _set(**fields: Any) -> Callable[[Scheduling], Scheduling]:
    return partial(_replaced, fields)


def _replaced(fields: Mapping[str, Any], scheduling: Scheduling) -> Scheduling:
    return replace(scheduling, **fields)


def _scaled(factor: float, scheduling: Scheduling) -> Scheduling:
    return replace(scheduling, prefill_s_per_token=factor * scheduling.prefill_s_per_token)


PLACES = (48, 16)
"""Short and long requests that may wait per backend where no deadline takes them."""
ONE_QUEUE = Change(
    settings=_set(drop_factor=None, prefill_budget_tokens=None, queue_order=QueueOrder.FIFO),
    waiting=PLACES,
    one_order=True,
    kv_guard=False,
)
TWO_LANES = replace(ONE_QUEUE, one_order=False)
WITH_DEADLINE = Change(settings=_set(prefill_budget_tokens=None, queue_order=QueueOrder.FIFO), kv_guard=False)
WITH_BUDGET = Change(settings=_set(queue_order=QueueOrder.FIFO), kv_guard=False)
FIFO = Change(settings=_set(queue_order=QueueOrder.FIFO))
"""Each of the five adds one part to the one before; what is left to add is the order inside a lane."""
NO_DEADLINE = Change(settings=_set(drop_factor=None), waiting=PLACES)
NO_BUDGET = Change(settings=_set(prefill_budget_tokens=None))
SEPARATE_BUDGETS = Change(settings=_set(budget_mode=BudgetMode.SEPARATE))
BY_DEADLINE = Change(settings=_set(lane_order=LaneOrder.DEADLINE))
ONE_FIFO = Change(settings=_set(queue_order=QueueOrder.FIFO), one_order=True)
ONE_SHORTEST_FIRST = Change(one_order=True)
NO_LEARNING = Change(learns=False)
NO_KV_GUARD = Change(kv_guard=False)
NO_STREAMS = Change(sees_tokens=False)


def parts(part_tokens: int = 1024, pause: float = 0.25) -> Change:
    """Return another size of installments, or another pause between them."""
    return Change(settings=_set(installments=Installments(part_tokens=part_tokens, pause=pause)))


def prefill_speed(factor: float, *, learns: bool = True) -> Change:
    """Return a configured prefill time that is `factor` times the engine's."""
    return Change(settings=partial(_scaled, factor), learns=learns)


def dispatcher(scheduling: Scheduling, backends: Sequence[BackendLimits], change: Change) -> Dispatcher:
    """Build the product's Dispatcher, or one with a part taken away."""
    if change.one_order or not change.learns:
        return _Changed(scheduling, backends, change)
    return Dispatcher(scheduling, backends)


class _Changed(Dispatcher):
    """The Dispatcher without its lane order, or without learning."""

    def __init__(self, scheduling: Scheduling, backends: Sequence[BackendLimits], change: Change) -> None:
        super().__init__(scheduling, backends)
        if change.one_order:
            self._board.matcher = _OneOrder(scheduling)
        if not change.learns:
            self._granting = _Unlearning(self._board, self._jobs)


class _Unlearning(Granting):
    """Grants without learning how fast prefill is."""

    def learn(self, job: Job, now: float) -> None:
        """Learn nothing."""
        del job, now


class _OneOrder(Matcher):
    """One line over all lanes: on time before late, then by key alone."""

    def next_job(self, queues: Sequence[LaneQueue], now: float, dropped: list[Job]) -> Job | None:
        """Return who is first of all that wait; None when its queue is closed for this pass."""
        heads = [job for queue in queues[0].rivals if (job := queue.head(now, dropped)) is not None]
        first = min(heads, key=lambda job: (job.demoted, job.key), default=None)
        return first if first is not None and first.queue in queues else None
