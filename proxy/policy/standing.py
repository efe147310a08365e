"""How the backends stood when a ticket got its grant: what an explanation of the choice is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from proxy.policy.backend import Backend
    from proxy.policy.job import Job
    from proxy.policy.matching import Matcher

OTHERS_AT_MOST = 7
"""Backends that are kept beside the chosen one."""


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
    """Outstanding work in engine seconds over the relative speed, with what of this ticket would be computed there:
    the least of them is chosen."""


class Standing(NamedTuple):
    """The choice."""

    chosen: Stand
    others: tuple[Stand, ...]
    more: int
    """Other backends that are not listed."""
    budget_tokens: int | None
    """Prefill budget of the ticket's lane on a backend; None: there is none."""
    prefill_s_per_token: float
    """Learned speed of the lane."""
    kept: bool
    """There was no choice: the beginning of its prompt is there."""


def stand(job: Job, pool: Sequence[Backend], matcher: Matcher) -> Standing | None:
    """Return how the backends of `pool` stand for a ticket that was granted; None when it holds no grant."""
    chosen = job.backend
    if chosen is None:
        return None
    others = [backend for backend in pool if backend is not chosen]
    seen = others[:OTHERS_AT_MOST]
    return Standing(
        chosen=_seen(chosen, job, matcher, held=True),
        others=tuple(_seen(backend, job, matcher, held=False) for backend in seen),
        more=len(others) - len(seen),
        budget_tokens=job.queue.lane.budget,
        prefill_s_per_token=job.queue.lane.c,
        kept=job.feed is not None and job.feed.part > 0,
    )


def _seen(backend: Backend, job: Job, matcher: Matcher, *, held: bool) -> Stand:
    own, slots = (job.held_prefill, job.held_slots) if held else (0, 0)
    computed = backend.uncached(job, job.held_prefill)
    output = job.held_output * matcher.w / backend.limits.weight if held else 0.0
    return Stand(
        name=backend.name,
        up=backend.up,
        in_flight=backend.in_flight - slots,
        cap=backend.limiter.cap,
        prefill_tokens=backend.prefill_total - own,
        work_s=backend.cost(computed - own, matcher.c0, matcher.w) - output,
    )
