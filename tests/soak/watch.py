"""What is measured of the proxy during a soak, and what is made of it."""

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.station import Station

LATE_S = 0.1
"""What counts as late for an event loop."""
WINDOW_S = 30.0
"""The least of each such window counts for the slope of memory: what is held for a moment is no leak."""


@dataclass(frozen=True)
class Sample:
    """The proxy at one moment."""

    at_s: float
    rss_mb: float
    descriptors: int
    tasks: int


@dataclass
class Watch:
    """Samples of one proxy.

    Args:
        station: the proxy.
        tasks: the file that it writes the number of its tasks into.
    """

    station: Station
    tasks: Path
    samples: list[Sample] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Count time from now on, and forget what was seen before."""
        self.began = time.monotonic()
        self.samples.clear()

    def look(self) -> Sample:
        """Take one sample."""
        process = self.station.process
        tasks = int(self.tasks.read_text("ascii")) if self.tasks.exists() else 0
        sample = Sample(time.monotonic() - self.began, process.rss_mb, process.descriptors, tasks)
        self.samples.append(sample)
        return sample

    async def run(self, every_s: float) -> None:
        """Take samples until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(every_s)


def slope_mb_per_10_min(samples: list[Sample], warm_up_s: float) -> float:
    """Return how fast memory grows after the warm-up: least squares over the least of each window.

    Args:
        samples: in order of time.
        warm_up_s: from the first sample on.
    """
    windows: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.at_s >= warm_up_s:
            windows.setdefault(int(sample.at_s // WINDOW_S), []).append(sample)
    least = [min(window, key=lambda one: one.rss_mb) for window in windows.values()]
    if len(least) < 2:
        return 0.0
    fit = statistics.linear_regression([one.at_s for one in least], [one.rss_mb for one in least])
    return fit.slope * 600.0


async def lag(station: Station) -> dict[str, float]:
    """Return which share of its ticks the event loop was later than `LATE_S`, and how many there were."""
    metrics = await station.metrics()
    name = "event_loop_lag_seconds"
    total = metrics.get(f"{name}_count", 0.0)
    within = max(
        (
            value
            for series, value in metrics.items()
            if series.startswith(f"{name}_bucket") and float(series.partition('le="')[2].partition('"')[0]) <= LATE_S
        ),
        default=0.0,
    )
    return {"share": round(1.0 - within / total, 4) if total else 1.0, "ticks": total}


def waited_s(pid: int) -> float:
    """Return how long a process was ready to run and had no processor, in all, s (Linux counts it)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9
