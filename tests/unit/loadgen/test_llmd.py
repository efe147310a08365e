import math

import pytest

from loadgen.columns import columns_of
from loadgen.llmd import llmd_report
from loadgen.summarise import summarise_columns
from loadgen.summary import Slo


@pytest.fixture
def report(made):
    def reported(results, **manifest):
        columns = columns_of(results)
        whole = made.manifest | {"started_at": "2026-11-30T12:00:00+00:00"} | manifest
        return llmd_report(columns, summarise_columns(columns, whole, Slo()), whole)

    return reported


def test_the_aggregates_are_ours_in_its_fields_and_units(made, report):
    document = report([made.ok(n, 0.5, tpot=0.02) for n in range(10)] + [made.failed(10)])
    found = document["results"]["request_performance"]["aggregate"]
    assert document["version"] == "0.2"
    assert (found["requests"]["total"], found["requests"]["failures"]) == (11, 1)
    assert found["latency"]["time_to_first_token"]["units"] == "s"
    assert found["latency"]["time_to_first_token"]["p99"] == pytest.approx(0.5)
    assert (
        found["latency"]["time_per_output_token"] | {"units": "s/token", "mean": pytest.approx(0.02)}
        == (found["latency"]["time_per_output_token"])
    )
    assert found["throughput"]["request_rate"]["units"] == "queries/s"


def test_what_it_has_no_field_for_stands_beside(made, report):
    document = report([made.ok(0, 9.0), made.failed(1)])
    beside = document["results"]["observability"]["lanewise"]
    assert beside["lanes"]["short"]["outcomes"]["rejected"] == 1
    assert beside["lanes"]["short"]["ttft_p99_s_failures_infinite"] == "inf"


def test_an_open_loop_has_a_rate_and_a_closed_one_a_concurrency(made, report):
    load = report([made.ok(n) for n in range(5)])["scenario"]["load"]["standardized"]
    assert load["rate_qps"] == pytest.approx(1.25)
    closed = report([made.ok(n) for n in range(5)], closed_loop={"concurrency": 8})["scenario"]["load"]["standardized"]
    assert (closed["concurrency"], "rate_qps" in closed) == (8, False)


def test_a_run_without_an_answer_has_counts_and_no_latency(made, report):
    found = report([made.failed(0)])["results"]["request_performance"]["aggregate"]
    assert found["latency"] == {}
    assert not any(isinstance(value, float) and math.isnan(value) for value in found["throughput"].values())
