"""What the simulated engine tells Prometheus: vLLM 0.32's names, labels and buckets, filled with what it did.

Times are wall-clock seconds of the server: with `--speed X` it is an engine X times as fast, and says so.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from loadgen.sim.nouns import Counters, EngineProfile, Gauges, Step

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TIMES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LATENESS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)

_HISTOGRAMS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("request_prompt_tokens", "Prompt tokens of finished requests.", _TOKENS),
    ("request_generation_tokens", "Output tokens of finished requests.", _TOKENS),
    ("iteration_tokens_total", "Tokens of one engine step.", _STEP_TOKENS),
    ("request_params_n", "The n parameter of finished requests.", (1, 2, 5, 10, 20)),
    ("request_params_max_tokens", "The max_tokens parameter of finished requests.", _TOKENS),
    ("time_to_first_token_seconds", "Arrival to first token.", _FIRST),
    ("inter_token_latency_seconds", "Gap between two tokens of a sequence.", _GAPS),
    ("request_time_per_output_token_seconds", "Mean gap between the tokens of a finished request.", _GAPS),
    ("e2e_request_latency_seconds", "Arrival to last token.", _TIMES),
    ("request_queue_time_seconds", "Arrival to admission.", _TIMES),
    ("request_inference_time_seconds", "Admission to last token.", _TIMES),
    ("request_prefill_time_seconds", "Admission to first token.", _TIMES),
    ("request_decode_time_seconds", "First to last token.", _TIMES),
    ("request_num_preemptions", "Preemptions of finished requests.", (1, 2, 3, 4, 5, 10, 20)),
    ("request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones not among them.", _TOKENS),
)


class Tally:
    """A histogram that takes a value several times at once: all decodes of one step share one gap."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` that many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, name: str, help_text: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """Return the histogram with cumulative buckets."""
        family = HistogramMetricFamily(name, help_text, labels=list(labels))
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


@dataclass(slots=True)
class Life:
    """What one sequence went through in the engine. Times are seconds on the driver's clock."""

    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    n: int
    """Sequences of its request; 0 in all but the first of them."""
    arrived: float
    admitted: float | None = None
    first: float | None = None
    last: float = 0.0
    cached_tokens: int = 0
    preemptions: int = 0


