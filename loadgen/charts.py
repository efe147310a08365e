"""Charts as SVG text, for pages that are read without a network: distributions, points over time, stacked bars. Pure.

Colours are CSS classes of `assets/page.css`, so that one picture serves light and dark.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 40
_LOG_TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_ROUND_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of numbers on a range of pixels; logarithmic for durations."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value; values outside the range go to its edge."""
        value = min(max(value, self.low), self.high)
        share = (
            math.log(value / self.low) / math.log(self.high / self.low)
            if self.log
            else (value - self.low) / (self.high - self.low)
        )
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Curve:
    """One distribution."""

    style: str
    """CSS class: before or after."""
    values: Sequence[float]
    """Seconds; only requests that have the value."""
    total: int
    """Requests in all: the curve ends below 1 by what has no value."""


@dataclass(frozen=True, slots=True)
class Points:
    """One run over time."""

    style: str
    points: Sequence[tuple[float, float]]
    """(due time, latency) in seconds."""
    lost: Sequence[float]
    """Due times of requests without a latency."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One stacked bar."""

    label: str
    parts: Sequence[tuple[str, int, str]]
    """(CSS class, count, what it is), in order."""


def duration(seconds: float) -> str:
    """Write a tick of a time axis."""
    return f"{seconds * 1000:g} ms" if 0 < seconds < 1 else f"{seconds:g} s"


def distribution(curves: Sequence[Curve], limit_s: float, label: str) -> str:
    """Draw the share of all requests with a latency up to x, over a logarithmic x.

    Args:
        curves: one for each run.
        limit_s: the SLO, drawn as a line.
        label: what a screen reader says.
    """
    x = _time_axis((value for curve in curves for value in curve.values), limit_s, _LEFT, WIDTH - _RIGHT)
    y = Axis(0, 1, HEIGHT - _BOTTOM, _TOP)
    parts = [_grid_y(y, ((share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1))), _ticks_x(x, _log_ticks(x))]
    parts.append(_limit_x(x, limit_s))
    parts += [f'<path class="line {curve.style}" d="{_staircase(curve, x, y)}"/>' for curve in curves]
    return _svg(parts, label)


def timeline(runs: Sequence[Points], limit_s: float, span_s: float, label: str) -> str:
    """Draw one dot for each request at its due time, over a logarithmic latency; the lost ones at the top edge.

    Args:
        runs: in drawing order.
        limit_s: the SLO, drawn as a line.
        span_s: due time of the last request.
        label: what a screen reader says.
    """
    latencies = (latency for run in runs for _, latency in run.points)
    y = _time_axis(latencies, limit_s, HEIGHT - _BOTTOM, _TOP + 16)
    x = Axis(0, max(span_s, 1), _LEFT, WIDTH - _RIGHT)
    parts = [_grid_y(y, ((tick, duration(tick)) for tick in _log_ticks(y)))]
    parts.append(_ticks_x(x, _even_ticks(span_s)))
    parts.append(_limit_y(y, limit_s))
    for row, run in enumerate(runs):
        dots = "".join(f"M{x.at(due):.1f},{y.at(latency):.1f}h0" for due, latency in run.points)
        lost = "".join(f"M{x.at(due):.1f},{_TOP - 4 + 7 * row}v5" for due in run.lost)
        parts.append(f'<path class="dots {run.style}" d="{dots}"/><path class="lost {run.style}" d="{lost}"/>')
    return _svg(parts, label)


def stacked(bars: Sequence[Bar], label: str) -> str:
    """Draw horizontal bars of counts, each as long as the others."""
    height = 34 * len(bars) + 6
    parts = []
    for row, bar in enumerate(bars):
        top, left = 34 * row + 4, 150.0
        total = max(1, sum(count for _, count, _ in bar.parts))
        parts.append(f'<text class="label" x="142" y="{top + 18}" text-anchor="end">{escape(bar.label)}</text>')
        for style, count, what in bar.parts:
            width = (WIDTH - 156) * count / total
            parts.append(_block(style, (left, top, width), count, what))
            left += width
    return _svg(parts, label, height)


def _block(style: str, place: tuple[float, float, float], count: int, what: str) -> str:
    left, top, width = place
    if not count:
        return ""
    title = f"<title>{escape(what)}: {count}</title>"
    box = f'<rect class="{style}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="26">{title}</rect>'
    if width < 24:
        return box
    return f'{box}<text class="inside" x="{left + width / 2:.1f}" y="{top + 18}" text-anchor="middle">{count}</text>'


def _staircase(curve: Curve, x: Axis, y: Axis) -> str:
    ordered = sorted(curve.values)
    if not ordered:
        return ""
    steps = [f"M{x.at(ordered[0]):.1f},{y.at(0):.1f}"]
    for rank, value in enumerate(ordered, 1):
        steps.append(f"H{x.at(value):.1f}V{y.at(rank / curve.total):.1f}")
    steps.append(f"H{x.end:.1f}")
    return "".join(steps)


def _time_axis(values: Iterable[float], limit_s: float, start: float, end: float) -> Axis:
    """Return a logarithmic axis from a tick below the values to one above."""
    known = [value for value in values if value > 0] or [limit_s]
    low, high = min(*known, limit_s), max(*known, limit_s)
    below = max((tick for tick in _LOG_TICKS if tick <= low), default=_LOG_TICKS[0])
    above = min((tick for tick in _LOG_TICKS if tick > high), default=high * 1.1)
    return Axis(below, above, start, end, log=True)


def _log_ticks(axis: Axis) -> list[float]:
    return [tick for tick in _LOG_TICKS if axis.low <= tick <= axis.high]


def _even_ticks(span_s: float) -> list[float]:
    step = next((step for step in _ROUND_STEPS if span_s / step <= 7), span_s / 7)
    return [step * number for number in range(int(span_s / step) + 1)]


def _grid_y(y: Axis, ticks: Iterable[tuple[float, str]]) -> str:
    return "".join(
        f'<path class="grid" d="M{_LEFT},{y.at(value):.1f}H{WIDTH - _RIGHT}"/>'
        f'<text class="tick" x="{_LEFT - 7}" y="{y.at(value) + 4:.1f}" text-anchor="end">{text}</text>'
        for value, text in ticks
    )


def _ticks_x(x: Axis, ticks: Iterable[float]) -> str:
    bottom = HEIGHT - _BOTTOM
    return "".join(
        f'<path class="grid" d="M{x.at(value):.1f},{_TOP}V{bottom + 4}"/>'
        f'<text class="tick" x="{x.at(value):.1f}" y="{bottom + 18}" text-anchor="middle">{duration(value)}</text>'
        for value in ticks
    )


def _limit_x(x: Axis, limit_s: float) -> str:
    at = x.at(limit_s)
    line = f'<path class="limit" d="M{at:.1f},{_TOP}V{HEIGHT - _BOTTOM}"/>'
    return f'{line}<text class="limit-text" x="{at + 4:.1f}" y="{HEIGHT - _BOTTOM - 7}">SLO {duration(limit_s)}</text>'


def _limit_y(y: Axis, limit_s: float) -> str:
    at = y.at(limit_s)
    line = f'<path class="limit" d="M{_LEFT},{at:.1f}H{WIDTH - _RIGHT}"/>'
    return f'{line}<text class="limit-text" x="{_LEFT + 4}" y="{at - 4:.1f}">SLO {duration(limit_s)}</text>'


def _svg(parts: Iterable[str], label: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
