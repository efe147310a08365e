"""What went on in the last fifteen minutes, from inside the process: for the charts of the status page.

No Prometheus is asked. A sample every five seconds is kept in a ring of fixed size; what a request costs is a few
appends.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from proxy import tasks
from proxy.backends import BackendView
from proxy.exchange import Exchange
from proxy.policy.outcome import Outcome
from proxy.policy.snapshot import Snapshot
from proxy.ring import Ring, Window, rates

EVERY_S = 5.0
KEPT_S = 900.0
LAST_S = 60.0
"""What counts as the last minute."""
LANES = ("short", "long")
_P95 = 0.95

_REFUSED = frozenset({Outcome.REJECTED, Outcome.EXPIRED, Outcome.TOO_LONG, Outcome.DRAINING})
_FAILED = frozenset({Outcome.BACKEND_ERROR, Outcome.BACKEND_TIMEOUT, Outcome.TRUNCATED})
_ENDINGS = ("finished", "refused", "failed")

GAUGES = (
    *(f"{what}_{lane}" for lane in LANES for what in ("waiting", "ttft_p95_s")),
    "in_flight",
    "allowed",
    "engine_waiting",
    "kv_usage",
)
"""What is sampled as it is; over all backends the sum, of `kv_usage` the fullest."""
TOTALS = tuple(f"{ending}_{lane}" for lane in LANES for ending in _ENDINGS)
"""What is counted, and shown per second."""


class _Lane:
    def __init__(self) -> None:
        self.waits, self.first_tokens, self.per_token = Window(LAST_S), Window(LAST_S), Window(LAST_S)


class Lately:
    """Observer that keeps what the charts show.

    Args:
        snapshot: what the Dispatcher holds now.
        views: what is known of the backends now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        views: Callable[[], Iterable[BackendView]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._views = views
        self._clock = clock
        self._lanes = {name: _Lane() for name in LANES}
        self._totals = dict.fromkeys(TOTALS, 0)
        self._ring = Ring((*GAUGES, *TOTALS), round(KEPT_S / EVERY_S))
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take samples from now on, in the running loop."""
        self._task = tasks.spawn(self._keep_sampling(), "samples of the status page")

    def stop(self) -> None:
        """Take no more samples."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def observe(self, exchange: Exchange) -> None:
        """Count one finished request, when it had a lane."""
        lane = self._lanes.get(exchange.lane or "")
        if lane is None:
            return
        ended = exchange.ended if exchange.ended is not None else self._clock()
        if exchange.outcome is Outcome.OK:
            self._totals[f"finished_{exchange.lane}"] += 1
        elif exchange.outcome in _REFUSED:
            self._totals[f"refused_{exchange.lane}"] += 1
        elif exchange.outcome in _FAILED:
            self._totals[f"failed_{exchange.lane}"] += 1
        for window, value in (
            (lane.waits, exchange.queue_s),
            (lane.first_tokens, exchange.ttft_s),
            (lane.per_token, exchange.tpot_s),
        ):
            if value is not None:
                window.add(ended, value)

    def sample(self) -> None:
        """Take one sample now."""
        now, seen, views = self._clock(), self._snapshot(), list(self._views())
        values: dict[str, float | None] = dict(self._totals)
        for lane in seen.lanes:
            values[f"waiting_{lane.name}"] = lane.waiting_requests
        for name, kept in self._lanes.items():
            values[f"ttft_p95_s_{name}"] = kept.first_tokens.quantile(now, _P95)
        values["in_flight"] = sum(of.in_flight for of in seen.backends)
        values["allowed"] = sum(of.allowed for of in seen.backends if of.up and not of.drained)
        values["engine_waiting"] = _over((view.waiting for view in views), sum)
        values["kv_usage"] = _over((view.kv_usage for view in views), max)
        self._ring.add(now, values)

    def document(self, wall: Callable[[], float] = time.time) -> dict[str, Any]:
        """Return all samples, ready for JSON.

        Args:
            wall: Unix seconds.
        """
        ahead, times = wall() - self._clock(), self._ring.times
        series = {name: [_rounded(value) for value in self._ring.column(name)] for name in GAUGES}
        for name in TOTALS:
            series[f"{name}_per_s"] = [_rounded(value) for value in rates(times, self._ring.column(name))]
        return {
            "every_s": EVERY_S,
            "kept_s": KEPT_S,
            "at": [round(at + ahead, 3) for at in times],
            "series": series,
        }

    def last_minute(self) -> list[dict[str, Any]]:
        """Return what became of requests in the last minute, and how long they took, per lane.

        Counts begin at a sample, so they may reach back up to five seconds more.
        """
        now = self._clock()
        return [
            {
                "lane": name,
                **{ending: self._counted(f"{ending}_{name}", now) for ending in _ENDINGS},
                "wait_p95_s": _rounded(kept.waits.quantile(now, _P95)),
                "ttft_p95_s": _rounded(kept.first_tokens.quantile(now, _P95)),
                "tpot_p95_s": _rounded(kept.per_token.quantile(now, _P95)),
            }
            for name, kept in self._lanes.items()
        ]

    def _counted(self, name: str, now: float) -> int:
        column = self._ring.column(name)
        until_sample = column[-1] if column else None
        newer = self._totals[name] - (until_sample or 0)
        return round(self._ring.grown(name, now - LAST_S) + newer)

    async def _keep_sampling(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(EVERY_S)


def _over(values: Iterable[float | None], how: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    return how(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
