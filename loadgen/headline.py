"""The few numbers that say what changed between two runs: rows of the before/after table, and the demo's gate. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadgen.report import seconds, share
from loadgen.summary import LaneSummary, Quantiles, Summary

FASTER = 0.5
"""Short TTFT p99 must fall to this share of before, or lower."""
KEPT = 0.9
"""This share of the long requests that completed before must complete after."""
NOISE = 0.03
"""Relative changes below this are not called better or worse."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    chinese: str
    before: float
    after: float
    unit: str
    """s, share or count."""
    lower_is_better: bool | None
    """None: neither is better by itself."""
    more: tuple[float, ...] = ()
    """Of further runs of the same plan."""

    @property
    def change(self) -> str:
        """Say how it changed, in words short enough for a table."""
        return self.change_to(self.after)

    @property
    def effect(self) -> str:
        """Return better, worse, or an empty string where neither can be said."""
        return self.effect_of(self.after)

    def change_to(self, value: float) -> str:
        """Say how another run's value differs from before."""
        if not (math.isfinite(self.before) and math.isfinite(value)):
            return ""
        if self.unit == "s" and self.before > 0 and value > 0:
            faster = self.before / value
            return f"{faster:.1f}x faster" if faster >= 1 else f"{1 / faster:.1f}x slower"
        difference = value - self.before
        return f"{difference:+.3f}" if self.unit == "share" else f"{difference:+.0f}"

    def effect_of(self, value: float) -> str:
        """Say whether another run's value is better or worse than before, where either can be said."""
        if self.lower_is_better is None or not (math.isfinite(self.before) and math.isfinite(value)):
            return ""
        if math.isclose(self.before, value, rel_tol=NOISE):
            return ""
        return "better" if (value < self.before) == self.lower_is_better else "worse"

    def shown(self, value: float) -> str:
        """Write a value with its unit."""
        if self.unit == "count":
            return f"{value:.0f}"
        return seconds(value) if self.unit == "s" else share(value)


def rows(before: Summary, after: Summary, *more: Summary) -> list[Row]:
    """Return the table of runs of one plan: latencies by lane first, then what was served and what was refused."""
    runs = (before, after, *more)
    return [*_latencies(runs), *_shares(runs), *_counts(runs)]


def _row(name: str, chinese: str, values: Sequence[float], unit: str, *, lower_is_better: bool) -> Row:
    return Row(name, chinese, values[0], values[1], unit, lower_is_better, tuple(values[2:]))


def _latencies(runs: Sequence[Summary]) -> Iterable[Row]:
    kinds: tuple[tuple[str, str, Callable[[LaneSummary], Quantiles]], ...] = (
        ("TTFT", "首字延迟", lambda lane: lane.ttft),
        ("TPOT", "每字延迟", lambda lane: lane.tpot),
        ("end to end", "端到端", lambda lane: lane.e2e),
    )
    for name, chinese, of in kinds:
        for lane, lane_chinese in (("short", "短"), ("long", "长")):
            found = [of(run.lanes[lane]) for run in runs]
            what = f"{lane_chinese}请求{chinese}"
            yield _row(f"{name}, {lane}, p50", what, [one.p50 for one in found], "s", lower_is_better=True)
            yield _row(f"{name}, {lane}, p99", what, [one.p99 for one in found], "s", lower_is_better=True)


def _shares(runs: Sequence[Summary]) -> Iterable[Row]:
    for lane, chinese in (("all", "达标率"), ("short", "短请求达标率"), ("long", "长请求达标率")):
        goodput = [run.lanes[lane].goodput for run in runs]
        yield _row(f"goodput, {lane}", chinese, goodput, "share", lower_is_better=False)


def _counts(runs: Sequence[Summary]) -> Iterable[Row]:
    for lane, chinese in (("short", "短"), ("long", "长")):
        found = [run.lanes[lane].outcomes for run in runs]
        done, refused = [one["ok"] for one in found], [one["rejected"] for one in found]
        sent = runs[0].lanes[lane].sent
        yield _row(f"completed, {lane} of {sent}", f"{chinese}请求完成", done, "count", lower_is_better=False)
        yield _row(f"rejected, {lane}", f"{chinese}请求拒绝", refused, "count", lower_is_better=True)
        lost = list(map(_lost, found))
        yield _row(f"otherwise lost, {lane}", f"{chinese}请求其他损失", lost, "count", lower_is_better=True)


def _lost(outcomes: dict[str, int]) -> int:
    return sum(outcomes.values()) - outcomes["ok"] - outcomes["rejected"]


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of the gate."""

    name: str
    value: float
    """What was measured; NaN when there was nothing to measure."""
    limit: float
    passed: bool
    sentence: str


def gate(before: Summary, after: Summary, fed: Summary | None = None) -> tuple[Check, ...]:
    """Check that the effect is there: the short tail at most half as long, the long requests still served.

    Args:
        before: directly.
        after: through lanewise, long prompts whole.
        fed: through lanewise with installments, which must not be worse: fewer long requests, more goodput.
    """
    checks = _tail(before, after), _long_kept(before, after)
    return checks if fed is None else (*checks, _better_fed(after, fed))


def _better_fed(after: Summary, fed: Summary) -> Check:
    one, two = after.lanes["all"].goodput, fed.lanes["all"].goodput
    passed = two >= one
    verb = "is" if passed else "should be"
    sentence = f"goodput with installments is {share(two)}, {share(one)} without; it {verb} no lower"
    return Check("installments_goodput", two, one, passed, sentence)


def _tail(before: Summary, after: Summary) -> Check:
    one, two = before.lanes["short"].ttft.p99, after.lanes["short"].ttft.p99
    ratio = two / one if one > 0 else math.nan
    passed = ratio <= FASTER
    verb = "is" if passed else "should be"
    sentence = (
        f"TTFT p99 of short requests went from {seconds(one)} to {seconds(two)}, {share(ratio)} of it; "
        f"it {verb} at most {FASTER:g}"
    )
    return Check("short_ttft_p99_ratio", ratio, FASTER, passed, sentence)


def _long_kept(before: Summary, after: Summary) -> Check:
    one, two = before.lanes["long"].outcomes["ok"], after.lanes["long"].outcomes["ok"]
    ratio = two / one if one else math.nan
    passed = ratio >= KEPT
    verb = "is" if passed else "should be"
    sentence = f"{two} long requests completed, {one} before, {share(ratio)} of them; it {verb} at least {KEPT:g}"
    return Check("long_completed_ratio", ratio, KEPT, passed, sentence)
