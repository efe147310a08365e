"""The shots of a run as numpy columns: what `summarise` and `compare` compute with. NaN: did not happen."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from loadgen.events import TOKEN_KINDS, Kind
from loadgen.result import LoadOutcome, Result

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_COUNTED_BY_033 = frozenset({Kind.CONTENT, Kind.REASONING, Kind.TOOL, Kind.EMPTY})
"""vLLM 0.33 counts a delta with content, `reasoning` or tool calls, and an empty string without `role`."""


@dataclass(frozen=True, slots=True)
class Events:
    """What the events of one request say, seconds of the plan."""

    gaps: Floats
    """Between token chunks (ICL)."""
    token_gaps: Floats | None
    """ITL: the gaps when every chunk is known to carry one token, or spread by usage on every chunk."""
    first_event: float
    """From the send to the first event with a choice: where vLLM 0.32 stops TTFT."""
    first_counted: float
    """From the send to the first event that vLLM 0.33 counts."""
    counted_gaps: Floats


@dataclass(frozen=True, slots=True)
class Columns:
    """One row per shot, in order of the plan's index. Times are seconds of the plan after its start."""

    index: npt.NDArray[np.int64]
    short: Mask
    outcome: npt.NDArray[np.str_]
    due: Floats
    started: Floats
    sent: Floats
    connected: Floats
    first: Floats
    first_content: Floats
    last: Floats
    end: Floats
    tokens: Floats
    planned_prompt: Floats
    planned_output: Floats
    usage_prompt: Floats
    from_usage: Mask
    events: list[Events]

    def where(self, mask: Mask) -> "Columns":
        """Return the rows of a mask."""
        kept = {one.name: getattr(self, one.name)[mask] for one in fields(self) if one.name != "events"}
        return Columns(**kept, events=[self.events[at] for at in np.flatnonzero(mask)])

    @property
    def ok(self) -> Mask:
        """Complete streams."""
        return np.asarray(self.outcome == LoadOutcome.OK.value)

    @property
    def unsent(self) -> Mask:
        """Planned, and never taken up: the run was stopped before."""
        cancelled = self.outcome == LoadOutcome.CANCELLED.value
        return np.asarray(cancelled & np.isnan(self.started) & np.isnan(self.sent))

    @property
    def tpot(self) -> Floats:
        """Return (last - first) / (n - 1); NaN for n up to 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.tokens > 1, (self.last - self.first) / (self.tokens - 1), np.nan)

    @property
    def own_lag(self) -> Floats:
        """How late the generator itself was: send minus due, without the time the network took to connect."""
        connecting = np.nan_to_num(self.connected - self.started)
        lag = self.sent - self.due - connecting
        return np.where(np.isnan(self.sent), self.started - self.due, lag)


def columns_of(results: Iterable[Result]) -> Columns:
    """Gather results, whatever order they finished in."""
    rows = sorted(results, key=lambda result: result.index)

    def floats(name: str) -> Floats:
        return np.array([getattr(row, name) for row in rows], dtype=np.float64)

    return Columns(
        index=np.array([row.index for row in rows], dtype=np.int64),
        short=np.array([row.lane == "short" for row in rows], dtype=np.bool_),
        outcome=np.array([row.outcome for row in rows], dtype=np.str_),
        due=floats("due"),
        started=floats("started"),
        sent=floats("sent"),
        connected=floats("connected"),
        first=floats("first"),
        first_content=floats("first_content"),
        last=floats("last"),
        end=floats("end"),
        tokens=floats("tokens"),
        planned_prompt=floats("prompt_tokens"),
        planned_output=floats("output_tokens"),
        usage_prompt=floats("usage_prompt"),
        from_usage=np.array([row.tokens_from == "usage" for row in rows], dtype=np.bool_),
        events=[_events(row) for row in rows],
    )


def _events(row: Result) -> Events:
    deltas = np.array(row.events, dtype=np.float64) / 1e6
    if not len(deltas):
        return _NO_EVENTS
    if row.kinds is None:
        gaps = deltas[1:]
        return Events(gaps, _token_gaps(row, gaps, None), float(deltas[0]), float(deltas[0]), gaps)
    times = np.cumsum(deltas)
    tokens = np.array([kind in TOKEN_KINDS for kind in row.kinds], dtype=np.bool_)
    counted = np.array([kind in _COUNTED_BY_033 for kind in row.kinds], dtype=np.bool_)
    gaps = np.diff(times[tokens])
    first = float(times[counted][0]) if counted.any() else np.nan
    return Events(gaps, _token_gaps(row, gaps, tokens), float(times[0]), first, np.diff(times[counted]))


def _token_gaps(row: Result, gaps: Floats, tokens: Mask | None) -> Floats | None:
    if row.counts is not None:
        so_far = np.array(row.counts, dtype=np.int64)
        each = np.diff(so_far[tokens] if tokens is not None else so_far)
        each = np.maximum(each, 1)
        return np.repeat(gaps / each, each)
    if row.tokens_from == "usage" and row.tokens == row.chunks:
        return gaps
    return None


_NONE = np.empty(0)
_NO_EVENTS = Events(_NONE, None, np.nan, np.nan, _NONE)
