"""Cheap counters and histograms, and their form for Prometheus.

A request touches about fifteen of them, on the event loop: an integer in a dict and a bisect into a list cost a tenth
of what the client library's children cost, and the library still writes the exposition.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

PREFIX = "lanewise_"

TTFT = (
    *(0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    *(2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
TPOT = (
    *(0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
QUEUE = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
E2E = (0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0)
TOKENS = (16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0)
RATIO = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)

Labels = tuple[str, ...]


@lru_cache(maxsize=32)
def _written(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return bounds as the text of `le`, +Inf behind them."""
    return tuple(str(floatToGoString(bound)) for bound in (*bounds, float("inf")))  # type: ignore[no-untyped-call]


EXEMPLAR_LABEL = "request_id"
LONGEST_EXEMPLAR = 128 - len(EXEMPLAR_LABEL)
"""Characters of a request id: OpenMetrics allows 128 for names and values of an exemplar's labels together."""


class Histogram:
    """Counts per bucket and a sum; `observe` is a bisect and two additions."""

    __slots__ = ("bounds", "counts", "latest_ids", "latest_values", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.latest_ids: list[str | None] = [None] * (len(bounds) + 1)
        """The last request of each bucket; None: there was none, or none with an id."""
        self.latest_values = [0.0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value; a value on a bound belongs to that bound's bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_of(self, request_id: str, value: float) -> None:
        """Count the value of a request, which becomes the example of its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        self.latest_ids[bucket] = request_id
        self.latest_values[bucket] = value

    @property
    def count(self) -> int:
        """Return how many values were observed."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, how many values up to it), the last bound being +Inf."""
        rows: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip(_written(tuple(self.bounds)), self.counts, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows

    def exposed(self) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        """Return `buckets`, those that have an example with it: OpenMetrics shows it, the text format does not."""
        rows: list[tuple[str, float] | tuple[str, float, Exemplar]] = [*self.buckets()]
        for bucket, (request_id, value) in enumerate(zip(self.latest_ids, self.latest_values, strict=True)):
            if request_id is not None and len(request_id) <= LONGEST_EXEMPLAR:
                rows[bucket] = (*rows[bucket][:2], Exemplar({EXEMPLAR_LABEL: request_id}, value))
        return rows


def counter(name: str, text: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> Metric:
    """Build a counter family; `name` comes without prefix and without `_total`."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def gauge(name: str, text: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> Metric:
    """Build a gauge family; `name` comes without prefix."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def histogram(name: str, text: str, labels: Labels, rows: Iterable[tuple[Labels, Histogram]]) -> Metric:
    """Build a histogram family; `name` comes without prefix."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, buckets=value.exposed(), sum_value=value.total)
    return family
