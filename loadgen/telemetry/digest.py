"""From readings to what a run says of its engines and cards: peaks, counts, mean times. Pure; unknown is None.

A peak of once-a-second readings of a gauge is a lower bound: what came and went between two readings is not seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from loadgen.journal import RunFolder
from loadgen.telemetry.pages import GAUGES, Numbers
from loadgen.telemetry.samples import Kind, Sample, read_samples_file

LEAST_SHARE = 0.5
"""With fewer of the readings than this there, a peak could be anything: it counts as unknown."""


@dataclass(frozen=True, slots=True)
class EngineDigest:
    """One engine over one run. Times are seconds of the plan; None: not known, which is not 0."""

    readings: int = 0
    missing: int = 0
    """Readings that failed or held none of the engine's numbers."""
    restarted: bool = False
    """Its counters began anew during the run: differences are unknown."""
    kv_peak: float | None = None
    """Share of the KV cache, 0 to 1."""
    kv_median: float | None = None
    running_peak: float | None = None
    running_median: float | None = None
    """Over the readings with anything running."""
    waiting_peak: float | None = None
    waiting_share: float | None = None
    """Of the readings inside the sending window, how many had a request waiting in the engine."""
    pinned_share: float | None = None
    """Of the readings with a request waiting, how many had all but the highest number running (or that very number)."""
    full_share: float | None = None
    """Of the readings with a request waiting, how many had 90 % or more of the KV cache in use."""
    preemptions: float | None = None
    prefix_hit_share: float | None = None
    """Prompt tokens found in the prefix cache, of those looked up."""
    prefix_hits: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    finished: dict[str, float] = field(default_factory=dict)
    """Finish reason → requests."""
    rejections: float | None = None
    ttft_s: float | None = None
    """Means, as the engine measured them."""
    gap_s: float | None = None
    e2e_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    tokens_per_step: float | None = None
    steps: float | None = None


@dataclass(frozen=True, slots=True)
class CardDigest:
    """One chip over one run."""

    chip: str
    readings: int
    hbm_peak_mb: float | None = None
    hbm_total_mb: float | None = None
    hbm_bandwidth_peak: float | None = None
    """Shares, 0 to 1."""
    hbm_bandwidth_median: float | None = None
    ai_core_peak: float | None = None
    ai_core_median: float | None = None
    unhealthy: bool = False

    @property
    def hbm_peak(self) -> float | None:
        """Share of the memory."""
        if self.hbm_peak_mb is None or not self.hbm_total_mb:
            return None
        return self.hbm_peak_mb / self.hbm_total_mb


