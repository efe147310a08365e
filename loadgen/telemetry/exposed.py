"""What a replay shows Prometheus while it runs: `lanewise_load_*` on a page of its own.

Latencies are seconds of the plan, as everywhere in a run: at `--speed X` the wall clock's times X. The schedule lag is
wall clock, because it is the generator's own.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from loadgen.failure import UsageError
from loadgen.plan import Lane
from loadgen.result import LoadOutcome, Result
from loadgen.sim.exposition import Tally

PREFIX = "lanewise_load_"
NAMES = (
    "scheduled_total",
    "sent_total",
    "completed_total",
    "schedule_lag_seconds",
    "inflight_requests",
    "target_rate",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "request_duration_seconds",
    "run_info",
)
TTFT = (
    *(0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    *(2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
TPOT = (
    *(0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
E2E = (0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0)
"""The proxy's bounds, so that both sides' quantiles are interpolated alike."""
LAG = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RATE_OVER_S = 10.0
"""Seconds of wall clock that the planned rate is taken over."""
_END = b"# EOF\n"


@dataclass(frozen=True, slots=True)
class Running:
    """What the sender and the clock say at a moment."""

    elapsed_s: float
    """Seconds of the plan."""
    speed: float
    sent: int
    in_flight: int
    late_ns: Sequence[int]
    """Started minus due of every shot so far."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Labels of the one series that says which run it is."""

    run_id: str
    arm: str
    trace_sha: str
    seed: int


@dataclass(slots=True)
class _PerLane:
    ttft: Tally = field(default_factory=lambda: Tally(TTFT))
    tpot: Tally = field(default_factory=lambda: Tally(TPOT))
    duration: Tally = field(default_factory=lambda: Tally(E2E))


class LoadMetrics:
    """Counts results, and tells them with what the sender says.

    Args:
        due_ns: due times of the plan, rising, nanoseconds of the plan.
        facts: which run it is.
        running: says how far it is.
    """

    def __init__(self, due_ns: npt.NDArray[np.int64], facts: RunFacts, running: Callable[[], Running]) -> None:
        self._due_ns = due_ns
        self._facts = facts
        self._running = running
        self._completed: Counter[tuple[str, str]] = Counter()
        self._lanes = {lane.value: _PerLane() for lane in Lane}
        self._lag = Tally(LAG)
        self._lags_seen = 0

    def record(self, result: Result) -> None:
        """Count one shot that has ended, or was never sent."""
        self._completed[result.lane, result.outcome] += 1
        if result.sent is None:
            return
        lane = self._lanes[result.lane]
        if result.first is not None:
            lane.ttft.add(result.first - result.due)
            if result.last is not None and result.tokens is not None and result.tokens > 1:
                lane.tpot.add((result.last - result.first) / (result.tokens - 1))
        if result.outcome == LoadOutcome.OK and result.end is not None:
            lane.duration.add(result.end - result.due)

    def families(self) -> Iterator[Metric]:
        """Yield every family, each computed when it is asked for."""
        now = self._running()
        planned = self._due_by(now.elapsed_s)
        yield CounterMetricFamily(f"{PREFIX}scheduled", "Requests that were due so far.", planned)
        yield CounterMetricFamily(f"{PREFIX}sent", "Requests sent.", now.sent)
        completed = CounterMetricFamily(f"{PREFIX}completed", "Requests ended.", labels=("lane", "outcome"))
        for lane, outcome in product(self._lanes, LoadOutcome):
            completed.add_metric((lane, outcome.value), self._completed[lane, outcome.value])
        yield completed
        for late in now.late_ns[self._lags_seen :]:
            self._lag.add(max(0.0, late / 1e9))
        self._lags_seen = len(now.late_ns)
        yield self._lag.family(f"{PREFIX}schedule_lag_seconds", "Started minus due, wall clock.", {})
        yield GaugeMetricFamily(f"{PREFIX}inflight_requests", "Requests sent that have not ended.", now.in_flight)
        recent = planned - self._due_by(now.elapsed_s - RATE_OVER_S * now.speed)
        yield GaugeMetricFamily(
            f"{PREFIX}target_rate", "Planned requests per second of wall clock, over the last 10.", recent / RATE_OVER_S
        )
        yield self._by_lane("time_to_first_token_seconds", "Due time to first token.", lambda lane: lane.ttft)
        yield self._by_lane("time_per_output_token_seconds", "Mean time per output token.", lambda lane: lane.tpot)
        yield self._by_lane(
            "request_duration_seconds", "Due time to end, of those that went well.", lambda lane: lane.duration
        )
        info = GaugeMetricFamily(
            f"{PREFIX}run_info", "The run, always 1.", labels=("run_id", "arm", "trace_sha", "seed")
        )
        info.add_metric((self._facts.run_id, self._facts.arm, self._facts.trace_sha, str(self._facts.seed)), 1)
        yield info

    def _due_by(self, elapsed_s: float) -> int:
        return int(np.searchsorted(self._due_ns, round(elapsed_s * 1e9), side="right"))

    def _by_lane(self, name: str, text: str, of: Callable[[_PerLane], Tally]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(PREFIX + name, text, labels=("lane",))
        for lane, tallies in self._lanes.items():
            family.samples += of(tallies).family(PREFIX + name, text, {"lane": lane}).samples
        return family


class _Families:
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class LoadPage:
    """Serves `/metrics` in the running loop, a family at a time, so that a scrape delays no request by a millisecond.

    Args:
        address: HOST:PORT; port 0 takes any free one.
        metrics: what it shows.
    """

    def __init__(self, address: str, metrics: LoadMetrics) -> None:
        self._host, self._port = parse_address(address)
        self._metrics = metrics
        self._process = ProcessCollector(registry=CollectorRegistry())
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Start serving and return HOST:PORT with the real port.

        Raises:
            UsageError: the address is in use, or not ours.
        """
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self.close()
            raise UsageError(f"--prometheus {self._host}:{self._port}: {error.strerror or error}") from None
        return f"{self._host}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        answer = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-store"})
        await answer.prepare(request)
        for family in (*self._metrics.families(), *self._process.collect()):
            await asyncio.sleep(0)
            await answer.write(encode(_Families(family)).removesuffix(_END))
        if kind.startswith("application/openmetrics-text"):
            await answer.write(_END)
        await answer.write_eof()
        return answer


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT.

    Raises:
        UsageError: it is not that.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--prometheus {text}: write HOST:PORT, such as 127.0.0.1:9200")
    return host.strip("[]"), int(port)
