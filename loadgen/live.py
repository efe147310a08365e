"""The live view of a replay: where it is, how late it is, and what each lane got in the last ten seconds.

It is drawn on a terminal alone; anywhere else nothing is printed until the result. It must not cost the run its
accuracy: a frame is a few formatted lines once in a while, and a thread of its own writes them, so that a slow terminal
holds up nothing.
"""

import queue
import shutil
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import IO

from loadgen.options import LaneNow, Progress
from loadgen.report import progress_line, seconds
from loadgen.result import LoadOutcome, Result

WINDOW_S = 10.0
MOST = 500
"""Answers of a lane that are looked at: sorting more of them would cost the sender time."""
EVERY_S = 0.5
"""Between two frames."""
LANES_EVERY_S = 1.0
"""Between two looks at the lanes."""


class Recent:
    """TTFT and TPOT of the answers of the last ten seconds, by lane. Times are wall clock, latencies the plan's."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[tuple[float, float, float | None]]] = {}
        self._seen: tuple[LaneNow, ...] = ()
        self._next_s = 0.0

    def add(self, result: Result, now_s: float) -> None:
        """Take one request that ended; only complete answers count."""
        if result.outcome != LoadOutcome.OK or result.first is None or result.last is None:
            return
        many = result.tokens is not None and result.tokens > 1
        tpot = (result.last - result.first) / (result.tokens - 1) if many and result.tokens else None
        if (lane := self._lanes.get(result.lane)) is None:
            lane = self._lanes[result.lane] = deque(maxlen=MOST)
        lane.append((now_s, result.first - result.due, tpot))

    def lanes(self, now_s: float) -> tuple[LaneNow, ...]:
        """Return what each lane got, short before long; looked at once a second."""
        if now_s >= self._next_s:
            self._next_s = now_s + LANES_EVERY_S
            self._seen = tuple(self._now(name, now_s) for name in sorted(self._lanes, reverse=True))
        return self._seen

    def _now(self, name: str, now_s: float) -> LaneNow:
        lane = self._lanes[name]
        while lane and lane[0][0] < now_s - WINDOW_S:
            lane.popleft()
        ttft = sorted(one for _, one, _ in lane)
        tpot = sorted(one for _, _, one in lane if one is not None)
        return LaneNow(name, len(lane), _p(ttft, 0.5), _p(ttft, 0.95), _p(tpot, 0.5), _p(tpot, 0.95))


def _p(ordered: list[float], share: float) -> float:
    """Return the smallest value that at least this share does not exceed; NaN for none."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else float("nan")


def frame(progress: Progress) -> list[str]:
    """Write the view, one string a line."""
    return [progress_line(progress), *map(_lane_line, progress.lanes)]


def _folded(line: str, width: int) -> list[str]:
    """Break a line where the terminal ends: the number of lines that a frame takes has to be known."""
    return textwrap.wrap(line, max(20, width - 1), subsequent_indent="    ", drop_whitespace=True)


def _lane_line(lane: LaneNow) -> str:
    return (
        f"  {lane.lane:<5} last {WINDOW_S:.0f} s: {lane.answers} answers, "
        f"TTFT p50 {seconds(lane.ttft_p50_s)} p95 {seconds(lane.ttft_p95_s)}, "
        f"TPOT p50 {seconds(lane.tpot_p50_s)} p95 {seconds(lane.tpot_p95_s)}"
    )


@contextmanager
def shown(file: IO[str] | None = None) -> Iterator[Callable[[Progress], None] | None]:
    """Draw the progress that it is told on a terminal, and take it away at the end; None where there is no terminal.

    Args:
        file: where to; None: standard error.
    """
    out = sys.stderr if file is None else file
    if not out.isatty():
        yield None
        return
    drawing = _Drawing(out)
    try:
        yield drawing.take
    finally:
        drawing.close()


class _Drawing:
    """Keeps one frame on a terminal. What is written while the one before is still on its way is left out."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._height = 0
        self._next_s = 0.0
        self._frames: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="live view", daemon=True)
        self._writer.start()

    def take(self, progress: Progress) -> None:
        """Draw, unless the last frame is new or not yet written."""
        if monotonic() >= self._next_s and self._frames.empty():
            self._next_s = monotonic() + EVERY_S
            width = shutil.get_terminal_size().columns
            lines = [part for line in frame(progress) for part in _folded(line, width)]
            self._frames.put(self._wiped() + "\n".join(lines) + "\n")
            self._height = len(lines)

    def close(self) -> None:
        """Take the frame away, so that the result stands alone."""
        self._frames.put(self._wiped())
        self._frames.put(None)
        self._writer.join(1.0)

    def _wiped(self) -> str:
        """Return what takes the cursor to the first line of the last frame and clears from there."""
        return f"\x1b[{self._height}A\x1b[J" if self._height else ""

    def _write(self) -> None:
        while (text := self._frames.get()) is not None:
            self._out.write(text)
            self._out.flush()
