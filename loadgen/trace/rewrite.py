"""New trace files out of old ones: cut, scaled, converted, merged. Rows stream; only their times are held, in 8 bytes.

A request keeps its whole line wherever the format stays and can say the new time. Otherwise it is written from its row,
and what the format has no place for is counted.
"""

import math
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loadgen.failure import UsageError
from loadgen.plan import NS, lane_of, spread_ticks
from loadgen.spool import Spool
from loadgen.trace.output import Output
from loadgen.tracefile import Row, Trace
from loadgen.tracefile.write import WRITTEN, Losses, Writer, retimed


@dataclass(frozen=True, slots=True)
class Part:
    """Which requests of a trace stay."""

    skip: int = 0
    """That many of the requests that would stay are left out, from the first on."""
    rows: int | None = None
    """At most that many stay."""
    start_s: float = 0.0
    """Seconds after the earliest request."""
    duration_s: float | None = None
    lane: str | None = None
    """short or long."""
    border: int = 2048
    """Longest short prompt."""
    sample: float = 1.0
    """Share that is drawn, each request by itself."""
    seed: int = 1

    def check(self) -> None:
        """Make sure that it makes sense.

        Raises:
            UsageError: a value is out of its range.
        """
        if not 0 < self.sample <= 1:
            raise UsageError(f"--sample {self.sample:g}: is the share that stays, above 0 and at most 1")
        if self.lane not in {None, "short", "long"}:
            raise UsageError(f"--lane {self.lane}: short or long")
        for name, value in (("--rows", self.rows), ("--duration", self.duration_s), ("--border", self.border)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} {value:g}: must be above 0")
        for name, from_zero in (("--start", self.start_s), ("--skip", self.skip)):
            if not (math.isfinite(from_zero) and from_zero >= 0):
                raise UsageError(f"{name} {from_zero:g}: must be 0 or more")


