"""One event loop that sends a part of a plan: client, sender and the samples of its own lateness.

A replay in one process has one of these; so has every worker process of a larger one, and the self-certificate.
"""

import asyncio
import contextlib
import errno
import gc
import os
import resource
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns, process_time

from loadgen.client import Client, Target
from loadgen.flight import Flight, Timeline, unsent
from loadgen.options import Bodies, ReplayOptions
from loadgen.pacing import sender_of
from loadgen.plan import Lane, Shot
from loadgen.prompts import Asking, Calibration, Prompts
from loadgen.result import LoadOutcome, Result
from loadgen.send import Limits, RequestHead

LOOP_SAMPLE_S = 0.01
SIGNALLED = "stopped by a signal"
_NO_FILES = os.strerror(errno.EMFILE)
RECENT = 200
"""Sends that the lag shown in the progress is taken over."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How requests are made for a target: what was found out about it, and the salt of this pass."""

    target: Target
    key: str | None
    model: str
    calibration: Calibration
    salt: str


class Ticker:
    """Calls something every so often until it is cancelled."""

    def __init__(self, period_s: float, action: Callable[[], None]) -> None:
        self._period_s = period_s
        self._action = action
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._tick)
        self._action()

    def cancel(self) -> None:
        """Stop it."""
        self._timer.cancel()


class LoopLag:
    """Samples how late the running event loop is: every 10 ms it asks to be called, and notes how much later it was."""

    def __init__(self) -> None:
        self.late_s: array[float] = array("d")
        self._sampled_at = 0.0

    def sample(self) -> None:
        """Note one sample; a ticker of `LOOP_SAMPLE_S` calls it."""
        now = perf_counter()
        if self._sampled_at:
            self.late_s.append(max(0.0, now - self._sampled_at - LOOP_SAMPLE_S))
        self._sampled_at = now


class Sending:
    """Sends shots at one target and records each once, as a result.

    Args:
        options: of the replay; time limits are divided by its speed.
        asked: target, key, model, prompts.
        record: takes every planned shot once: as it ends, or when the run is stopped before it went out.
        watch: hears of every flight that ended, with its stamps; None: nobody.
    """

    def __init__(
        self,
        options: ReplayOptions,
        asked: Asked,
        record: Callable[[Result], None],
        watch: Callable[[Flight], None] | None = None,
    ) -> None:
        self._drain_s = options.drain_s / options.speed
        self._record = record
        self._watch = watch
        self.line = Timeline(0, options.speed)
        self.outcomes: Counter[str] = Counter()
        self.loop_lag = LoopLag()
        self.stops = 0
        self.cpu_s = 0.0
        """CPU time that this process used while it sent, seconds."""
        self.client = Client(
            asked.target,
            reuse=not options.fresh_connections,
            connect_timeout_s=options.connect_timeout_s / options.speed,
            insecure=options.insecure,
        )
        salted = options.source.bodies is Bodies.SALTED
        asking = Asking(options.endpoint, asked.model, asked.salt, asked.calibration, cache_salt=salted)
        self.sender = sender_of(options)(
            self.client,
            Prompts(asking),
            RequestHead(asked.target, options.endpoint, asked.salt, asked.key),
            _limits(options),
            rejects=frozenset(options.reject_statuses),
            on_end=self._ended,
            on_unsent=self._unsent,
            check_answers=options.check_answers,
        )
        self._timers: list[asyncio.TimerHandle] = []
        self._starved: str | None = None
        """Why nothing more can be sent."""

    async def prepare(self) -> None:
        """Look the target up.

        Raises:
            OSError: its name has no address.
        """
        await self.client.resolve()

    async def run(self, shots: Iterator[Shot], line: Timeline) -> None:
        """Send every shot at its due time and wait for the last answer. `prepare` comes before it."""
        self.line = line
        ticker = Ticker(LOOP_SAMPLE_S, self.loop_lag.sample)
        used_s = process_time()
        try:
            await self.sender.run(shots, line)
        finally:
            self.cpu_s = process_time() - used_s
            ticker.cancel()
            for timer in self._timers:
                timer.cancel()
            self.client.close()

    async def abandon(self) -> None:
        """Close what `prepare` opened: there will be no run."""
        self.client.close()

    def stop(self) -> None:
        """Stop sending and drain; the second time, end what is in flight."""
        self.stops += 1
        self.sender.stop()
        if self.stops > 1:
            self.sender.abort()
        else:
            self._timers.append(asyncio.get_running_loop().call_later(self._drain_s, self.sender.abort))

    def give_up(self) -> None:
        """Send nothing more and end what is in flight: what it brings cannot be written any more."""
        self.sender.stop()
        self.sender.abort()

    @property
    def interrupted(self) -> str | None:
        """Return why the run is not whole; None: nothing stopped it."""
        return self._starved or (SIGNALLED if self.stops else None)

    @property
    def sent(self) -> int:
        """Requests that went out."""
        return self.sender.sent

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return self.sender.in_flight

    @property
    def most_in_flight(self) -> int:
        """Most of them at one time."""
        return self.sender.most_in_flight

    @property
    def connections(self) -> int:
        """Connections made so far."""
        return self.client.opened

    @property
    def late_ns(self) -> "array[int]":
        """Started minus due of every shot that went out, wall clock."""
        return self.sender.late_ns

    @property
    def loop_late_s(self) -> "array[float]":
        """Samples of the event loop's lateness."""
        return self.loop_lag.late_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of the plan since its start."""
        return max(0.0, self.line.seconds(perf_counter_ns()) or 0.0)

    @property
    def recent_lag_p99_s(self) -> float:
        """Lateness of the latest sends, wall-clock seconds."""
        return quantile(sorted(self.sender.late_ns[-RECENT:]), 0.99) / 1e9

    def _ended(self, flight: Flight) -> None:
        if self._watch is not None:
            self._watch(flight)
        self._take(flight.result(self.line))

    def _unsent(self, shot: Shot) -> None:
        self._take(unsent(shot))

    def _take(self, result: Result) -> None:
        self.outcomes[result.outcome] += 1
        self._record(result)
        if result.reason == "connect" and _NO_FILES in (result.detail or "") and self._starved is None:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self._starved = (
                f"no open file was left for request {result.index} (the limit is {limit}, {self.in_flight} requests "
                "were in flight): what came after it would measure this process; raise the limit (ulimit -n)"
            )
            self.sender.stop()


def failed_of(outcomes: Counter[str]) -> int:
    """Return how many ended neither ok nor rejected."""
    return sum(outcomes.values()) - outcomes[LoadOutcome.OK] - outcomes[LoadOutcome.REJECTED]


def quantile(ordered: "array[int] | array[float] | list[int] | list[float]", share: float) -> float:
    """Return the value of a sorted sequence that `share` of them do not exceed; 0 for none."""
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0


def _limits(options: ReplayOptions) -> Limits:
    def wall(seconds: float | None) -> float | None:
        return None if seconds is None else seconds / options.speed

    patience = {Lane.SHORT: wall(options.patience_short_s), Lane.LONG: wall(options.patience_long_s)}
    return Limits(patience, options.stall_timeout_s / options.speed, options.timeout_s / options.speed)


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the garbage collector out of the run: a full collection stops the loop for milliseconds."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
