"""How late the event loop runs its timers: the time during which every stream stood still."""

import asyncio
import time

from proxy import tasks
from proxy.metrics.series import OVERHEAD, Histogram

_EVERY_S = 0.25


class LoopLag:
    """Measures the running loop in the background."""

    def __init__(self) -> None:
        self.histogram = Histogram(OVERHEAD)
        self._task: asyncio.Task[None] | None = None

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
            self.histogram.observe(max(0.0, time.monotonic() - due))
