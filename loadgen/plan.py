"""From rows to a plan: every row becomes exactly one shot with a due time from one common start. Pure."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from loadgen.arrivals import Arrivals
from loadgen.failure import UsageError
from loadgen.reuse import PrefixReuse
from loadgen.spool import Spool
from loadgen.tracefile.row import Row

NS = 1_000_000_000


class Lane(StrEnum):
    """Length class of a request, by its prompt and the border."""

    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Shot:
    """One planned request."""

    index: int
    """Position in the plan, from 0; due times never fall with it."""
    due_s: float
    """Seconds after the common start."""
    prompt_tokens: int
    output_tokens: int
    lane: Lane
    row: int
    """Line of the trace file, or number of the drawn row."""
    source: int
    """Which file, when several were read."""
    blocks: tuple[int, ...]
    """63-bit ids of prefix blocks; empty when not recorded."""
    block_tokens: int
    parent: int = -1
    """Shot of the turn before it in its conversation; -1: none."""
    body: bytes | None = None
    """Recorded request body; None: one is made."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of the recording is replayed and how fast. Recorded seconds."""

    start_s: float = 0.0
    duration_s: float | None = None
    rows: int | None = None
    scale: float = 1.0
    """Rate factor; every time is divided by it."""
    rate: float | None = None
    """Mean requests/s wanted over the span; gives the scale."""
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    arrivals: Arrivals | None = None
    """When requests come; None: as recorded, at `scale` or `rate`."""
    seed: int = 1
    """Of the arrivals."""


