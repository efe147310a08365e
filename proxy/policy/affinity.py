"""Whether a prompt went where its beginning lies: how often choosing among backends by prefix pays."""

from collections.abc import Iterable
from enum import StrEnum

from proxy.policy.backend import Backend
from proxy.policy.prefixes import Prefix


class Affinity(StrEnum):
    """Where a granted prompt went; the metric label."""

    HIT = "hit"
    """To the backend that is likely to hold most of its beginning."""
    MISS = "miss"
    """No backend holds any of it."""
    SPILL = "spill"
    """Elsewhere, because the backend that holds more of it is full or has more to do."""


def affinity(prefix: Prefix, chosen: Backend, pool: Iterable[Backend]) -> Affinity:
    """Return how the choice stands to what was sent before. Ask before the grant is noted.

    Args:
        prefix: beginning of the prompt.
        chosen: the backend that it goes to.
        pool: all that it might have gone to; who is down holds nothing that could be used.
    """
    here = _held(prefix, chosen)
    most = max((_held(prefix, backend) for backend in pool if backend.up), default=here)
    if here < most:
        return Affinity.SPILL
    return Affinity.HIT if here else Affinity.MISS


def _held(prefix: Prefix, backend: Backend) -> float:
    return backend.prefixes.cached_tokens(prefix) if backend.caches else 0.0
