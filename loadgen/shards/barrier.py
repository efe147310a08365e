"""The barrier: load generators on several machines wait for each other at a Redis, and start together by its clock."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from loadgen.failure import StopError, UsageError
from loadgen.shards.nouns import ClockReading, Shard, best
from loadgen.shards.options import ShardOptions

LEAD_S = 2.0
"""From "all are ready" to the start: every one has asked for the start several times by then."""
POLL_S = 0.2
GONE_S = 30.0
"""A shard that has not asked for so long is gone, and another process may take its place. Its self-certificate lies
between its first question and the next one."""
KEPT_S = 600
READINGS = 15
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the barrier says. Times are those of its clock, Unix seconds."""

    salt: str
    start: float | None
    """None: not all are ready."""
    present: int
    ready: int
    now: float


class Barrier:
    """One generator's place at the barrier.

    Args:
        options: `barrier` is set.
        shard: which share this process sends.
        plan_hash: of the whole plan; equal for all.
        salt: taken when this one comes first.
    """

    def __init__(self, options: ShardOptions, shard: Shard, plan_hash: str, salt: str) -> None:
        try:
            from redis.asyncio import Redis  # noqa: PLC0415 - an extra
            from redis.exceptions import RedisError  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                "--barrier: needs the package redis; install it with: pip install 'lanewise[redis]'"
            ) from None
        assert options.barrier is not None
        self._where = urlsplit(options.barrier).hostname or options.barrier
        self._error: type[Exception] = RedisError
        try:
            self._redis = Redis.from_url(
                options.barrier, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S, decode_responses=True
            )
        except ValueError as error:
            raise UsageError(f"--barrier: {error}") from None
        self._script = self._redis.register_script(
            resources.files("loadgen.shards").joinpath("barrier.lua").read_text()
        )
        self._key = f"lanewise:barrier:{options.barrier_name or plan_hash}"
        self._token = secrets.token_hex(8)
        self._shard, self._plan_hash, self._salt = shard, plan_hash, salt
        self._wait_s = options.barrier_wait_s
        self._entered = False
        self.started: float | None = None
        """The common start, Unix seconds of the store's clock; None: not yet."""

    async def enter(self) -> Standing:
        """Take the place and return what is there already, the common salt among it.

        Raises:
            UsageError: the others send another plan, are another number, or the place is taken.
            StopError: the store does not answer.
        """
        return await self._step(ready=False)

    async def start(self, stopped: Callable[[], bool], salt: str) -> tuple[float, ClockReading]:
        """Wait until all are ready.

        Args:
            stopped: true ends the wait.
            salt: what `enter` gave.

        Returns:
            The common start on `perf_counter`, and the reading of the common clock behind it.

        Raises:
            UsageError: as `enter`.
            StopError: the others did not come in time, the store is gone, or the wait was stopped.
        """
        until = time.perf_counter() + self._wait_s
        while (standing := await self._step(ready=True)).start is None:
            if stopped():
                raise StopError("stopped while it waited for the other shards; nothing was sent")
            if time.perf_counter() > until:
                raise StopError(
                    f"after {self._wait_s:g} s only {standing.ready} of {self._shard.of} shards were ready at the "
                    "barrier; nothing was sent. Start the others, or wait longer with --barrier-wait"
                )
            await asyncio.sleep(POLL_S)
        if standing.salt != salt:
            raise StopError("the others at the barrier agreed on another salt meanwhile; start all shards again")
        self.started = standing.start
        reading = await self.read_clock()
        start = reading.monotonic_at(standing.start)
        if start < time.perf_counter():
            raise StopError("heard of the common start after it had passed; nothing was sent. Start all shards again")
        return start, reading

    async def read_clock(self) -> ClockReading:
        """Read the store's clock as closely as several questions can.

        Raises:
            StopError: the store does not answer.
        """
        return best([await self._reading() for _ in range(READINGS)])

    async def close(self) -> None:
        """Leave, so that the place is free at once when this run did not begin, and close the connection."""
        if self._entered and self.started is None:
            fields = [f"{name}:{self._shard.index}" for name in ("token", "seen", "ready")]
            with contextlib.suppress(self._error, OSError):
                await self._redis.hdel(self._key, *fields)
        await self._redis.aclose()

    async def _reading(self) -> ClockReading:
        asked, wall = time.perf_counter(), time.time()
        try:
            seconds, micros = await self._redis.time()
        except (self._error, OSError) as error:
            raise self._lost(error) from None
        answered = time.perf_counter()
        return ClockReading(asked, answered, wall + (answered - asked) / 2, seconds + micros / 1e6)

    async def _step(self, *, ready: bool) -> Standing:
        shard = self._shard
        arguments: list[str | int | float] = [shard.of, shard.index, self._token, self._plan_hash, self._salt]
        arguments += [LEAD_S, GONE_S, KEPT_S, int(ready)]
        try:
            what, salt, start, present, ready_now, now = await self._script(keys=[self._key], args=arguments)
        except (self._error, OSError) as error:
            raise self._lost(error) from None
        if what != "ok":
            raise self._refused(what, salt)
        self._entered = True
        return Standing(salt, float(start) if start else None, int(present), int(ready_now), float(now))

    def _refused(self, what: str, theirs: Any) -> UsageError:
        shard = self._shard
        said = {
            "count": f"the others at the barrier are shards of {theirs}, this one is of {shard.of}",
            "plan": f"the others at the barrier send plan {theirs}, this one has {self._plan_hash}: trace, cut, "
            "rate and seed have to be equal on all. Two runs at once need two --barrier-name",
            "taken": f"another process waits there as shard {shard} already. If it is gone, try again in {GONE_S:g} s",
        }
        return UsageError(f"--barrier: {said[what]}")

    def _lost(self, error: Exception) -> StopError:
        return StopError(
            f"the barrier at {self._where} does not answer: {str(error) or type(error).__name__}; nothing was sent"
        )
