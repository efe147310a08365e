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

_ENDINGS = ("finished", "refused", "failed")
_ENDING_OF = {
    Outcome.OK.value: "finished",
    Outcome.REJECTED.value: "refused",
    Outcome.EXPIRED.value: "refused",
    Outcome.TOO_LONG.value: "refused",
    Outcome.DRAINING.value: "refused",
    Outcome.BACKEND_ERROR.value: "failed",
    Outcome.BACKEND_TIMEOUT.value: "failed",
    Outcome.TRUNCATED.value: "failed",
}

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
        self.endings = dict.fromkeys(_ENDINGS, 0)
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
        ended = exchange.ended
        if lane is None or ended is None or exchange.outcome is None:
            return
        ending = _ENDING_OF.get(exchange.outcome._value_)  # an Outcome hashes in Python, its text does not
        if ending is not None:
            lane.endings[ending] += 1
        if (wait := exchange.queue_s) is not None:
            lane.waits.add(ended, wait)
        if exchange.first_token is not None:
            lane.first_tokens.add(ended, exchange.first_token - exchange.arrived)
            if (per_token := exchange.tpot_s) is not None:
                lane.per_token.add(ended, per_token)

    def sample(self) -> None:
        """Take one sample now."""
        now, seen, views = self._clock(), self._snapshot(), list(self._views())
        values: dict[str, float | None] = {}
        for lane in seen.lanes:
            values[f"waiting_{lane.name}"] = lane.waiting_requests
        for name, kept in self._lanes.items():
            values.update({f"{ending}_{name}": count for ending, count in kept.endings.items()})
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
                **{ending: self._counted(f"{ending}_{name}", total, now) for ending, total in kept.endings.items()},
                "wait_p95_s": _rounded(kept.waits.quantile(now, _P95)),
                "ttft_p95_s": _rounded(kept.first_tokens.quantile(now, _P95)),
                "tpot_p95_s": _rounded(kept.per_token.quantile(now, _P95)),
            }
            for name, kept in self._lanes.items()
        ]

    def _counted(self, name: str, total: int, now: float) -> int:
        column = self._ring.column(name)
        sampled = column[-1] if column else None
        return round(self._ring.grown(name, now - LAST_S) + total - (sampled or 0))

    async def _keep_sampling(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(EVERY_S)


def _over(values: Iterable[float | None], how: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    return how(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
