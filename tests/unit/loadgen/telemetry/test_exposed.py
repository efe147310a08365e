"""What a replay tells Prometheus is what its results say."""

import numpy as np
import pytest

from loadgen.failure import UsageError
from loadgen.result import Result
from loadgen.telemetry.exposed import NAMES, PREFIX, LoadMetrics, RunFacts, Running, parse_address

FACTS = RunFacts(run_id="run-1", arm="candidate", trace_sha="4f2d", seed=7)
DUE_S = (0.0, 1.0, 2.0, 30.0)


def result(lane="short", outcome="ok", **stamps):
    return Result(0, 0, lane, 100, 10, 1.0, outcome, **{"sent": 1.001, **stamps})


@pytest.fixture
def running():
    """The sender and the clock, moved by the test."""
    return {"elapsed_s": 2.5, "speed": 1.0, "sent": 3, "in_flight": 1, "late_ns": [1_000_000, 40_000_000]}


@pytest.fixture
def metrics(running):
    due_ns = np.array([round(due * 1e9) for due in DUE_S], dtype=np.int64)
    return LoadMetrics(due_ns, FACTS, lambda: Running(**running))


def told(metrics):
    return {
        (sample.name.removeprefix(PREFIX), *sorted(sample.labels.items())): sample.value
        for family in metrics.families()
        for sample in family.samples
    }


def test_every_documented_name_is_told_from_the_start(metrics):
    names = {name for name, *_ in told(metrics)}
    assert {name for name in NAMES if not name.endswith("seconds")} <= names
    assert {f"{name}_count" for name in NAMES if name.endswith("seconds")} <= names
    assert told(metrics)["completed_total", ("lane", "long"), ("outcome", "stalled")] == 0


def test_what_was_due_so_far_is_counted_whether_it_was_sent_or_not(metrics, running):
    assert told(metrics)["scheduled_total",] == 3
    assert told(metrics)["target_rate",] == pytest.approx(0.3)
    running["elapsed_s"] = 29.0
    assert (told(metrics)["scheduled_total",], told(metrics)["target_rate",]) == (3, 0)


def test_latencies_count_from_when_a_request_was_due(metrics):
    metrics.record(result(first=1.5, last=2.4, tokens=10, end=2.5))
    seen = told(metrics)
    assert seen["time_to_first_token_seconds_sum", ("lane", "short")] == pytest.approx(0.5)
    assert seen["time_per_output_token_seconds_sum", ("lane", "short")] == pytest.approx(0.1)
    assert seen["request_duration_seconds_sum", ("lane", "short")] == pytest.approx(1.5)
    assert seen["completed_total", ("lane", "short"), ("outcome", "ok")] == 1


def test_a_rejection_counts_and_has_no_latency(metrics):
    metrics.record(result(lane="long", outcome="rejected", end=1.01))
    metrics.record(result(lane="long", outcome="cancelled", sent=None))
    seen = told(metrics)
    assert seen["completed_total", ("lane", "long"), ("outcome", "rejected")] == 1
    assert seen["completed_total", ("lane", "long"), ("outcome", "cancelled")] == 1
    assert seen["time_to_first_token_seconds_count", ("lane", "long")] == 0
    assert seen["request_duration_seconds_count", ("lane", "long")] == 0


def test_each_send_counts_once_in_the_lag_however_often_it_is_read(metrics, running):
    told(metrics)
    running["late_ns"].append(-5)
    seen = told(metrics)
    assert seen["schedule_lag_seconds_count",] == 3
    assert seen["schedule_lag_seconds_sum",] == pytest.approx(0.041)


def test_the_run_is_named_by_one_series(metrics):
    labels = {"run_id": "run-1", "arm": "candidate", "trace_sha": "4f2d", "seed": "7"}
    assert told(metrics)[("run_info", *sorted(labels.items()))] == 1


@pytest.mark.parametrize("text", ["9200", ":9200", "host:", "host:x", "host:99999", ""])
def test_an_address_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"write HOST:PORT, such as 127\.0\.0\.1:9200"):
        parse_address(text)


def test_an_address_is_read():
    assert parse_address("[::1]:9200") == ("::1", 9200)
