"""Traces that were never recorded: an arrival process and two distributions of lengths, drawn by seed."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

from loadgen.arrivals import Arrivals, arrivals_of
from loadgen.failure import UsageError
from loadgen.options import Process
from loadgen.shipped import locate
from loadgen.trace.output import Output
from loadgen.trace.rewrite import Made
from loadgen.tracefile.row import MOST_TOKENS, Row
from loadgen.tracefile.write import WRITTEN, Writer
from loadgen.workload import Lengths, read_workload

ALLOWED = "512, uniform:1..900, lognormal:MEDIAN,SIGMA or quantiles:0=10,50=800,100=9000"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `trace synth` is asked for."""

    to: str
    workload: str | None
    rows: int | None
    duration_s: float | None
    arrivals: Process
    rate: float | None
    rates: str | None
    cv: float
    prompt: str | None
    output: str | None
    seed: int


def make(wanted: Wanted, out: Output) -> Made:
    """Draw a trace and write it.

    Raises:
        UsageError: the options do not fit together.
    """
    if wanted.to not in WRITTEN:
        raise UsageError(f"--to {wanted.to}: cannot be written; one of {', '.join(WRITTEN)}")
    if wanted.rows is not None and wanted.rows < 1:
        raise UsageError(f"--rows {wanted.rows}: must be 1 or more")
    rows = _rows(wanted)
    made = Made()
    writer = Writer(0, made.losses)
    if (header := writer.header(wanted.to)) is not None:
        out.raw(header.encode())
    for row in rows:
        out.write(writer.line(wanted.to, row))
        made.written += 1
    made.losses.counts.clear()  # nothing was recorded that could be lost
    return made


def _rows(wanted: Wanted) -> Iterator[Row]:
    if wanted.workload is not None:
        if wanted.prompt or wanted.output or wanted.rate or wanted.rates:
            raise UsageError("--workload says rate and lengths; leave out --prompt, --output, --rate and --rates")
        workload = read_workload(locate("config/workloads", wanted.workload))
        return workload.rows(wanted.seed, rows=wanted.rows, duration_s=wanted.duration_s)
    if wanted.prompt is None or wanted.output is None or wanted.rows is None:
        raise UsageError(f"give --workload, or --rows, --prompt and --output, each of them like {ALLOWED}")
    if wanted.arrivals is Process.RECORDED:
        raise UsageError("--arrivals recorded: there is no recording; constant, poisson or gamma")
    arrivals = arrivals_of(wanted.arrivals, rate=wanted.rate, rates=wanted.rates, cv=wanted.cv)
    prompt, output = lengths_of("--prompt", wanted.prompt), lengths_of("--output", wanted.output)
    return drawn(arrivals, prompt, output, rows=wanted.rows, seed=wanted.seed)


def drawn(
    arrivals: Arrivals,
    prompt: Callable[[float], int],
    output: Callable[[float], int],
    *,
    rows: int,
    seed: int,
) -> Iterator[Row]:
    """Draw rows; a longer draw begins with the shorter one.

    Args:
        arrivals: when they come; fewer than `rows` when the process ends before.
        prompt: share of the requests (0 … 1) → prompt tokens.
        output: the same for output tokens.
        rows: how many at most.
        seed: decides everything.
    """
    draw = random.Random(f"{seed}/lengths")
    for number, t in enumerate(arrivals.times(rows, seed).tolist(), 1):
        yield Row(number, round(t * 1e9), prompt(draw.random()), output(draw.random()))


def lengths_of(option: str, text: str) -> Callable[[float], int]:
    """Read a distribution of token counts and return its quantile function.

    Args:
        option: named in the error.
        text: a number, `uniform:LOW..HIGH`, `lognormal:MEDIAN,SIGMA` or `quantiles:PERCENT=TOKENS,…`.

    Raises:
        UsageError: it is none of them.
    """
    name, _, rest = text.partition(":")
    try:
        if name == "uniform":
            low, high = map(int, rest.split(".."))
            found: Callable[[float], int] = _uniform(low, high)
        elif name == "lognormal":
            median, sigma = map(float, rest.split(","))
            found = _lognormal(median, sigma)
        elif name == "quantiles":
            found = Lengths(quantiles=dict(_pair(part) for part in rest.split(","))).at
        else:
            found = _fixed(int(text))
    except ValueError:
        raise UsageError(f"{option} {text}: is no distribution of tokens; allowed: {ALLOWED}") from None
    return found


def _pair(text: str) -> tuple[float, float]:
    percent, tokens = text.split("=")
    return float(percent), float(tokens)


def _fixed(tokens: int) -> Callable[[float], int]:
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(tokens)
    return lambda _: tokens


def _uniform(low: int, high: int) -> Callable[[float], int]:
    if not 1 <= low <= high <= MOST_TOKENS:
        raise ValueError(low, high)
    return lambda at: min(high, low + math.floor(at * (high - low + 1)))


def _lognormal(median: float, sigma: float) -> Callable[[float], int]:
    if not (1 <= median <= MOST_TOKENS and 0 < sigma <= 4):
        raise ValueError(median, sigma)
    normal = NormalDist(0, sigma)
    return lambda at: min(MOST_TOKENS, max(1, round(median * math.exp(normal.inv_cdf(min(max(at, 1e-9), 1 - 1e-9))))))
