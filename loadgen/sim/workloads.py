"""The study's four workloads, from public traces laid out as `azure/…conv.csv`, `azure/…code.csv`, `mooncake/…jsonl`.

mixed: all Azure conversation rows at their times, and one ninth as many drawn from Mooncake conversation, stretched
over the same span. azure: conversation and code at their own clock times. conv: conversation alone. burst: the lengths
of mixed in random order, in gusts.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from loadgen.failure import UsageError
from loadgen.tracefile import Row, open_trace

CONVERSATION = Path("azure/AzureLLMInferenceTrace_conv.csv")
CODE = Path("azure/AzureLLMInferenceTrace_code.csv")
MOONCAKE = Path("mooncake/conversation_trace.jsonl")

GAP_CV = 2.0
"""Coefficient of variation of burst's Gamma gaps."""
CYCLE_S = 150.0
SURGE_S = 20.0
SURGE_AT_S = 65.0
"""Where in a cycle the surge begins: in the middle, so that no window starts inside one."""
SURGE_FACTOR = 3.0
TICK_NS = 3_000_000_000
"""Mooncake's clock."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a study."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows of a workload, with times in mean gaps of the whole workload from the window's first row."""

    at: tuple[float, ...]
    lengths: tuple[tuple[int, int], ...]
    """Prompt and output tokens."""
    surges: bool

    def arrivals(self, rate: float) -> list[Arrival]:
        """Return the requests with the times stretched so that the whole workload has a mean of `rate` requests/s."""
        seconds = _surging(self.at, rate) if self.surges else [at / rate for at in self.at]
        return [Arrival(at, *lengths) for at, lengths in zip(seconds, self.lengths, strict=True)]


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows in time order."""

    name: str
    times: tuple[float, ...]
    """Seconds (burst: mean gaps)."""
    lengths: tuple[tuple[int, int], ...]
    surges: bool = False
    """Whether 20 s in every 150 s run at three times the rate."""

    def windows(self, count: int, size: int, seed: int = 1) -> list[Window]:
        """Cut `count` windows of `size` consecutive rows (all rows when there are fewer); they may overlap.

        The possible starts are divided into `count` equal stretches and one start is drawn from each by `seed`, so that
        the windows together stand for the whole recording.

        Raises:
            UsageError: no windows, or windows of less than two rows.
        """
        if count < 1 or size < 2 or len(self.times) < 2:
            raise UsageError(
                f"workload {self.name}: {count} windows of {size} rows cannot be cut; it needs 1 of 2 rows"
            )
        rows = min(size, len(self.times))
        rng, stretch = random.Random(seed), (len(self.times) - rows) / count
        return [self.cut(int((number + rng.random()) * stretch), rows) for number in range(count)]

    def cut(self, start: int, size: int) -> Window:
        """Cut `size` consecutive rows from row `start` on.

        The unit of time is the mean gap of the whole workload, so that a busy window stays busier than a calm one.
        """
        times, end = self.times, start + size
        unit = (times[-1] - times[0]) / (len(times) - 1)
        at = tuple((times[row] - times[start]) / unit for row in range(start, end))
        return Window(at, self.lengths[start:end], self.surges)


def load_workload(name: str, traces: Path, seed: int = 1) -> Workload:
    """Build one of the four workloads.

    Args:
        name: mixed, azure, burst or conv.
        traces: folder of the public traces.
        seed: draws Mooncake's rows and the order and gaps of burst.

    Raises:
        UsageError: no such workload, or a trace file is missing or cannot be read.
    """
    if name not in _BUILDERS:
        raise UsageError(f"--workload {name}: not known; one of {', '.join(_BUILDERS)}")
    return _BUILDERS[name](traces, seed)


def workload_names() -> tuple[str, ...]:
    """Return the names of the study's workloads."""
    return tuple(_BUILDERS)


_Timed = tuple[float, int, int]


def _mixed(traces: Path, seed: int) -> Workload:
    conversation = _timed(_read(traces / CONVERSATION))
    documents = _documents(_read(traces / MOONCAKE), len(conversation) // 9, random.Random(seed))
    scale = _span(conversation) / _span(documents)
    begin, origin = conversation[0][0], documents[0][0]
    moved = [(begin + (at - origin) * scale, prompt, output) for at, prompt, output in documents]
    return _workload("mixed", conversation + moved, 24_000)


def _azure(traces: Path, _seed: int) -> Workload:
    return _workload("azure", _timed(_read(traces / CONVERSATION)) + _timed(_read(traces / CODE)), 32_000)


def _conv(traces: Path, _seed: int) -> Workload:
    return _workload("conv", _timed(_read(traces / CONVERSATION)), 32_000)


def _burst(traces: Path, seed: int) -> Workload:
    rng = random.Random(seed)
    lengths = list(_mixed(traces, seed).lengths)
    rng.shuffle(lengths)
    shape = 1 / GAP_CV**2
    gaps = [rng.gammavariate(shape, 1 / shape) for _ in lengths]
    return Workload("burst", tuple(accumulate(gaps)), tuple(lengths), surges=True)


_BUILDERS: dict[str, Callable[[Path, int], Workload]] = {
    "mixed": _mixed,
    "azure": _azure,
    "burst": _burst,
    "conv": _conv,
}


def _read(path: Path) -> list[Row]:
    if not path.is_file():
        raise UsageError(f"{path}: no such trace file; --traces names a folder with azure/ and mooncake/ in it")
    return list(open_trace(path, can_skip=False).rows())


def _timed(rows: Sequence[Row]) -> list[_Timed]:
    return [(row.t_ns / 1e9, row.prompt_tokens, row.output_tokens) for row in rows]


def _documents(rows: list[Row], count: int, rng: random.Random) -> list[_Timed]:
    """Draw rows, each spread inside its tick of the clock."""
    drawn = rng.sample(rows, min(count, len(rows)))
    return sorted(((row.t_ns + rng.random() * TICK_NS) / 1e9, row.prompt_tokens, row.output_tokens) for row in drawn)


def _span(rows: Sequence[_Timed]) -> float:
    return rows[-1][0] - rows[0][0]


def _workload(name: str, rows: list[_Timed], longest_prompt: int) -> Workload:
    rows.sort()
    lengths = tuple((min(prompt, longest_prompt), output) for _, prompt, output in rows)
    return Workload(name, tuple(at for at, _, _ in rows), lengths)


def _surging(at: Sequence[float], rate: float) -> list[float]:
    """Return when the cumulated rate reaches each of `at`.

    The rate is `rate` in the mean, and three times as high in a surge as between surges.
    """
    calm = rate * CYCLE_S / (CYCLE_S + (SURGE_FACTOR - 1) * SURGE_S)
    edges = [0.0, SURGE_AT_S, SURGE_AT_S + SURGE_S]
    rates = [calm, calm * SURGE_FACTOR, calm]
    reached = [0.0, calm * SURGE_AT_S, calm * (SURGE_AT_S + SURGE_FACTOR * SURGE_S)]
    per_cycle = rate * CYCLE_S
    seconds = []
    for value in at:
        cycle, inside = divmod(value, per_cycle)
        part = bisect_right(reached, inside) - 1
        seconds.append(cycle * CYCLE_S + edges[part] + (inside - reached[part]) / rates[part])
    return seconds
