import io

import pytest

from loadgen.compare import compare
from loadgen.options import Progress
from loadgen.report import console, print_comparison, print_summary, progress_line, rates_line, seconds, share


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12.3 ms"), (0.812, "812 ms"), (1.534, "1.53 s"), (float("inf"), "inf"), (float("nan"), "-")],
)
def test_a_time_is_written_with_the_unit_that_fits(value, text):
    assert seconds(value) == text


def printed(show, what):
    out = io.StringIO()
    show(what, console(out))
    return out.getvalue()


def test_a_summary_shows_both_lanes_the_failures_and_every_warning(made):
    results = [made.ok(0, 0.25), made.ok(1, 2.0, lane="long"), made.failed(2)]
    text = printed(print_summary, made.summary(results, complete=False))
    assert "250 ms" in text
    assert "2.00 s" in text
    assert "1 / 1 / 0" in text
    assert "! the run did not end by itself" in text


def test_a_lane_without_requests_has_no_column(made):
    short_only = printed(print_summary, made.summary([made.ok(n) for n in range(3)]))
    both = printed(print_summary, made.summary([made.ok(0), made.ok(1, lane="long")]))
    assert " long ┃" not in short_only
    assert " long ┃" in both


def test_a_comparison_shows_both_sides_what_changed_and_the_verdict(made):
    a = made.folder("a", [made.ok(n, 0.8) for n in range(40)], parameters={"cap": "32"})
    b = made.folder("b", [made.ok(n, 0.5) for n in range(40)], parameters={"cap": "64"})
    text = printed(print_comparison, compare(a, b))
    assert "800 ms" in text
    assert "500 ms" in text
    assert "better" in text
    assert "changed (load): cap: 32 → 64" in text
    assert "verdict: keep." in text


def test_progress_is_one_line():
    line = progress_line(Progress(12.0, 60.0, 100, 20, 3, 15, 1, 1, 0.0012, draining=False))
    assert line == (
        "sending 20/100, at 12 of 60 s, in flight 3, ok 15, rejected 1, failed 1, lag p99 1.2 ms, "
        "planned 1.67/s, sent 1.67/s, 48 s to go"
    )


def test_a_closed_loop_and_a_drain_have_no_end_that_is_known_before():
    closed = progress_line(Progress(12.0, None, 100, 20, 3, 15, 1, 1, 0.0012, draining=False))
    assert closed.startswith("sending 20/100, at 12 s, in flight 3")
    over = progress_line(Progress(70.0, 60.0, 9, 9, 3, 6, 0, 0, 0.0, draining=True))
    assert over.startswith("draining 9/9, at 70 s, ")


def test_a_share_that_rounds_to_nothing_has_no_sign():
    assert [share(value) for value in (-0.0001, 0.25, float("nan"))] == ["0.000", "0.250", "-"]


def test_the_rates_say_what_only_the_drain_completed(made):
    line = rates_line(made.summary([made.ok(0), made.ok(1, 30.0), made.ok(2)]))
    assert "over the steady window of 2.0 s; 2 more answers ended in the drain of 29.2 s and are in no rate" in line


def test_an_interrupted_run_shows_what_was_not_sent(made):
    unsent = made.failed(1, "cancelled", started=None, sent=None, connected=None, end=None, reason="unsent")
    assert "planned, not sent" in printed(print_summary, made.summary([made.ok(0), unsent], complete=False))