@dataclass(slots=True)
class Made:
    """What a command made."""

    read: int = 0
    written: int = 0
    left_out: int = 0
    """Requests whose output length was not recorded."""
    losses: Losses = field(default_factory=Losses)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return it for --json and for people."""
        return {
            "requests_read": self.read,
            "requests_written": self.written,
            "left_out_without_output_length": self.left_out,
            "lost": self.losses.sentences(),
            "notes": self.notes,
        }


def cut(trace: Trace, part: Part, out: Output) -> Made:
    """Keep a part of a trace, every line as it is.

    Raises:
        UsageError: the part makes no sense or holds no request, or the trace cannot be read.
    """
    part.check()
    made, draw, passed = Made(), random.Random(part.seed), 0
    first = _times(trace).first if part.start_s or part.duration_s is not None else 0
    low = first + round(part.start_s * NS)
    high = None if part.duration_s is None else low + round(part.duration_s * NS)
    if (header := trace.header()) is not None:
        out.raw(header.encode())
    for line, row in trace.lines():
        made.read += 1
        drawn = part.sample == 1 or draw.random() < part.sample
        timely = (not part.start_s or row.t_ns >= low) and (high is None or row.t_ns < high)
        laned = part.lane is None or lane_of(row.prompt_tokens, part.border) == part.lane
        if not (drawn and timely and laned):
            continue
        passed += 1
        if passed <= part.skip:
            continue
        out.write(line)
        made.written += 1
        if made.written == part.rows:
            break
    if not made.written:
        raise UsageError(f"{trace.path}: no request lies in that part")
    return made


@dataclass(frozen=True, slots=True)
class Times:
    """Arrivals of one trace, in file order."""

    t_ns: "array[int]"
    first: int
    last: int


def _times(trace: Trace) -> Times:
    t_ns = array("q", (row.t_ns for row in trace.rows()))
    if not t_ns:
        raise UsageError(f"{trace.path}: no request in it")
    return Times(t_ns, min(t_ns), max(t_ns))


@dataclass(frozen=True, slots=True)
class Piece:
    """One trace on its way into a new file."""

    trace: Trace
    moved: Callable[[int, int], int]
    """(position in the file, time) → new time, nanoseconds."""
    keeps: Callable[[int], bool] = lambda _: True
    """Whether the request at this position stays."""


def scale(
    trace: Trace, to: str | None, out: Output, *, factor: float | None, rate: float | None, seed: int | None
) -> Made:
    """Write a trace with its times divided by a factor, from the first request on.

    Args:
        trace: what is read.
        to: format; None: its own.
        out: where to.
        factor: 2 is twice as fast.
        rate: mean requests/s to reach; instead of `factor`.
        seed: spread rows that share a tick of a coarse clock over it by this seed; None: do not.

    Raises:
        UsageError: neither or both of factor and rate, or the trace cannot be read or written so.
    """
    times = _times(trace)
    by = _factor(times, factor, rate)
    spread = _spread(times, seed) if seed is not None else None

    def moved(position: int, t_ns: int) -> int:
        at = t_ns if spread is None else int(spread[position])
        return times.first + round((at - times.first) / by)

    made = _write([Piece(trace, moved)], _target(to, [trace]), out, times.first, keep_assumed=True)
    made.notes.append(f"times divided by {by:.6g}" + ("" if spread is None else ", ticks spread by seed"))
    return made


def _factor(times: Times, factor: float | None, rate: float | None) -> float:
    if factor is not None and rate is not None:
        raise UsageError("--by and --rate both set the speed; give one of them")
    if rate is None:
        by = 1.0 if factor is None else factor
    else:
        span_s = (times.last - times.first) / NS
        if span_s == 0:
            raise UsageError(f"--rate {rate:g}: the {len(times.t_ns)} requests have no span to stretch")
        by = rate * span_s / (len(times.t_ns) - 1)
    if not (math.isfinite(by) and by > 0):
        raise UsageError(
            f"{'--by' if rate is None else '--rate'} {factor if rate is None else rate:g}: must be above 0"
        )
    return by


def _spread(times: Times, seed: int) -> Sequence[int]:
    t_ns = np.frombuffer(times.t_ns, dtype=np.int64)
    order = np.argsort(t_ns, kind="stable")
    spread, _ = spread_ticks(t_ns[order], seed)
    back = np.empty_like(spread)
    back[order] = spread
    return array("q", back.tobytes())


def convert(trace: Trace, to: str, out: Output, *, keep_assumed: bool) -> Made:
    """Write a trace in another format, in order of arrival.

    Args:
        trace: what is read.
        to: format.
        out: where to.
        keep_assumed: keep requests whose output length is not recorded, with the assumed one.

    Raises:
        UsageError: the trace cannot be read, or not be written so.
    """
    times = _times(trace)
    target = _target(to, [trace])
    made = _write([Piece(trace, _unmoved)], target, out, times.first, keep_assumed=keep_assumed)
    if target in {"azure", "lanewise"} and not trace.format.wall_clock:
        made.notes.append("the trace has no calendar: its time 0 is written as 1970-01-01 00:00:00")
    if trace.format.clock == "none":
        made.notes.append("the trace has no times: every request is at 0; replay it with --arrivals")
    return made


def _unmoved(_: int, t_ns: int) -> int:
    return t_ns


def merge(traces: Sequence[Trace], to: str | None, out: Output, *, weights: Sequence[float] | None, seed: int) -> Made:
    """Write several traces as one, in order of arrival.

    Args:
        traces: what is read; sources 0, 1, 2, …
        to: format; None: that of all of them.
        out: where to.
        weights: rows of the traces stand to each other like these: as many rows as possible are drawn by seed, and the
            times of each trace stretched over the span of the first. None: all rows, by their clocks where the traces
            have one in common, else each from its own start.
        seed: of the drawing.

    Raises:
        UsageError: there are not as many weights as traces, or a trace cannot be read or written so.
    """
    target = _target(to, traces)
    times = [_times(trace) for trace in traces]
    if weights is not None:
        pieces, zero = _weighted(traces, times, weights, seed), 0
    elif len({trace.format.clock for trace in traces}) == 1 and traces[0].format.wall_clock:
        pieces, zero = [Piece(trace, _unmoved) for trace in traces], min(time.first for time in times)
    else:
        pieces, zero = [Piece(trace, _from(time.first)) for trace, time in zip(traces, times, strict=True)], 0
    return _write(pieces, target, out, zero, keep_assumed=True)


def _from(first: int) -> Callable[[int, int], int]:
    return lambda _, t_ns: t_ns - first


def _weighted(traces: Sequence[Trace], times: Sequence[Times], weights: Sequence[float], seed: int) -> list[Piece]:
    if len(weights) != len(traces):
        raise UsageError(f"--weights: {len(weights)} for {len(traces)} traces; give one for each")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise UsageError("--weights: each must be above 0")
    most = min(len(time.t_ns) / weight for time, weight in zip(times, weights, strict=True))
    span = times[0].last - times[0].first
    pieces = []
    for trace, time, weight in zip(traces, times, weights, strict=True):
        wanted = min(len(time.t_ns), math.floor(most * weight + 1e-9))
        stays = bytearray(len(time.t_ns))
        for position in random.Random(f"{seed}/{trace.source}").sample(range(len(stays)), wanted):
            stays[position] = 1
        pieces.append(Piece(trace, _stretched(time, span), _marked(stays)))
    return pieces


def _marked(stays: bytearray) -> Callable[[int], bool]:
    return lambda position: bool(stays[position])


def _stretched(time: Times, span: int) -> Callable[[int, int], int]:
    own = max(1, time.last - time.first)
    return lambda _, t_ns: (t_ns - time.first) * span // own


def _target(to: str | None, traces: Sequence[Trace]) -> str:
    names = {trace.format.name for trace in traces}
    target = to or (names.pop() if len(names) == 1 else None)
    if target is None:
        raise UsageError(f"--to: the traces are of several formats; say which one to write: {', '.join(WRITTEN)}")
    if target not in WRITTEN:
        raise UsageError(f"--to {target}: cannot be written; one of {', '.join(WRITTEN)}")
    return target


def _write(pieces: Sequence[Piece], target: str, out: Output, zero_ns: int, *, keep_assumed: bool) -> Made:
    """Write the requests of all pieces in order of their new times; equal times keep the order of reading."""
    made, spool, t_ns = Made(), Spool(), array("q")
    writer = Writer(zero_ns, made.losses)
    for piece in pieces:
        same = piece.trace.format.name == target and not (piece.trace.source and piece.trace.format.own_ids)
        for position, (line, row) in enumerate(_rows(piece.trace)):
            made.read += 1
            if not piece.keeps(position):
                continue
            if row.assumed and not keep_assumed:
                made.left_out += 1
                continue
            at = piece.moved(position, row.t_ns)
            new = retimed(target, line, at, zero_ns) if same and line is not None else None
            spool.append((new or writer.line(target, _at(row, at))).encode("utf-8", "backslashreplace"))
            t_ns.append(at)
    if not t_ns:
        raise UsageError("no request is left to write")
    if (header := writer.header(target)) is not None:
        out.raw(header.encode())
    for index in np.argsort(np.frombuffer(t_ns, dtype=np.int64), kind="stable").tolist():
        out.raw(spool[index])
    made.written = len(t_ns)
    return made


def _rows(trace: Trace) -> Iterator[tuple[str | None, Row]]:
    if trace.format.lines:
        yield from trace.lines()
    else:
        for row in trace.rows():
            yield None, row


def _at(row: Row, t_ns: int) -> Row:
    return row if row.t_ns == t_ns else replace(row, t_ns=t_ns)
