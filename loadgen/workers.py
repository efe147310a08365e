"""Several worker processes for one replay: deterministic parts of one plan, one start time, one journal.

The parent sends nothing itself. It takes the results as the workers tell them, about five times a second, so that the
quantiles of the run are those of all its requests, not of summaries.
"""

import asyncio
import contextlib
import sys
from array import array
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import orjson

from loadgen.failure import StopError, UsageError
from loadgen.flight import Timeline
from loadgen.options import ReplayOptions
from loadgen.plan import Shot
from loadgen.result import Result
from loadgen.sending import RECENT, SIGNALLED, Asked, quantile
from loadgen.worker import Assignment

_MAIN = "from loadgen.worker import main; main()"
READY_S = 120.0
LINE = 1 << 26
"""Longest line of a worker, bytes."""


def check_workers(options: ReplayOptions) -> None:
    """Check the number of workers.

    Raises:
        UsageError: it is no number of workers, or does not go together with a closed loop.
    """
    if options.workers < 1:
        raise UsageError(f"--workers {options.workers}: is a number of processes, 1 or more")
    if options.workers > 1 and options.closed_loop is not None:
        raise UsageError("--workers: a closed loop is kept by one process; leave out one of the two")


class Crew:
    """The workers of one replay, with the interface of `loadgen.sending.Sending`."""

    def __init__(self, options: ReplayOptions, asked: Asked, record: Callable[[Result], None]) -> None:
        self._options = options
        self._asked = asked
        self._record = record
        self._processes: list[Process] = []
        self._states: dict[int, dict[str, Any]] = {}
        self._lost: list[str] = []
        self.line = Timeline(0, options.speed)
        self.outcomes: Counter[str] = Counter()
        self.late_ns: array[int] = array("q")
        self.loop_late_s: array[float] = array("d")
        self.stops = 0
        self.most_in_flight = 0

    async def prepare(self) -> None:
        """Start the workers and wait until each has read its part.

        Raises:
            StopError: one of them did not get ready.
        """
        count = self._options.workers
        for number in range(count):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _MAIN), stdin=PIPE, stdout=PIPE, start_new_session=True, limit=LINE
            )
            self._processes.append(process)
            assert process.stdin is not None
            part = self._options.shards.read().part(number, count)
            process.stdin.write(Assignment(self._options, self._asked, *part).packed())
        for number, process in enumerate(self._processes):
            assert process.stdout is not None
            try:
                async with asyncio.timeout(READY_S):
                    said = await process.stdout.readline()
            except TimeoutError:
                said = b""
            if said != b"ready\n":
                await self._end()
                raise StopError(f"worker {number + 1} of {count} did not get ready; nothing was sent")

    async def run(self, _: Iterator[Shot], line: Timeline) -> None:
        """Let every worker send its part, which it has read itself, and take what they tell until all have ended."""
        self.line = line
        self._say(f"go {line.start_ns}")
        try:
            await asyncio.gather(*(self._hear(number) for number in range(len(self._processes))))
        finally:
            await self._end()

    async def abandon(self) -> None:
        """End what `prepare` started: there will be no run."""
        await self._end()

    def stop(self) -> None:
        """Stop sending and drain; the second time, end what is in flight."""
        self.stops += 1
        self._say("stop")

    def give_up(self) -> None:
        """Send nothing more and end what is in flight."""
        self._say("stop")
        self._say("stop")

    @property
    def interrupted(self) -> str | None:
        """Return why the run is not whole; None: nothing stopped it."""
        return "; ".join(self._lost) or (SIGNALLED if self.stops else None)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the plan since its start."""
        return max(0.0, self.line.seconds(perf_counter_ns()) or 0.0)

    @property
    def recent_lag_p99_s(self) -> float:
        """Lateness of the latest sends, wall-clock seconds."""
        return quantile(sorted(self.late_ns[-RECENT:]), 0.99) / 1e9

    @property
    def sent(self) -> int:
        """Requests that went out."""
        return self._sum("sent")

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return self._sum("in_flight")

    @property
    def connections(self) -> int:
        """Connections made so far."""
        return self._sum("connections")

    @property
    def cpu_s(self) -> float:
        """Return the CPU time that the workers used while they sent, seconds; 0 until they have ended."""
        return float(sum(state["cpu_s"] for state in self._states.values()))

    def _sum(self, key: str) -> int:
        return sum(state[key] for state in self._states.values())

    def _say(self, word: str) -> None:
        for process in self._processes:
            if process.stdin is not None and process.returncode is None:
                with contextlib.suppress(ConnectionError, RuntimeError):
                    process.stdin.write(f"{word}\n".encode())

    async def _hear(self, number: int) -> None:
        process = self._processes[number]
        assert process.stdout is not None
        while told := await process.stdout.readline():
            if not told.endswith(b"\n"):
                break
            document = orjson.loads(told)
            if "result" in document:
                result = Result.from_line(document["result"])
                self.outcomes[result.outcome] += 1
                self._record(result)
            else:
                self._take(number, document["state"])
        if code := await process.wait():
            self._lost.append(f"worker {number + 1} of {len(self._processes)} ended with code {code}, its part is cut")
            self.give_up()

    def _take(self, number: int, state: dict[str, Any]) -> None:
        self.late_ns.extend(state.pop("late_ns"))
        self.loop_late_s.extend(state.pop("loop_late_s", ()))
        self._states[number] = state
        why = state["interrupted"]
        if why not in (None, SIGNALLED, *self._lost):
            self._lost.append(why)
            self._say("stop")
        self.most_in_flight = max(self.most_in_flight, self.in_flight, state["most_in_flight"])

    async def _end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