@dataclass(slots=True)
class Columns:
    """Rows in compact form, so that a million of them fit in memory."""

    t_ns: "array[int]" = field(default_factory=lambda: array("q"))
    prompt: "array[int]" = field(default_factory=lambda: array("q"))
    output: "array[int]" = field(default_factory=lambda: array("q"))
    row: "array[int]" = field(default_factory=lambda: array("q"))
    source: "array[int]" = field(default_factory=lambda: array("h"))
    block_tokens: "array[int]" = field(default_factory=lambda: array("i"))
    blocks: Spool = field(default_factory=Spool)
    """Ids of each row, eight bytes each."""
    chat: "array[int]" = field(default_factory=lambda: array("q"))
    parent: "array[int]" = field(default_factory=lambda: array("q"))
    bodies: Spool | None = None
    """Recorded bodies, one for each row; None: there are none."""

    def __len__(self) -> int:
        return len(self.t_ns)

    def add(self, row: Row, t_ns: int, window: Window) -> None:
        """Append one row, its lengths cut to the window's limits."""
        prompt = min(row.prompt_tokens, window.max_prompt_tokens or row.prompt_tokens)
        self.t_ns.append(t_ns)
        self.prompt.append(prompt)
        self.output.append(min(row.output_tokens, window.max_output_tokens or row.output_tokens))
        self.row.append(row.number)
        self.source.append(row.source)
        self.block_tokens.append(row.block_tokens)
        kept = row.blocks[: -(-prompt // row.block_tokens)] if row.blocks else ()
        self.blocks.append(array("q", kept).tobytes())
        self.chat.append(row.chat)
        self.parent.append(row.parent)
        if row.body is not None:
            if self.bodies is None:
                self.bodies = Spool()
            self.bodies.append(row.body)

    def blocks_of(self, at: int) -> tuple[int, ...]:
        """Return the ids of one row."""
        return tuple(array("q", self.blocks[at])) if self.blocks.size else ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All shots, in order of due time."""

    columns: Columns
    order: npt.NDArray[np.int64]
    """Position in the columns of shot 0, 1, 2, …"""
    due_ns: npt.NDArray[np.int64]
    """Due time of shot 0, 1, 2, … after the common start."""
    border: int
    scale: float
    """Rate factor that was applied."""
    dequantised_tick_s: float | None
    """Recorded tick that was spread, seconds; None: times are as recorded."""
    parents: npt.NDArray[np.int64] | None
    """Shot of the turn before shot 0, 1, 2, …; -1: none. None: no row has a turn before it."""
    hash: str
    """Equal hashes asked for the same lengths, prefixes and due times."""

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def span_s(self) -> float:
        """Due time of the last shot, seconds."""
        return float(self.due_ns[-1]) / NS

    def shots(self) -> Iterator[Shot]:
        """Yield the shots in order of due time."""
        for index in range(len(self)):
            yield self.shot(index)

    def part(self, worker: int, workers: int) -> Iterator[Shot]:
        """Yield what one of several workers sends: together they send every shot once, at the due times of the whole.

        Turns of one conversation stay with one worker.

        Args:
            worker: from 0.
            workers: how many there are.
        """
        for index in self._indices(worker, workers):
            yield self.shot(int(index))

    def part_due_ns(self, worker: int, workers: int) -> npt.NDArray[np.int64]:
        """Return the due times of what `part` yields."""
        return self.due_ns[self._indices(worker, workers)]

    def _indices(self, worker: int, workers: int) -> npt.NDArray[np.int64]:
        owners = np.arange(len(self), dtype=np.int64) if self.parents is None else _roots(self.parents)
        return np.flatnonzero(owners % workers == worker)

    def shot(self, index: int) -> Shot:
        """Return one shot."""
        at, columns = int(self.order[index]), self.columns
        return Shot(
            index=index,
            due_s=int(self.due_ns[index]) / NS,
            prompt_tokens=columns.prompt[at],
            output_tokens=columns.output[at],
            lane=lane_of(columns.prompt[at], self.border),
            row=columns.row[at],
            source=columns.source[at],
            blocks=columns.blocks_of(at),
            block_tokens=columns.block_tokens[at],
            parent=-1 if self.parents is None else int(self.parents[index]),
            body=None if columns.bodies is None else columns.bodies[at],
        )


def lane_of(prompt_tokens: int, border: int) -> Lane:
    """Return the length class: short up to and including the border."""
    return Lane.SHORT if prompt_tokens <= border else Lane.LONG


def make_plan(rows: Iterable[Row], window: Window, *, border: int, dequantise_seed: int | None = None) -> Plan:
    """Cut, order, de-quantise and scale rows.

    Args:
        rows: in file order; times need not be sorted. Time 0 is the earliest of them.
        window: which part, and how fast.
        border: longest prompt of the short class.
        dequantise_seed: spread the rows of one clock tick over it by this seed; None: times as recorded.

    Raises:
        UsageError: no row is left, or a rate is asked of rows without a span.
    """
    columns = _gather(rows, window)
    order, times = _cut(columns, window)
    tick = None
    if dequantise_seed is not None:
        times, tick = spread_ticks(times, dequantise_seed)
    if window.arrivals is not None:
        scale, due = 1.0, np.rint(window.arrivals.times(len(times), window.seed) * NS).astype(np.int64)
        order = order[: len(due)]
    else:
        scale = _scale(times, window)
        due = np.rint((times - times[0]) / scale).astype(np.int64)
    parents = _parents(columns, order)
    return Plan(columns, order, due, border, scale, tick, parents, _hash(columns, order, due, border, parents))


def _parents(columns: Columns, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """A turn whose predecessor lies outside the window, or after it, begins a conversation of its own."""
    parent = np.asarray(columns.parent, dtype=np.int64)[order]
    if not (parent >= 0).any():
        return None
    shots: dict[int, int] = {}
    found = np.full(len(order), -1, dtype=np.int64)
    chats = np.asarray(columns.chat, dtype=np.int64)[order].tolist()
    for index, (chat, before) in enumerate(zip(chats, parent.tolist(), strict=True)):
        if before >= 0:
            found[index] = shots.get(before, -1)
        if chat >= 0:
            shots[chat] = index
    return found


def _roots(parents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first shot of each shot's conversation; a parent always comes before its child."""
    roots = np.arange(len(parents))
    for index in np.flatnonzero(parents >= 0).tolist():
        roots[index] = roots[parents[index]]
    return roots


def _gather(rows: Iterable[Row], window: Window) -> Columns:
    columns = Columns()
    for row in rows:
        columns.add(row, row.t_ns, window)
    if not len(columns):
        raise UsageError("the trace has no request in it")
    return columns


def _cut(columns: Columns, window: Window) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    times = np.frombuffer(columns.t_ns, dtype=np.int64)
    order = np.argsort(times, kind="stable")
    times = times[order] - times.min()
    start = round(window.start_s * NS)
    low = int(np.searchsorted(times, start, side="left"))
    high = len(times)
    if window.duration_s is not None:
        high = int(np.searchsorted(times, start + round(window.duration_s * NS), side="left"))
    if window.rows is not None:
        high = min(high, low + window.rows)
    if low >= high:
        span = float(times[-1]) / NS
        raise UsageError(f"the window holds no request: the recording spans {span:.3f} s from its first request")
    return order[low:high].astype(np.int64), times[low:high]


def _scale(times: npt.NDArray[np.int64], window: Window) -> float:
    if window.rate is None:
        return window.scale
    span = float(times[-1] - times[0]) / NS
    if span <= 0:
        raise UsageError(f"--rate {window.rate:g}: the {len(times)} requests of the window have no span to stretch")
    return window.rate * span / (len(times) - 1)


def spread_ticks(times: npt.NDArray[np.int64], seed: int) -> tuple[npt.NDArray[np.int64], float | None]:
    """Spread rows that share one tick of a coarse clock uniformly over that tick, keeping their order.

    The tick is the median step between distinct times; a row moves by less than one tick and never past the next
    distinct time.

    Args:
        times: nanoseconds, sorted.
        seed: decides the draws.

    Returns:
        The new times, and the tick in seconds (None when all times are distinct and nothing was spread).
    """
    distinct, first, counts = np.unique(times, return_index=True, return_counts=True)
    if len(distinct) < 2 or counts.max() == 1:
        return times, None
    steps = np.diff(distinct)
    tick = int(np.median(steps))
    widths = np.minimum(np.append(steps, tick), tick)
    draws = np.random.Generator(np.random.PCG64(seed)).random(len(times))
    spread = times.copy()
    for at, count, width in zip(first.tolist(), counts.tolist(), widths.tolist(), strict=True):
        spread[at : at + count] += np.floor(np.sort(draws[at : at + count]) * width).astype(np.int64)
    return spread, tick / NS


def _hash(
    columns: Columns,
    order: npt.NDArray[np.int64],
    due: npt.NDArray[np.int64],
    border: int,
    parents: npt.NDArray[np.int64] | None,
) -> str:
    """Microseconds are enough: a finer difference asks for the same traffic."""
    digest = hashlib.sha256(f"lanewise.plan/1 border={border}".encode())
    digest.update(((due + 500) // 1000).tobytes())
    for column in (columns.prompt, columns.output, columns.block_tokens):
        digest.update(np.asarray(column, dtype=np.int64)[order].tobytes())
    for at in order.tolist() if columns.blocks.size else ():
        digest.update(columns.blocks[at])
    if parents is not None:
        digest.update(b"parents")
        digest.update(parents.tobytes())
    if columns.bodies is not None:
        for at in order.tolist():
            digest.update(hashlib.sha256(columns.bodies[at]).digest())
    return digest.hexdigest()[:16]


def prefix_reuse(plan: Plan) -> PrefixReuse | None:
    """Return how many prompt tokens repeat an earlier prefix of the plan; None when no prefixes were recorded."""
    columns = plan.columns
    if not columns.blocks.size:
        return None
    reuse = PrefixReuse()
    for at in plan.order.tolist():
        reuse.add(columns.blocks_of(at), columns.block_tokens[at], columns.prompt[at])
    return reuse


def shared_prefix_tokens(plan: Plan) -> int:
    """Return how many prompt tokens repeat an earlier prefix of the plan: what a cache without limits saves."""
    reuse = prefix_reuse(plan)
    return 0 if reuse is None else reuse.repeated_tokens
