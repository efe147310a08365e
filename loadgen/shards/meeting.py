"""When a replay starts: at once, at a stated time, or together with the other shards at their barrier."""

import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Any

from loadgen.failure import StopError, UsageError
from loadgen.send import LEAD_NS
from loadgen.shards.barrier import Barrier
from loadgen.shards.nouns import ClockReading
from loadgen.shards.options import ShardOptions


class Meeting:
    """Settles salt and start of one replay.

    Args:
        options: how several generators find each other.
        plan_hash: of the whole plan.
        salt: what was asked for; None: drawn anew, or that of the other shards.

    Raises:
        UsageError: the options do not go together.
    """

    def __init__(self, options: ShardOptions, plan_hash: str, salt: str | None) -> None:
        self.shard = options.read()
        self._start_at = options.start_at
        self._salt = salt or secrets.token_hex(8)
        if options.start_at is not None:
            if salt is None and self.shard.of > 1:
                raise UsageError("--start-at: shards that do not meet cannot agree on a salt; give all the same --salt")
            if options.start_at <= time.time():
                raise UsageError(f"--start-at {options.start_at:.3f}: has passed; it is {time.time():.3f} now")
        self._barrier = None
        if options.barrier is not None:
            self._barrier = Barrier(options, self.shard, plan_hash, self._salt)
        self._readings: list[ClockReading] = []

    async def salt(self) -> str:
        """Return the salt of this pass, the same for all shards.

        Raises:
            UsageError: the others at the barrier do something else.
            StopError: the barrier does not answer.
        """
        if self._barrier is not None:
            self._salt = (await self._barrier.enter()).salt
        return self._salt

    async def start_ns(self, stopped: Callable[[], bool]) -> int:
        """Wait for the others and return when due time 0 is, on `perf_counter_ns`. It lies ahead.

        Args:
            stopped: true ends the wait.

        Raises:
            UsageError: as `salt`.
            StopError: as `salt`; the others did not come, or met over another salt; or the stated time has passed.
        """
        if self._barrier is None:
            ahead_ns = LEAD_NS if self._start_at is None else round((self._start_at - time.time()) * 1e9)
            if ahead_ns < LEAD_NS:
                raise StopError(
                    f"--start-at {self._start_at:.3f}: passed while the run was prepared; nothing was sent. Give all "
                    "shards a later time"
                )
            return time.perf_counter_ns() + ahead_ns
        start, reading = await self._barrier.start(stopped, self._salt)
        self._readings.append(reading)
        return round(start * 1e9)

    async def facts(self) -> dict[str, Any]:
        """Return what the manifest says, after the run: how far this machine's clock was off, before and after."""
        if self._barrier is None:
            return {} if self._start_at is None else {"start": {"at": self._start_at, "clock": "not compared"}}
        with contextlib.suppress(StopError):  # the reading at the start stands
            self._readings.append(await self._barrier.read_clock())
        return {"start": {"at": self._barrier.started, "clock": [reading.facts() for reading in self._readings]}}

    async def close(self) -> None:
        """Leave the barrier."""
        if self._barrier is not None:
            await self._barrier.close()
