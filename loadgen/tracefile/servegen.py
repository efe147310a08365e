"""ServeGen's chunks: one client's traffic as statistics of 600 s windows, from which arrivals are drawn by seed.

`chunk-N-trace.csv` has no header; its columns are window start (seconds), mean rate (requests/s), CV of the gaps, the
distribution of the gaps (Gamma or Weibull) and its shape and scale. `chunk-N-dataset.json` beside it maps the start of
a (longer) window to the probabilities of prompt and output lengths. A window without rate, or for which no lengths were
published yet, has no request.

Each window is drawn by itself, from (seed, name of the file, window start): a later part of a recording is the same
whether or not the earlier ones were drawn. The first gap of a window is that of a process that has been running, so
that the mean rate is exactly the published one.
"""

import ast
import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from loadgen.arrivals import Gaps
from loadgen.failure import UsageError
from loadgen.tracefile.row import LineError, Row

TIME_UNIT = "seconds from the start of ServeGen's recording"
WINDOW_S = 600.0
MOST_IN_WINDOW = 1_000_000
"""A row is numbered `line * MOST_IN_WINDOW + position`."""
_COLUMNS = "window start, rate, CV, distribution, shape, scale"


@dataclass(frozen=True, slots=True)
class Window:
    """One line of `chunk-N-trace.csv`."""

    line: int
    start_s: float
    gaps: Gaps | None
    """None: nothing arrives."""


def is_first_line(line: str) -> bool:
    """Say whether a first line is this format's."""
    try:
        window_of(line, 1)
    except LineError:
        return False
    return True


def window_of(line: str, number: int) -> Window:
    """Read one line of `chunk-N-trace.csv`.

    Raises:
        LineError: it has not six columns, or one is of the wrong kind.
    """
    fields = line.split(",")
    if len(fields) != 6:
        raise LineError(f"has {len(fields)} fields; {_COLUMNS} are 6")
    start, rate, shape, scale = (_number(fields[place], place) for place in (0, 1, 4, 5))
    if rate == 0:
        return Window(number, start, None)
    kind = fields[3].strip().lower()
    if kind not in {"gamma", "weibull"} or shape <= 0 or scale <= 0:
        raise LineError(f"gaps are {fields[3]!r} of shape {fields[4]} and scale {fields[5]}; allowed: Gamma or Weibull")
    if rate * WINDOW_S > MOST_IN_WINDOW / 2:  # the busiest published client sends 193 requests/s
        raise LineError(f"a rate of {rate:g} requests/s is not believable for one client")
    return Window(number, start, Gaps("gamma" if kind == "gamma" else "weibull", shape, scale))


def _number(text: str, place: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise LineError(f"{_COLUMNS.split(', ')[place]} {text!r} is no number from 0")
    return value


@dataclass(frozen=True, slots=True)
class _Lengths:
    tokens: npt.NDArray[np.int64]
    upto: npt.NDArray[np.float64]

    def draw(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        places = np.searchsorted(self.upto, rng.random(count) * self.upto[-1], side="right")
        drawn: npt.NDArray[np.int64] = np.take(self.tokens, places)
        return drawn


class Lengths:
    """Prompt and output lengths by window, from `chunk-N-dataset.json`."""

    def __init__(self, published: Mapping[float, tuple[_Lengths, _Lengths]]) -> None:
        self._starts = sorted(published)
        self._published = [published[start] for start in self._starts]

    def at(self, start_s: float) -> tuple[_Lengths, _Lengths] | None:
        """Return the distributions in force; None before the first."""
        place = bisect_right(self._starts, start_s)
        return self._published[place - 1] if place else None


def read_lengths(path: Path) -> Lengths:
    """Read the lengths that belong to a `chunk-N-trace.csv`.

    Raises:
        UsageError: the file beside it is missing or broken.
    """
    beside = path.with_name(path.name.removesuffix(".csv").removesuffix("-trace") + "-dataset.json")
    try:
        document = orjson.loads(beside.read_bytes())
        parts = {float(start): _both(found) for start, found in document.items()}
    except FileNotFoundError:
        raise UsageError(f"{path}: its lengths are missing; put ServeGen's {beside.name} beside it") from None
    except (OSError, ValueError, SyntaxError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{beside}: is no ServeGen dataset: {error}") from None
    return Lengths({start: both for start, both in parts.items() if both is not None})


def _both(found: Mapping[str, Any]) -> tuple[_Lengths, _Lengths] | None:
    prompt, output = (_distribution(found[key]) for key in ("input_tokens", "output_tokens"))
    return None if prompt is None or output is None else (prompt, output)


def _distribution(text: Any) -> _Lengths | None:
    """Read a mapping of tokens to probability, published as the text of a Python dictionary."""
    shares = ast.literal_eval(text) if isinstance(text, str) else {int(tokens): p for tokens, p in text.items()}
    kept = sorted((int(tokens), float(share)) for tokens, share in shares.items() if share > 0 and int(tokens) >= 1)
    if not kept:
        return None
    tokens, probabilities = zip(*kept, strict=True)
    return _Lengths(np.array(tokens, dtype=np.int64), np.cumsum(probabilities))


def draw(window: Window, lengths: Lengths, name: str, seed: int) -> Iterator[Row]:
    """Draw the requests of one window, in order of arrival."""
    both = lengths.at(window.start_s)
    if window.gaps is None or both is None:
        return
    digest = hashlib.blake2b(f"{seed}/{name}/{window.start_s:g}".encode(), digest_size=8).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
    times = window.gaps.times(WINDOW_S, rng)
    prompts, outputs = (part.draw(len(times), rng) for part in both)
    start_ns = round(window.start_s * 1e9)
    for at, (t, prompt, output) in enumerate(zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)):
        yield Row(window.line * MOST_IN_WINDOW + at, start_ns + round(t * 1e9), prompt, output)
