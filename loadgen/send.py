"""Open-loop sending: each shot goes out at its own due time, counted from one start, and never waits for another."""

import asyncio
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns

from loadgen.client import Client, Target
from loadgen.flight import Flight, Timeline
from loadgen.options import Endpoint
from loadgen.plan import Lane, Shot
from loadgen.prompts import Prompts
from loadgen.result import LoadOutcome

MS = 1_000_000
LEAD_NS = 100 * MS
"""Between the call of `run` and due time 0."""
SPIN_NS = 1_500_000
"""uvloop's timers count whole milliseconds: the last stretch is passed by going round the loop."""
BURST = 8
"""Shots sent in a row before the loop may read what has arrived."""
SWEEP_S = 0.05
"""How often the time limits of the requests in flight are looked at."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a request is given up; wall-clock seconds, None: never."""

    patience_s: dict[Lane, float | None]
    """No first token after this, from the due time."""
    stall_s: float
    """Silence after the first token."""
    total_s: float
    """Whole request, from the send."""


class RequestHead:
    """The head of every request of a run, but for its length and id."""

    def __init__(self, target: Target, endpoint: Endpoint, run_id: str, api_key: str | None) -> None:
        path = "/v1/completions" if endpoint is Endpoint.COMPLETIONS else "/v1/chat/completions"
        lines = [
            f"POST {target.prefix}{path} HTTP/1.1",
            f"Host: {target.netloc}",
            "User-Agent: lanewise-load",
            "Accept: text/event-stream",
            "Content-Type: application/json",
            *([f"Authorization: Bearer {api_key}"] if api_key else []),
            f"X-Request-Id: {run_id}-",
        ]
        self._head = "\r\n".join(lines).encode()

    def request(self, shot: Shot, body: bytes) -> bytes:
        """Return the bytes to write."""
        return b"%s%d\r\nContent-Length: %d\r\n\r\n%s" % (self._head, shot.index, len(body), body)


class Sender:
    """Sends the shots of one plan. `on_end` hears of every flight once, `on_unsent` of every shot that did not go out.

    Between `run` and its end, `stop` makes it send nothing more, and `abort` ends what is in flight.
    """

    def __init__(
        self,
        client: Client,
        prompts: Prompts,
        head: RequestHead,
        limits: Limits,
        *,
        rejects: frozenset[int],
        on_end: Callable[[Flight], None],
        on_unsent: Callable[[Shot], None],
        check_answers: bool = False,
    ) -> None:
        self._client = client
        self._prompts = prompts
        self._head = head
        self._limits = limits
        self._rejects = rejects
        self._on_end = on_end
        self._on_unsent = on_unsent
        self._check_answers = check_answers
        self._flights: set[Flight] = set()
        self._stopped = False
        self._nap: asyncio.Future[None] | None = None
        self._landed: asyncio.Future[None] | None = None
        self.sent = 0
        self.most_in_flight = 0
        self.late_ns: array[int] = array("q")
        """Started minus due of every shot that went out, wall clock."""

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._flights)

    async def run(self, shots: Iterator[Shot], line: Timeline) -> None:
        """Send every shot at its due time, then wait until all have ended."""
        self._next_sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        try:
            for shot in shots:
                await self._one(shot, line)
            if self._flights:
                self._landed = asyncio.get_running_loop().create_future()
                await self._landed
        finally:
            self._next_sweep.cancel()

    async def _one(self, shot: Shot, line: Timeline) -> None:
        """The body is made before the shot is due, so that making it delays nothing."""
        if self._stopped:
            self._on_unsent(shot)
            return
        request = self._head.request(shot, self._prompts.body(shot))
        due_ns = line.due_ns(shot.due_s)
        if await self._came(due_ns):
            self._launch(shot, request, due_ns)
        else:
            self._on_unsent(shot)

    async def _came(self, due_ns: int) -> bool:
        """Wait for the due time; False when the run is stopped before it."""
        if self.sent % BURST == 0:
            await asyncio.sleep(0)
        while not self._stopped and (left := due_ns - perf_counter_ns()) > 0:
            if left < SPIN_NS:
                await asyncio.sleep(0)
            else:
                await self._sleep((left - MS) / 1e9)
        return not self._stopped

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the time is up or the run is stopped."""
        loop = asyncio.get_running_loop()
        nap = self._nap = loop.create_future()
        timer = loop.call_later(seconds, _wake, nap)
        try:
            await nap
        finally:
            timer.cancel()
            self._nap = None

    def _launch(self, shot: Shot, request: bytes, due_ns: int) -> None:
        flight = Flight(shot, self._rejects, self._ended)
        flight.kept = [] if self._check_answers else None
        flight.started_ns = perf_counter_ns()
        self.late_ns.append(flight.started_ns - due_ns)
        self.sent += 1
        self._flights.add(flight)
        self.most_in_flight = max(self.most_in_flight, len(self._flights))
        patience = self._limits.patience_s[shot.lane]
        if patience is not None:
            left = patience - (flight.started_ns - due_ns) / 1e9
            flight.patience = asyncio.get_running_loop().call_later(max(0.0, left), self._impatient, flight)
        flight.call = self._client.send(flight, request)

    def _impatient(self, flight: Flight) -> None:
        self._client.parse_arrived()
        if flight.reader.first_ns or flight.outcome is not None:
            return
        flight.patience = None
        flight.give_up(LoadOutcome.CANCELLED, "patience", perf_counter_ns())

    def _ended(self, flight: Flight) -> None:
        self._flights.discard(flight)
        self._on_end(flight)
        if not self._flights and self._landed is not None and not self._landed.done():
            self._landed.set_result(None)

    def _sweep(self) -> None:
        self._client.parse_arrived()
        now = perf_counter_ns()
        stall, total = self._limits.stall_s * 1e9, self._limits.total_s * 1e9
        for flight in list(self._flights):
            if now - flight.started_ns > total:
                flight.give_up(LoadOutcome.TIMEOUT, "total", now)
            elif flight.reader.first_ns and now - flight.heard_ns > stall:
                flight.give_up(LoadOutcome.STALLED, "silence", now)
        self._next_sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        """Send nothing more; what is in flight goes on."""
        self._stopped = True
        if self._nap is not None:
            _wake(self._nap)

    def abort(self) -> None:
        """End everything that is in flight as cancelled."""
        now = perf_counter_ns()
        for flight in list(self._flights):
            flight.give_up(LoadOutcome.CANCELLED, "stopped", now)


def _wake(nap: "asyncio.Future[None]") -> None:
    if not nap.done():
        nap.set_result(None)
