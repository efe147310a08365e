"""The concurrency limit of one backend, and how it follows the measured time per output token (TPOT).

Additive increase, multiplicative decrease, once per interval while something runs:

    mean TPOT = that of the interval, and half as much of what was seen before, a quarter of what was before that, …
    mean TPOT above target * SLO          limit = max(floor, decrease * limit)
    else, if what may run is used up      limit = min(ceiling, limit + 1)
    no token was seen                     stays: a missing signal is not a good one

An answer streams for ten seconds or more and its SLO is on the mean, so one interval over the target that shared its
steps with a long prompt is no reason to let fewer run. docs/algorithm.md says where the numbers come from.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from proxy.policy.job import NEVER
from proxy.policy.limits import Adaptive

KEPT_MOVES = 20
CARRIED = 0.5
"""Weight of what was measured before, at each look. Without it the limit falls whenever a long prompt passes, and short
requests wait for a slot: in the study, installments on mixed traffic at 1.0x load, their p99 TTFT is 0.68 s instead of
0.62 s and 0.5 % of them are lost instead of 0.2 %."""


class Cause(StrEnum):
    """Why a limit moved; the metric label."""

    TPOT_HIGH = "tpot_high"
    ROOM_USED = "room_used"
    """TPOT was good and what may run was used up."""
    CONFIGURED = "configured"
    """An operator or a reload set it."""


class Direction(StrEnum):
    """Which way a limit moved; the metric label."""

    UP = "up"
    DOWN = "down"


POSSIBLE_MOVES = (
    (Direction.DOWN, Cause.TPOT_HIGH),
    (Direction.UP, Cause.ROOM_USED),
    (Direction.DOWN, Cause.CONFIGURED),
    (Direction.UP, Cause.CONFIGURED),
)


@dataclass(frozen=True, slots=True)
class Move:
    """One change of the sequences that may run."""

    at: float
    """Monotonic seconds."""
    before: int
    after: int
    cause: Cause
    in_flight: int
    """Sequences that ran at that moment."""
    tpot_s: float | None
    """Mean that it was judged by; None when it was configured."""

    @property
    def direction(self) -> Direction:
        """Which way it went."""
        return Direction.UP if self.after > self.before else Direction.DOWN


class Limiter:
    """The limit of one backend: a number between floor and ceiling, or the configured one when it does not adapt.

    Args:
        start: configured concurrency.
        settings: how it adapts; None: it is fixed.

    Attributes:
        cap: sequences that may run: the limit, rounded down.
        due_at: when to look next; infinity while nobody has to.
    """

    __slots__ = (
        "_carried_seconds",
        "_carried_tokens",
        "_counts",
        "_limit",
        "_moves",
        "_seconds",
        "_settings",
        "_start",
        "_tokens",
        "cap",
        "due_at",
    )

    def __init__(self, start: int, settings: Adaptive | None = None) -> None:
        self._settings = settings
        self._start = start
        self._limit = self._within(start)
        self._seconds = 0.0
        self._tokens = 0
        self._carried_seconds = 0.0
        self._carried_tokens = 0.0
        self._moves: deque[Move] = deque(maxlen=KEPT_MOVES)
        self._counts = dict.fromkeys(POSSIBLE_MOVES, 0)
        self.cap = int(self._limit)
        self.due_at = NEVER

    def __repr__(self) -> str:
        how = "fixed" if self._settings is None else f"{self._settings.floor} to {self._settings.ceiling}"
        return f"<Limiter {self._limit:.1f}, {how}>"

    @property
    def adapts(self) -> bool:
        """Whether the limit follows TPOT."""
        return self._settings is not None

    @property
    def moves(self) -> tuple[Move, ...]:
        """The last moves, the oldest first."""
        return tuple(self._moves)

    @property
    def counts(self) -> Mapping[tuple[Direction, Cause], int]:
        """How often it moved, for every way that it can."""
        return dict(self._counts)

    def observe(self, seconds: float, tokens: int) -> None:
        """Add inter-token intervals to the current window.

        Args:
            seconds: their sum.
            tokens: their number. A first token ends no interval.
        """
        self._seconds += seconds
        self._tokens += tokens

    def start(self, now: float) -> None:
        """Begin to look, because something runs; harmless when it is looking already, or fixed."""
        if self.due_at == NEVER and self._settings is not None:
            self.due_at = now + self._settings.interval_s
            self._carried_seconds = self._carried_tokens = 0.0

    def look(self, now: float, in_flight: int, widest: int) -> None:
        """Move the limit by what the window that ends now says, and begin the next while something runs.

        Args:
            now: monotonic seconds.
            in_flight: sequences that run.
            widest: sequences of the widest request sent in the window, at least 1: what may run counts as used up when
                one more of it just fits, or does not.
        """
        settings, tokens = self._settings, self._tokens
        if settings is None:
            self.due_at = NEVER
            return
        self.due_at = now + settings.interval_s if in_flight else NEVER
        if not tokens:
            return
        seconds, weight = self._carried_seconds + self._seconds, self._carried_tokens + tokens
        self._carried_seconds, self._carried_tokens = CARRIED * seconds, CARRIED * weight
        self._seconds, self._tokens = 0.0, 0
        tpot_s = seconds / weight
        if tpot_s > settings.target * settings.tpot_slo_s:
            self._move(now, settings.decrease * self._limit, Cause.TPOT_HIGH, in_flight, tpot_s)
        elif in_flight >= self._limit - widest:
            self._move(now, self._limit + 1, Cause.ROOM_USED, in_flight, tpot_s)

    def set(self, now: float, limit: int, in_flight: int) -> None:
        """Set the limit by hand; it adapts from there. Out of bounds it becomes the nearer bound."""
        self._move(now, limit, Cause.CONFIGURED, in_flight)

    def configure(self, now: float, start: int, settings: Adaptive | None, in_flight: int) -> None:
        """Take new settings.

        A limit that adapts stays where it is, within the new bounds, unless the configured start changed: then it
        starts there. One that no longer adapts goes back to the start; one that is fixed and was set by hand stays.
        """
        stopped = settings is None and self._settings is not None
        anew = start != self._start or stopped
        if settings is None or self._settings is None:
            self.due_at, self._seconds, self._tokens = NEVER, 0.0, 0
            self._carried_seconds = self._carried_tokens = 0.0
        self._start, self._settings = start, settings
        if in_flight:
            self.start(now)
        self._move(now, start if anew else self._limit, Cause.CONFIGURED, in_flight)

    def _within(self, limit: float) -> float:
        settings = self._settings
        if settings is None:
            return max(1.0, limit)
        return min(max(limit, float(settings.floor)), float(settings.ceiling))

    def _move(self, now: float, limit: float, cause: Cause, in_flight: int, tpot_s: float | None = None) -> None:
        """Set the limit; what shows is a move only when the whole number changed."""
        before = self.cap
        self._limit = self._within(limit)
        self.cap = int(self._limit)
        if self.cap != before:
            move = Move(now, before, self.cap, cause, in_flight, tpot_s)
            self._moves.append(move)
            self._counts[move.direction, cause] += 1
