"""Self-certification: before a run, the generator measures itself against an endpoint whose answers are known.

It sends the busiest stretch of the plan, as it would send it, to `loadgen.endpoint`. The difference between the TTFT
that it reads and the TTFT that the endpoint gave is the error at that load: its own, and the time that a server takes
to read a request's head before it can stamp it, which is measured apart.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import orjson

from loadgen import endpoint
from loadgen.client import Target
from loadgen.failure import StopError
from loadgen.flight import Flight, Timeline
from loadgen.options import ReplayOptions
from loadgen.plan import Plan, Shot
from loadgen.send import LEAD_NS
from loadgen.sending import Asked, Sending, quantile, quiet_collector

WINDOW_S = 2.0
"""Wall-clock length of the busiest stretch that is sent."""
MOST_SHOTS = 2_000
LEAST_SHOTS = 8
"""Where the busiest stretch holds fewer, those after it are sent too."""
LONGEST_GAP_S = 0.5
"""Between two of them, wall clock: waiting longer would tell nothing more."""
WARM_UP_S = 0.3
"""The first request is sent so long before the others, and not counted: what is done for the first time is slow."""
ROUNDS = 2
"""Of a closed loop: every place is taken so many times."""
CLOSED_STREAM_S = 2.0
"""Longest answer in a closed loop: there, answers that are shorter than the engine's would be asked for more often."""
START_S = 20.0
"""Longest wait for the endpoint's process."""
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Certificate:
    """The generator's own error at the planned load. Seconds are wall-clock time."""

    requests: int
    """How many were sent and answered."""
    requests_per_s: float
    """Between the first send and the last; 0 for a single one."""
    chunks_per_s: float
    most_in_flight: int
    ttft_error_mean_s: float
    """Mean of TTFT as read from the send less TTFT as given, by the stamps that a server takes."""
    ttft_error_p99_s: float
    endpoint_read_mean_s: float
    """The share of the endpoint in it: from the bytes of a head to the handler's stamp."""
    endpoint_busy: float
    """Share of one core that the endpoint used. Near 1 it, and not the generator, was the limit."""
    lag_p99_s: float
    """Send less due time."""
    loop_lag_p99_s: float
    part: float
    """Share of the plan that one process sends: 1 / workers."""

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Said:
    """What the endpoint did, as it told at its end."""

    stamps: list[endpoint.Stamp]
    busy: float


def skipped(why: str) -> dict[str, Any]:
    """Return what the manifest says where nothing was measured."""
    return {"skipped": why}


def busiest(due_ns: npt.NDArray[np.int64], window_ns: int) -> tuple[int, int]:
    """Return the first and the end of the shots of the busiest stretch of a plan.

    Args:
        due_ns: due times, sorted.
        window_ns: its length.
    """
    ends = np.searchsorted(due_ns, due_ns + window_ns, side="right")
    first = int((ends - np.arange(len(due_ns))).argmax())
    return first, min(int(ends[first]), first + MOST_SHOTS)


async def certify(plan: Plan, options: ReplayOptions, asked: Asked, workers: int = 1) -> dict[str, Any]:
    """Measure this process at the load that it is about to send, and return what the manifest says of it.

    Args:
        plan: of the run.
        options: of the run; its target is not touched.
        asked: how requests are made.
        workers: how many processes share the plan; what one of them sends is measured.

    Raises:
        StopError: the endpoint does not start.
    """
    shots = measured_shots(plan, options, workers)
    flights: list[Flight] = []
    longest_s = endpoint.LONGEST_STREAM_S if options.closed_loop is None else CLOSED_STREAM_S
    async with _Endpoint(longest_s) as there:
        own = replace(options, patience_short_s=None, patience_long_s=None, insecure=False)
        sending = Sending(own, replace(asked, target=there.target, key=None), lambda _: None, flights.append)
        await sending.client.resolve()
        with quiet_collector():
            await sending.run(iter(shots), Timeline(perf_counter_ns() + LEAD_NS, options.speed))
        said = await there.said()
    return _certificate([one for one in flights if one.shot.index], said, sending, workers).facts()


