"""Everything that a scrape shows, and the observer behind it."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

from proxy.backends import Backends
from proxy.exchange import Exchange
from proxy.inforce import InForce
from proxy.metrics.build import commit_of, version_of
from proxy.metrics.lag import LoopLag
from proxy.metrics.requests import RequestMetrics
from proxy.metrics.senders import SenderMetrics
from proxy.metrics.series import Histogram, gauge, histogram
from proxy.metrics.state import backend_families, recorder_families, scheduler_families
from proxy.policy.limits import Mode
from proxy.policy.snapshot import Snapshot
from proxy.recorder import Recorder
from proxy.settings import Settings


class Metrics:
    """Observer of finished exchanges, and the source of a scrape.

    Args:
        settings: lanes, backends and models: the values of the labels.
        snapshot: what the Dispatcher holds now.
        backends: the watched engines.
        recorder: the trace, or None when it is switched off.
        in_force: the configuration in force; None: `settings`, for ever.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        snapshot: Callable[[], Snapshot],
        backends: Backends,
        recorder: Recorder | None = None,
        in_force: InForce | None = None,
    ) -> None:
        self._in_force = in_force or InForce(settings)
        self._requests = RequestMetrics(settings)
        self._senders = SenderMetrics(settings)
        self._snapshot = snapshot
        self._backends = backends
        self._recorder = recorder
        self.lag = LoopLag()
        self.extra: list[Callable[[], Iterator[Metric]]] = []
        """Families of others."""
        # Made without the global registry: they are asked one by one, as all families are.
        nowhere = CollectorRegistry()
        self._process = (ProcessCollector(registry=nowhere), PlatformCollector(registry=nowhere))
        self._garbage = GCCollector(registry=nowhere)

    def observe(self, exchange: Exchange) -> None:
        """Count one finished request."""
        self._requests.observe(exchange)
        self._senders.observe(exchange)

    def configure(self, settings: Settings) -> None:
        """Take new lanes, models and backends."""
        self._requests.configure(settings)
        self._senders.configure(settings)

    @property
    def would(self) -> Mapping[tuple[str, str], int]:
        """What would have been done with requests that were only observed, by lane and decision."""
        return self._requests.would

    def families(self) -> Iterator[Metric]:
        """Yield every family, each computed when it is asked for."""
        yield from self._requests.families()
        snapshot = self._snapshot()
        yield from scheduler_families(snapshot)
        yield from self._senders.families(snapshot.tenants, None if self._recorder is None else self._recorder.reuse)
        yield from backend_families(self._backends.views())
        if self._recorder is not None:
            yield from recorder_families(self._recorder.counts)
        for families in self.extra:
            yield from families()
        yield from own_families(lag=self.lag.histogram, in_force=self._in_force)
        for collector in self._process:
            yield from collector.collect()
        yield from self._garbage.collect()


def own_families(*, lag: Histogram, in_force: InForce) -> Iterator[Metric]:
    """Yield what lanewise says of itself.

    Args:
        lag: lateness of the event loop.
        in_force: the configuration in force.
    """
    yield histogram(
        "event_loop_lag_seconds",
        "How late a timer of the event loop ran: every stream stood still that long.",
        (),
        (((), lag),),
    )
    yield gauge(
        "config_info",
        "Configuration in force, always 1; experiment is `metrics.experiment`.",
        ("sha", "experiment"),
        (((in_force.sha, in_force.settings.metrics.experiment), 1.0),),
    )
    yield gauge(
        "config_generation",
        "Number of the configuration in force since the start, from 1; rises with each one that is applied.",
        (),
        (((), float(in_force.generation)),),
    )
    yield gauge(
        "config_last_reload_success",
        "Whether the last reload or rollback that was tried was made.",
        (),
        (((), float(in_force.tried_well)),),
    )
    yield gauge(
        "config_last_reload_timestamp_seconds",
        "When the last reload or rollback was tried; at first, when the proxy started.",
        (),
        (((), in_force.tried_at),),
    )
    yield gauge(
        "mode",
        "1 for the mode in force.",
        ("mode",),
        (((mode.value,), float(mode is in_force.settings.mode)) for mode in Mode),
    )
    yield gauge(
        "build_info",
        "Version that runs, always 1; commit is empty unless it was installed from a repository.",
        ("version", "commit"),
        (((version_of("lanewise"), commit_of("lanewise")), 1.0),),
    )
