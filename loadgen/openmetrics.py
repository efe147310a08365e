"""A run as OpenMetrics text with timestamps, as `promtool tsdb create-blocks-from openmetrics` takes it.

One sample every few seconds of the run, at the wall-clock times at which it happened: counters and histograms as a
Prometheus would have scraped them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, chain

from loadgen.result import LoadOutcome, Result

BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TPOT_BOUNDS_S = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    kind: str
    help: str
    unit: str = ""

    @property
    def sample(self) -> str:
        """Name of a sample that is no part of a histogram."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@dataclass(slots=True)
class _Histogram:
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        at = next((number for number, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[at] += 1
        self.total += value

    def lines(self, name: str, labels: str, stamp: str) -> Iterator[str]:
        so_far = list(accumulate(self.counts or [0] * (len(self.bounds) + 1)))
        for bound, count in zip((*map(_number, self.bounds), "+Inf"), so_far, strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count} {stamp}'
        yield f"{name}_count{{{labels}}} {so_far[-1]} {stamp}"
        yield f"{name}_sum{{{labels}}} {self.total:.6f} {stamp}"


_SENT = _Family("lanewise_run_sent", "counter", "Requests that were sent.")
_ENDED = _Family("lanewise_run_ended", "counter", "Requests that ended, by outcome.")
_FLYING = _Family("lanewise_run_in_flight", "gauge", "Requests in flight.")
_TOKENS = _Family("lanewise_run_output_tokens", "counter", "Output tokens of complete answers.")
_TTFT = _Family("lanewise_run_ttft_seconds", "histogram", "Due time to first token, of complete answers.", "seconds")
_E2E = _Family("lanewise_run_e2e_seconds", "histogram", "Due time to last token, of complete answers.", "seconds")
_TPOT = _Family("lanewise_run_tpot_seconds", "histogram", "Time per output token, of complete answers.", "seconds")
_LATENCIES = (_TTFT, _E2E, _TPOT)


def openmetrics(results: Iterable[Result], *, started_at: datetime, label: str, speed: float, step_s: float) -> str:
    """Return the text.

    Args:
        results: of the run.
        started_at: wall-clock time of due time 0.
        label: of the run; every series carries it as `run`.
        speed: of the run: what happened at s seconds of the plan happened s / speed after the start.
        step_s: wall-clock seconds between samples.
    """
    series = _series(list(results), speed, step_s)
    begin = started_at.timestamp()
    run = f'run="{_escaped(label)}"'
    blocks: dict[_Family, dict[str, list[str]]] = {}
    for at_s, state in series:
        for family, labels, lines in state.lines(run, f"{begin + at_s:.3f}"):
            blocks.setdefault(family, {}).setdefault(labels, []).extend(lines)
    parts = []
    for family, metrics in blocks.items():
        parts += [f"# TYPE {family.name} {family.kind}", f"# HELP {family.name} {family.help}"]
        parts += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
        parts += chain.from_iterable(metrics.values())
    return "\n".join([*parts, "# EOF", ""])


class _State:
    """Everything that is counted, up to one moment."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[str] = Counter()
        self.latencies = {
            (family, lane): _Histogram(TPOT_BOUNDS_S if family is _TPOT else BOUNDS_S)
            for family in _LATENCIES
            for lane in ("short", "long")
        }

    def end(self, one: Result) -> None:
        self.ended[one.lane, one.outcome] += 1
        if one.outcome != LoadOutcome.OK or one.first is None or one.last is None:
            return
        self.tokens[one.lane] += one.tokens or 0
        self.latencies[_TTFT, one.lane].add(one.first - one.due)
        self.latencies[_E2E, one.lane].add(one.last - one.due)
        if one.tokens and one.tokens > 1:
            self.latencies[_TPOT, one.lane].add((one.last - one.first) / (one.tokens - 1))

    def lines(self, run: str, stamp: str) -> Iterator[tuple[_Family, str, list[str]]]:
        """Yield family, labels and the samples of that metric: those of one metric belong together in the text."""
        for lane in ("short", "long"):
            labels = f'{run},lane="{lane}"'
            ended = sum(count for (of, _), count in self.ended.items() if of == lane)
            plain = ((_SENT, self.sent[lane]), (_FLYING, self.sent[lane] - ended), (_TOKENS, self.tokens[lane]))
            for family, count in plain:
                yield family, labels, [f"{family.sample}{{{labels}}} {count} {stamp}"]
            for outcome in LoadOutcome:
                told = f'{labels},outcome="{outcome.value}"'
                yield _ENDED, told, [f"{_ENDED.sample}{{{told}}} {self.ended[lane, outcome.value]} {stamp}"]
            for family in _LATENCIES:
                yield family, labels, list(self.latencies[family, lane].lines(family.name, labels, stamp))


def _series(results: list[Result], speed: float, step_s: float) -> Iterator[tuple[float, _State]]:
    """Yield the moments of the run, wall-clock seconds after its start, with what had happened by each.

    The state is one object that goes on: read it before the next moment.
    """
    went = [one for one in results if one.sent is not None or one.started is not None]
    sends = sorted((_known(one.sent, one.started) / speed, one.lane) for one in went)
    ends = sorted((_known(one.end, one.sent, one.started) / speed, number) for number, one in enumerate(went))
    last_s = max((at for at, _ in ends), default=0.0)
    state, sent, ended = _State(), 0, 0
    for number in range(math.ceil(last_s / step_s) + 1):
        at_s = number * step_s
        while sent < len(sends) and sends[sent][0] <= at_s:
            state.sent[sends[sent][1]] += 1
            sent += 1
        while ended < len(ends) and ends[ended][0] <= at_s:
            state.end(went[ends[ended][1]])
            ended += 1
        yield at_s, state


def _known(*times: float | None) -> float:
    return next(time for time in times if time is not None)


def _number(value: float) -> str:
    return repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
