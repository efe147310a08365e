"""The before/after table and the demo's gate."""

import math

import pytest

from loadgen.headline import Row, gate, rows


def mixed(made, short_ttft, *, long=20, rejected=0):
    results = [made.ok(index, short_ttft) for index in range(100)]
    results += [made.ok(100 + index, 2.0, lane="long") for index in range(long - rejected)]
    results += [made.failed(100 + long - rejected + index, lane="long") for index in range(rejected)]
    return made.summary(results)


def named(table, name):
    return next(row for row in table if row.name == name)


def test_the_table_keeps_latencies_apart_by_lane_and_counts_what_was_refused(made):
    table = rows(mixed(made, 4.0), mixed(made, 0.5, rejected=1))
    assert named(table, "TTFT, short, p99").change == "8.0x faster"
    assert named(table, "TTFT, long, p50").effect == ""
    assert named(table, "goodput, short").change == "+1.000"
    assert (named(table, "completed, long of 20").after, named(table, "rejected, long").after) == (19, 1)
    assert named(table, "rejected, long").effect == "worse"


def test_a_row_says_slower_where_it_is():
    row = Row("TTFT", "", 1.0, 2.5, "s", lower_is_better=True)
    assert (row.change, row.effect, row.shown(2.5)) == ("2.5x slower", "worse", "2.50 s")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_without_a_number_claims_no_change(value):
    row = Row("TTFT", "", 1.0, value, "s", lower_is_better=True)
    assert (row.change, row.effect) == ("", "")


@pytest.mark.parametrize(
    ("ttft", "rejected", "passed"),
    [(2.0, 0, (True, True)), (2.01, 0, (False, True)), (1.0, 2, (True, True)), (1.0, 3, (True, False))],
)
def test_the_gate_asks_for_half_the_tail_and_nine_tenths_of_the_long_requests(made, ttft, rejected, passed):
    checks = gate(mixed(made, 4.0), mixed(made, ttft, rejected=rejected))
    assert tuple(check.passed for check in checks) == passed


def test_a_third_run_has_its_values_beside_the_others_and_its_change_against_the_first(made):
    table = rows(mixed(made, 4.0), mixed(made, 2.0), mixed(made, 0.5, rejected=2))
    row = named(table, "TTFT, short, p99")
    assert (row.before, row.after, row.more) == (4.0, 2.0, (0.5,))
    assert [(row.change_to(value), row.effect_of(value)) for value in (row.after, *row.more)] == [
        ("2.0x faster", "better"),
        ("8.0x faster", "better"),
    ]
    assert named(table, "completed, long of 20").more == (18,)


@pytest.mark.parametrize(("ttft", "passed"), [(0.5, True), (1.5, False)])
def test_installments_may_not_lower_goodput(made, ttft, passed):
    check = gate(mixed(made, 4.0), mixed(made, 0.9), mixed(made, ttft, rejected=0))[-1]
    assert (check.name, check.passed) == ("installments_goodput", passed)
    assert "no lower" in check.sentence


def test_the_gate_fails_where_nothing_was_measured(made):
    nothing = made.summary([made.failed(0), made.failed(1, lane="long")])
    assert not any(check.passed for check in gate(nothing, nothing))
    assert not gate(mixed(made, 4.0), nothing)[0].passed
