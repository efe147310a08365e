"""Feeding a long prompt in parts through the engine's prefix cache: sizes, progress, and whether it pays.

A part is a request for a prefix of the prompt with one output token that is thrown away. The engine keeps the KV
blocks it computed, so the next, longer prefix finds all but its last tokens in the cache, and between two parts a short
request can pass. Everything here is arithmetic and one small state machine per backend; the Dispatcher decides who goes
when.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from proxy.policy.limits import Installments

if TYPE_CHECKING:
    from proxy.policy.backend import Backend

FINAL_FROM = 1.5
"""A rest of at most this many parts goes as the final: a last part that small is not worth a request."""
MISS_BELOW = 0.5
"""Share of the expected cache hit below which one part counts as a miss."""
OFF_BELOW = 0.8
"""Mean share of the expected hit below which a backend stops splitting."""
OFF_AFTER_PARTS = 4
OFF_FIRST_S = 60.0
OFF_LONGEST_S = 900.0
HIT_WEIGHT = 0.25
BLIND_PARTS = 4
"""So many parts in a row without any sign of what the cache held, and an unproved backend stops splitting."""
FAILED_PARTS = 3
"""So many failed parts in a row, and a proved backend stops splitting; an unproved one stops at the first."""
DEFAULT_GRANULARITY = 128
"""KV block of vLLM-Ascend and of vLLM on the CPU; a multiple of the 16 of vLLM on GPUs."""


class Mode(StrEnum):
    """Whether a backend is fed in installments; the metric label."""

    UNKNOWN = "unknown"
    """Not proved yet: the next long prompt is the probe, and its first miss switches off."""
    ON = "on"
    OFF = "off"


class PartResult(StrEnum):
    """What became of one part; the metric label."""

    FIRST = "first"
    """Nothing was sent before it, so nothing could be in the cache by our doing."""
    HIT = "hit"
    """At least half of what was sent before was found."""
    MISS = "miss"
    """Less than half."""
    UNKNOWN = "unknown"
    """Nobody can say what was found."""
    FAILED = "failed"
    """The engine refused it, failed, or could not be reached."""
    ABORTED = "aborted"
    """Its client left, or the proxy shut down."""


class PrefixCache:
    """What is known of one backend's prefix cache: unknown, on, off for a time, or off until told otherwise.

    Args:
        enabled: whether the engine has one, as far as it says.
        granularity: tokens in which cache hits come.
        trusted: the operator says that it works: a miss concerns the one prompt alone, and nothing switches off.
    """

    __slots__ = ("_blind", "_failed", "_hits", "_off_for", "_off_until", "_parts", "_trusted", "granularity", "mode")

    def __init__(self, *, enabled: bool = True, granularity: int = DEFAULT_GRANULARITY, trusted: bool = False) -> None:
        self.mode = Mode.UNKNOWN if enabled else Mode.OFF
        self.granularity = max(1, granularity)
        self._trusted = trusted
        self._hits = 1.0
        self._parts = 0
        self._blind = 0
        self._failed = 0
        self._off_for = OFF_FIRST_S
        self._off_until: float | None = None
        """None while off: the engine itself says so, until it says otherwise."""

    @property
    def hit_ratio(self) -> float | None:
        """Mean share of the expected hit, the latest counting most; None before the first."""
        return self._hits if self._parts else None

    def expected(self, done: int) -> int:
        """Return how many of the first `done` tokens, all sent before, whole blocks can hold."""
        return done // self.granularity * self.granularity

    def splits(self, now: float) -> bool:
        """Return whether a part may be sent; an `off` whose time is over becomes a probe."""
        if self.mode is Mode.OFF and self._off_until is not None and now >= self._off_until:
            self.mode, self._off_until = Mode.UNKNOWN, None
            self._hits, self._parts, self._blind, self._failed = 1.0, 0, 0, 0
        return self.mode is not Mode.OFF

    def observe(self, now: float, done: int, cached: int | None) -> bool:
        """Learn from one part or final whose first `done` tokens were sent before; return whether it was a miss.

        Args:
            now: monotonic seconds.
            done: prompt tokens that earlier parts have covered.
            cached: tokens that the engine found in its cache; None when it did not say (no verdict).
        """
        expected = self.expected(done)
        if cached is None or expected == 0:
            return False
        if self.mode is Mode.UNKNOWN and self._learn(done, cached):
            expected = self.expected(done)
        share = min(1.0, cached / expected)
        self._blind = 0
        self._parts += 1
        self._hits += HIT_WEIGHT * (share - self._hits)
        miss = share < MISS_BELOW
        if (miss and self.mode is Mode.UNKNOWN) or (self._parts >= OFF_AFTER_PARTS and self._hits < OFF_BELOW):
            self._switch_off(now)
        elif not miss and self.mode is Mode.UNKNOWN:
            self.mode = Mode.ON
        elif self._parts >= OFF_AFTER_PARTS and self.mode is Mode.ON:
            self._off_for = OFF_FIRST_S
        return miss

    def _learn(self, done: int, cached: int) -> bool:
        """Take the hit of a probe for the granularity, when hits come in larger steps than the engine's blocks.

        One step fits into `done` and two do not, so the hit is the step itself. A hit that is short by one block alone
        is none: engines that draft tokens look the last block up anew.
        """
        if not self.granularity < cached < self.expected(done) - self.granularity or 2 * cached <= done:
            return False
        self.granularity = cached
        return True

    def blind(self, now: float) -> None:
        """Take note of a part that found something or nothing, and nobody can say which."""
        self._blind += 1
        if self.mode is Mode.UNKNOWN and self._blind >= BLIND_PARTS:
            self._switch_off(now)

    def failed(self, now: float) -> None:
        """Take note of a part that came to nothing."""
        self._failed += 1
        if self.mode is Mode.UNKNOWN or self._failed >= FAILED_PARTS:
            self._switch_off(now)

    def worked(self) -> None:
        """Take note of a part that the engine answered."""
        self._failed = 0

    def _switch_off(self, now: float) -> None:
        if self.mode is Mode.OFF or self._trusted:
            return
        self.mode, self._off_until = Mode.OFF, now + self._off_for
        self._off_for = min(OFF_LONGEST_S, 2 * self._off_for)


class Feed:
    """How far one long prompt has been fed."""

    __slots__ = ("done", "first_at", "home", "part", "whole")

    def __init__(self) -> None:
        self.whole = False
        """No more parts: the next request is the final."""
        self.restart()

    def restart(self) -> None:
        """Be not started: no part of it is in any cache."""
        self.done = 0
        """Prompt tokens that ended parts have covered."""
        self.part = 0
        self.home: Backend | None = None
        """The backend that holds what was computed; None: not started."""
        self.first_at = 0.0


def part_size(prompt_tokens: int, granularity: int, settings: Installments) -> int:
    """Return the tokens of one part: max(part_tokens, prompt / parts_at_most), rounded up to the granularity."""
    wanted = max(settings.part_tokens, -(-prompt_tokens // settings.parts_at_most))
    return -(-wanted // granularity) * granularity


def next_tokens(prompt_tokens: int, feed: Feed, granularity: int, settings: Installments) -> int:
    """Return the uncached tokens of the next request: one part, or all that is left when it shall be the final."""
    rest = prompt_tokens - feed.done
    size = part_size(prompt_tokens, granularity, settings)
    return rest if feed.whole or rest <= FINAL_FROM * size else size
