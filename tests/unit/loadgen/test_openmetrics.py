import re
from datetime import UTC, datetime

import pytest

from loadgen.openmetrics import openmetrics

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


LINE = re.compile(r'(?P<name>\w+)\{run="(?P<run>(?:[^"\\]|\\.)*)"(?P<labels>[^}]*)\} (?P<value>\S+) (?P<at>\S+)')


def lines(results, *, label="x", speed=1.0, step_s=5.0):
    text = openmetrics(results, started_at=START, label=label, speed=speed, step_s=step_s)
    assert text.endswith("# EOF\n")
    return [LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]


def samples(results, **more):
    found = {}
    for line in lines(results, **more):
        key = (line["name"], *re.findall(r'"([^"]*)"', line["labels"]))
        found.setdefault(key, []).append((round(float(line["at"]) - START.timestamp(), 3), float(line["value"])))
    return found


def test_the_samples_of_one_metric_stand_together_in_order_of_time(made):
    seen, last = set(), None
    for line in lines([made.ok(n) for n in range(30)]):
        metric = (line["name"].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count"), line["labels"])
        metric = (metric[0], re.sub(r',le="[^"]*"', "", metric[1]))
        if metric != last:
            assert metric not in seen
            seen.add(metric)
            at = 0.0
        assert float(line["at"]) >= at
        last, at = metric, float(line["at"])


def test_counters_rise_at_the_times_at_which_it_happened(made):
    found = samples([made.ok(0), made.ok(7), made.failed(8), made.ok(9, lane="long")])
    assert found["lanewise_run_sent_total", "short"] == [(0, 1), (5, 1), (10, 3)]
    assert found["lanewise_run_ended_total", "short", "ok"] == [(0, 0), (5, 1), (10, 2)]
    assert found["lanewise_run_ended_total", "short", "rejected"][-1] == (10, 1)
    assert found["lanewise_run_output_tokens_total", "long"] == [(0, 0), (5, 0), (10, 11)]
    assert found["lanewise_run_in_flight", "short"] == [(0, 1), (5, 0), (10, 0)]


def test_histograms_count_complete_answers_by_lane(made):
    found = samples([made.ok(0, 0.3), made.ok(1, 0.7), made.failed(2)])
    assert found["lanewise_run_ttft_seconds_bucket", "short", "0.5"][-1][1] == 1
    assert found["lanewise_run_ttft_seconds_bucket", "short", "+Inf"][-1][1] == 2
    assert found["lanewise_run_ttft_seconds_sum", "short"][-1][1] == pytest.approx(1.0)


def test_compressed_time_stands_at_the_wall_clock(made):
    found = samples([made.ok(0), made.ok(100)], speed=20.0, step_s=1.0)
    assert found["lanewise_run_sent_total", "short"][-2:] == [(5, 2), (6, 2)]


def test_any_label_is_escaped(made):
    text = openmetrics([made.ok(0)], started_at=START, label='a"b\\c\n', speed=1.0, step_s=5.0)
    assert 'run="a\\"b\\\\c\\n",lane="short"' in text