class Exposition(Collector):
    """Collects what the engine does and renders it.

    Args:
        profile: the engine's limits, told as `vllm:cache_config_info`.
        model: the served model name, a label of every series.
        counters: the engine's own totals, read at every scrape.
    """

    def __init__(self, profile: EngineProfile, model: str, counters: Counters) -> None:
        self._profile = profile
        self._counters = counters
        self._labels = {"model_name": model, "engine": "0"}
        self._tallies = {name: Tally(bounds) for name, _, bounds in _HISTOGRAMS}
        self._endings = {"stop": 0, "length": 0}
        self._cached = 0
        self._lateness = Tally(_LATENESS)
        self._gauges = Gauges()
        self._gap = self._tallies["inter_token_latency_seconds"]
        self._step = self._tallies["iteration_tokens_total"]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    # --- what the driver tells

    def began(self, step: Step, gauges: Gauges) -> None:
        """Note a step that begins; gauges change once per step, as the engine's do."""
        self._step.add(step.prefill_tokens + step.decodes)
        self._gauges = gauges

    def idle(self) -> None:
        """Note that the engine has nothing to do."""
        self._gauges = Gauges()

    def late(self, seconds: float) -> None:
        """Note how long after its due time a step was delivered."""
        self._lateness.add(seconds)

    def gaps(self, seconds: float, times: int = 1) -> None:
        """Note gaps between tokens."""
        self._gap.add(seconds, times)

    def admitted(self, life: Life) -> None:
        """Note a sequence that was admitted for the first time."""
        self._cached += life.cached_tokens

    def first_token(self, life: Life, now: float) -> None:
        """Note a first token."""
        self._tallies["time_to_first_token_seconds"].add(now - life.arrived)

    def finished(self, life: Life, reason: str) -> None:
        """Note a sequence that got its last token. Aborted ones are not told, as vLLM does not."""
        self._endings[reason] = self._endings.get(reason, 0) + 1
        first = life.last if life.first is None else life.first
        admitted = life.arrived if life.admitted is None else life.admitted
        values: dict[str, float] = {
            "request_prompt_tokens": life.prompt_tokens,
            "request_generation_tokens": life.output_tokens,
            "request_params_max_tokens": life.max_tokens,
            "e2e_request_latency_seconds": life.last - life.arrived,
            "request_queue_time_seconds": admitted - life.arrived,
            "request_inference_time_seconds": life.last - admitted,
            "request_prefill_time_seconds": first - admitted,
            "request_decode_time_seconds": life.last - first,
            "request_num_preemptions": life.preemptions,
            "request_prefill_kv_computed_tokens": life.prompt_tokens - life.cached_tokens,
        }
        if life.n:
            values["request_params_n"] = life.n
        if life.output_tokens > 1:
            values["request_time_per_output_token_seconds"] = (life.last - first) / (life.output_tokens - 1)
        for name, value in values.items():
            self._tallies[name].add(value)

    # --- what Prometheus reads

    @property
    def gauges(self) -> Gauges:
        """What the gauges show at this moment."""
        return self._gauges

    def render(self) -> bytes:
        """Return the text of /metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family; called by the registry."""
        yield from self._gauge_families()
        yield from self._counter_families()
        for name, help_text, _ in _HISTOGRAMS:
            yield self._tallies[name].family(f"vllm:{name}", help_text, self._labels)
        yield self._lateness.family(
            "lanewise_sim_lateness_seconds", "How late the server was with a step: its own error, not the engine's.", {}
        )

    def _gauge_families(self) -> Iterator[Metric]:
        gauges = self._gauges
        yield self._gauge("num_requests_running", "Requests in the running batch.", gauges.running)
        yield self._gauge("num_requests_waiting", "Requests waiting to be scheduled.", gauges.waiting)
        reasons = {"capacity": gauges.waiting, "deferred": 0}
        yield self._split(GaugeMetricFamily, "num_requests_waiting_by_reason", "Waiting, by reason.", "reason", reasons)
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._split(GaugeMetricFamily, "engine_sleep_state", "Sleep state.", "sleep_state", states)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use; 1 is full.", gauges.kv_usage)
        yield self._cache_config()

    def _counter_families(self) -> Iterator[Metric]:
        counted = self._counters
        yield self._counter("num_preemptions", "Preemptions.", counted.preemptions)
        yield self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", counted.prefix_queries)
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", counted.prefix_hits)
        yield self._counter("prompt_tokens", "Prompt tokens of requests with a first token.", counted.prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", self._cached)
        computed = max(0, counted.prompt_tokens - self._cached)
        sources = {"local_compute": computed, "local_cache_hit": self._cached, "external_kv_transfer": 0}
        yield self._split(CounterMetricFamily, "prompt_tokens_by_source", "By source.", "source", sources)
        yield self._counter("generation_tokens", "Tokens generated.", counted.generation_tokens)
        endings = {**self._endings, "abort": 0, "error": 0, "repetition": 0}
        yield self._split(CounterMetricFamily, "request_success", "Finished requests.", "finished_reason", endings)
        yield self._rejections()

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", help_text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _split(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        help_text: str,
        label: str,
        values: dict[str, int],
    ) -> Metric:
        family = kind(f"vllm:{name}", help_text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _rejections(self) -> Metric:
        labels = {"model_name": self._labels["model_name"]}
        family = CounterMetricFamily("vllm:admission_rejections", "Refused, by limit.", labels=[*labels, "reason"])
        counted = self._counters
        for reason, value in (
            ("max_num_queued_reqs", counted.rejected_requests),
            ("max_num_queued_tokens", counted.rejected_tokens),
        ):
            family.add_metric([*labels.values(), reason], value)
        return family

    def _cache_config(self) -> Metric:
        profile = self._profile
        labels = {
            "engine": "0",
            "block_size": str(profile.block_size),
            "num_gpu_blocks": str(profile.kv_blocks),
            "kv_cache_size_tokens": str(profile.kv_tokens),
            "kv_cache_max_concurrency": f"{profile.kv_tokens / profile.max_model_len:.2f}",
            "enable_prefix_caching": str(profile.prefix_caching),
            "cache_dtype": "auto",
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "Configuration of the KV cache.", labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family
