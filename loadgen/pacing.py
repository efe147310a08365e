"""Senders that wait for answers, for when that is asked for: a closed loop, and conversations turn by turn.

Open loop is the rule (`loadgen.send`). What is sent here is due when it may go out, so that its latency counts from
then; that the load follows the speed of the target is written into the manifest and said with every result.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

from loadgen.failure import UsageError
from loadgen.flight import Flight, Timeline
from loadgen.options import ReplayOptions, Turns
from loadgen.plan import Shot
from loadgen.send import Sender


def sender_of(options: ReplayOptions) -> Callable[..., Sender]:
    """Return the kind of sender that a replay asks for; it takes the arguments of `Sender`.

    Raises:
        UsageError: the options do not fit together.
    """
    closed, turns = options.closed_loop, options.source.turns
    if closed is None:
        return TurnSender if turns is Turns.AFTER_ANSWER else Sender
    if closed < 1:
        raise UsageError(f"--closed-loop {closed}: is the number of requests in flight, 1 or more")
    if turns is Turns.AFTER_ANSWER:
        raise UsageError("--closed-loop sends in the order of the plan; leave out --turns after-answer")
    return partial(ClosedLoopSender, closed)


class ClosedLoopSender(Sender):
    """Keeps a number of requests in flight: the next one goes out when one ends, in the order of the plan.

    Args:
        limit: how many.
        arguments: those of `Sender`.
    """

    def __init__(self, limit: int, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limit = limit
        self._place: asyncio.Event = asyncio.Event()

    async def _one(self, shot: Shot, line: Timeline) -> None:
        request = self._head.request(shot, self._prompts.body(shot))
        await self._came(line.start_ns)
        while not self._stopped and self.in_flight >= self._limit:
            self._place.clear()
            await self._place.wait()
        if self._stopped:
            self._on_unsent(shot)
            return
        due_ns = perf_counter_ns()
        self._launch(replace(shot, due_s=line.seconds(due_ns) or 0.0), request, due_ns)

    def _ended(self, flight: Flight) -> None:
        super()._ended(flight)
        self._place.set()

    def stop(self) -> None:
        """Send nothing more; what is in flight goes on."""
        super().stop()
        self._place.set()


class TurnSender(Sender):
    """Open loop for first turns; a later turn goes out at its time, but not before the turn before it has ended.

    However the turn before it ended: a plan's every request is sent.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._open: set[int] = set()
        """Shots that have not ended, the held ones among them."""
        self._held: defaultdict[int, list[Shot]] = defaultdict(list)
        """By the shot that they wait for."""
        self._line = Timeline(0, 1.0)

    async def _one(self, shot: Shot, line: Timeline) -> None:
        self._line = line
        await super()._one(shot, line)

    def _launch(self, shot: Shot, request: bytes, due_ns: int) -> None:
        self._open.add(shot.index)
        if shot.parent in self._open:
            self._held[shot.parent].append(shot)
        else:
            super()._launch(shot, request, due_ns)

    def _ended(self, flight: Flight) -> None:
        self._open.discard(flight.shot.index)
        for shot in self._held.pop(flight.shot.index, ()):
            self._follow(shot)
        super()._ended(flight)

    def _follow(self, shot: Shot) -> None:
        if self._stopped:
            self._open.discard(shot.index)
            self._on_unsent(shot)
            for later in self._held.pop(shot.index, ()):
                self._follow(later)
            return
        now = perf_counter_ns()
        due = replace(shot, due_s=self._line.seconds(now) or 0.0)
        super()._launch(due, self._head.request(due, self._prompts.body(due)), now)
