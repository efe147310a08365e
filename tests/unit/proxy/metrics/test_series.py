"""Own histograms count like the library's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Reference

from proxy.metrics import series
from proxy.metrics.series import Histogram

SETS = [series.TTFT, series.TPOT, series.QUEUE, series.E2E, series.TOKENS, series.RATIO, series.OVERHEAD]


@pytest.mark.parametrize("bounds", SETS)
def test_bounds_rise(bounds):
    assert list(bounds) == sorted(set(bounds))


def test_the_slo_borders_are_bounds():
    assert {1.0, 5.0} <= set(series.TTFT)
    assert 0.1 in series.TPOT


@given(st.lists(st.floats(min_value=0, max_value=200) | st.sampled_from(series.TTFT)))
def test_a_histogram_counts_as_the_library_does(values):
    ours = Histogram(series.TTFT)
    theirs = Reference("h", "h", buckets=series.TTFT, registry=CollectorRegistry())
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    samples = next(iter(theirs.collect())).samples
    expected = [(sample.labels["le"], sample.value) for sample in samples if sample.name == "h_bucket"]
    assert ours.buckets() == expected
    assert ours.count == len(values)
    assert ours.total == pytest.approx(sum(values))


def test_a_bound_is_written_as_the_library_writes_it():
    assert [le for le, _ in Histogram((0.25, 1.0)).buckets()] == ["0.25", "1.0", "+Inf"]


def test_a_bucket_shows_the_last_request_that_fell_into_it():
    times = Histogram((0.1, 1.0))
    for request_id, value in (("first", 0.5), ("second", 0.6), ("slow", 7.0)):
        times.observe_of(request_id, value)
    shown = {row[0]: (row[2].labels, row[2].value) for row in times.exposed() if len(row) == 3}
    assert shown == {"1.0": ({"request_id": "second"}, 0.6), "+Inf": ({"request_id": "slow"}, 7.0)}
    assert [row[:2] for row in times.exposed()] == times.buckets() == [("0.1", 0.0), ("1.0", 2.0), ("+Inf", 3.0)]


def test_an_id_that_openmetrics_does_not_allow_is_counted_and_not_shown():
    times = Histogram((1.0,))
    times.observe_of("x" * (series.LONGEST_EXEMPLAR + 1), 0.5)
    assert times.exposed() == [("1.0", 1.0), ("+Inf", 1.0)]
    times.observe_of("x" * series.LONGEST_EXEMPLAR, 0.5)
    assert len(times.exposed()[0]) == 3
