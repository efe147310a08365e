"""What finished requests leave behind: an observer of exchanges that counts them.

Labels are lanes, backends and models of the configuration, or closed enums; all children exist from the start, so that
`rate` and alerts see a zero before the first event.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import TypeVar

from prometheus_client.metrics_core import Metric

from proxy.exchange import Exchange, UpstreamError
from proxy.metrics.series import (
    E2E,
    OVERHEAD,
    QUEUE,
    RATIO,
    TOKENS,
    TPOT,
    TTFT,
    Histogram,
    counter,
    histogram,
)
from proxy.policy.classify import CapRule
from proxy.policy.outcome import Outcome, Phase, Reason
from proxy.policy.shadow import Decision, Would
from proxy.settings import LANES, Settings

K = TypeVar("K")
V = TypeVar("V")

NO_LANE = "none"
"""Lane of requests that never got one: not understood, or of a kind that is not queued."""
OTHER_MODEL = "other"
CODE_CLASSES = ("2xx", "3xx", "4xx", "5xx")
CAP_RULES = tuple(rule.value for rule in CapRule)
RETRY_ENDS = ("ok", "failed", "budget_exhausted")
QUEUE_ENDS = ("dispatched", "timeout", "disconnected")
WOULD_CAP = "cap"
WOULD_DECISIONS = (*(decision.value for decision in Decision), WOULD_CAP)
_FINISHED_BY_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens"})


class _PerLane:
    """Counters of one lane."""

    __slots__ = (
        "caps",
        "disconnects",
        "dispatched",
        "good",
        "misroutes",
        "output",
        "prompt",
        "queue",
        "retries",
        "truncated",
        "would_wait",
    )

    def __init__(self) -> None:
        self.queue = {end: Histogram(QUEUE) for end in QUEUE_ENDS}
        self.dispatched = self.queue["dispatched"]
        self.would_wait = Histogram(QUEUE)
        self.prompt = Histogram(TOKENS)
        self.output = Histogram(TOKENS)
        self.caps = dict.fromkeys(CAP_RULES, 0)
        self.disconnects = dict.fromkeys(Phase, 0)
        self.retries = dict.fromkeys(RETRY_ENDS, 0)
        self.truncated = 0
        self.misroutes = 0
        self.good = 0


class _PerModel:
    """Counters of one model in one lane."""

    __slots__ = ("cached_tokens", "duration", "output_tokens", "prompt_tokens", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT)
        self.tpot = Histogram(TPOT)
        self.duration = Histogram(E2E)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0


class RequestMetrics:
    """Observer of finished exchanges. Costs a few microseconds per request; nothing per token."""

    def __init__(self, settings: Settings) -> None:
        self._rejections = dict.fromkeys(product((*LANES, NO_LANE), Reason), 0)
        self._responses = dict.fromkeys(product(CODE_CLASSES, ("0", "1")), 0)
        self._lanes = {name: _PerLane() for name in LANES}
        self._overhead = Histogram(OVERHEAD)
        self._would = dict.fromkeys(product((*LANES, NO_LANE), WOULD_DECISIONS), 0)
        self._outcomes: dict[tuple[str, str], dict[str, int]] = {}
        self._lane_models: dict[tuple[str, str], _PerModel] = {}
        self._upstream: dict[tuple[str, str], Histogram] = {}
        self._errors: dict[tuple[str, UpstreamError], int] = {}
        self._ratio: dict[str, Histogram] = {}
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take new lanes, models and backends: what is still named counts on, what is gone leaves no series."""
        self._slo = {name: slo_of(settings, name) for name in LANES}
        self._short_tokens = settings.lanes.short.max_prompt_tokens
        self._models = models = (*settings.model_labels, OTHER_MODEL)
        backends = tuple(backend.label for backend in settings.backends)
        # Keyed by plain text: an enum member computes its hash in Python, at every look-up.
        plain = dict.fromkeys(map(str, Outcome), 0)
        self._outcomes = _kept(self._outcomes, product((*LANES, NO_LANE), models), lambda: dict(plain))
        self._lane_models = _kept(self._lane_models, product(LANES, models), _PerModel)
        self._upstream = _kept(self._upstream, product(LANES, backends), lambda: Histogram(TTFT))
        self._errors = _kept(self._errors, product(backends, UpstreamError), int)
        self._ratio = _kept(self._ratio, models, lambda: Histogram(RATIO))

    @property
    def would(self) -> dict[tuple[str, str], int]:
        """What would have been done with requests that were only observed, by lane and decision."""
        return dict(self._would)

    def observe(self, exchange: Exchange) -> None:
        """Count one finished request."""
        outcome = exchange.outcome or Outcome.BACKEND_ERROR
        facts = exchange.facts
        model = facts.model if facts is not None else None
        model = model if model in self._models else OTHER_MODEL
        per_lane = self._lanes.get(exchange.lane or "")
        name = exchange.lane if per_lane is not None and exchange.lane is not None else NO_LANE
        self._outcomes[name, model][outcome._value_] += 1
        if exchange.reason is not None and outcome is not Outcome.CLIENT_GONE:
            self._rejections[name, exchange.reason] += 1
        self._count_response(exchange)
        if exchange.upstream_error is not None and (exchange.backend, exchange.upstream_error) in self._errors:
            self._errors[exchange.backend or "", exchange.upstream_error] += 1
        if exchange.would is not None:
            self._count_would(exchange.would, name, per_lane)
        if per_lane is not None:
            per_model = self._lane_models[name, model]
            self._count_lane(exchange, outcome, per_lane)
            self._count_tokens(exchange, per_lane, per_model)
            self._time(exchange, outcome, name, per_lane, per_model)
            self._judge_estimate(exchange, per_lane, model)

    def _count_would(self, would: Would, name: str, lane: _PerLane | None) -> None:
        if would.decision is not None:
            self._would[name, would.decision.value] += 1
        if would.cap is not None:
            self._would[name, WOULD_CAP] += 1
        if would.decision in {Decision.SEND, Decision.QUEUE} and lane is not None and would.wait_s is not None:
            lane.would_wait.observe(would.wait_s)

    def _count_response(self, exchange: Exchange) -> None:
        status, facts = exchange.status, exchange.facts
        if status is not None and 200 <= status < 600:
            streams = facts is not None and facts.stream
            self._responses[CODE_CLASSES[status // 100 - 2], "1" if streams else "0"] += 1

    def _count_lane(self, exchange: Exchange, outcome: Outcome, lane: _PerLane) -> None:
        granted = exchange.granted
        if granted is not None and exchange.offered is not None:
            lane.dispatched.observe_of(exchange.request_id, granted - exchange.arrived)
        elif (waited := exchange.queue_s) is not None:
            if outcome is Outcome.EXPIRED:
                lane.queue["timeout"].observe_of(exchange.request_id, waited)
            elif outcome is Outcome.CLIENT_GONE:
                lane.queue["disconnected"].observe_of(exchange.request_id, waited)
        if outcome is Outcome.CLIENT_GONE and exchange.phase is not None:
            lane.disconnects[exchange.phase] += 1
        if exchange.retries:
            lane.retries["ok" if outcome is Outcome.OK else "failed"] += exchange.retries
        if exchange.retry_refused:
            lane.retries["budget_exhausted"] += 1
        if exchange.cap_rule in lane.caps:
            lane.caps[exchange.cap_rule] += 1
            lane.truncated += exchange.finish_reason in _FINISHED_BY_LENGTH

    def _count_tokens(self, exchange: Exchange, lane: _PerLane, per_model: _PerModel) -> None:
        usage = exchange.usage
        prompt = (usage.prompt_tokens if usage is not None else None) or exchange.prompt_tokens_estimated
        if prompt is not None:
            lane.prompt.observe(prompt)
        output = exchange.output_tokens
        if output is not None:
            lane.output.observe(output)
            per_model.output_tokens += output
        if usage is not None:
            per_model.prompt_tokens += usage.prompt_tokens or 0
            per_model.cached_tokens += usage.cached_tokens or 0

    def _time(self, exchange: Exchange, outcome: Outcome, name: str, lane: _PerLane, per_model: _PerModel) -> None:
        ttft = tpot = None
        total = exchange.total_s
        if exchange.streams:
            ttft, tpot = exchange.ttft_s, exchange.tpot_s
        if ttft is not None:
            per_model.ttft.observe_of(exchange.request_id, ttft)
            upstream = self._upstream.get((name, exchange.backend or ""))
            if upstream is not None and exchange.upstream_ttft_s is not None:
                upstream.observe_of(exchange.request_id, exchange.upstream_ttft_s)
        if tpot is not None:
            per_model.tpot.observe_of(exchange.request_id, tpot)
        if outcome is not Outcome.OK or total is None:
            return
        per_model.duration.observe_of(exchange.request_id, total)
        overhead = exchange.overhead_s
        if overhead is not None:
            self._overhead.observe(overhead)
        lane.good += within_slo(exchange, self._slo[name])

    def _judge_estimate(self, exchange: Exchange, lane: _PerLane, model: str) -> None:
        estimated, actual = exchange.prompt_tokens_estimated, exchange.prompt_tokens
        if not estimated or not actual:
            return
        self._ratio[model].observe(estimated / actual)
        belongs = LANES[0] if actual <= self._short_tokens else LANES[1]
        lane.misroutes += belongs != exchange.lane

    def families(self) -> Iterator[Metric]:
        """Yield every family that requests feed."""
        yield from self._count_families()
        yield from self._lane_families()
        yield from self._would_families()
        yield from self._token_families()
        yield from self._time_families()

    def _count_families(self) -> Iterator[Metric]:
        yield counter(
            "requests",
            "Finished requests, every outcome. Lane none: not understood, or of a kind that is not queued.",
            ("lane", "model", "outcome"),
            (((*pair, outcome), n) for pair, counts in self._outcomes.items() for outcome, n in counts.items()),
        )
        yield counter(
            "rejections",
            "Refused requests by reason.",
            ("lane", "reason"),
            (((lane, reason.value), n) for (lane, reason), n in self._rejections.items()),
        )
        yield counter(
            "responses",
            "HTTP answers given to clients; streaming 1: the client asked for a stream.",
            ("code_class", "streaming"),
            self._responses.items(),
        )
        yield counter(
            "upstream_errors",
            "What went wrong between lanewise and a backend.",
            ("backend", "kind"),
            (((backend, kind.value), n) for (backend, kind), n in self._errors.items()),
        )

    def _lane_families(self) -> Iterator[Metric]:
        lanes = self._lanes.items()
        yield histogram(
            "queue_wait_seconds",
            "Time from arrival to leaving the lane queue, by how it was left.",
            ("lane", "outcome"),
            (((lane, end), of.queue[end]) for lane, of in lanes for end in QUEUE_ENDS),
        )
        yield counter(
            "client_disconnects",
            "Clients that left before the end, by where their request was.",
            ("lane", "phase"),
            (((lane, phase.value), of.disconnects[phase]) for lane, of in lanes for phase in Phase),
        )
        yield counter(
            "retries",
            "Requests given to a second connection because the first took nothing of them, by how they ended; "
            "budget_exhausted: not given to one, because too many had been of late.",
            ("lane", "result"),
            (((lane, result), of.retries[result]) for lane, of in lanes for result in RETRY_ENDS),
        )
        yield counter(
            "output_caps_applied",
            "Output limits set by lanewise, by rule.",
            ("lane", "rule"),
            (((lane, rule), of.caps[rule]) for lane, of in lanes for rule in CAP_RULES),
        )
        yield counter(
            "output_truncated",
            "Answers that ended at an output limit which lanewise had set.",
            ("lane",),
            (((lane,), of.truncated) for lane, of in lanes),
        )
        yield counter(
            "lane_misroutes",
            "Requests whose real prompt length belonged to the other lane.",
            ("from_lane", "to_lane"),
            (
                ((LANES[0], LANES[1]), self._lanes[LANES[0]].misroutes),
                ((LANES[1], LANES[0]), self._lanes[LANES[1]].misroutes),
            ),
        )
        yield counter(
            "slo_good",
            "Goodput: requests answered within the deadlines of their lane (first token and time per output token; an "
            "answer that is not streamed within their sum).",
            ("lane",),
            (((lane,), of.good) for lane, of in lanes),
        )

    def _would_families(self) -> Iterator[Metric]:
        yield counter(
            "would",
            "Under mode observe: what would have been done with each request. One of send, queue, reject, expire, "
            "too_long and invalid; and cap beside it, where its output limit would have been lowered.",
            ("lane", "decision"),
            self._would.items(),
        )
        yield histogram(
            "would_queue_wait_seconds",
            "Under mode observe: how long requests would have waited in their lane before they were sent.",
            ("lane",),
            (((lane,), of.would_wait) for lane, of in self._lanes.items()),
        )

    def _token_families(self) -> Iterator[Metric]:
        lanes, pairs = self._lanes.items(), self._lane_models.items()
        yield histogram(
            "request_prompt_tokens",
            "Prompt length per request: from usage, else estimated.",
            ("lane",),
            (((lane,), of.prompt) for lane, of in lanes),
        )
        yield histogram(
            "request_output_tokens",
            "Output length per request: from usage, else the number of token events.",
            ("lane",),
            (((lane,), of.output) for lane, of in lanes),
        )
        yield counter(
            "prompt_tokens",
            "Prompt tokens, from usage.",
            ("lane", "model"),
            ((pair, of.prompt_tokens) for pair, of in pairs),
        )
        yield counter(
            "cached_prompt_tokens",
            "Prompt tokens that the engine took from its prefix cache, from usage.",
            ("lane", "model"),
            ((pair, of.cached_tokens) for pair, of in pairs),
        )
        yield counter(
            "output_tokens",
            "Output tokens, from usage or token events.",
            ("lane", "model"),
            ((pair, of.output_tokens) for pair, of in pairs),
        )
        yield histogram(
            "prompt_tokens_estimate_ratio",
            "Estimated prompt length over the real one.",
            ("model",),
            (((model,), ratio) for model, ratio in self._ratio.items()),
        )

    def _time_families(self) -> Iterator[Metric]:
        pairs = self._lane_models.items()
        yield histogram(
            "time_to_first_token_seconds",
            "From arrival at lanewise to the first token, queue included; streams only.",
            ("lane", "model"),
            ((pair, of.ttft) for pair, of in pairs),
        )
        yield histogram(
            "upstream_time_to_first_token_seconds",
            "From dispatch to the first token; streams only.",
            ("lane", "backend"),
            self._upstream.items(),
        )
        yield histogram(
            "time_per_output_token_seconds",
            "(last token - first token) / (tokens - 1), once per request; streams only.",
            ("lane", "model"),
            ((pair, of.tpot) for pair, of in pairs),
        )
        yield histogram(
            "request_duration_seconds",
            "From arrival to the last byte, of requests that ended ok.",
            ("lane", "model"),
            ((pair, of.duration) for pair, of in pairs),
        )
        yield histogram(
            "overhead_seconds",
            "lanewise's own time per request: neither queued nor waiting for the engine.",
            (),
            (((), self._overhead),),
        )


def _kept(old: dict[K, V], keys: Iterable[K], make: Callable[[], V]) -> dict[K, V]:
    """Return a dict with these keys: old values where there are some, new ones elsewhere."""
    return {key: old[key] if key in old else make() for key in keys}


def within_slo(exchange: Exchange, slo: tuple[float, float]) -> bool:
    """Return whether an answer came within the deadlines of its lane.

    Args:
        exchange: a request that ended ok.
        slo: seconds to the first token, and per output token.
    """
    ttft_slo, tpot_slo = slo
    if exchange.streams:
        ttft, tpot = exchange.ttft_s, exchange.tpot_s
        return ttft is not None and ttft <= ttft_slo and (tpot is None or tpot <= tpot_slo)
    total = exchange.total_s
    return total is not None and total <= ttft_slo + tpot_slo * (exchange.output_tokens or 0)


def slo_of(settings: Settings, name: str) -> tuple[float, float]:
    """Return the deadlines of a lane: seconds to the first token, and per output token."""
    lane = getattr(settings.lanes, name)
    return lane.ttft_slo, lane.tpot_slo
