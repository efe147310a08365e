"""The few numbers that say what changed between two runs: rows of the before/after table, and the demo's gate. Pure."""

import math
from collections.abc import Callable, Iterable
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

    @property
    def change(self) -> str:
        """Say how it changed, in words short enough for a table."""
        if not (math.isfinite(self.before) and math.isfinite(self.after)):
            return ""
        if self.unit == "s" and self.before > 0 and self.after > 0:
            faster = self.before / self.after
            return f"{faster:.1f}x faster" if faster >= 1 else f"{1 / faster:.1f}x slower"
        difference = self.after - self.before
        return f"{difference:+.3f}" if self.unit == "share" else f"{difference:+.0f}"

    @property
    def effect(self) -> str:
        """Return better, worse, or an empty string where neither can be said."""
        if self.lower_is_better is None or not (math.isfinite(self.before) and math.isfinite(self.after)):
            return ""
        if math.isclose(self.before, self.after, rel_tol=NOISE):
            return ""
        return "better" if (self.after < self.before) == self.lower_is_better else "worse"

    def shown(self, value: float) -> str:
        """Write a value with its unit."""
        if self.unit == "count":
            return f"{value:.0f}"
        return seconds(value) if self.unit == "s" else share(value)


def rows(before: Summary, after: Summary) -> list[Row]:
    """Return the table of two runs of one plan: latencies by lane first, then what was served and what was refused."""
    return [*_latencies(before, after), *_shares(before, after), *_counts(before, after)]


def _latencies(before: Summary, after: Summary) -> Iterable[Row]:
    kinds: tuple[tuple[str, str, Callable[[LaneSummary], Quantiles]], ...] = (
        ("TTFT", "首字延迟", lambda lane: lane.ttft),
        ("TPOT", "每字延迟", lambda lane: lane.tpot),
        ("end to end", "端到端", lambda lane: lane.e2e),
    )
    for name, chinese, of in kinds:
        for lane, lane_chinese in (("short", "短"), ("long", "长")):
            one, two = of(before.lanes[lane]), of(after.lanes[lane])
            yield Row(f"{name}, {lane}, p50", f"{lane_chinese}请求{chinese}", one.p50, two.p50, "s", True)
            yield Row(f"{name}, {lane}, p99", f"{lane_chinese}请求{chinese}", one.p99, two.p99, "s", True)


def _shares(before: Summary, after: Summary) -> Iterable[Row]:
    for lane, chinese in (("all", "达标率"), ("short", "短请求达标率"), ("long", "长请求达标率")):
        goodput = (before.lanes[lane].goodput, after.lanes[lane].goodput)
        yield Row(f"goodput, {lane}", chinese, *goodput, "share", lower_is_better=False)


def _counts(before: Summary, after: Summary) -> Iterable[Row]:
    for lane, chinese in (("short", "短"), ("long", "长")):
        one, two = before.lanes[lane].outcomes, after.lanes[lane].outcomes
        sent = before.lanes[lane].sent
        yield Row(f"completed, {lane} of {sent}", f"{chinese}请求完成", one["ok"], two["ok"], "count", False)
        yield Row(f"rejected, {lane}", f"{chinese}请求拒绝", one["rejected"], two["rejected"], "count", True)
        yield Row(f"otherwise lost, {lane}", f"{chinese}请求其他损失", _lost(one), _lost(two), "count", True)


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


def gate(before: Summary, after: Summary) -> tuple[Check, ...]:
    """Check that the effect is there: the short tail at most half as long, the long requests still served."""
    return _tail(before, after), _long_kept(before, after)


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
