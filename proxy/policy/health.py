"""Whether a backend can be trusted with requests: a table of states and events, without a clock.

Two kinds of evidence come in. Probes and failed connections say whether anybody is there at all. Requests say whether
it works: an engine can answer its probes and fail every request. Each kind is counted here until it means something,
and that is an `Event`; `TRANSITIONS` says where it leads. An event that the table does not name for a state changes
nothing.

A 4xx is no evidence of anything: it is about the request. A 429 or 503 neither: an engine that says it is busy works,
and is held back for a while instead (`hold_s`). docs/backends.md shows the table to operators.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from proxy.policy.job import NEVER
from proxy.policy.recent import Recent

SHARE_WINDOW_S: Final = 10.0
"""Seconds over which the share of failed requests is taken."""
HOLD_S: Final = 1.0
"""How long a backend that says it is busy is left alone when it does not say for how long."""
_SHORTEST_HOLD_S: Final = 0.05
_WELL, _ILL = 0, 1


class State(StrEnum):
    """Where a backend stands."""

    STARTING = "starting"
    """No probe has ended yet."""
    UP = "up"
    SLOW_START = "slow_start"
    """Back, and gets more from moment to moment."""
    DOWN = "down"
    """Nobody answers there."""
    TRIPPED = "tripped"
    """It answers its probes, but requests failed there: left alone for a while."""
    HALF_OPEN = "half_open"
    """That while is over: one request at a time shows whether it works again."""

    @property
    def usable(self) -> bool:
        """Whether requests may go there."""
        return self is State.UP or self is State.SLOW_START or self is State.HALF_OPEN  # a set would hash in Python

    @property
    def answers(self) -> bool:
        """Whether its probes pass, as far as is known."""
        return self is not State.STARTING and self is not State.DOWN


class Event(StrEnum):
    """What can happen to a backend."""

    ANSWERS = "answers"
    """Enough good probes in a row."""
    SILENT = "silent"
    """Enough failed probes, or connections of requests that failed, in a row."""
    FAULTS = "faults"
    """Requests fail: so many in a row, or too large a share of them."""
    FAILED = "failed"
    """One request failed: a 5xx, a cut or broken answer, or no answer in time."""
    SERVED = "served"
    """One request was served: its first token came, or its whole answer."""
    TIME = "time"
    """The state has lasted as long as it may."""


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (State.STARTING, Event.ANSWERS): State.UP,
        (State.STARTING, Event.SILENT): State.DOWN,
        (State.UP, Event.SILENT): State.DOWN,
        (State.UP, Event.FAULTS): State.TRIPPED,
        (State.DOWN, Event.ANSWERS): State.SLOW_START,
        (State.TRIPPED, Event.SILENT): State.DOWN,
        (State.TRIPPED, Event.TIME): State.HALF_OPEN,
        (State.HALF_OPEN, Event.SILENT): State.DOWN,
        (State.HALF_OPEN, Event.FAILED): State.TRIPPED,
        (State.HALF_OPEN, Event.SERVED): State.SLOW_START,
        (State.SLOW_START, Event.SILENT): State.DOWN,
        (State.SLOW_START, Event.FAULTS): State.TRIPPED,
        (State.SLOW_START, Event.TIME): State.UP,
    }
)
"""All of it. Nothing else changes a state."""


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """When evidence means something."""

    down_after: int = 3
    """Failed probes or connections in a row."""
    up_after: int = 1
    """Good probes in a row."""
    trip_after: int | None = 5
    """Failed requests in a row; None: however many."""
    trip_share: float = 0.6
    """Share of failed requests within `SHARE_WINDOW_S`; 1: no share is too large."""
    trip_share_of: int = 20
    """Requests that share must be of, at least."""
    trip_s: float = 2.0
    """How long a backend is left alone; twice as long after each trial that fails."""
    trip_at_most_s: float = 30.0
    slow_start_s: float = 5.0
    """How long a backend takes to get its full share; 0: none of it."""


class Health:
    """State of one backend. The first probe decides at once, later ones need to agree in a row.

    Evidence is counted only from when the backend was last let in: a request that began before says nothing about what
    is there now.
    """

    def __init__(self, limits: HealthLimits) -> None:
        self.state = State.STARTING
        self.since = 0.0
        """When that began; monotonic seconds."""
        self.due_at = NEVER
        """When `tick` has something to do."""
        self.entered = dict.fromkeys(State, 0)
        """How often each state began."""
        self._limits = limits
        self._against = 0
        """Probes in a row that say otherwise than the state."""
        self._failed_in_a_row = 0
        self._requests = Recent(2, SHARE_WINDOW_S)
        self._counts_from = 0.0
        self._trips = 0
        """Trips since it was up for good."""

    def __repr__(self) -> str:
        return f"<Health {self.state.value}, {self._against} against, {self._failed_in_a_row} failed>"

    @property
    def failed_in_a_row(self) -> int:
        """Requests that failed since one was served."""
        return self._failed_in_a_row

    def configure(self, limits: HealthLimits) -> None:
        """Take when evidence means something; the state stays, and so does how long it lasts."""
        self._limits = limits

    def probe(self, now: float, *, good: bool) -> bool:
        """Take the end of a probe; return whether the state changed."""
        if good is self.state.answers and self.state is not State.STARTING:
            self._against = 0
            return False
        self._against += 1
        needed = self._limits.up_after if good else self._limits.down_after
        if self.state is not State.STARTING and self._against < needed:
            return False
        return self._happened(now, Event.ANSWERS if good else Event.SILENT)

    def unreachable(self, now: float) -> bool:
        """Take a request's connection that could not be made: as much as a failed probe, but not as the first."""
        if self.state is State.STARTING:
            return False
        return self.probe(now, good=False) or self._happened(now, Event.FAILED)

    def served(self, now: float, began: float) -> bool:
        """Take a request that was served; return whether the state changed.

        Args:
            now: monotonic seconds.
            began: when the request was sent.
        """
        if not self._counts(began):
            return False
        self._failed_in_a_row = 0
        self._requests.add(now, _WELL)
        return self.state is State.HALF_OPEN and self._happened(now, Event.SERVED)

    def failed(self, now: float, began: float) -> bool:
        """Take a request that failed; return whether the state changed.

        Args:
            now: monotonic seconds.
            began: when the request was sent.
        """
        if not self._counts(began):
            return False
        self._failed_in_a_row += 1
        self._requests.add(now, _ILL)
        return (self._too_many(now) and self._happened(now, Event.FAULTS)) or self._happened(now, Event.FAILED)

    def tick(self, now: float) -> bool:
        """Let time pass; return whether the state changed."""
        return self.due_at <= now and self._happened(now, Event.TIME)

    def _counts(self, began: float) -> bool:
        return self.state.usable and began >= self._counts_from

    def _too_many(self, now: float) -> bool:
        limits = self._limits
        if limits.trip_after is not None and self._failed_in_a_row >= limits.trip_after:
            return True
        well, ill = self._requests.totals(now)
        return limits.trip_share < 1 and well + ill >= limits.trip_share_of and ill >= limits.trip_share * (well + ill)

    def _happened(self, now: float, event: Event) -> bool:
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            return False
        self._enter(now, state)
        if state is State.SLOW_START and self._limits.slow_start_s <= 0:
            self._enter(now, State.UP)
        return True

    def _enter(self, now: float, state: State) -> None:
        if state.usable and not self.state.usable:
            self._counts_from = now
            self._failed_in_a_row = 0
            self._requests.clear()
        self.state, self.since, self._against = state, now, 0
        self.entered[state] += 1
        self.due_at = NEVER
        if state is State.TRIPPED:
            self.due_at = now + min(self._limits.trip_s * 2**self._trips, self._limits.trip_at_most_s)
            self._trips = min(self._trips + 1, 32)
        elif state is State.SLOW_START:
            self.due_at = now + self._limits.slow_start_s
        elif state is State.UP:
            self._trips = 0


def hold_s(retry_after_s: float | None, at_most_s: float) -> float:
    """Return how long a backend that said 429 or 503 is left alone.

    Args:
        retry_after_s: what it said, seconds; None: nothing.
        at_most_s: a longer time is cut to this: it is one answer, and requests wait.
    """
    wanted = HOLD_S if retry_after_s is None else max(_SHORTEST_HOLD_S, retry_after_s)
    return min(wanted, at_most_s)
