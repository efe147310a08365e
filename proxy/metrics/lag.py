"""How late the event loop runs its timers: the time during which every stream stood still."""

import asyncio
import logging
import time

from proxy import tasks
from proxy.metrics.series import OVERHEAD, Histogram

_EVERY_S = 0.25
SAID_FROM_S = 0.25
"""Lateness that the log tells, not the histogram alone: readers of a stream see it."""
SAID_EVERY_S = 10.0
"""At most one line in this time."""
_log = logging.getLogger("lanewise")


class LoopLag:
    """Measures the running loop in the background."""

    def __init__(self) -> None:
        self.histogram = Histogram(OVERHEAD)
        self._task: asyncio.Task[None] | None = None
        self._said: float | None = None

    def start(self) -> None:
        """Start measuring."""
        self._task = tasks.spawn(self._measure(), "event loop lag")

    def stop(self) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _measure(self) -> None:
        while True:
            due = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            now = time.monotonic()
            self.note(max(0.0, now - due), now)

    def note(self, late_s: float, now: float) -> None:
        """Count one timer that ran this late, and tell the log when streams stood still for long."""
        self.histogram.observe(late_s)
        if late_s >= SAID_FROM_S and (self._said is None or now >= self._said + SAID_EVERY_S):
            self._said = now
            _log.warning(
                "the event loop stood still for %.2f s, and every stream with it: the machine lacks processor time, "
                "or one request took too long to read (lanewise_event_loop_lag_seconds shows how often)",
                late_s,
            )
