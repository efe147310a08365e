"""How the backends stood when a ticket got its grant: what an explanation of the choice is made of.

Every granted request pays for `stand`, so it only copies numbers; what they say is worked out when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from proxy.policy.backend import Backend
    from proxy.policy.job import Job
    from proxy.policy.matching import Matcher

LISTED_AT_MOST = 8
"""Backends that are kept of a choice, the chosen one among them."""

_Row = tuple[str, bool, int, int, int, int, float]
"""Name, up, sequences, sequences that might run, prefill tokens, output tokens expected, weight."""


class Stand(NamedTuple):
    """One backend at that moment; what the ticket itself holds on the chosen one is not counted."""

    name: str
    up: bool
    in_flight: int
    """Sequences."""
    cap: int
    """Sequences that might run."""
    prefill_tokens: int
    """Outstanding."""
    work_s: float
    """Outstanding work in engine seconds over the relative speed, with the prefill of this ticket: where nothing else
    decides, the least of them is chosen."""


class Standing(NamedTuple):
    """The choice."""

    rows: tuple[_Row, ...]
    """The chosen one first; on it everything is counted."""
    more: int
    """Other backends that are not listed."""
    held: tuple[int, int, int]
    """Prefill tokens, sequences and output tokens that the ticket holds on the chosen one."""
    costs: tuple[float, float]
    """Engine seconds of a prompt token and of an output token."""
    budget_tokens: int | None
    """Prefill budget of the ticket's lane on a backend; None: there is none."""
    prefill_s_per_token: float
    """Learned speed of the lane."""
    kept: bool
    """There was no choice: the beginning of its prompt is there."""
    prefix: bool
    """What the caches are thought to hold of its beginning was taken off the work."""

    @property
    def chosen(self) -> Stand:
        """The backend that it was granted on."""
        prefill, slots, output = self.held
        name, up, in_flight, cap, outstanding, expected, weight = self.rows[0]
        work = self._work(outstanding, expected - output, weight)
        return Stand(name, up, in_flight - slots, cap, outstanding - prefill, work)

    @property
    def others(self) -> tuple[Stand, ...]:
        """The other backends that might have served it, as far as they are listed."""
        prefill = self.held[0]
        return tuple(
            Stand(name, up, in_flight, cap, outstanding, self._work(outstanding + prefill, expected, weight))
            for name, up, in_flight, cap, outstanding, expected, weight in self.rows[1:]
        )

    def _work(self, prefill: int, output: int, weight: float) -> float:
        prompt_s, output_s = self.costs
        return (prefill * prompt_s + output * output_s) / weight


def stand(job: Job, pool: Sequence[Backend], matcher: Matcher) -> Standing | None:
    """Return how the backends of `pool` stand for a ticket that was granted; None when it holds no grant."""
    chosen = job.backend
    if chosen is None:
        return None
    rows = [_row(chosen)]
    for backend in pool:
        if backend is not chosen:
            if len(rows) == LISTED_AT_MOST:
                break
            rows.append(_row(backend))
    lane, feed = job.queue.lane, job.feed
    return Standing(
        tuple(rows),
        max(0, len(pool) - len(rows)),
        (job.held_prefill, job.held_slots, job.held_output),
        (matcher.c0, matcher.w),
        lane.budget,
        lane.c,
        feed is not None and feed.part > 0,
        job.ticket.prefix is not None,
    )


def _row(of: Backend) -> _Row:
    return of.name, of.up, of.in_flight, of.limiter.cap, of.prefill_total, of.output, of.limits.weight
