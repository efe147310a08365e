import math
import os
import pty
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.live import MOST, Recent, frame, shown
from loadgen.options import LaneNow, Progress
from loadgen.result import LoadOutcome, Result

PROGRESS = Progress(12.0, 60.0, 100, 20, 3, 15, 1, 1, 0.0012, draining=False, due=24)


def answer(lane="short", first=0.2, tokens=11, outcome=LoadOutcome.OK):
    return Result(0, 0, lane, 10, tokens, 0.0, outcome, first=first, last=first + 0.5, tokens=tokens)


def test_a_lane_shows_what_it_got_in_the_last_ten_seconds_alone():
    recent = Recent()
    recent.add(answer(first=9.0), 0.0)
    for at in range(4):
        recent.add(answer(first=0.1 * (at + 1)), 5.0 + at)
    recent.add(answer("long", first=2.0, tokens=1), 8.0)
    recent.add(answer(outcome=LoadOutcome.REJECTED), 8.0)
    short, long = recent.lanes(11.0)
    assert (short.lane, short.answers) == ("short", 4)
    assert (short.ttft_p50_s, short.ttft_p95_s) == pytest.approx((0.2, 0.4))
    assert short.tpot_p50_s == pytest.approx(0.05)
    assert (long.lane, long.answers, long.ttft_p50_s) == ("long", 1, 2.0)
    assert math.isnan(long.tpot_p50_s)


def test_the_lanes_are_looked_at_once_a_second():
    recent = Recent()
    recent.add(answer(), 0.0)
    assert recent.lanes(0.0)[0].answers == 1
    recent.add(answer(), 0.5)
    assert recent.lanes(0.9)[0].answers == 1
    assert recent.lanes(1.0)[0].answers == 2


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=2 * MOST))
def test_quantiles_are_values_that_were_seen_in_the_latest_answers(firsts):
    recent = Recent()
    for first in firsts:
        recent.add(answer(first=first), 0.0)
    (lane,) = recent.lanes(0.0)
    latest = sorted(firsts[-MOST:])
    assert lane.answers == len(latest)
    for value, share in ((lane.ttft_p50_s, 0.5), (lane.ttft_p95_s, 0.95)):
        assert sum(one <= value for one in latest) >= share * len(latest) > sum(one < value for one in latest)


def test_the_view_has_the_pace_of_the_plan_and_one_line_for_each_lane():
    lanes = (LaneNow("short", 240, 0.12, 0.21, 0.031, 0.04), LaneNow("long", 1, 2.0, 2.0, math.nan, math.nan))
    first, short, long = frame(Progress(12.0, 60.0, 100, 20, 3, 15, 1, 1, 0.0012, draining=False, due=24, lanes=lanes))
    assert "planned 2.00/s, sent 1.67/s, 48 s to go" in first
    assert short == "  short last 10 s: 240 answers, TTFT p50 120 ms p95 210 ms, TPOT p50 31.0 ms p95 40.0 ms"
    assert long == "  long  last 10 s: 1 answers, TTFT p50 2.00 s p95 2.00 s, TPOT p50 - p95 -"


def test_nothing_is_shown_without_a_terminal():
    out = StringIO()
    with shown(out) as take:
        assert take is None
    assert out.getvalue() == ""


@pytest.mark.parametrize(("columns", "height"), [(200, 1), (80, 2), (40, 4)])
def test_a_terminal_has_one_frame_and_none_after_the_end(monkeypatch, columns, height):
    monkeypatch.setenv("COLUMNS", str(columns))
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, shown(terminal) as take:
        take(PROGRESS)
        take(PROGRESS)
    text = os.read(ours, 10_000).decode()
    os.close(ours)
    assert text.count("sending 20/100") == 1
    assert text.endswith(f"\x1b[{height}A\x1b[J")
    assert text.count("\n") == height
    assert max(map(len, text.splitlines())) <= columns
