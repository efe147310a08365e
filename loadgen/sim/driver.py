"""Drives the pure engine on a clock: a step of simulated duration d is delivered d / speed seconds after it began.

`Driver` takes the time as an argument; `Pacemaker` calls it from an event loop. The next step begins when the last one
was due, not when the loop got round to it, so that lateness does not add up: a late loop delivers what is due and
catches up.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from loadgen.sim.engine import Engine
from loadgen.sim.exposition import Exposition, Life
from loadgen.sim.nouns import EngineRequest, RequestId, Step

TIMER_S = 0.001
"""Resolution of the event loop's timers; a step is delivered by the timer nearest to its due time."""


class Listener(Protocol):
    """One sequence's receiver; called at the end of the step that did it."""

    def admitted(self, cached_tokens: int) -> None:
        """Hear that the engine took the sequence in, and how much of its prompt was cached."""

    def token(self, *, last: bool) -> None:
        """Hear that one more token is there."""

    @property
    def finish_reason(self) -> str:
        """Why the sequence ends, for the metrics."""


class _Live:
    """A sequence in the engine, with its receiver and its history."""

    __slots__ = ("life", "listener")

    def __init__(self, life: Life, listener: Listener) -> None:
        self.life = life
        self.listener = listener


class Driver:
    """The engine on a clock that the caller reads.

    Args:
        engine: the engine to step.
        exposition: told everything that happens.
        speed: how much faster than the profile says; durations are divided by it.
        early_s: a step this close to its due time is delivered, seconds: a timer cannot come closer.
    """

    def __init__(self, engine: Engine, exposition: Exposition, speed: float = 1.0, early_s: float = 0.0) -> None:
        self._engine = engine
        self._exposition = exposition
        self._speed = speed
        self._early_s = early_s
        self._live: dict[RequestId, _Live] = {}
        self._step: Step | None = None
        self._began = 0.0
        self._due = 0.0
        self._got: tuple[RequestId, ...] = ()

    @property
    def in_flight(self) -> int:
        """Sequences that were submitted and neither finished nor aborted."""
        return len(self._live)

    def check_admission(self, sequences: int) -> None:
        """Apply the engine's own admission limits to a request of so many sequences.

        Raises:
            QueueFull: it is over one of them.
        """
        self._engine.check_admission(sequences)

    def submit(self, now: float, request: EngineRequest, life: Life, listener: Listener) -> None:
        """Give the engine a sequence; `advance` has to be called next.

        Raises:
            ValueError: it can never run.
        """
        self._engine.submit(now, request)
        self._live[request.id] = _Live(life, listener)

    def abort(self, request_id: RequestId) -> None:
        """Forget a sequence: its receiver hears nothing more, the engine drops it at the next step boundary."""
        if self._live.pop(request_id, None) is not None:
            self._engine.abort(request_id)

    def advance(self, now: float) -> float | None:
        """Deliver every step that is due and begin the next; return when to call again, None when there is no work."""
        if self._step is None:
            self._begin(now)
        while self._step is not None and self._due <= now + self._early_s:
            self._exposition.late(max(0.0, now - self._due))
            self._deliver(self._step)
            self._begin(self._due)
        return self._due if self._step is not None else None

    def _begin(self, at: float) -> None:
        step = self._engine.step(at)
        self._step = step
        if step is None:
            self._exposition.idle()
            return
        self._began, self._due = at, at + step.duration_s / self._speed
        self._got = tuple(self._engine.got_token())
        self._exposition.began(step, self._engine.gauges)
        for request_id, cached in step.admitted:
            self._admit(request_id, cached)
        for request_id in step.preempted:
            if request_id in self._live:
                self._live[request_id].life.preemptions += 1

    def _admit(self, request_id: RequestId, cached: int) -> None:
        live = self._live.get(request_id)
        if live is not None and live.life.admitted is None:
            live.life.admitted, live.life.cached_tokens = self._began, cached
            live.listener.admitted(cached)
            self._exposition.admitted(live.life)

    def _deliver(self, step: Step) -> None:
        """Hand every token of the step to its receiver, in one go."""
        finished, due, began, steady = set(step.finished), self._due, self._began, 0
        for request_id in self._got:
            live = self._live.get(request_id)
            if live is None:
                continue
            life = live.life
            if life.first is None:
                life.first = due
                self._exposition.first_token(life, due)
            elif life.last == began:
                steady += 1
            else:
                self._exposition.gaps(due - life.last)
            life.last = due
            if request_id in finished:
                self._finish(request_id, live)
            else:
                live.listener.token(last=False)
        if steady:
            self._exposition.gaps(due - began, steady)

    def _finish(self, request_id: RequestId, live: _Live) -> None:
        del self._live[request_id]
        live.listener.token(last=True)
        self._exposition.finished(live.life, live.listener.finish_reason)


class Pacemaker:
    """Calls a `Driver` from the running event loop, at every due time and after every submit."""

    def __init__(self, driver: Driver, clock: Callable[[], float] = time.perf_counter) -> None:
        self._driver = driver
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None

    def wake(self) -> None:
        """See to it that the driver runs: nothing is running yet, or something was submitted."""
        if self._timer is None:
            self._timer = self._loop.call_soon(self._tick)

    def stop(self) -> None:
        """Call the driver no more."""
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> float:
        """Return the time on the driver's clock, seconds."""
        return self._clock()

    def _tick(self) -> None:
        self._timer = None
        due = self._driver.advance(self._clock())
        if due is not None:
            delay = max(0.0, due - self._clock())
            self._timer = self._loop.call_later(round(delay / TIMER_S) * TIMER_S, self._tick)