@dataclass(frozen=True, slots=True)
class Telemetry:
    """All sources of one run."""

    engines: tuple[EngineDigest, ...] = ()
    cards: tuple[CardDigest, ...] = ()
    cards_missing: int = 0
    """Readings of the exporter that failed, were stale or empty."""
    card_readings: int = 0

    @property
    def engine(self) -> EngineDigest | None:
        """The engine, when there is exactly one with anything to say."""
        said = [one for one in self.engines if one.readings > one.missing]
        return said[0] if len(said) == 1 else None

    @property
    def kv_peak(self) -> float | None:
        """Of the fullest engine; None when any of them is unknown."""
        return _all_known(max, [one.kv_peak for one in self.engines])

    @property
    def preemptions(self) -> float | None:
        """Of all engines; None when any of them is unknown."""
        return _all_known(sum, [one.preemptions for one in self.engines])

    @property
    def hbm_peak_mb(self) -> float | None:
        """Of the fullest card."""
        known = [card.hbm_peak_mb for card in self.cards if card.hbm_peak_mb is not None]
        return max(known, default=None)

    @property
    def ai_core_peak(self) -> float | None:
        """Of the busiest card, 0 to 1."""
        known = [card.ai_core_peak for card in self.cards if card.ai_core_peak is not None]
        return max(known, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what is unknown is null."""
        return asdict(self) | {
            "kv_peak": self.kv_peak,
            "preemptions": self.preemptions,
            "hbm_peak_mb": self.hbm_peak_mb,
            "ai_core_peak": self.ai_core_peak,
        }


def _all_known(reduce: Any, values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(reduce(known)) if known and len(known) == len(values) else None


def telemetry_of(run: RunFolder) -> Telemetry | None:
    """Digest what was read during a run; None when nothing was to be read.

    Raises:
        UsageError: the folder or one of its files cannot be read.
    """
    manifest = run.manifest()
    sources = manifest.get("telemetry") or ()
    if not sources:
        return None
    speed = float(manifest.get("speed", 1.0))
    span = float(manifest.get("plan", {}).get("span_s", 0.0))
    engines, cards = [], []
    for source in sources:
        samples = list(read_samples_file(run.path / Path(str(source["file"])).name))
        if source["kind"] == Kind.ENGINE.value:
            engines.append(engine_digest(samples, speed=speed, span_s=span))
        else:
            cards.append((samples, span))
    chips = [chip for samples, _ in cards for chip in card_digests(samples, span_s=span)]
    return Telemetry(
        engines=tuple(engines),
        cards=tuple(chips),
        cards_missing=sum(not sample.cards for samples, _ in cards for sample in samples),
        card_readings=sum(len(samples) for samples, _ in cards),
    )


def engine_digest(samples: Sequence[Sample], *, speed: float = 1.0, span_s: float | None = None) -> EngineDigest:
    """Digest the readings of one engine.

    Args:
        samples: in order of time, the first before the first request and the last after the last answer.
        speed: wall-clock times are multiplied by it.
        span_s: end of the sending window; shares of readings are taken inside it.
    """
    there = [sample for sample in samples if sample.numbers]
    counts = _Counts(there)
    usable = len(there) >= max(1, LEAST_SHARE * len(samples))
    inside = [sample.numbers for sample in there if 0 < sample.t <= (span_s or there[-1].t)] if usable else []
    gauges = [sample.numbers for sample in there] if usable else []
    waiting = [numbers for numbers in inside if numbers.get("waiting", 0) >= 1]
    running_peak = _peak(gauges, "running")
    known = [numbers for numbers in inside if "waiting" in numbers]
    busy = [numbers["running"] for numbers in gauges if numbers.get("running", 0) >= 1]
    return EngineDigest(
        readings=len(samples),
        missing=len(samples) - len(there),
        restarted=counts.restarted,
        kv_peak=_peak(gauges, "kv_usage"),
        kv_median=_median(inside, "kv_usage"),
        running_peak=running_peak,
        running_median=median(busy) if busy else None,
        waiting_peak=_peak(gauges, "waiting"),
        waiting_share=len(waiting) / len(known) if known else None,
        pinned_share=_share(waiting, "running", None if running_peak is None else running_peak - 1),
        full_share=_share(waiting, "kv_usage", 0.9),
        preemptions=counts.grown("preemptions"),
        prefix_hit_share=_over(counts.grown("prefix_hits"), counts.grown("prefix_queries")),
        prefix_hits=counts.grown("prefix_hits"),
        prompt_tokens=counts.grown("prompt_tokens"),
        generation_tokens=counts.grown("generation_tokens"),
        finished=counts.by_reason(),
        rejections=counts.grown("rejections"),
        ttft_s=counts.mean("ttft", speed),
        gap_s=counts.mean("gap", speed),
        e2e_s=counts.mean("e2e", speed),
        queue_s=counts.mean("queue", speed),
        prefill_s=counts.mean("prefill", speed),
        decode_s=counts.mean("decode", speed),
        tokens_per_step=_over(counts.grown("step_tokens"), counts.grown("steps")),
        steps=counts.grown("steps"),
    )


class _Counts:
    """Differences of counters between the first and the last reading."""

    def __init__(self, there: Sequence[Sample]) -> None:
        self._first: Numbers = there[0].numbers if there else {}
        self._last: Numbers = there[-1].numbers if there else {}
        self.restarted = any(_restarted(a.numbers, b.numbers) for a, b in pairwise(there))

    def grown(self, name: str) -> float | None:
        if self.restarted or name not in self._last or self._first is self._last:
            return None
        return self._last[name] - self._first.get(name, 0.0)

    def mean(self, name: str, speed: float) -> float | None:
        value = _over(self.grown(f"{name}_s"), self.grown(f"{name}_n"))
        return None if value is None else value * speed

    def by_reason(self) -> dict[str, float]:
        names = [name for name in self._last if name.startswith("finished.")]
        grown = {name.removeprefix("finished."): self.grown(name) for name in names}
        return {reason: count for reason, count in grown.items() if count}


def _restarted(before: Numbers, after: Numbers) -> bool:
    if before.get("started_at", 0.0) != after.get("started_at", before.get("started_at", 0.0)):
        return True
    return any(after[name] < value for name, value in before.items() if name not in GAUGES and name in after)


def card_digests(samples: Sequence[Sample], *, span_s: float | None = None) -> list[CardDigest]:
    """Digest the readings of one exporter, chip by chip; medians are taken inside the sending window."""
    there = [sample for sample in samples if sample.cards]
    if not there or len(there) < LEAST_SHARE * len(samples):
        return []
    chips = dict.fromkeys(chip for sample in there for chip in sample.cards)
    last = span_s or there[-1].t
    return [
        _card(
            chip,
            [sample.cards[chip] for sample in there if chip in sample.cards],
            [sample.cards[chip] for sample in there if chip in sample.cards and 0 < sample.t <= last],
        )
        for chip in chips
    ]


def _card(chip: str, readings: Sequence[Numbers], inside: Sequence[Numbers]) -> CardDigest:
    return CardDigest(
        chip=chip,
        readings=len(readings),
        hbm_peak_mb=_peak(readings, "hbm_used_mb"),
        hbm_total_mb=_peak(readings, "hbm_total_mb"),
        hbm_bandwidth_peak=_percent(_peak(readings, "hbm_bandwidth_percent")),
        hbm_bandwidth_median=_percent(_median(inside, "hbm_bandwidth_percent")),
        ai_core_peak=_percent(_peak(readings, "ai_core_percent")),
        ai_core_median=_percent(_median(inside, "ai_core_percent")),
        unhealthy=any(numbers.get("healthy") == 0 for numbers in readings),
    )


def _values(readings: Iterable[Numbers], name: str) -> list[float]:
    return [numbers[name] for numbers in readings if name in numbers]


def _peak(readings: Iterable[Numbers], name: str) -> float | None:
    return max(_values(readings, name), default=None)


def _median(readings: Iterable[Numbers], name: str) -> float | None:
    values = _values(readings, name)
    return median(values) if values else None


def _share(readings: Sequence[Numbers], name: str, least: float | None) -> float | None:
    values = _values(readings, name)
    if least is None or not values:
        return None
    return sum(value >= least for value in values) / len(values)


def _percent(value: float | None) -> float | None:
    return None if value is None else value / 100


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