def measured_shots(plan: Plan, options: ReplayOptions, workers: int) -> list[Shot]:
    """Return the busiest stretch of a plan as it is sent to the endpoint; shot 0 is the warm-up.

    Args:
        plan: of the run.
        options: of the run.
        workers: how many processes share the plan; the shots are those of one of them.
    """
    if options.closed_loop is not None:
        first, end = 0, min(len(plan), ROUNDS * options.closed_loop, MOST_SHOTS)
    else:
        first, end = busiest(plan.due_ns, round(WINDOW_S * options.speed * 1e9))
        end = max(end, min(len(plan), first + LEAST_SHOTS * workers))
        first = min(first, max(0, end - LEAST_SHOTS * workers))
    mine = [plan.shot(index) for index in range(first, end)][::workers]
    due_s, shots = WARM_UP_S * options.speed, [replace(mine[0], index=0, due_s=0.0, parent=-1)]
    for number, (before, shot) in enumerate(pairwise([mine[0], *mine]), 1):
        due_s += min(shot.due_s - before.due_s, LONGEST_GAP_S * options.speed)
        shots.append(replace(shot, index=number, due_s=due_s, parent=-1))
    return shots


def _certificate(flights: Sequence[Flight], said: Said, sending: Sending, workers: int) -> Certificate:
    truth = {number: wrote - entered for number, _, entered, wrote in said.stamps}
    errors = sorted(
        flight.reader.first_ns - flight.sent_ns - truth[flight.shot.index]
        for flight in flights
        if flight.reader.first_ns and flight.shot.index in truth
    )
    if not errors:
        raise StopError("the self-certificate got no answer from its own endpoint; --no-certify leaves it out")
    sent = [flight.sent_ns for flight in flights if flight.sent_ns]
    first = [flight.reader.first_ns for flight in flights if flight.reader.first_ns]
    last = max(flight.end_ns for flight in flights)
    late = sorted(sending.sender.late_ns[1:])
    reading = [entered - read for number, read, entered, _ in said.stamps if number]
    return Certificate(
        requests=len(errors),
        requests_per_s=(len(sent) - 1) / (max(max(sent) - min(sent), _MS) / 1e9),
        chunks_per_s=sum(flight.reader.chunks for flight in flights) / (max(last - min(first), _MS) / 1e9),
        most_in_flight=sending.sender.most_in_flight,
        ttft_error_mean_s=sum(errors) / len(errors) / 1e9,
        ttft_error_p99_s=quantile(errors, 0.99) / 1e9,
        endpoint_read_mean_s=sum(reading) / len(reading) / 1e9,
        endpoint_busy=said.busy,
        lag_p99_s=quantile(late, 0.99) / 1e9,
        loop_lag_p99_s=quantile(sorted(sending.loop_lag.late_s), 0.99),
        part=1 / workers,
    )


class _Endpoint:
    """The endpoint's process: a context manager, and what it said at its end."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0

    @property
    def target(self) -> Target:
        """Return where it listens."""
        return Target("http", "127.0.0.1", self._port, "")

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen.endpoint", str(self._longest_s)),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                self._port = int(await self._process.stdout.readline())
        except (TimeoutError, ValueError):
            await self.__aexit__()
            raise StopError("the endpoint of the self-certificate did not start; --no-certify leaves it out") from None
        return self

    async def said(self) -> Said:
        """End it and return what it did."""
        assert self._process is not None
        said, _ = await self._process.communicate(b"")
        try:
            document = orjson.loads(said)
        except ValueError:
            raise StopError("the endpoint of the self-certificate ended early; --no-certify leaves it out") from None
        return Said(
            [(number, read, entered, wrote) for number, read, entered, wrote in document["stamps"]], document["busy"]
        )

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
